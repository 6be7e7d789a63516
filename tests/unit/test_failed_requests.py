# SPDX-License-Identifier: Apache-2.0
"""Requests that the store can never answer: the next one follows all the same.

A component has at most one request of a kind open. If it did not notice that
the request has failed, it would wait for the answer until the process ends.
"""

import types

import pytest

from distperiodic import ports
from distperiodic.core.control import Desired
from distperiodic.core.control import Found
from distperiodic.core.control import Me
from distperiodic.core.member import Member
from distperiodic.core.standby import Election
from distperiodic.core.standby import ElectionRequest
from distperiodic.flow import store_clock
from distperiodic.flow.leases import LeaseKeeper
from distperiodic.flow.procedure import PendingProcedures
from distperiodic.flow.procedure import call
from distperiodic.flow.procedure import start
from distperiodic.flow.scheduler.attendance import Attendance
from distperiodic.service.control import StoreControl
from tests.unit import world as worlds

HOUR = 3600.0
ME = Member('h:0', '00c0ffee00c0ffee', 1, slots=10)


class Queue:
    """A queue to a store, whose calls can never succeed."""

    away = False

    def __init__(self):
        self.asked = []
        self.urgent = self

    def submit(self, call, then, failed=lambda: None):
        self.asked.append(failed)

    def fail(self):
        """Fail all calls, and return their number."""
        asked, self.asked = self.asked, []
        for failed in asked:
            failed()
        return len(asked)


class Idle:
    """A service to which no operator has sent a command."""

    def report(self):
        return {}

    def alarms(self):
        return None

    def apply(self, desired):
        assert desired == Desired()


def measures(clock, queue):
    return store_clock.StoreClock(clock, queue, lambda: None).sweep


def reads_the_status_of_jobs(clock, queue):
    job = worlds.job()
    return Attendance(
        clock, queue, {job.name: job}, interval=1.0).refresh


def renews_leases(clock, queue):
    keeper = LeaseKeeper(queue, 60.0)
    return lambda: start(keeper.renew('me', ['lease']))


def reads_the_row_of_a_member(clock, queue):
    service = Idle()
    return StoreControl(
        service, service, Me('cloud', '', 'api-1'), 'api-1~00c0ffee',
        store=queue, clock=clock, settings=types.SimpleNamespace(
            sweep_interval=5, session_timeout=15),
        found=Found(Desired(), [])).sweep


@pytest.mark.parametrize('component', [
    measures, reads_the_status_of_jobs, renews_leases,
    reads_the_row_of_a_member])
def test_a_request_that_has_failed_is_followed_by_another(component):
    clock, queue = worlds.Clock(), Queue()
    clock.advance(HOUR)
    ask = component(clock, queue)
    queue.fail()
    clock.advance(HOUR)
    ask()
    first = queue.fail()
    assert first

    clock.advance(HOUR)
    ask()

    assert queue.fail() == first


def test_a_stop_does_not_wait_for_a_call_that_has_failed():
    queue, pending = Queue(), PendingProcedures()
    start(pending.counted(call(queue, ports.ClaimStore.now)))
    assert pending

    queue.fail()

    assert not pending


def test_a_worker_whose_request_has_failed_takes_part_in_the_election():
    election = Election(ME, lease=10.0)
    request = election.next(0.0, None, False)
    assert request is ElectionRequest.BEAT
    election.requested(request, 0.0)
    assert election.next(9.0, None, False) is None

    election.failed()

    assert election.next(9.0, None, False) is ElectionRequest.BEAT
