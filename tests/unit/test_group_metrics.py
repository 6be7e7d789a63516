# SPDX-License-Identifier: Apache-2.0
"""The facts about a group as metrics."""

import argparse
import dataclasses
import threading

import pytest

from distperiodic import exceptions
from distperiodic.adapters.sql import schema
from distperiodic.adapters.sql.store import SqlClaimStore
from distperiodic.core import metric_table as table
from distperiodic.core.tally import Key
from distperiodic.core.tally import Tally
from distperiodic.operator import group_metrics
from distperiodic.operator import health
from distperiodic.operator.group_metrics import GroupMetrics
from distperiodic.operator.group_metrics import ServedMetrics
from distperiodic.operator.health import Recent
from distperiodic.operator.sources import Sources
from distperiodic.operator.task_queries import Halted
from tests import claiming
from tests.configured import configuration
from tests.unit.test_health import NOW
from tests.unit.test_health import SECOND
from tests.unit.test_health import group
from tests.unit.test_health import job
from tests.unit.test_health import row
from tests.waiting import wait_until

FACTS = health.Facts(
    group='nodes', now=NOW, session_timeout=10.0, sweep_interval=5.0,
    messaging=True, stored=True,
    live=group(('a:0', 'b:0'), {'default': ['a:0']}),
    members=(row(), row('b:0', drained=True),
             row(part='default', pools={'default': {
                 'size': 8, 'busy': 3, 'queued': 0, 'hanging': 1}})),
    jobs=(job('ping'), job('slow', paused=True)))


def value(tally, metric, *labels):
    return tally.values.get(Key(metric.name, labels))


def of(**changes):
    return group_metrics.of_facts(dataclasses.replace(FACTS, **changes))


def test_each_code_is_present_so_that_an_alert_clears():
    tally = of()

    assert {key.labels: found for key, found in tally.values.items()
            if key.metric == table.FINDINGS.name} == {
        (name, code.severity): 0 for name, code in health.CODES.items()}


def test_findings_are_counted_by_code():
    tally = of(halted=[Halted(name, NOW, 'it failed', None, 3)
                       for name in ('a', 'b')])

    assert value(tally, table.FINDINGS, 'queue-halted', 'failure') == 2
    assert value(tally, table.HALTED_QUEUES) == 2


def test_members_and_slots_are_those_of_live_processes():
    tally = of()

    assert [value(tally, metric, role)
            for metric in (table.MEMBERS, table.DRAINED_MEMBERS)
            for role in ('scheduler', 'worker')] == [2, 1, 1, 0]
    assert [value(tally, table.REPORTED_SLOTS, 'default', state)
            for state in ('busy', 'free', 'hanging')] == [3, 5, 1]

    gone = of(live=group((), {}), members=tuple(
        one._replace(age=99 * SECOND, seen=NOW - 99 * SECOND)
        for one in FACTS.members))

    assert value(gone, table.MEMBERS, 'worker') == 0
    assert value(gone, table.REPORTED_SLOTS, 'default', 'free') is None
    assert value(gone, table.FINDINGS, 'no-scheduler', 'failure') == 1


def test_a_paused_job_and_lost_ticks_are_shown_by_job():
    tally = of(jobs=(job('ping', ticks=[(0, 3), (0, 4)]),
                     job('slow', paused=True)))

    assert [value(tally, table.JOB_PAUSED, name)
            for name in ('ping', 'slow')] == [0, 1]
    assert [value(tally, table.LOST_OBJECTS, name)
            for name in ('ping', 'slow')] == [7, 0]
    assert value(tally, table.JOB_PERIOD, 'ping') == 60


@pytest.mark.parametrize('known', [
    {}, {'store': 'it is away', 'stored': False},
    {'coordination': 'it is away', 'live': None}])
def test_a_source_that_cannot_be_read_is_down(known):
    tally = of(**known)

    assert [value(tally, metric) for metric in (
        table.STORE_UP, table.COORDINATION_UP)] == [
            'store' not in known, 'coordination' not in known]
    assert value(tally, table.FINDINGS, 'store-unavailable', 'failure') == (
        'store' in known)


def test_a_source_that_is_not_configured_is_missing():
    tally = of(stored=False, live=None)

    assert value(tally, table.STORE_UP) is None
    assert value(tally, table.COORDINATION_UP) is None
    assert value(tally, table.HALTED_QUEUES) is None


@pytest.mark.parametrize('known, since', [
    # The last scheduler has attended the job 130 s ago.
    ({}, 100), ({'attended': 130.0}, 100), ({'attended': 30.0}, None),
    ({'paused': True}, None), ({'unattended': False}, None)])
def test_a_job_without_a_scheduler_is_due_since_its_first_unclaimed_tick(
        known, since):
    # The schedule has a tick at NOW - 100 s and at NOW - 40 s.
    assert NOW % (60 * SECOND) == 40 * SECOND
    one = job(**{'attended': 130.0, 'unattended': True, **known})._replace(
        schedule=f'every {60 * SECOND}')

    found = group_metrics.first_unclaimed(one, NOW)

    assert found == (None if since is None else NOW - since * SECOND)


@pytest.mark.parametrize('tick, since', [
    # The tick at NOW - 100 s was claimed, and those before it.
    (100, 40),
    # An operator triggered a tick outside the schedule.
    (30, 100)])
def test_a_triggered_tick_does_not_hide_that_no_scheduler_has_the_job(
        tick, since):
    one = job(attended=130.0, unattended=True)._replace(
        schedule=f'every {60 * SECOND}',
        ticks=[Recent(NOW - tick * SECOND, 1, 0, 0)])

    assert group_metrics.first_unclaimed(one, NOW) == NOW - since * SECOND


@pytest.fixture
def sources(tmp_path):
    url = f'sqlite:///{tmp_path}/claims'
    schema.sync(url)
    store = SqlClaimStore(url, namespace='tests')
    conf = configuration(connection=url, group='tests')
    with Sources(argparse.Namespace(), lambda: conf) as made:
        made.claims = store
        yield made
    store.close()


def test_work_that_waits_is_counted_without_a_process(sources):
    now = sources.claims.now()
    claiming.claim(sources.claims, 'ping', now - 7 * SECOND, ['a', 'b'],
                   lease='l', holder='api', seconds=60.0, supersede=False)

    found = group_metrics.read(sources)

    assert found.problems == []
    assert value(found.tally, table.RUNS_WAITING, 'default') == 2
    assert 0 <= value(found.tally, table.OLDEST_DUE, 'ping') < 60
    assert value(found.tally, table.FACTS_COMPLETE) == 1
    assert value(found.tally, table.LAST_SUCCESS, 'ping') is None


class Clock:
    def __init__(self):
        self.seconds = 0.0

    def monotonic(self):
        return self.seconds

    def now(self):
        return NOW


@pytest.fixture
def clock():
    return Clock()


def test_requests_within_a_second_share_one_reading(clock):
    readings = []

    def ask():
        readings.append(clock.seconds)
        clock.seconds += 0.5
        return GroupMetrics(Tally(), [])
    served = ServedMetrics(ask, clock, pytest.fail)

    for at in (0, 1.4, 2.4, 2.6):
        clock.seconds = at
        served()

    # The second reading may begin four times the duration of the first one
    # after its end.
    assert readings == [0, 2.6]


def test_an_error_of_a_reading_is_a_metric_and_is_reported_once(clock):
    reports = []

    def ask():
        raise exceptions.StoreUnavailable('it is away')
    served = ServedMetrics(ask, clock, reports.append)

    for at in (0, 10):
        clock.seconds = at
        assert value(served(), table.FACTS_COMPLETE) == 0

    assert reports == ['StoreUnavailable: it is away']


def test_a_slow_reading_does_not_delay_the_answer(clock):
    readings, go = [], threading.Event()

    def ask():
        readings.append(1)
        if len(readings) == 2:
            assert go.wait(30)
        tally = Tally()
        tally.set(table.STUCK_TASKS, value=len(readings))
        return GroupMetrics(tally, [])
    served = ServedMetrics(ask, clock, pytest.fail)
    served()
    clock.seconds = 10.0

    assert value(served(), table.STUCK_TASKS) == 1
    assert value(served(), table.STUCK_TASKS) == 1
    go.set()
    wait_until(lambda: value(served(), table.STUCK_TASKS) == 2)
    assert len(readings) == 2


def test_simultaneous_requests_wait_for_one_reading(clock):
    readings, entered, go = [], threading.Event(), threading.Event()

    def ask():
        readings.append(1)
        entered.set()
        assert go.wait(30)
        return GroupMetrics(Tally(), [])
    served = ServedMetrics(ask, clock, pytest.fail)
    threads = [threading.Thread(target=served) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert entered.wait(30)
    go.set()
    for thread in threads:
        thread.join(30)

    assert readings == [1]
