# SPDX-License-Identifier: Apache-2.0
"""A store in a file of its host, while the host's wall clock is set."""

import pytest

from distperiodic.adapters.local.clock import SystemClock
from distperiodic.adapters.sql import host_clock
from distperiodic.adapters.sql import schema
from distperiodic.adapters.sql.store import SqlClaimStore
from distperiodic.core.claim import HeldLease
from distperiodic.core.claim_request import NewLease
from distperiodic.core.claim_request import TakeOverRequest
from distperiodic.core.schedule import SECOND
from distperiodic.operator import task_pools
from distperiodic.operator.group_reader import GroupStore
from tests import claiming
from tests import dispensed
from tests.conformance.test_step_store import Board

HOUR = 3600
LEASE = 60.0


class Host:
    """The clocks that all stores of a test read."""

    def __init__(self):
        self.boot = 'first'
        self.up = 1000.0
        self.wall = 1_790_000_000.0

    def sleep(self, seconds):
        self.up += seconds
        self.wall += seconds


@pytest.fixture
def host(monkeypatch):
    found = Host()
    monkeypatch.setattr(SystemClock, 'now',
                        lambda self: round(found.wall * SECOND))
    monkeypatch.setattr(SystemClock, 'monotonic',
                        lambda self: found.up)
    # The kernel creates the boot id. The product has no public interface to
    # replace it.
    monkeypatch.setattr(host_clock, '_boot_id', lambda: found.boot)
    return found


@pytest.fixture
def open_store(host, tmp_path):
    url = f'sqlite:///{tmp_path}/claims.sqlite'
    schema.sync(url)
    made = []

    def opened():
        made.append(SqlClaimStore(url, namespace='tests'))
        return made[-1]
    yield opened
    for one in made:
        one.close()


@pytest.fixture
def store(open_store):
    return open_store()


def claimed(store, tick):
    won = claiming.claim(store, 'poll', tick, ['a'], lease=f'lease-{tick}',
                         holder='one', seconds=LEASE, supersede=False)
    return [claim.object for claim in won.won]


def overdue(store, name='again'):
    return store.take_over_expired(
        TakeOverRequest(['poll'], [], 5), NewLease(name, 'two', LEASE))


@pytest.mark.parametrize('hours', [1, -1])
def test_a_lease_lasts_as_long_as_it_was_made_for(
        host, open_store, store, hours):
    assert claimed(store, store.now()) == ['a']

    host.wall += hours * HOUR
    host.sleep(LEASE - 1)
    assert overdue(open_store()) == []
    host.sleep(2)
    assert len(overdue(open_store(), 'later')) == 1


def test_a_lease_is_renewed_though_the_clock_was_set(host, store):
    tick = store.now()
    claimed(store, tick)

    for hours in 1, -2, 5:
        host.wall += hours * HOUR
        host.sleep(LEASE - 1)
        assert overdue(store, f'after-{hours}') == []
        assert store.renew([f'lease-{tick}'], holder='one', seconds=LEASE)


def test_all_processes_of_the_host_have_one_clock(host, open_store):
    first, second = open_store(), open_store()
    claimed(first, first.now())
    second.now()
    host.sleep(100)

    host.wall -= HOUR
    claimed(first, first.now())
    host.sleep(10)

    assert first.now() == second.now() == open_store().now()
    # 110 s have passed, the last 10 of them at half speed.
    assert first.now() == (1_790_000_000 + 105) * SECOND


def test_ticks_go_on_after_the_clock_was_set_back(host, store):
    spacing = 10 * SECOND
    store.finish(HeldLease('none', 'poll', 0), ['a'])
    ran = []
    host.wall += 7200
    for step in range(60):
        tick = store.now() // spacing * spacing
        if claimed(store, tick):
            ran.append((step, tick))
            store.start(
                HeldLease(f'lease-{tick}', 'poll', tick), ['a'],
                NewLease(f'run-{tick}', 'one', LEASE))
            store.finish(HeldLease(f'run-{tick}', 'poll', tick), ['a'])
        if step == 20:
            host.wall -= HOUR
        host.sleep(10)

    ticks = [tick for _, tick in ran]
    assert len(ticks) == len(set(ticks))
    steps = [step for step, _ in ran]
    assert max(later - earlier for earlier, later in zip(
        steps, steps[1:], strict=False)) == 2


def test_after_a_boot_leases_end_when_they_were_to(host, open_store):
    before = open_store()
    claimed(before, before.now())

    host.boot = 'second'
    host.up = 10.0
    host.wall += 30
    after = open_store()

    assert overdue(after) == []
    host.sleep(31)
    assert len(overdue(after, 'later')) == 1


def test_a_reader_that_runs_alone_after_a_boot_is_answered(host, open_store):
    before = open_store()
    before.finish(HeldLease('none', 'poll', 0), ['a'])

    host.boot = 'second'
    host.up = 10.0
    host.wall = 0.0

    assert open_store().now() == 1_790_000_000 * SECOND


def test_a_step_has_the_start_time_of_the_clock_for_ticks(host, tmp_path):
    url = f'sqlite:///{tmp_path}/claims.sqlite'
    schema.sync(url)
    board = Board(url)
    board.client.submit('two')
    board.run()
    host.wall += HOUR
    task = board.client.submit('two')
    lease = next(one for one in board.take()
                 if one.claims[0].object == task)
    granted = board.begin(lease)

    created = board.client.get(task).created_at
    running = board.client.get(task).steps[0].normal.started_at
    board.end(lease, granted)
    ended = board.client.get(task).steps[0].normal.started_at
    board.close()

    assert (running, ended) == (created, created)


def test_a_pause_between_two_readings_moves_no_start(
        host, tmp_path, monkeypatch):
    """The machine is so busy that the process pauses before each reading."""
    url = f'sqlite:///{tmp_path}/claims.sqlite'
    schema.sync(url)
    board = Board(url)
    task = board.client.submit('two')
    lease = next(one for one in board.take()
                 if one.claims[0].object == task)
    board.begin(lease)
    started = board.client.get(task).steps[0].normal.started_at
    read = host_clock.HostClock.read

    def pause_and_read(self):
        host.sleep(0.2)
        return read(self)
    monkeypatch.setattr(host_clock.HostClock, 'read', pause_and_read)

    assert board.client.get(task).steps[0].normal.started_at == started
    board.close()


def test_a_bucket_ends_by_the_clock_for_ticks(host, tmp_path):
    url = f'sqlite:///{tmp_path}/claims.sqlite'
    schema.sync(url)
    dispenser = dispensed.dispenser(url, 'nodes', bucket_timeout=60)
    dispenser.recreate_task_pool({'a': 1, 'b': 2})
    host.wall += HOUR
    dispenser.assign_tasks(1, 'ann')

    store = GroupStore(url, 'distperiodic')
    [bucket] = task_pools.buckets(store, 'nodes')
    store.close()
    dispenser.close()

    assert bucket.until == round((host.wall + 60) * SECOND)
