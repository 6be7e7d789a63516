# SPDX-License-Identifier: Apache-2.0
"""With claims in a store, no tick is lost when processes die. Only the runs of
these processes are repeated.

ZooKeeper, RabbitMQ, PostgreSQL and the signals are real. The handlers record
their runs.
"""

import collections
import time
import uuid

import pytest
import sqlalchemy as sa

from distperiodic import exceptions
from distperiodic import periodic
from distperiodic import service
from distperiodic.adapters.sql import database
from distperiodic.adapters.sql import schema
from distperiodic.adapters.sql import tables
from tests import waiting
from tests.configured import configuration
from tests.functional import judged
from tests.functional.cluster import Cluster


@pytest.fixture(params=['local', 'messaging'])
def claimed(tmp_path, zookeeper, rabbitmq, postgresql, request):
    """Return a cluster whose job runs every tick in order, even if it is late.

    A pause of the whole machine of a few seconds ends no session. Otherwise
    runs of processes that are alive would rightly be repeated.
    """
    schema.sync(postgresql.url)
    made = Cluster(
        tmp_path, zookeeper.url,
        rabbitmq.url if request.param == 'messaging' else None,
        connection=postgresql.url, session_timeout=6, lease=10, send_timeout=2,
        spacing=2, objects=24, takes=0.05, misfire='all', overlap='wait')
    yield made
    made.close()


def started(cluster, ticks=2):
    """Start two schedulers, and two workers if the dispatcher is messaging.
    Wait for this number of complete ticks.
    """
    schedulers = [cluster.start('scheduler') for _ in range(2)]
    workers = []
    if cluster.options['dispatcher'] == 'messaging':
        workers = [cluster.start('worker') for _ in range(2)]
    cluster.wait_complete(ticks)
    return schedulers, workers


def assert_nothing_lost_or_doubled(cluster, first, last, dead=()):
    """Check the runs of the ticks from *first* to *last*.

    Each object ran for each tick. A run was repeated only if the process of
    the earlier run had died, and only with a higher fence. The runs of an
    object do not overlap, except for runs of dead processes, which have no
    end.
    """
    runs = [r for r in cluster.runs() if first <= r.tick <= last]
    spacing = cluster.default['spacing']
    ticks = [first + n * spacing
             for n in range(round((last - first) / spacing) + 1)]
    ran = collections.defaultdict(list)
    for run in sorted(runs, key=lambda r: r.at):
        ran[run.tick, run.object].append(run)
    lost = [(tick, f'192.168.10.{n}') for tick in ticks
            for n in range(cluster.default['objects'])
            if not ran[tick, f'192.168.10.{n}']]
    assert not lost
    for again in ran.values():
        assert all(r.pid in dead for r in again[:-1]), again
        fences = [r.fence for r in again]
        assert fences == sorted(set(fences))
    ends = {(r.object, r.tick, r.fence): r.at for r in cluster.runs('end')}
    by_object = collections.defaultdict(list)
    for run in runs:
        by_object[run.object].append(run)
    for of_one in by_object.values():
        of_one.sort(key=lambda r: r.at)
        for one, other in zip(of_one, of_one[1:], strict=False):
            end = ends.get((one.object, one.tick, one.fence))
            assert one.pid in dead or (end is not None and end <= other.at), (
                one, other)


def newest(cluster):
    return max(r.tick for r in cluster.runs())


def unfinished(cluster, pids):
    """Return the current runs in these processes."""
    ended = {(r.key, r.fence) for r in cluster.runs('end')}
    return [r for r in cluster.runs()
            if r.pid in pids and (r.key, r.fence) not in ended]


#: Options for a job that keeps all threads busy. Two thirds of its objects
#: have a thread when a tick begins, and one process alone still keeps up.
BUSY = {'objects': 15, 'pool_size': 5, 'takes': 0.4}


def wait_busy(cluster, pids):
    """Wait until each thread of a process has just begun a run.

    At least half of the time of each run is left. Until then no run ends in
    this process, and no other run begins.
    """
    def busy():
        runs = unfinished(cluster, pids)
        return (len(runs) == cluster.options['pool_size']
                and time.time() - min(r.at for r in runs)
                < cluster.default['takes'] / 2)
    waiting.wait_until(busy, 60, 'the process is not busy', interval=0.01)


def test_a_calm_cluster_runs_each_tick_of_each_object_once(claimed):
    started(claimed)
    first = claimed.complete_ticks()[0]

    last = claimed.wait_complete(3, after=newest(claimed))[-1]

    assert_nothing_lost_or_doubled(claimed, first, last)


def test_a_killed_scheduler_loses_no_tick(claimed):
    schedulers, _ = started(claimed)
    first = claimed.complete_ticks()[0]
    dead = schedulers[0].children
    # Kill the scheduler after it has begun a tick and before it has ended it.
    tick = newest(claimed)
    waiting.wait_until(lambda: newest(claimed) > tick, 10)

    schedulers[0].kill()
    last = claimed.wait_complete(5, after=newest(claimed))[-1]

    assert_nothing_lost_or_doubled(claimed, first, last, dead)


@pytest.mark.parametrize('claimed', [
    pytest.param('local', marks=pytest.mark.full), 'messaging'],
    indirect=True)
def test_a_frozen_process_loses_and_doubles_nothing(claimed):
    """The freeze is longer than the session and the leases, so the results of
    the frozen process do not count.
    """
    claimed.set(**BUSY)
    schedulers, workers = started(claimed)
    first = claimed.complete_ticks()[0]
    # The process with the most runs also has runs that wait for a thread.
    pids = collections.Counter(r.pid for r in claimed.runs())
    victim = max(workers or schedulers,
                 key=lambda program: pids[program.children[0]])
    frozen = victim.children
    # Do not freeze a thread between the check of its lease and the record of
    # its start. It would record the start after that of its successor.
    wait_busy(claimed, frozen)

    victim.freeze()
    claimed.wait_complete(2, after=time.time() + claimed.options['lease'])
    victim.thaw()
    last = claimed.wait_complete(3, after=time.time())[-1]

    assert_nothing_lost_or_doubled(claimed, first, last, frozen)


@pytest.mark.parametrize('claimed', ['local'], indirect=True)
def test_a_run_in_a_killed_process_is_repeated_before_its_lease_ends(claimed):
    """When the session of a killed process expires, its entry disappears. Then
    other members find the runs of the process and repeat them.
    """
    claimed.set(takes=0.5, session_timeout=2, lease=600)
    schedulers, _ = started(claimed)
    dead = schedulers[0].children
    waiting.wait_until(lambda: len(unfinished(claimed, dead)) >= 3, 20,
                       interval=0.01)
    tick = newest(claimed)

    schedulers[0].kill()

    # The session timeout is 2 s, and a lease lasts ten minutes.
    claimed.wait_complete(2, after=tick, timeout=40)


@pytest.mark.parametrize('claimed', ['messaging'], indirect=True)
def test_a_killed_worker_s_runs_are_repeated_within_their_tick(claimed):
    claimed.set(**BUSY)
    _, workers = started(claimed)
    first = claimed.complete_ticks()[0]
    dead = workers[0].children
    wait_busy(claimed, dead)

    workers[0].kill()
    last = claimed.wait_complete(5, after=newest(claimed), timeout=60)[-1]

    assert_nothing_lost_or_doubled(claimed, first, last, dead)
    assert any(r.attempt > 1 for r in claimed.runs())


def with_progress(cluster):
    """Return (object, tick) of each claim whose progress is in the store."""
    engine = database.make_engine(cluster.connection)
    claim = tables.claim
    with engine.connect() as connection:
        found = connection.execute(
            sa.select(claim.c.object, claim.c.tick)
            .join(tables.job, tables.job.c.id == claim.c.job)
            .where(tables.job.c.space == cluster.group,
                   claim.c.progress.is_not(None))).all()
    engine.dispose()
    return set(map(tuple, found))


@pytest.mark.parametrize('claimed', ['messaging'], indirect=True)
def test_the_attempt_after_a_killed_one_gets_its_progress(claimed):
    claimed.set(takes=10, objects=10, spacing=16, pool_size=10,
                behaves=','.join(f'192.168.10.{n}:say' for n in range(10)))
    _, workers = started(claimed, ticks=1)
    dead = workers[0].children
    # The progress is saved once a second.
    waiting.wait_until(
        lambda: len(runs := unfinished(claimed, dead)) >= 3
        and {(r.object, judged.us(r.tick)) for r in runs}
        <= with_progress(claimed), 60, 'some progress was not saved')

    workers[0].kill()
    again = waiting.wait_until(
        lambda: [r for r in claimed.runs() if r.attempt > 1], 60)

    assert {(r.progress['by'] in dead, r.progress['of'] == r.object)
            for r in again} == {(True, True)}
    assert all(r.progress is None for r in claimed.runs() if r.attempt == 1)


def service_of(tasks, tmp_path, url):
    """Return a scheduler service in this process, with a group of its own and
    a store.
    """
    conf = configuration(
        connection=url, state_path=str(tmp_path),
        group=f'test-{uuid.uuid4().hex[:8]}')
    return service.SchedulerService(conf, tasks(conf))


def test_a_member_whose_store_is_unreachable_reports_the_problem(
        tmp_path, postgresql_server):
    class Tasks(periodic.PeriodicTasks):

        @periodic.periodic_task(spacing=1, scope='group')
        def work(self, context):
            pass
    schema.sync(postgresql_server.url)
    scheduler = service_of(Tasks, tmp_path, postgresql_server.url)
    scheduler.start()
    try:
        waiting.wait_until(lambda: scheduler.counts.get(('work', 'done')), 20)
        assert scheduler.status()['healthy']
        postgresql_server.kill()
        waiting.wait_until(lambda: not scheduler.status()['healthy'], 20)
        problem = scheduler.status()['problem']
        postgresql_server.start()
        waiting.wait_until(lambda: scheduler.status()['healthy'], 30)
        assert scheduler.status()['problem'] is None
    finally:
        scheduler.stop()

    assert 'postgresql' in problem
    assert '\n' not in problem


def test_an_effect_and_the_end_of_its_run_are_committed_together(
        tmp_path, postgresql):
    """A run that was replaced cannot commit its effect. A run that fails after
    its effect leaves no effect.
    """
    schema.sync(postgresql.url)
    engine = sa.create_engine(
        sa.make_url(postgresql.url).set(drivername='postgresql+psycopg2'))
    with engine.begin() as connection:
        connection.execute(sa.text(
            'CREATE TABLE effect (object varchar(20), tick varchar(40))'))
    outcomes = []

    class Tasks(periodic.PeriodicTasks):

        def hosts(self, context):
            return ['good', 'bad', 'replaced']

        @periodic.periodic_task(spacing=1, objects='hosts', retries=0)
        def work(self, context, host):
            with engine.connect() as connection, connection.begin() as begun:
                connection.execute(sa.text(
                    'INSERT INTO effect VALUES (:o, :t)'), {
                        'o': host, 't': context.tick.isoformat()})
                if host == 'replaced':
                    with engine.begin() as other:
                        other.execute(sa.text(
                            "UPDATE distperiodic_claim SET lease = 'other' "
                            "WHERE object = 'replaced'"))
                try:
                    context.finish(connection)
                    outcomes.append(host)
                except exceptions.RunReplaced:
                    outcomes.append('refused')
                    begun.rollback()
                    return
                if host == 'bad':
                    raise RuntimeError('after its effect')

    scheduler = service_of(Tasks, tmp_path, postgresql.url)
    scheduler.start()
    try:
        waiting.wait_until(
            lambda: outcomes.count('good') > 1 and outcomes.count('bad') > 1
            and 'refused' in outcomes, 20)
    finally:
        scheduler.stop()

    with engine.begin() as connection:
        effects = connection.execute(sa.text(
            'SELECT object, tick FROM effect')).all()
        connection.execute(sa.text('DROP TABLE effect'))
        states = dict(connection.execute(sa.text(
            "SELECT object, state FROM distperiodic_claim "
            "WHERE object IN ('good', 'bad', 'replaced')")).all())
    assert {o for o, _ in effects} == {'good'}
    assert len(effects) == len(set(effects))
    assert states['good'] != states['bad']
