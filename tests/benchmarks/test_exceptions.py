# SPDX-License-Identifier: Apache-2.0
"""Cost of the exceptions of a tick of a million objects.

A million objects of one job miss a tick, in the statements of 500 objects that
schedulers use. The same skips without the record of the exceptions, and the
claims of a healthy tick, show what the record costs. Afterwards one object of
the tick is looked up, as ``distperiodic why --at`` does.

    pytest -s -o timeout=0 tests/benchmarks/test_exceptions.py
"""

import contextlib
import uuid
from unittest import mock

import sqlalchemy as sa

from distperiodic.adapters.sql import history
from distperiodic.adapters.sql import tables
from distperiodic.core.claim import SkippedBy
from distperiodic.core.claim_request import SkipRequest
from distperiodic.operator import exception_map
from distperiodic.operator import queries
from distperiodic.operator.group_reader import GroupStore
from tests import claiming
from tests.benchmarks import filled
from tests.benchmarks import measuring

OBJECTS, TOGETHER = 1_000_000, 500
TICK = filled.LAST + 60_000_000


def batches(objects):
    for at in range(0, len(objects), TOGETHER):
        yield objects[at:at + TOGETHER]


def skip_all(store, objects, tick):
    for keys in batches(objects):
        assert len(store.skip(SkipRequest(
            filled.JOB, tick, keys, 'api-1', SkippedBy.MISFIRE,
            'no process ran'))) == len(keys)


def claim_all(store, objects, tick):
    for keys in batches(objects):
        claiming.claim(store, filled.JOB, tick, keys, lease=uuid.uuid4().hex,
                       holder='api-1', seconds=600.0, supersede=False,
                       listing=False)


def statements(act, *arguments):
    """Return the seconds of *act*, and the number of its statements about
    exceptions.
    """
    found = []

    def count(connection, cursor, statement, *rest):
        found.append(tables.exception.name in statement)
    sa.event.listen(sa.Engine, 'before_cursor_execute', count)
    try:
        return measuring.seconds_of(lambda: act(*arguments)), sum(found)
    finally:
        sa.event.remove(sa.Engine, 'before_cursor_execute', count)


def recorded(store, tick):
    """Return the numbers of rows, of ids and of bytes of a tick."""
    ids = tables.exception.c.objects
    return store.database.read(lambda connection: connection.execute(
        sa.select(
            sa.func.count(),
            sa.func.coalesce(sa.func.sum(sa.case(
                (ids.is_not(None), tables.exception.c.number), else_=0)), 0),
            sa.func.coalesce(sa.func.sum(sa.func.length(ids)), 0))
        .where(tables.exception.c.tick == tick)).one())


def test_the_exceptions_of_a_tick_cost(database):
    kind, url = database
    objects = filled.object_ids(OBJECTS)
    filled.fill(url, objects)
    store = filled.sql_store_of(url)
    with measuring.table(
            f'a tick of {OBJECTS:,} objects in {kind}', 'all objects are',
            'seconds', 'statements for exceptions', 'rows', 'ids', 'bytes',
            file=__file__, versions=('SQLAlchemy', 'oslo.db')) as row:
        for at, (name, act, record) in enumerate((
                ('skipped, and not recorded', skip_all, False),
                ('skipped', skip_all, True), ('claimed', claim_all, True))):
            with (contextlib.nullcontext() if record
                  else mock.patch.object(history, 'record')):
                seconds, number = statements(act, store, objects, TICK + at)
            row(name, f'{seconds:.1f}', number, *(
                f'{value:,}' for value in recorded(store, TICK + at)))
    with contextlib.closing(GroupStore(url, filled.SPACE)) as reader:
        reads = measuring.in_turns({
            'one object': lambda: lambda: queries.ticks(
                reader, filled.JOB, objects[0], [TICK + 1]),
            'the map of a job': lambda: lambda: exception_map.read(
                reader, filled.JOB, [TICK, TICK + 1])})
    with measuring.table(
            f'reads of a tick with {OBJECTS:,} exceptions in {kind}, ms',
            'read', 'median', file=__file__,
            versions=('SQLAlchemy', 'oslo.db')) as row:
        for name, took in reads.items():
            row(name, measuring.ms(took.median))
    store.close()
