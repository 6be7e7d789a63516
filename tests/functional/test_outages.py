# SPDX-License-Identifier: Apache-2.0
"""Clusters in which one server at a time is down. No work is lost.

The servers are real and are killed. The handlers record their runs, and the
checker of the tests judges this record.
"""

import time

import pytest

from distperiodic.adapters.sql import schema
from tests import proxy
from tests import waiting
from tests.functional import judged
from tests.functional.cluster import Cluster

AWAY = 10.0


@pytest.fixture
def started(tmp_path):
    """Return a function that starts a cluster of two schedulers and two
    workers, and waits until the cluster runs work.
    """
    made = []

    def start(zookeeper, rabbitmq, connection, **options):
        schema.sync(connection)
        options = {
            # A pause of the whole machine of a few seconds ends no session.
            'session_timeout': 6, 'lease': 10, 'send_timeout': 2,
            'spacing': 2, 'objects': 12, 'takes': 0.05, 'misfire': 'all',
            'overlap': 'wait', **options}
        cluster = Cluster(tmp_path, zookeeper.url, rabbitmq.url,
                          connection=connection, **options)
        made.append(cluster)
        for kind in ('scheduler', 'scheduler', 'worker', 'worker'):
            cluster.start(kind)
        cluster.wait_complete(2)
        return cluster, cluster.complete_ticks()[0]
    yield start
    for cluster in made:
        cluster.close()


def workers(cluster):
    return {pid for program in cluster.programs if program.kind == 'worker'
            for pid in program.children}


def wait_whole(cluster):
    """Wait until two schedulers and two workers are in their groups, and both
    workers run work.
    """
    for partition in (None, 'default'):
        with cluster.observe(partition) as group:
            group.wait_members(2, timeout=40)
    begun = time.time()
    waiting.wait_until(
        lambda: {run.pid for run in cluster.runs() if run.at > begun} == (
            workers(cluster)), 30, 'not all workers work again')


def wait_idle(cluster):
    """Wait until the store has the ends of all runs of a tick, and the next
    tick is not due yet. The kill of a server now interrupts no run.
    """
    def idle():
        tick = max(run.tick for run in cluster.runs())
        told = judged.account(cluster)[judged.us(tick)]
        return (told['done'] == cluster.default['objects']
                and time.time() < tick + cluster.default['spacing'] * 3 / 4)
    waiting.wait_until(idle, 60, 'some run is always in progress')


def test_members_go_on_with_their_last_view_while_zookeeper_is_away(
        started, zookeeper_server, rabbitmq, postgresql):
    """ZooKeeper is down for three session timeouts. During this time the store
    decides which scheduler may claim.
    """
    cluster, first = started(zookeeper_server, rabbitmq, postgresql.url)
    at = time.time()

    zookeeper_server.kill()
    cluster.wait_complete(3, after=at + 3 * cluster.options[
        'session_timeout'])
    zookeeper_server.start()
    wait_whole(cluster)
    last = cluster.wait_complete(2, after=time.time())[-1]

    judged.assert_kept(cluster, first, last)


def test_claims_wait_while_the_broker_is_away_and_are_sent_when_it_is_back(
        started, zookeeper, breakable_rabbitmq, postgresql):
    cluster, first = started(zookeeper, breakable_rabbitmq, postgresql.url)
    wait_idle(cluster)

    breakable_rabbitmq.kill()
    at = time.time()
    waiting.wait_until(
        lambda: any(tick > judged.us(at) and told['due']
                    for tick, told in judged.account(cluster).items()),
        AWAY, 'nothing was claimed')
    time.sleep(max(0.0, at + AWAY - time.time()))
    assert not [run for run in cluster.runs() if run.tick > at]
    breakable_rabbitmq.start()
    wait_whole(cluster)
    last = cluster.wait_complete(3, after=time.time(), timeout=60)[-1]

    judged.assert_kept(cluster, first, last)


@pytest.mark.parametrize('misfire', [
    'all', *(pytest.param(one, marks=pytest.mark.full)
             for one in ('latest', 'skip'))])
def test_while_the_store_is_away_nothing_is_claimed_and_then_misfire_decides(
        started, zookeeper, rabbitmq, postgresql_server, misfire):
    """Current runs continue, and their results are written when the store is
    back.
    """
    cluster, first = started(zookeeper, rabbitmq, postgresql_server.url,
                             misfire=misfire)
    wait_idle(cluster)

    postgresql_server.kill()
    at = time.time()
    time.sleep(AWAY)
    back = time.time()
    assert not [run for run in cluster.runs() if run.tick > at]
    postgresql_server.start()
    last = cluster.wait_complete(4, after=time.time(), timeout=60)[-1]

    judged.assert_kept(
        cluster, first, last, windows=[(at, time.time())],
        # A run that ended during the outage may count as lost, because its
        # lease had expired before its result was written.
        repeats=lambda run: at - 1 < run.at < back + 5)
    missed = [tick for tick in cluster.complete_ticks() if at < tick <= back]
    spacing = cluster.default['spacing']
    due = [first + n * spacing
           for n in range(int((back - first) // spacing) + 1)
           if first + n * spacing > at]
    # The last of these ticks may still be the latest, and not too late, when
    # the store is back.
    assert missed in ([due] if misfire == 'all' else ([], due[-1:]))


def test_an_answer_that_is_lost_at_commit_doubles_and_loses_nothing(
        started, zookeeper, rabbitmq, postgresql):
    """A repeated call recognizes, by the name of its lease, that its first
    attempt was committed. So the claim does not wait until the lease expires.
    """
    with proxy.Proxy.before(postgresql.url) as way:
        cluster, first = started(zookeeper, rabbitmq, way.url)

        for _ in range(6):
            cluster.wait_complete(1, after=time.time())
            # Lose the answer to a claim or to a start: only these statements
            # have a list of objects as a parameter. The text of a prepared
            # statement is not sent again, so it cannot be searched for.
            assert way.lose_answer(b'COMMIT', after=b'["192.168.').wait(10)
            time.sleep(0.5)
            way.set('pass')
        last = cluster.wait_complete(2, after=time.time())[-1]

        judged.assert_kept(cluster, first, last)
        assert not any(told['taken_over']
                       for told in judged.account(cluster).values())
