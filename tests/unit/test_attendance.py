# SPDX-License-Identifier: Apache-2.0
"""Schedulers report their jobs to the store, and read the status of the jobs.
"""

import pytest

from distperiodic import ports
from distperiodic.core import due
from distperiodic.flow.scheduler.attendance import Attendance
from tests.unit.world import Clock
from tests.unit.world import StoreQueue
from tests.unit.world import job

JOB = job('poll', objects=True)


class Store:
    """A store with the status of one job; it records the reported scans."""

    def __init__(self):
        self.status = ports.JobStatus(
            None, JOB.schedule_text(), due.ALWAYS, None, due.ALWAYS)
        self.checked = []

    def adopt(self, schedules, others):
        assert schedules == {'poll': JOB.schedule_text()}

    def attend(self, jobs, checked):
        self.checked.append(dict(checked))
        return {'poll': self.status}


@pytest.fixture
def store():
    return Store()


@pytest.fixture
def attendance(store):
    return Attendance(
        Clock(), StoreQueue(store), {'poll': JOB}, interval=1.0)


def test_since_when_a_job_was_attended_is_known_from_the_store(
        store, attendance):
    assert attendance.attended('poll') is None
    store.status = store.status._replace(attended=7)

    attendance.refresh()

    assert attendance.attended('poll') == 7


def test_a_schedule_that_another_process_brought_makes_ours_outdated(
        store, attendance):
    attendance.refresh()
    assert not attendance.outdated('poll')
    store.status = store.status._replace(schedule='every 1000000')

    attendance.refresh()

    assert attendance.outdated('poll')


def test_a_recorded_check_only_moves_forward(store, attendance):
    attendance.record_checked('poll', ports.Checked(due.ALWAYS, 9))
    attendance.record_checked('poll', ports.Checked(due.ALWAYS, 7))

    attendance.refresh()

    assert store.checked == [{'poll': (due.ALWAYS, 9)}]


def test_a_check_by_other_members_counts_here(store, attendance):
    store.status = store.status._replace(checked=9)

    attendance.refresh()

    assert attendance.checked('poll') == 9
