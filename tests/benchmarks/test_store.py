# SPDX-License-Identifier: Apache-2.0
"""Claims in a table of a million rows, compared with the bare statement.

The bare statement is a compare-and-set UPDATE of the same number of rows of
the same table. The driver executes it in its own transaction, without leases
and without a history. If the database does not support RETURNING, the caller
does not learn which rows it changed. The statement is measured on the table of
distperiodic, where it changes no indexed column. It is also measured on a copy
with an index on the tick, as in a store that searches for due rows.

    pytest -s -o timeout=0 tests/benchmarks/test_store.py
"""

import functools
import gc
import json
import random
import uuid

import pytest

from distperiodic.adapters.local.memory import MemoryClaimStore
from distperiodic.adapters.sql import column_types
from distperiodic.adapters.sql import tables
from distperiodic.core.claim import HeldLease
from distperiodic.core.claim import State
from distperiodic.core.claim_request import NewLease
from tests import claiming
from tests.benchmarks import filled
from tests.benchmarks import measuring

OBJECTS = 1_000_000
#: Number of batches for each number of objects in a batch. Batches of
#: distperiodic and of the bare statement alternate, so that other load affects
#: both equally.
BATCHES = {1: 200, 100: 100, 500: 40, 1000: 20}
COPY = 'claims_by_tick'
_DONE = column_types.STATE_CODES[State.DONE]
_CLAIMED = column_types.STATE_CODES[State.CLAIMED]


@pytest.fixture(scope='module')
def objects():
    found = filled.object_ids(OBJECTS)
    # Exclude the objects that pytest has loaded from garbage collection, as
    # "distperiodic scheduler" does.
    gc.collect()
    gc.freeze()
    yield found
    gc.unfreeze()


def in_chance_order(objects):
    """Return an iterator over the objects in random order. All batches of a
    case use one iterator, so they claim no object twice.
    """
    left = list(objects)
    random.Random(18).shuffle(left)
    return iter(left)


def some(left, number):
    return [next(left) for _ in range(number)]


class Ours:
    """Batches that are claimed, then started, then finished."""

    def __init__(self, store, left):
        self.store = store
        self.left = left
        self.held = []

    def claim(self, size, number=1):
        batches = [some(self.left, size) for _ in range(number)]

        def act():
            tick = self.store.now()
            self.held = []
            for keys in batches:
                lease = uuid.uuid4().hex
                won = claiming.claim(
                    self.store, filled.JOB, tick, keys, lease=lease,
                    holder='api-1', seconds=600.0, supersede=True,
                    listing=False).won
                assert len(won) == size
                self.held.append((tick, keys, lease))
        return act

    def start(self, size):
        def act():
            self.held = [(tick, keys, self._started(tick, keys, lease))
                         for tick, keys, lease in self.held]
        return act

    def _started(self, tick, keys, lease):
        into = uuid.uuid4().hex
        granted = self.store.start(
            HeldLease(lease, filled.JOB, tick), keys,
            NewLease(into, 'worker-1', 600.0))
        assert len(granted) == len(keys)
        return into

    def finish(self, size):
        def act():
            for tick, keys, lease in self.held:
                assert len(self.store.finish(
                    HeldLease(lease, filled.JOB, tick), keys)) == len(keys)
        return act


class Bare:
    """The UPDATE alone."""

    def __init__(self, connection, url, job, table, left):
        self.connection = connection
        self.url = url
        self.job = job
        self.table = table
        self.left = left

    def statement(self, keys, tick, lease):
        among, parameters = self.among(keys)
        mark = filled.marks(self.url, 1)
        told = ('' if self.url.startswith('mysql')
                else ' RETURNING object, fence, attempt, tick')
        return (
            f'UPDATE {self.table} SET tick = {mark}, '  # noqa: S608
            f'settled = {mark}, state = {_CLAIMED}, fence = fence + 1, '
            f'lease = {mark} WHERE job = {mark} AND {among} '
            f'AND state = {_DONE} AND settled < {mark}{told}',
            (tick, tick, lease, self.job, *parameters, tick))

    def among(self, keys):
        if self.url.startswith('postgresql'):
            return 'object = ANY(%s::text[])', [keys]
        if self.url.startswith('sqlite'):
            return 'object IN (SELECT value FROM json_each(?))', [
                json.dumps(keys)]
        return (f'object IN ({filled.marks(self.url, len(keys))})',
                sorted(filled.texts(self.url, keys)))

    def claim(self, size, number=1):
        batches = [some(self.left, size) for _ in range(number)]

        def act():
            cursor = self.connection.cursor()
            for keys in batches:
                cursor.execute(*self.statement(
                    keys, filled.LAST + 1, uuid.uuid4().hex))
                won = (cursor.rowcount if self.url.startswith('mysql')
                       else len(cursor.fetchall()))
                assert won == size
                self.connection.commit()
        return act


def copied(connection, url):
    """Create a copy of the table of claims, with an index on the tick."""
    cursor = connection.cursor()
    name = tables.claim.name
    if url.startswith('postgresql'):
        cursor.execute(f'CREATE TABLE {COPY} (LIKE {name} INCLUDING ALL)')
    elif url.startswith('sqlite'):
        cursor.execute('SELECT sql FROM sqlite_master WHERE name = ?', [name])
        [made] = cursor.fetchone()
        cursor.execute(made.replace(name, COPY, 1))
    else:
        cursor.execute(f'CREATE TABLE {COPY} LIKE {name}')
    cursor.execute(f'CREATE INDEX {COPY}_tick ON {COPY} (job, tick)')
    cursor.execute(
        f'INSERT INTO {COPY} SELECT * FROM {name} '  # noqa: S608
        'ORDER BY object')
    connection.commit()
    filled.settle(connection, url, COPY)


def measured(ours, bare=None, indexed=None):
    """Return the objects per second of each case, by the size of a batch."""
    found = {}
    for size, number in BATCHES.items():
        cases = {'claim': functools.partial(ours.claim, size)}
        if bare is not None:
            cases['bare'] = functools.partial(bare.claim, size)
            cases['indexed'] = functools.partial(indexed.claim, size)
        cases['start'] = functools.partial(ours.start, size)
        cases['finish'] = functools.partial(ours.finish, size)
        figures = measuring.in_turns(cases, measuring.rounds(number))
        found[size] = {name: size / figure.median
                       for name, figure in figures.items()}
    return found


def test_claims_per_second_in_memory(objects):
    store = MemoryClaimStore()
    began = uuid.uuid4().hex
    claiming.claim(store, filled.JOB, filled.LAST, objects, lease=began,
                   holder='api-1', seconds=600.0, supersede=True)
    running = uuid.uuid4().hex
    store.start(
        HeldLease(began, filled.JOB, filled.LAST), objects,
        NewLease(running, 'api-1', 600.0))
    store.finish(HeldLease(running, filled.JOB, filled.LAST), objects)
    found = measured(Ours(store, in_chance_order(objects)))
    with measuring.table(
            f'{OBJECTS:,} claims in memory, objects/s', 'in a batch', 'claim',
            'start', 'finish', file=__file__) as row:
        for size, speeds in found.items():
            row(f'{size:,}', *(f'{speeds[name]:,.0f}'
                               for name in ('claim', 'start', 'finish')))


def test_claims_per_second(database, objects):
    kind, url = database
    job = filled.fill(url, objects)
    store = filled.sql_store_of(url)
    left = in_chance_order(objects)
    with filled.connected(url) as connection:
        copied(connection, url)
        bare = Bare(connection, url, job, tables.claim.name, left)
        indexed = Bare(connection, url, job, COPY, in_chance_order(objects))
        # Change the pages of both tables before the measurement, because the
        # first change of a page costs more.
        for warm in (bare, indexed):
            warm.claim(1000, 60)()
        found = measured(Ours(store, left), bare, indexed)
    store.close()
    with measuring.table(
            f'{OBJECTS:,} claims in {kind}, objects/s', 'in a batch', 'claim',
            'bare UPDATE', 'ours to it', 'and of an index', 'ours to it',
            'start', 'finish', file=__file__,
            versions=('SQLAlchemy', 'oslo.db')) as row:
        for size, speeds in found.items():
            ours = speeds['claim']
            row(f'{size:,}', f'{ours:,.0f}',
                f'{speeds["bare"]:,.0f}', f'{ours / speeds["bare"]:.0%}',
                f'{speeds["indexed"]:,.0f}',
                f'{ours / speeds["indexed"]:.0%}',
                f'{speeds["start"]:,.0f}', f'{speeds["finish"]:,.0f}')
