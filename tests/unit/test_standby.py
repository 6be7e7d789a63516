# SPDX-License-Identifier: Apache-2.0
"""The election of the active worker, in virtual time.

The world is a store with one row, a group, and workers that act in turn. At
any moment a worker may freeze or die, or may lose the store or its membership.
"""

import itertools

import hypothesis
import pytest
from hypothesis import strategies as st

from distperiodic.core.member import Member
from distperiodic.core.standby import HEAD_START
from distperiodic.core.standby import Election
from distperiodic.core.standby import ElectionRequest
from distperiodic.core.standby import Role
from distperiodic.core.standby import Standing
from distperiodic.core.standby import is_preferred

LEASE = 10.0
#: Seconds between two steps of a worker.
TURN = 0.25


class Row:
    """The row of the partition, with only the guarantees of the store."""

    def __init__(self):
        self.worker, self.fence, self.until, self.promoted = '', 0, 0.0, ''
        #: (instant, worker, fence) of each take-over.
        self.moves = []
        #: Number of requests to take over.
        self.asked = 0

    def read(self, now):
        return Standing(self.worker, self.fence, self.until - now,
                        self.promoted)

    def perform(self, request, worker, fence, now):
        if request is ElectionRequest.ACQUIRE:
            self.asked += 1
            if self.fence == fence and (
                    not self.worker or self.until <= now):
                self.worker, self.fence, self.promoted = (
                    worker, fence + 1, '')
                self.moves.append((now, worker, self.fence))
        elif request is ElectionRequest.RELEASE and self.worker == worker:
            self.worker, self.until = '', 0.0
        if request is not ElectionRequest.RELEASE and self.worker == worker:
            self.until = now + LEASE
        return self.read(now)


class Worker:
    def __init__(self, world, identity, preferred=''):
        self.world = world
        self.me = Member(identity, f'{next(world.numbers):016x}', 1)
        self.election = Election(self.me, lease=LEASE, preferred=preferred)
        self.frozen = self.cut_off = self.busy = False
        #: The request with which the worker waits for the store, or None.
        self.waiting = None
        self.away = False

    @property
    def role(self):
        return self.election.role

    def turn(self):
        now = self.world.now
        if self.waiting is not None:
            if self.away:
                return
            request, at, fence = self.waiting
            self.waiting = None
            self.election.answered(self.world.row.perform(
                request, self.me.process, fence, now), at)
        request = self.election.next(
            now, None if self.cut_off else self.world.members(), self.busy)
        if request is not None:
            self.election.requested(request, now)
            self.waiting = request, now, self.election.fence

    @property
    def starts(self):
        """Return True if the worker would start a run, unless the store
        refuses.
        """
        return (self.role is Role.ACTIVE
                and self.election.trusted(self.world.now))


class World:
    def __init__(self):
        self.now = 1000.0
        self.row = Row()
        self.numbers = itertools.count(1)
        self.workers = []
        #: For each process, the time from which it counts as out of its group.
        self.gone = {}

    def add(self, identity, **options):
        self.workers.append(Worker(self, identity, **options))
        return self.workers[-1]

    def members(self):
        return {one.me.process: one.me.identity for one in self.workers
                if self.gone.get(one.me.process, self.now + 1) > self.now}

    def die(self, worker):
        """Freeze a worker; its entry disappears after the session timeout."""
        self.freeze(worker)

    def freeze(self, worker):
        worker.frozen = True
        self.gone[worker.me.process] = self.now + LEASE

    def thaw(self, worker):
        worker.frozen = False
        self.gone.pop(worker.me.process)

    def run(self, seconds):
        end = self.now + seconds
        while self.now < end:
            self.now += TURN / 2
            for worker in self.workers:
                if not worker.frozen:
                    worker.turn()
            assert sum(one.starts for one in self.workers) <= 1

    def active(self):
        return [one.me.identity for one in self.workers
                if one.role is Role.ACTIVE]


@pytest.fixture
def world():
    return World()


def test_one_of_several_becomes_active_and_stays_so(world):
    for number in range(3):
        world.add(f'h:{number}')
    world.run(60)

    assert world.active() == ['h:0']
    assert len(world.row.moves) == 1
    assert [one.role for one in world.workers[1:]] == [Role.STANDBY] * 2


def test_a_dead_worker_is_replaced_within_the_session_timeout_and_1_s(world):
    first, _ = world.add('h:0'), world.add('h:1')
    world.run(20)
    world.die(first)
    died = world.now
    world.run(LEASE + 1)

    assert len(world.row.moves) == 2
    assert world.row.moves[1][0] - died <= LEASE + 1


def test_no_worker_takes_over_while_the_heartbeat_arrives(world):
    """The active worker is out of its group, but can reach the store."""
    first, _ = world.add('h:0'), world.add('h:1')
    world.run(20)
    first.cut_off = True
    world.gone[first.me.process] = 0.0
    asked = world.row.asked
    world.run(100)

    assert len(world.row.moves) == 1
    assert world.row.asked == asked, 'no request is sent to the store'
    assert first.starts


def test_no_worker_takes_over_while_the_active_worker_is_a_member(world):
    """The active worker is in its group, but it does not reach the store."""
    first, _ = world.add('h:0'), world.add('h:1')
    world.run(20)
    first.away = True
    world.run(LEASE - 2)
    assert first.starts
    world.run(100)
    assert not first.starts
    assert len(world.row.moves) == 1

    first.away = False
    world.run(2)
    assert first.starts
    assert len(world.row.moves) == 1


def test_no_worker_takes_over_that_cannot_read_the_members(world):
    first, other = world.add('h:0'), world.add('h:1')
    world.run(20)
    other.cut_off = True
    world.die(first)
    world.run(100)
    assert len(world.row.moves) == 1

    other.cut_off = False
    world.run(1)
    assert other.starts


def test_no_worker_takes_over_that_is_not_in_the_group(world):
    first, other = world.add('h:0'), world.add('h:1')
    world.run(20)
    world.gone[other.me.process] = 0.0
    world.die(first)
    world.run(100)

    assert len(world.row.moves) == 1


@pytest.mark.parametrize('seconds', [1, 5, LEASE - 1.5])
def test_a_short_pause_changes_nothing(world, seconds):
    first, _ = world.add('h:0'), world.add('h:1')
    world.run(20)
    world.freeze(first)
    world.run(seconds)
    world.thaw(first)
    world.run(20)

    assert len(world.row.moves) == 1
    assert first.starts


def test_a_worker_that_wakes_after_a_take_over_stands_by(world):
    first, other = world.add('h:0'), world.add('h:1')
    world.run(20)
    world.freeze(first)
    world.run(LEASE + 2)
    assert other.starts
    world.thaw(first)
    assert not first.starts, 'its lease has ended'
    world.run(50)

    assert first.role is Role.STANDBY
    assert len(world.row.moves) == 2


def test_a_worker_that_leaves_hands_over_once_its_runs_have_ended(world):
    first, other = world.add('h:0'), world.add('h:1')
    world.run(20)
    first.busy = True
    first.election.leave()
    assert first.role is Role.STOPPING
    world.run(3 * LEASE)
    assert len(world.row.moves) == 1
    assert first.election.trusted(world.now), 'its runs may continue'

    first.busy = False
    world.run(2)
    assert other.starts
    assert first.role is Role.STOPPING


def test_a_worker_that_asks_to_release_does_not_trust_its_lease(world):
    """The partition may be released before the worker receives the answer."""
    first = world.add('h:0')
    world.run(20)
    first.election.leave()
    first.turn()
    first.away = True
    first.turn()

    assert first.waiting[0] is ElectionRequest.RELEASE
    assert first.election.holds
    assert not first.election.trusted(world.now)


def test_a_release_that_failed_may_have_been_carried_out(world):
    first = world.add('h:0')
    world.run(20)
    election = first.election
    election.leave()
    election.requested(ElectionRequest.RELEASE, world.now)
    election.failed()
    assert not election.trusted(world.now)

    election.answered(world.row.read(world.now), world.now)
    assert election.trusted(world.now), 'it was not'


def test_a_worker_that_leaves_and_has_lost_the_partition_is_not_trusted(
        world):
    first, other = world.add('h:0'), world.add('h:1')
    world.run(20)
    first.election.leave()
    other.election.leave()
    world.run(3)

    assert first.role is other.role is Role.STOPPING
    assert not first.election.trusted(world.now)
    assert not other.election.trusted(world.now)


def test_a_worker_that_left_and_rejoined_may_become_active_again(world):
    first, other = world.add('h:0'), world.add('h:1')
    world.run(20)
    first.election.leave()
    world.run(3)
    assert other.starts

    first.election.rejoin()
    world.run(3)
    assert first.role is Role.STANDBY

    other.election.leave()
    world.run(3)
    assert first.role is Role.ACTIVE


def test_a_worker_that_rejoins_before_its_last_run_ended_is_free_again(world):
    first, other = world.add('h:0'), world.add('h:1')
    world.run(20)
    first.busy = True
    first.election.leave()
    world.run(1)
    first.election.rejoin()
    world.run(1)
    assert first.role is Role.STOPPING

    first.busy = False
    world.run(3)
    assert {first.role, other.role} == {Role.ACTIVE, Role.STANDBY}


def test_the_chosen_worker_follows_once_the_runs_have_ended(world):
    first = world.add('h:0')
    world.add('h:1')
    chosen = world.add('h:2')
    world.run(20)
    first.busy = True
    world.row.promoted = 'h:2'
    world.run(3 * LEASE)
    assert first.role is Role.STOPPING
    assert len(world.row.moves) == 1

    first.busy = False
    world.run(3)
    assert world.active() == ['h:2']
    assert chosen.starts
    assert first.role is Role.STANDBY
    assert world.row.promoted == ''


def test_a_choice_of_a_worker_that_is_gone_does_not_stop_the_active_one(
        world):
    first, _ = world.add('h:0'), world.add('h:1')
    world.run(20)
    world.row.promoted = 'h:9'
    world.run(20)

    assert first.starts
    assert len(world.row.moves) == 1


def test_the_chosen_worker_takes_over_while_the_members_are_unknown(world):
    world.add('h:0')
    chosen = world.add('h:1')
    world.run(20)
    for worker in world.workers:
        worker.cut_off = True
    world.row.promoted = 'h:1'
    world.run(3)

    assert chosen.starts
    assert world.active() == ['h:1']


def test_the_chosen_worker_replaces_a_member_without_a_heartbeat(world):
    """The chosen worker waits until the lease of the member has expired."""
    first = world.add('h:0')
    chosen = world.add('h:1')
    world.run(20)
    first.away = True
    world.row.promoted = 'h:1'
    world.run(LEASE - 2)
    assert len(world.row.moves) == 1
    world.run(3)

    assert chosen.starts


def test_if_the_chosen_worker_does_not_come_another_one_does(world):
    world.add('h:0'), world.add('h:1')
    chosen = world.add('h:2')
    world.run(20)
    world.row.promoted = 'h:2'
    world.run(TURN)
    chosen.away = True
    world.run(2)
    chosen.frozen = True
    world.run(2 * LEASE)

    assert len(world.active()) == 1
    assert world.active() != ['h:2']


def test_the_preferred_worker_goes_first_at_a_take_over(world):
    first = world.add('h:0', preferred='b')
    world.run(20)
    world.add('a:0', preferred='b')
    world.add('b:0', preferred='b')
    world.run(20)
    assert world.active() == ['h:0'], 'it does not take what another has'
    world.die(first)
    world.run(LEASE + 1)

    assert world.active()[1:] == ['b:0']
    assert HEAD_START < 1


def test_a_new_partition_waits_for_its_preferred_worker(world):
    world.add('a:0', preferred='b:1')
    world.run(LEASE - 2)
    assert world.active() == []
    world.add('b:1', preferred='b:1')
    world.run(1)

    assert world.active() == ['b:1']


def test_a_new_partition_does_not_wait_for_ever(world):
    world.add('a:0', preferred='b:1')
    world.run(LEASE + 2)

    assert world.active() == ['a:0']


@pytest.mark.parametrize(('identity', 'preferred', 'answer'), [
    ('h:1', 'h:1', True), ('h:1', 'h', True), ('h:1', 'h:2', False),
    ('h:1', '', False), ('name', 'name', True), ('h2:1', 'h', False)])
def test_a_preference_names_a_host_or_a_member(identity, preferred, answer):
    assert is_preferred(identity, preferred) is answer


@hypothesis.settings(deadline=None)
@hypothesis.given(st.lists(st.tuples(
    st.sampled_from(['freeze', 'thaw', 'away', 'back', 'cut off', 'joined',
                     'busy', 'idle', 'promote', 'run']),
    st.integers(0, 2), st.floats(0.1, 25)), max_size=30))
def test_at_most_one_worker_trusts_its_lease_at_any_time(steps):
    """Once all faults have ended, one worker is active."""
    world = World()
    for number in range(3):
        world.add(f'h:{number}')
    world.run(5)
    for what, number, seconds in steps:
        worker = world.workers[number]
        match what:
            case 'freeze':
                world.freeze(worker)
            case 'thaw' if worker.frozen:
                world.thaw(worker)
            case 'away' | 'back':
                worker.away = what == 'away'
            case 'cut off':
                worker.cut_off = True
                world.gone.setdefault(worker.me.process, world.now + LEASE)
            case 'joined':
                worker.cut_off = False
                if not worker.frozen:
                    world.gone.pop(worker.me.process, None)
            case 'busy' | 'idle':
                worker.busy = what == 'busy'
            case 'promote':
                world.row.promoted = worker.me.identity
        world.run(seconds)
    for worker in world.workers:
        worker.frozen = worker.away = worker.cut_off = worker.busy = False
    world.gone.clear()
    world.run(4 * LEASE)

    assert sum(one.starts for one in world.workers) == 1
    assert [fence for _, _, fence in world.row.moves] == list(
        range(1, len(world.row.moves) + 1))
