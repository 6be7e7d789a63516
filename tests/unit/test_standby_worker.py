# SPDX-License-Identifier: Apache-2.0
"""A worker of a partition with one active worker: the runs that it starts, and
its requests to the store.
"""

import random
import types

import pytest

from distperiodic.adapters.local.memory import MemoryClaimStore
from distperiodic.core import message
from distperiodic.core import schedule
from distperiodic.core.member import Member
from distperiodic.core.member import View
from distperiodic.core.refusal import Refusal
from distperiodic.core.ring import Ring
from distperiodic.core.standby import Active
from distperiodic.core.standby import Role
from distperiodic.core.standby import Standing
from distperiodic.flow.worker.standby import RoleCallbacks
from distperiodic.flow.worker.standby import Standby
from distperiodic.service.partition_role import PartitionRole
from tests import claiming
from tests.logged import events
from tests.logged import lines
from tests.unit import world as worlds
from tests.views import Views

ME = Member('h:0', '00c0ffee00c0ffee', 1, slots=10)
OTHER = 'h:1~9f2c41d07be3a655'
SENDER = 'api-1~9f2c41d07be3a655~1~f1.t1.r40'
TICK = worlds.BEGIN * schedule.SECOND
LEASE = 10.0


class Row:
    """The row of the partition, set by the test."""

    def __init__(self):
        self.standing = Standing('', 0, 0.0, '')
        self.asked = []
        self.taking_part = {ME.process}

    def beat(self, worker, role, *, seconds):
        self.asked.append(role)
        return self.standing

    def acquire(self, worker, *, fence, seconds, members):
        self.asked.append('acquire')
        self.members = members
        shared = tuple(set(members or ()) - self.taking_part)
        if shared:
            return self.standing._replace(shared=shared)
        self.standing = Standing(worker.worker, fence + 1, seconds, '')
        return self.standing

    def release(self, worker, *, fence):
        assert fence == self.standing.fence
        self.asked.append('release')
        self.standing = Standing('', self.standing.fence, 0.0, '')
        return self.standing

    def depart(self, worker):
        self.asked.append('depart')

    def is_in_force(self, active):
        return (active.worker, active.fence) == self.standing[:2]


class Store(MemoryClaimStore):
    """A store with the row of one partition."""

    def __init__(self, clock, row):
        super().__init__(clock)
        self.row = row

    @property
    def partitions(self):
        return self.row

    def start(self, lease, objects, into, active=None):
        if active is not None and not self.row.is_in_force(active):
            return []
        return super().start(lease, objects, into)


class Desk:
    def __init__(self):
        self.clock, self.row = worlds.Clock(), Row()
        self.store = Store(self.clock, self.row)
        self.line = worlds.StoreQueue(self.store)
        self.runs, self.reports, self.roles = [], [], []
        self.losses = 0
        self.members = {ME.process: ME.identity}
        self.busy = False
        self.standby = Standby(
            'p', ME, store=self.line, clock=self.clock,
            members=lambda: self.members,
            callbacks=RoleCallbacks(
                busy=lambda: self.busy or self.grants.busy,
                changed=lambda: self.roles.append(self.standby.role),
                lost=self.lose), lease=LEASE)
        self.grants = worlds.run_leases(
            {'poll': worlds.job('poll')}, store=self.line, clock=self.clock,
            lease=60.0, run=self.runs.append,
            report=lambda report, to: self.reports.append(report),
            new_lease=lambda: 'new', random=random.Random(1), shared=True,
            elected=self.standby)
        self.sent = 0

    def lose(self):
        self.losses += 1

    def live(self, seconds):
        end = self.clock.monotonic() + seconds
        while self.clock.monotonic() < end:
            self.standby.sweep()
            self.clock.advance(0.25)
        self.standby.sweep()

    def batch(self, *objects):
        """Claim *objects* as a scheduler does; return the batch."""
        self.sent += 1
        lease = f'lease-{self.sent}'
        won = claiming.claim(self.store, 'poll', TICK, objects, lease=lease,
                             holder='api-1', seconds=600, supersede=False).won
        return message.Batch(
            f'b{self.sent}', 'poll', TICK, list(objects),
            [one.fence for one in won], [one.attempt for one in won], SENDER,
            ME.entry, lease, 'p')

    def accept(self, *objects):
        batch = self.batch(*objects)
        self.grants.accept(batch)
        return batch

    def refused(self):
        return [refusal for report in self.reports
                for _, refusal in report.refused]


@pytest.fixture
def desk():
    return Desk()


def test_the_active_worker_starts_runs_under_its_fence(desk):
    desk.live(1)
    assert desk.roles == [Role.STANDBY, Role.ACTIVE]
    assert desk.standby.active() == Active('p', ME.process, 1)

    batch = desk.accept('a')
    assert [run.objects for run in desk.runs] == [['a']]
    assert desk.grants.may_start(batch) is None


def test_a_worker_that_stands_by_refuses_at_once_without_asking(desk):
    desk.row.standing = Standing(OTHER, 4, 100.0, '')
    desk.live(1)
    desk.accept('a', 'b')

    assert desk.refused() == [Refusal.NOT_ACTIVE] * 2
    assert desk.runs == []
    assert 'acquire' not in desk.row.asked


def test_the_store_refuses_one_that_only_believes_to_be_active(desk):
    desk.live(1)
    desk.row.standing = Standing(OTHER, 2, LEASE, '')
    batch = desk.accept('a')

    assert desk.refused() == [Refusal.NOT_ACTIVE]
    assert desk.runs == []
    assert not desk.grants.has(batch.id, SENDER)


def test_a_worker_that_lost_the_partition_starts_nothing(desk, caplog):
    caplog.set_level('INFO')
    desk.live(1)
    batch = desk.accept('a')
    desk.row.standing = Standing(OTHER, 2, LEASE, '')
    desk.live(2)

    assert desk.roles[-1] is Role.STANDBY
    assert desk.grants.may_start(batch) is Refusal.NOT_ACTIVE
    assert desk.losses == 1
    assert events(caplog) == ['partition standby', 'partition active',
                              'partition lost', 'partition standby']


def test_a_worker_that_loses_the_partition_while_it_leaves_is_notified(desk):
    desk.live(1)
    desk.busy = True
    desk.standby.leave()
    desk.live(1)
    assert desk.losses == 0

    desk.row.standing = Standing(OTHER, 2, LEASE, '')
    desk.live(2)
    assert desk.losses == 1


def test_to_release_the_partition_is_not_to_lose_it(desk):
    desk.live(1)
    desk.standby.leave()
    desk.live(1)

    assert 'release' in desk.row.asked
    assert desk.losses == 0


@pytest.mark.parametrize('worker', ['', OTHER])
def test_a_worker_notices_two_changes_of_the_row_at_one_read(desk, worker):
    """The row shows that another worker took over, and possibly released the
    partition again.
    """
    desk.live(1)
    desk.busy = True
    desk.row.standing = Standing(worker, 3, 0.0, '')
    desk.live(2)

    assert desk.losses == 1
    assert Role.STANDBY in desk.roles[2:]


def test_the_store_gets_the_members_of_the_group(desk):
    desk.row.taking_part.add(OTHER)
    desk.members = {ME.process: ME.identity, OTHER: 'h:1'}
    desk.live(1)
    assert desk.row.members == {OTHER}


def test_the_store_learns_that_the_group_is_unknown(desk):
    desk.members = None
    desk.row.standing = Standing('', 1, 0.0, ME.identity)
    desk.live(1)
    assert desk.row.asked.count('acquire') == 1
    assert desk.row.members is None


def test_a_worker_that_was_frozen_starts_nothing_before_it_has_asked(desk):
    desk.live(1)
    batch = desk.accept('a')
    desk.clock.advance(LEASE)

    assert desk.standby.active() is None
    assert desk.grants.may_start(batch) is Refusal.NOT_ACTIVE


def test_runs_go_on_while_their_worker_hands_over_and_none_starts(desk):
    desk.live(1)
    batch = desk.accept('a')
    desk.busy = True
    desk.standby.leave()
    desk.live(2 * LEASE)

    assert desk.grants.may_start(batch) is None
    desk.accept('b')
    assert desk.refused() == [Refusal.NOT_ACTIVE]
    assert 'release' not in desk.row.asked
    desk.busy = False
    desk.live(1)
    assert 'release' in desk.row.asked


def test_a_start_in_progress_delays_the_release_of_the_partition(desk):
    """The store has committed the start, but the answer arrives after the
    answers to other requests.
    """
    desk.live(1)
    desk.line.slow = True
    desk.accept('a')
    start = desk.line.asked.pop()
    answer = start[0](desk.store)
    desk.line.slow = False
    desk.standby.leave()
    desk.live(2)
    assert 'release' not in desk.row.asked

    start[1](answer)
    assert [run.objects for run in desk.runs] == [['a']]
    desk.live(1)
    assert 'release' in desk.row.asked


def test_no_run_begins_while_the_release_of_the_partition_is_unanswered(
        desk):
    desk.live(1)
    batch = desk.accept('a')
    desk.line.slow = True
    desk.standby.leave()
    desk.standby.sweep()

    assert len(desk.line.asked) == 1
    assert desk.grants.may_start(batch) is Refusal.NOT_ACTIVE


def test_a_worker_without_store_and_group_cancels_its_runs_once(desk):
    desk.live(1)
    desk.busy = True
    desk.line.slow = True
    desk.live(2 * LEASE)
    assert desk.losses == 0, 'its group still knows it'

    desk.members = None
    desk.live(LEASE)
    assert desk.losses == 1


@pytest.mark.parametrize(('back', 'asked'), [(True, False), (False, True)])
def test_a_take_over_that_waited_for_the_store_reads_the_members_again(
        desk, back, asked):
    """The active worker may have returned in the meantime."""
    desk.members[OTHER] = 'h:1'
    desk.row.standing = Standing(OTHER, 1, 0.1, '')
    desk.live(1)
    desk.line.slow = True
    del desk.members[OTHER]
    desk.live(1)
    assert len(desk.line.asked) == 1
    if back:
        desk.members[OTHER] = 'h:1'
    desk.line.slow = False
    desk.line.answer()

    assert ('acquire' in desk.row.asked) is asked


def test_a_worker_takes_over_as_soon_as_it_reads_that_it_may(desk):
    """No member need leave the group when the partition is released, so only
    the answer to a heartbeat shows it.
    """
    desk.members[OTHER] = 'h:1'
    desk.row.taking_part.add(OTHER)
    desk.row.standing = Standing(OTHER, 1, LEASE, '')
    desk.live(1)
    assert desk.standby.role is Role.STANDBY

    desk.row.standing = Standing('', 1, 0.0, '')
    desk.clock.advance(1)
    desk.standby.sweep()

    assert desk.standby.role is Role.ACTIVE


def test_after_its_end_a_worker_sends_no_heartbeat(desk):
    desk.live(1)
    desk.standby.leave()
    desk.standby.depart()
    asked = len(desk.row.asked)
    desk.live(5)

    assert desk.row.asked[asked:] == []
    assert desk.row.asked[-1] == 'depart'


def test_a_worker_waits_for_those_that_run_the_partition_without_election(
        desk, caplog):
    desk.members = {ME.process: ME.identity, OTHER: 'h:1'}
    desk.live(5)

    assert desk.roles == [Role.STANDBY]
    assert len(desk.row.asked) < 12
    [line] = lines(caplog, 'partition shared')
    assert line['workers'] == 'h:1'

    del desk.members[OTHER]
    desk.live(3)
    assert desk.roles == [Role.STANDBY, Role.ACTIVE]


def test_a_worker_that_stops_does_not_rejoin_when_it_is_undrained():
    desk = Desk()
    desk.live(LEASE * 3)
    assert desk.standby.role is Role.ACTIVE
    desk.standby.close()
    desk.standby.rejoin()

    desk.live(LEASE * 3)

    assert 'release' in desk.row.asked
    assert desk.roles[-1] is not Role.ACTIVE
    assert desk.row.asked.count('acquire') == 1


class Place:
    """A worker whose view of the group expires unless the test renews it."""

    def __init__(self):
        self.clock, self.row = worlds.Clock(), Row()
        self.views = Views()
        self.role = PartitionRole(
            'p', types.SimpleNamespace(me=ME, view=self.views.view),
            'workers', settings=types.SimpleNamespace(
                session_timeout=LEASE, partitions={
                    'p': types.SimpleNamespace(standby=True, preferred='')}),
            store=worlds.StoreQueue(Store(self.clock, self.row)),
            clock=self.clock, callbacks=RoleCallbacks(
                lambda: False, lambda: None, lambda: None))

    def see(self, *members):
        self.views['workers'] = View(
            'workers', members, Ring({}), 1, self.clock.monotonic(), ME,
            self.clock.monotonic() + LEASE)

    def live(self, seconds):
        end = self.clock.monotonic() + seconds
        while self.clock.monotonic() < end:
            self.role.sweep()
            self.clock.advance(0.25)
        self.role.sweep()


def test_a_worker_takes_over_only_with_a_view_that_it_trusts():
    place = Place()
    place.row.standing = Standing(OTHER, 1, LEASE, '')
    place.see(ME)
    place.live(2 * LEASE)
    # The lease of the active worker has expired, and so has the view.
    place.row.standing = Standing(OTHER, 1, 0.0, '')
    place.live(LEASE)
    assert not place.role.open

    place.see(ME)
    place.live(1)

    assert place.role.open


def test_a_worker_that_is_undrained_takes_over_again():
    place = Place()
    place.see(ME)
    place.live(1)
    assert place.role.open
    place.role.set_drained(True)
    place.live(1)
    assert not place.role.open

    place.role.set_drained(False)
    place.live(1)

    assert place.role.open
