# SPDX-License-Identifier: Apache-2.0
"""Cost of the calls that an idle member makes to its store, for different
numbers of claims.

The benchmark covers the calls about jobs and leases that an idle scheduler
makes: the search for expired leases, the search for the holders of leases, the
check of paused jobs, the read of the store's clock, and the renewal of its
leases. None of these calls may read a claim. So a call costs the same with a
million claims as with a thousand.

    pytest -s -o timeout=0 tests/benchmarks/test_idle.py
"""

import uuid

import sqlalchemy as sa

from distperiodic.core.claim_request import NewLease
from distperiodic.core.claim_request import TakeOverRequest
from tests import claiming
from tests.benchmarks import filled
from tests.benchmarks import measuring

FEW, MANY = 1_000, 1_000_000
#: Number of calls in one measurement.
LOOKS = 200


def looks(store):
    """Return the calls that a member makes to its store, by name."""
    held, _ = uuid.uuid4().hex, store.now()
    claiming.claim(store, filled.JOB, store.now(), ['held'], lease=held,
                   holder='api-1', seconds=600.0, supersede=False)
    return {
        'leases that ended': lambda: store.take_over_expired(
            TakeOverRequest(
                [filled.JOB], ['api-2'], 100, silence_timeout=10.0),
            NewLease('again', 'api-1', 60.0)),
        'who holds leases': lambda: store.holders([filled.JOB]),
        'how jobs stand': lambda: store.attend({filled.JOB: 60.0}, {}),
        'the clock': store.now,
        'leases renewed': lambda: store.renew(
            [held], holder='api-1', seconds=600.0),
    }


def statements_of(look):
    """Return how many statements one call sends."""
    sent = []

    def count(connection, cursor, statement, *rest):
        sent.append(statement)
    # No other engine is in use.
    sa.event.listen(sa.Engine, 'before_cursor_execute', count)
    look()
    sa.event.remove(sa.Engine, 'before_cursor_execute', count)
    return len([one for one in sent if not one.startswith('BEGIN')])


def measured(url, objects):
    filled.fill(url, objects)
    store = filled.sql_store_of(url)
    found = {}
    for name, look in looks(store).items():
        number = statements_of(look)

        def act(look=look):
            for _ in range(LOOKS):
                look()
        found[name] = number, measuring.in_turns({'': lambda a=act: a})['']
    store.forget()
    store.close()
    return found


def test_an_idle_member_costs(database):
    kind, url = database
    few = measured(url, filled.object_ids(FEW))
    many = measured(url, filled.object_ids(MANY))
    with measuring.table(
            f'a look in {kind} when nothing is due, ms', 'look at',
            'statements', f'{FEW:,} claims', f'{MANY:,} claims', 'to it',
            file=__file__, versions=('SQLAlchemy', 'oslo.db')) as row:
        for name, (number, before) in few.items():
            _, after = many[name]
            row(name, number, measuring.ms(before.median / LOOKS),
                measuring.ms(after.median / LOOKS),
                measuring.times(after.median / before.median))
