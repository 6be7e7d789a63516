# SPDX-License-Identifier: Apache-2.0
"""Examples of the page "Test your jobs"."""

import datetime

import pytest

from distperiodic import PeriodicTasks
from distperiodic import periodic_task
from distperiodic import tasks
from distperiodic import testing


class Nodes(PeriodicTasks):

    def __init__(self, conf=None):
        super().__init__(conf)
        self.polled = []

    def nodes(self, context):
        return [f'node-{number}' for number in range(20)]

    @periodic_task(spacing=60, objects='nodes', retries=2)
    def poll(self, context, node):
        if node == 'node-3' and context.attempt == 1:
            raise ConnectionError('no answer')
        if context.is_current():
            self.polled.append(node)

    @periodic_task(cron='0 2 * * *', scope='group')
    def report(self, context):
        pass


# A handler is a method: call it.
def test_a_node_is_polled():
    nodes = Nodes()

    nodes.poll(testing.make_context('poll', 'node-7'), 'node-7')

    assert nodes.polled == ['node-7']


def test_a_process_that_was_replaced_does_nothing():
    nodes = Nodes()

    nodes.poll(testing.make_context('poll', 'node-7', current=False), 'node-7')

    assert nodes.polled == []


# The command of a step is a method, too.
class Modules(PeriodicTasks):

    def __init__(self, conf=None):
        super().__init__(conf)
        self.servers = {}

    @tasks.command('mysql', 'init_instance')
    def init(self, context, parameters):
        self.servers[context.key] = parameters['Host']
        return {'Server': f'mysql-{context.task}'}


def test_a_server_is_created_once_although_its_worker_is_lost():
    modules = Modules()

    for attempt in (1, 2):
        result = modules.init(testing.make_context(
            'mysql.init_instance', task='t-1', step=2, attempt=attempt),
            {'Host': 'h7'})

    assert result == {'Server': 'mysql-t-1'}
    assert list(modules.servers.values()) == ['h7']


# One tick, with the catalogue.
def test_a_tick_polls_every_node():
    runs = testing.run_tick(Nodes(), 'poll')

    assert len(runs) == 20
    assert {run.object for run in runs if run.outcome == 'failed'} == {
        'node-3'}


# A cluster, and time.
def test_a_node_that_does_not_answer_is_tried_again(distperiodic_cluster):
    cluster = distperiodic_cluster(Nodes)

    cluster.advance(62)

    first, second = cluster.assert_ran('poll', 'node-3', times=2)
    assert (first.outcome, second.outcome) == ('failed', 'done')


def test_nothing_is_lost_when_a_member_dies(distperiodic_cluster):
    cluster = distperiodic_cluster(Nodes, members=3, session_timeout=10)
    cluster.advance(61)
    owner = cluster.owner_of('node-7')

    cluster.kill(owner)
    cluster.advance(120)

    assert owner not in cluster.members
    runs = cluster.assert_ran('poll', 'node-7', times=3)
    assert len({run.tick for run in runs}) == 3


def test_a_run_in_progress_is_repeated_elsewhere(distperiodic_cluster):
    cluster = distperiodic_cluster(Nodes, members=2, run_time=30)
    cluster.advance(65)
    owner = cluster.owner_of('node-7')

    cluster.kill(owner)
    cluster.advance(55)

    [run] = cluster.assert_ran('poll', 'node-7', times=1)
    assert run.member != owner
    assert run.attempt == 2


def test_the_report_is_made_at_two(distperiodic_cluster):
    cluster = distperiodic_cluster(
        Nodes, members=3,
        start=datetime.datetime(2030, 6, 1, 1, 59, tzinfo=datetime.UTC))

    cluster.advance(30)
    cluster.refute_ran('report')

    cluster.advance(60)
    cluster.assert_ran('report', times=1)


def test_a_failed_assertion_shows_what_ran(distperiodic_cluster):
    cluster = distperiodic_cluster(Nodes)
    cluster.advance(61)

    with pytest.raises(AssertionError, match='poll node-7 tick=00:01:00'):
        cluster.refute_ran('poll', 'node-7')
