# SPDX-License-Identifier: Apache-2.0
"""The test kit for embedding projects, and the examples of its page."""

import collections
import datetime
import importlib.util
import pathlib

import pytest

from distperiodic import PeriodicTasks
from distperiodic import exceptions
from distperiodic import periodic_task
from distperiodic import tasks
from distperiodic import testing

EXAMPLES = (pathlib.Path(__file__).parents[2] / 'doc' / 'source' / 'howto'
            / 'test_jobs.py')
BEGIN = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)


def examples():
    """Return the tests that the page shows."""
    spec = importlib.util.spec_from_file_location('test_jobs', EXAMPLES)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {name: test for name, test in vars(module).items()
            if name.startswith('test_')}


# This makes pytest collect the page's tests as tests of this file.
globals().update(examples())


class Hosts(PeriodicTasks):

    def hosts(self, context):
        return list('abcdef')

    @periodic_task(spacing=10, objects='hosts', misfire='all')
    def ping(self, context, host):
        pass

    @periodic_task(spacing=10)
    def clean(self, context):
        pass


@pytest.fixture
def cluster(distperiodic_cluster):
    return distperiodic_cluster(Hosts, members=2)


def once_a_tick(cluster, ticks):
    """Assert that each object of ``ping`` ran once at each of these ticks."""
    ran = collections.Counter(
        (run.object, run.tick) for run in cluster.runs if run.job == 'ping')
    assert ran == dict.fromkeys(
        ((host, BEGIN + datetime.timedelta(seconds=10 * number))
         for host in 'abcdef' for number in range(1, ticks + 1)), 1)


def test_objects_are_shared_and_member_jobs_are_not(cluster):
    cluster.advance(20)

    once_a_tick(cluster, 2)
    assert {run.member for run in cluster.assert_ran('ping')} == {
        'member-1', 'member-2'}
    assert len(cluster.assert_ran('clean', 'member-1', times=2)) == 2
    cluster.assert_ran('clean', times=4)


def test_a_frozen_member_is_replaced_and_comes_back(cluster):
    cluster.advance(15)
    cluster.freeze('member-1')
    cluster.advance(5)
    assert cluster.members == ['member-1', 'member-2']
    cluster.advance(10)
    assert cluster.members == ['member-2']
    cluster.thaw('member-1')
    assert cluster.members == ['member-1', 'member-2']
    cluster.advance(31)

    once_a_tick(cluster, 6)
    assert cluster.runs[-1].member in cluster.members


def test_a_short_freeze_is_not_noticed(cluster):
    cluster.advance(11)
    cluster.freeze('member-1')
    cluster.advance(8)
    cluster.thaw('member-1')
    cluster.advance(11)

    assert cluster.members == ['member-1', 'member-2']
    once_a_tick(cluster, 3)


def test_members_come_and_go(cluster):
    cluster.advance(11)
    assert cluster.join() == 'member-3'
    cluster.advance(10)
    cluster.leave('member-1')
    cluster.advance(10)

    assert cluster.members == ['member-2', 'member-3']
    once_a_tick(cluster, 3)


def test_a_killed_member_restarts_under_its_name(cluster):
    cluster.advance(11)
    cluster.kill('member-1')
    cluster.advance(20)
    cluster.join('member-1')
    cluster.advance(20)

    assert cluster.members == ['member-1', 'member-2']
    once_a_tick(cluster, 5)


def test_a_paused_job_skips_its_ticks(cluster):
    cluster.advance(11)
    cluster.pause('ping')
    cluster.advance(20)
    cluster.resume('ping')
    cluster.advance(20)

    ticks = {(run.tick - BEGIN).seconds for run in cluster.assert_ran('ping')}
    assert ticks == {10, 40, 50}


def test_all_members_may_share_one_instance(distperiodic_cluster):
    hosts = Hosts()
    cluster = distperiodic_cluster(hosts, members=2)

    cluster.advance_to(BEGIN + datetime.timedelta(seconds=10))

    once_a_tick(cluster, 1)


def test_an_unexpected_run_is_shown_in_the_error(cluster):
    cluster.advance(10)

    with pytest.raises(AssertionError) as told:
        cluster.refute_ran('ping', 'a')
    assert "job 'ping' object 'a' should not have run, but ran once" in str(
        told.value)
    assert 'ping a tick=00:00:10 attempt=1 member=' in str(told.value)
    with pytest.raises(AssertionError, match='no run of this job'):
        testing.Cluster(Hosts).assert_ran('ping')


def test_an_impossible_request_is_refused(cluster):
    with pytest.raises(ValueError, match="there is no job 'pnig'"):
        cluster.assert_ran('pnig')
    with pytest.raises(ValueError, match="no member 'member-9' is running"):
        cluster.kill('member-9')
    with pytest.raises(ValueError, match='is already in the cluster'):
        cluster.join('member-1')
    with pytest.raises(ValueError, match='members is 0'):
        testing.Cluster(Hosts, members=0)
    with pytest.raises(ValueError, match='time does not go back'):
        cluster.advance_to(BEGIN - datetime.timedelta(seconds=1))
    with pytest.raises(ValueError, match='without a time zone'):
        testing.Cluster(Hosts, start=datetime.datetime(2030, 1, 1))
    with pytest.raises(exceptions.InvalidJob, match='no job'):
        testing.run_tick(Hosts(), 'pnig')


class Spread(PeriodicTasks):

    @periodic_task(spacing=600, objects='hosts', spread=True)
    def ping(self, context, host):
        pass

    def hosts(self, context):
        return list('abcdef')

    @tasks.command('m', 'run')
    def run(self, context, parameters):
        pass


class Often(Spread):

    @periodic_task(spacing=20, objects='hosts', spread=True)
    def ping(self, context, host):
        pass


def test_a_tick_of_a_job_with_phases_runs_all_objects():
    runs = testing.run_tick(Spread(), 'ping')

    assert sorted(run.object for run in runs) == list('abcdef')
    assert len({run.at for run in runs}) == 6


def test_each_run_takes_the_run_time():
    """A run does not begin early because another batch of the job is due."""
    def runs_of(seconds):
        with testing.Cluster(Often, run_time=seconds) as cluster:
            cluster.advance(60)
            return {run.object: run.at for run in reversed(cluster.runs)}
    at_once, later = runs_of(0), runs_of(5)

    assert at_once.keys() == later.keys() == set('abcdef')
    assert {round((later[key] - at_once[key]).total_seconds())
            for key in later} == {5}


def test_a_command_has_no_tick_that_can_run():
    with pytest.raises(exceptions.InvalidJob, match="its jobs are ping"):
        testing.run_tick(Spread(), 'task:m.run')


def test_a_context_of_a_process_that_was_replaced_ends_nothing():
    testing.make_context('ping', 'a').finish(None)

    with pytest.raises(exceptions.RunReplaced):
        testing.make_context('ping', 'a', current=False).finish(None)


def test_a_context_of_a_step_has_its_task():
    context = testing.make_context(
        'mysql.clean', task='t-1', step=2, rollback=True)

    assert (context.task, context.step, context.rollback) == ('t-1', 2, True)
    assert (context.job, context.object) == ('task:mysql.clean', 't-1')
    assert context.key == 't-1/2/rollback'
    with pytest.raises(ValueError, match='omit object_id'):
        testing.make_context('mysql.clean', 'a', task='t-1')


def test_a_context_of_a_step_takes_its_result_as_a_worker_does():
    context = testing.make_context('mysql.init', task='t-1')
    context.finish(None, {'Port': 3306})

    assert not context.rollback
    with pytest.raises(exceptions.InvalidTask, match='return a dictionary'):
        context.finish(None, 3306)


def test_a_clock_stands_still_and_can_be_set():
    clock = testing.FrozenClock(BEGIN)
    clock.advance(1.5)
    clock.set(BEGIN)

    assert clock.time == BEGIN
    assert clock.monotonic() == 1.5
