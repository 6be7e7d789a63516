# SPDX-License-Identifier: Apache-2.0
"""When a worker without ``mode = standby`` may run its partition."""

import pytest

from distperiodic import exceptions
from distperiodic.adapters.local.memory import MemoryClaimStore
from distperiodic.core.member import Member
from distperiodic.flow.worker.sharing import Sharing
from tests.logged import events
from tests.logged import lines
from tests.unit import world as worlds

ME = Member('h:0', '00c0ffee00c0ffee', 1, slots=10)
OTHER = 'h:1~9f2c41d07be3a655'
LEASE = 10.0


class Row:
    """The row of the partition; the test sets the active workers."""

    def __init__(self):
        self.active = set()
        self.away = False
        self.asked = []

    def share(self, worker, *, seconds, starting):
        assert (*worker, seconds) == ('p', ME.process, LEASE)
        assert not starting
        if self.away:
            raise exceptions.StoreUnavailable('away')
        self.asked.append('share')
        return set(self.active)

    def depart(self, worker):
        self.asked.append('depart')


class Store(MemoryClaimStore):
    """A store with the row of one partition."""

    def __init__(self, clock, row):
        super().__init__(clock)
        self.row = row

    @property
    def partitions(self):
        return self.row


class Desk:
    def __init__(self):
        self.clock, self.row = worlds.Clock(), Row()
        self.line = worlds.StoreQueue(Store(self.clock, self.row))
        self.changes = []
        self.sharing = Sharing(
            'p', ME, granted_at=self.clock.monotonic(), store=self.line,
            clock=self.clock, lease=LEASE, changed=lambda:
            self.changes.append(self.sharing.prevented))

    def live(self, seconds):
        end = self.clock.monotonic() + seconds
        while self.clock.monotonic() < end:
            self.sharing.sweep()
            self.clock.advance(0.25)
        self.sharing.sweep()


@pytest.fixture
def desk():
    return Desk()


def test_a_worker_renews_its_lease_and_may_run(desk):
    desk.live(10 * LEASE)

    assert desk.sharing.trusted()
    assert 25 <= len(desk.row.asked) <= 31
    assert desk.changes == []


def test_a_worker_that_was_frozen_starts_nothing_before_it_has_asked(desk):
    desk.live(1)
    desk.clock.advance(LEASE)
    assert not desk.sharing.trusted()

    desk.live(1)
    assert desk.sharing.trusted()


def test_the_lease_counts_from_its_request(desk):
    desk.line.slow = True
    desk.live(LEASE - 2)
    assert desk.sharing.trusted()
    desk.line.slow = False
    desk.line.answer()
    desk.clock.advance(5)

    assert not desk.sharing.trusted(), 'it was asked for 11 s ago'


def test_a_worker_beside_an_active_one_runs_nothing_until_it_is_gone(
        desk, caplog):
    caplog.set_level('INFO')
    desk.row.active = {OTHER}
    desk.live(LEASE)
    assert not desk.sharing.trusted()
    [line] = lines(caplog, 'partition not shared')
    assert line['active'] == 'h:1'

    desk.row.active = set()
    desk.live(LEASE)
    assert desk.sharing.trusted()
    assert desk.changes == [True, False]
    assert events(caplog)[-1] == 'partition shared again'


def test_a_request_that_failed_is_sent_again(desk):
    desk.row.away = True
    desk.live(LEASE)
    assert not desk.sharing.trusted()

    desk.row.away = False
    desk.live(LEASE / 2)
    assert desk.sharing.trusted()
    assert desk.changes == []


def test_after_its_end_a_worker_renews_nothing(desk):
    desk.live(5)
    desk.sharing.depart()
    asked = len(desk.row.asked)
    desk.live(LEASE)

    assert len(desk.row.asked) == asked
    assert desk.row.asked[-1] == 'depart'
