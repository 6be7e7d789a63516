# SPDX-License-Identifier: Apache-2.0
"""Tasks while a server is down, or while a process is frozen or killed.

The servers are real. The commands record their runs, and they leave rows in
the database.
"""

import contextlib
import itertools
import os
import re
import signal
import time

import pytest

from distperiodic.adapters.sql import schema
from tests import programs
from tests import waiting
from tests.functional import effects
from tests.functional.test_tasks import SOON
from tests.functional.test_tasks import Group
from tests.functional.test_tasks import check

# The timeout is long because servers and processes start in sequence.
pytestmark = pytest.mark.timeout(400)


@contextlib.contextmanager
def started(place, zookeeper, rabbitmq, postgresql, schedulers=2,
            **options):
    """Start one worker and the schedulers of a group on these servers. Yield
    after the first task of the group has ended.
    """
    schema.sync(postgresql.url)
    group = Group(place, backend_url=zookeeper.url,
                  transport_url=rabbitmq.url, dispatcher='messaging',
                  connection=postgresql.url, **options)
    try:
        group.start('worker', '--partition', 'a')
        members = [group.start('scheduler') for _ in range(schedulers)]
        first = f'view: .* members={schedulers} '
        waiting.wait_until(lambda: all(
            re.search(first, program.said()) for program in members),
            programs.STARTING)
        group.ended(group.submit('single'))
        yield group, members
    finally:
        group.close()


@pytest.fixture
def ledger(postgresql):
    made = effects.Ledger(postgresql.url)
    made.make()
    yield made
    made.close()


@pytest.mark.parametrize(('dies', 'runs'), [
    (None, 1), ('commit', 2), ('end', 1)])
def test_the_effect_of_a_step_and_its_end_are_one_transaction(
        tmp_path, zookeeper, rabbitmq, postgresql, ledger, dies, runs):
    """The worker is killed before the commit, or after the commit and before
    the end of the handler.
    """
    with started(tmp_path, zookeeper, rabbitmq, postgresql, 1) as (group, _):
        id_ = group.submit('pair', behaves={'1': 'finish'}, dies=dies,
                           effects=postgresql.url)

        task = group.ended(id_)

        of_step = [r for r in group.runs() if r['step'] == 1]
        check(group, [id_], dead={of_step[0]['pid']} if dies else ())
        assert len(of_step) == runs
        [(of_task, _, fence)] = ledger.effects()
        assert (of_task, fence) == (id_, task.parameters['fence'])
        assert fence == of_step[-1]['fence']


# In the default run, tasks go on without any ZooKeeper server, see below.
@pytest.mark.full
def test_tasks_are_submitted_and_run_while_a_zookeeper_server_is_down(
        tmp_path, zookeeper_ensemble, rabbitmq, postgresql):
    with started(tmp_path, zookeeper_ensemble, rabbitmq,
                 postgresql) as (group, _):
        for down in (zookeeper_ensemble.followers()[0],
                     zookeeper_ensemble.leader()):
            down.kill()
            submit_and_run(group)
            down.start()


@pytest.mark.full
def test_tasks_are_submitted_and_run_while_a_broker_of_the_cluster_is_down(
        tmp_path, zookeeper, rabbitmq_cluster, postgresql):
    with started(tmp_path, zookeeper, rabbitmq_cluster, postgresql,
                 quorum_queues=True) as (group, _):
        for down in rabbitmq_cluster.nodes:
            down.kill()
            submit_and_run(group)
            down.start()


def test_tasks_are_submitted_and_run_while_a_member_is_down(
        tmp_path, zookeeper, rabbitmq, postgresql):
    with started(tmp_path, zookeeper, rabbitmq, postgresql) as (
            group, schedulers):
        for index in range(len(schedulers)):
            schedulers[index].kill()
            submit_and_run(group)
            schedulers[index] = group.start('scheduler')


def submit_and_run(group):
    """Submit tasks at the same time, some of them to queues, and wait for
    their ends.
    """
    before = time.monotonic()
    ids = [group.client.submit('pair', {}, queue=queue)
           for queue in (None, 'a', 'b', 'a', 'b')]
    # No submission waits until a server is back.
    assert time.monotonic() - before < 10
    for id_ in ids:
        group.ended(id_)
    check(group, ids)


def test_a_frozen_scheduler_without_zookeeper_never_overlaps_its_queue(
        tmp_path, zookeeper_server, rabbitmq, postgresql):
    with started(tmp_path, zookeeper_server, rabbitmq, postgresql) as (
            group, schedulers):
        ids = []
        for frozen in schedulers:
            done = len(group.runs())
            ids += [group.client.submit('single', {'takes': 0.3}, queue=queue)
                    for _ in range(12) for queue in 'abc']
            wait_for_runs(group, done + 3)
            zookeeper_server.kill()
            pids = frozen.family()
            for one in pids:
                os.kill(one.pid, signal.SIGSTOP)
            # The other scheduler serves all queues.
            wait_for_runs(group, done + 18)
            for one in pids:
                os.kill(one.pid, signal.SIGCONT)
            wait_for_runs(group, done + 24)
            zookeeper_server.start()
            for id_ in ids:
                group.ended(id_)

        check(group, ids)
        for first in range(3):
            assert_in_line(group, ids[first::3])


def wait_for_runs(group, number):
    waiting.wait_until(lambda: len(group.runs()) >= number, SOON)


def assert_in_line(group, ids):
    """Check that the tasks of a queue ran one at a time, and in order."""
    spans = []
    for id_ in ids:
        [start] = [r['at'] for r in group.runs() if r['task'] == id_]
        [end] = [r['at'] for r in group.runs('end') if r['task'] == id_]
        spans.append((start, end))
    for before, after in itertools.pairwise(spans):
        assert before[1] <= after[0]
