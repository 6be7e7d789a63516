# SPDX-License-Identifier: Apache-2.0
"""Work that waits for a worker, as operators read it in every database."""

import collections
import datetime
import uuid

import pytest

from distperiodic import tasks
from distperiodic.adapters.sql.store import SqlClaimStore
from distperiodic.core.claim import Failure
from distperiodic.core.claim import HeldLease
from distperiodic.core.claim_request import NewLease
from distperiodic.operator import waiting as queries
from distperiodic.operator.group_reader import GroupStore
from tests import claiming
from tests.configured import configuration

SECOND = 1_000_000
World = collections.namedtuple('World', 'store group client now')


@pytest.fixture
def world(database_url):
    group = f'tests-{uuid.uuid4().hex[:8]}'
    store = SqlClaimStore(database_url, namespace=group)
    client = tasks.Client(configuration(connection=database_url, group=group),
                          workflows={})
    made = World(store, GroupStore(database_url, group),
                 client, store.now())
    yield made
    made.group.close()
    client.close()
    store.close()


def claim(world, age, *objects, job='poll', **options):
    """Claim *objects* at the tick *age* seconds ago; return the lease."""
    lease = uuid.uuid4().hex
    won = claiming.claim_at_tick(
        world.store, job, world.now - age * SECOND, objects, lease=lease,
        holder='api-1', seconds=600.0, supersede=True, **options).won
    assert len(won) == len(objects)
    return lease


def start(world, age, lease, *objects, job='poll'):
    running = uuid.uuid4().hex
    world.store.start(
        HeldLease(lease, job, world.now - age * SECOND), objects,
        NewLease(running, 'w-1', 600.0))
    return running


def test_nothing_waits_in_a_group_without_claims(world):
    assert queries.waiting(world.group) == []
    assert queries.starving(world.group, 1.0, 9) == []


def test_a_claim_waits_until_its_run_is_started(world):
    lease = claim(world, 30, 'a', 'b', 'c')
    other = claim(world, 20, 'x', job='sync')

    poll, sync = queries.waiting(world.group)

    assert poll == ('poll', 3, world.now - 30 * SECOND, 'a', True, True)
    assert sync == ('sync', 1, world.now - 20 * SECOND, 'x', True, True)

    running = start(world, 30, lease, 'a')
    start(world, 20, other, 'x', job='sync')
    [poll] = queries.waiting(world.group)
    assert poll[1:] == (2, world.now - 30 * SECOND, 'b', True, True)

    # Neither an end nor a wait for a retry is work that waits for a worker.
    start(world, 30, lease, 'b', 'c')
    world.store.fail(
        HeldLease(running, 'poll', world.now - 30 * SECOND),
        [Failure('a', 'no')], NewLease(uuid.uuid4().hex, '', 60.0))
    assert queries.waiting(world.group) == []


def test_a_claim_that_supersedes_another_waits_since_the_first(world):
    claim(world, 40, 'a')
    claim(world, 30, 'a', 'b')
    claim(world, 20, 'a', 'b')

    [poll] = queries.waiting(world.group)

    assert poll == ('poll', 2, world.now - 40 * SECOND, 'a', True, True)


def test_objects_that_are_superseded_again_and_again_starve(world):
    period = 10 * SECOND
    world.store.adopt({'poll': f'every {period}', 'sync': f'every {period}'})
    for age in (45, 35, 25):
        lease = claim(world, age, 'a', 'b')
    claim(world, 5, 'young', job='sync')
    claim(world, 500, 'own', rule='every 3600000000')
    world.store.adopt({'alone': f'every {period}'})
    claim(world, 600, 'claimed once', job='alone')

    alone, first, second = queries.starving(world.group, 3.0, 9)

    assert (alone.job, alone.superseded) == ('alone', False)
    assert first[:3] == ('poll', 'a', world.now - 45 * SECOND)
    assert first.superseded
    assert second.object == 'b'
    assert first.periods >= 4.5
    assert [one.object for one in queries.starving(world.group, 3.0, 1)] == [
        'claimed once']
    assert queries.starving(world.group, alone.periods + 1000, 9) == []

    start(world, 25, lease, 'a')
    assert [one.object for one in queries.starving(world.group, 3.0, 9)] == [
        'claimed once', 'b']


def test_a_schedule_of_a_later_release_starves_nothing(world):
    world.store.adopt({'poll': 'at dawn'})
    claim(world, 45, 'a')

    assert queries.starving(world.group, 1.0, 9) == []
    assert len(queries.waiting(world.group)) == 1


def test_only_some_leases_are_read_however_many_there_are(world):
    """The oldest and the newest leases are read, and all are counted."""
    # The object of the newest lease has waited longest.
    claim(world, 900, 'old')
    for at in range(30):
        claim(world, 200 - at, f'o-{at}')
    claim(world, 100, 'old')

    [poll] = queries.waiting(world.group)

    assert poll == ('poll', 31, world.now - 900 * SECOND, 'old', True, False)


def test_a_ready_step_waits_until_it_is_claimed_and_started(world):
    first = world.client.submit('a.check', {})
    world.client.submit('a.check', {})
    world.client.submit('b.check', {})
    # A delayed step waits for its time, and for no worker.
    world.client.submit('b.check', {}, at=datetime.datetime.now(
        datetime.UTC) + datetime.timedelta(days=1))

    a, b = queries.waiting(world.group)
    assert a[:2] == ('task:a.check', 2)
    assert (a.object, a.claimed, a.complete) == (first, False, True)
    assert (b.job, b.number) == ('task:b.check', 1)
    since = a.since

    [lease] = world.store.steps.take(
        [{'task:a.check': 1}], None,
        NewLease(uuid.uuid4().hex, 'api-1', 600.0))
    a, _ = queries.waiting(world.group)
    # The claimed step has waited since it became ready.
    assert (a.number, a.object, a.since, a.claimed) == (
        2, first, since, True)

    world.store.start(
        lease.held, [first], NewLease(uuid.uuid4().hex, 'w-1', 600.0))
    a, _ = queries.waiting(world.group)
    assert (a.number, a.claimed) == (1, False)
