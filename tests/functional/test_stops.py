# SPDX-License-Identifier: Apache-2.0
"""Processes that stop around a tick leave nothing behind.

Each service is stopped some milliseconds before or after a tick, with claims
that are waiting, on their way to the store or back, or being sent. Afterwards
the service starts again. Many groups do this at the same time.
"""

import collections
import concurrent.futures
import contextlib
import math
import random
import sqlite3
import threading
import time
import uuid

import pytest
import sqlalchemy as sa
from oslo_config import cfg
from oslo_log import log

from distperiodic import periodic
from distperiodic import service
from distperiodic.adapters.sql import schema
from distperiodic.adapters.sql import tables
from distperiodic.core.claim import State
from tests import waiting
from tests.ends import took_at_most
from tests.logged import lines

OBJECTS = [f'object-{n}' for n in range(3)]
#: Milliseconds from the tick to the stop. Usually a claim takes 20 ms here,
#: and longer if the machine is busy.
OFFSETS = -4, -1, 0, 1, 3, 6, 10, 15, 25, 40, 70


class Tasks(periodic.PeriodicTasks):
    """Jobs whose handlers record their runs."""

    def __init__(self, conf):
        super().__init__(conf)
        self.runs = collections.Counter()
        self._lock = threading.Lock()

    def objects(self, context):
        return OBJECTS

    def _record(self, context, key):
        with self._lock:
            self.runs[context.job, key, context.tick, context.attempt] += 1

    @periodic.periodic_task(spacing=1, objects='objects', misfire='all',
                            overlap='wait', retries=1)
    def each(self, context, key):
        self._record(context, key)

    @periodic.periodic_task(spacing=1, objects='objects')
    def latest(self, context, key):
        self._record(context, key)

    @periodic.periodic_task(spacing=1, objects='objects', misfire='all',
                            overlap='wait', delivery='at_most_once')
    def once(self, context, key):
        self._record(context, key)


class Group:
    """The services of one group, and the account of their store."""

    def __init__(self, place, number, more, url=None):
        self.name = f'stops-{uuid.uuid4().hex[:8]}'
        path = place / f'{self.name}.conf'
        state = place / self.name
        state.mkdir(0o700)
        self.url = url or f'sqlite:///{state / "claims.sqlite"}'
        schema.sync(self.url)
        path.write_text(more.format(
            group=self.name, state=state, connection=self.url))
        path.chmod(0o600)
        self.conf = cfg.ConfigOpts()
        log.register_options(self.conf)
        self.conf([f'--config-file={path}'], project='distperiodic')
        self.tasks = Tasks(self.conf)
        self.random = random.Random(number)
        self.scheduler = service.SchedulerService(self.conf, self.tasks)
        self.services = [self.scheduler]
        if 'dispatcher = messaging' in more:
            self.services.append(service.WorkerService(self.conf, self.tasks))
        self.engine = sa.create_engine(self.url)
        self.left = []
        #: Intervals in which all services were stopped, in seconds.
        self.down = []
        #: Time at which the last service had started, in seconds.
        self.until = math.inf

    def rows(self, *columns, **conditions):
        of = tables.job.c.id == columns[0].table.c.job
        with self.engine.connect() as connection:
            return connection.execute(sa.select(*columns).join(
                tables.job, of).where(tables.job.c.space == self.name)).all()

    def live(self, stops):
        """Stop and start the services in turn, around ticks."""
        for one in self.services:
            one.start()
        self._wait_for_runs()
        for number in range(stops):
            one = self.services[number % len(self.services)]
            at = (math.ceil(time.time() + 0.05)
                  + self.random.choice(OFFSETS) / 1000)
            waiting.wait_until(lambda at=at: time.time() >= at, 3,
                               interval=0.0005)
            member = one.member_id
            one.stop()
            one.wait()
            self.left += [(number, row.holder, row.state) for row in self.rows(
                tables.lease.c.holder, tables.lease.c.state)
                if row.holder.startswith(f'{member}~') and (
                    len(self.services) == 1 or self._is_of(one, row.state))]
            if self.services == [one]:
                self._stay_down()
            one.start()
            self._wait_for_runs()
        self.until = time.time()
        # The services were stopped while ticks waited. If a tick does not run
        # now either, judge() reports it.
        with contextlib.suppress(pytest.fail.Exception):
            waiting.wait_until(lambda: not self.lost(), 60)
        for one in reversed(self.services):
            one.stop()

    def _stay_down(self):
        """Miss two ticks at some of the stops."""
        begin = time.time()
        end = math.ceil(begin) + 1.01 if self.random.random() < 0.25 else begin
        waiting.wait_until(lambda: time.time() >= end, 3)
        self.down.append((begin, time.time()))

    def _is_of(self, one, state):
        """Return whether a lease is one of *one*, and not of the other
        service, which has the same name.
        """
        running = state is State.RUNNING
        return running is not (one is self.scheduler)

    def _wait_for_runs(self):
        number = len(self.tasks.runs)
        waiting.wait_until(lambda: len(self.tasks.runs) > number, 30,
                           'nothing ran after the start')

    def lost(self):
        """Return the ticks that did not run, of those that were due when the
        last service had started.

        Jobs with misfire=all and overlap=wait run each tick of each object.
        """
        ran = {(job, key, tick.timestamp())
               for job, key, tick, _ in list(self.tasks.runs)}
        lost = []
        for job in ('each', 'once'):
            first = min((tick for name, _, tick in ran if name == job),
                        default=self.until)
            lost += [(job, key, tick) for key in OBJECTS
                     for tick in range(int(first), math.floor(self.until) + 1)
                     if (job, key, tick) not in ran]
        return lost

    def close(self):
        for one in self.services:
            one.stop()
        self.engine.dispose()


_LOCAL = """[distperiodic]
group = {group}
state_path = {state}
connection = {connection}
lease = 30
pool_size = 4
"""


_MESSAGING = """[DEFAULT]
transport_url = {broker}
[distperiodic]
group = {{group}}
state_path = {{state}}
connection = {{connection}}
backend_url = file://{place}/members
dispatcher = messaging
lease = 30
pool_size = 4
"""


def judge(groups):
    """Assert that each tick ran once, and that no stop left a claim."""
    for group in groups:
        assert group.left == []
        assert {key: number for key, number in group.tasks.runs.items()
                if number > 1 or key[-1] > 1} == {}
        history = group.rows(*(tables.history.c[name] for name in (
            'job', 'tick', 'dead', 'by_overlap', 'taken_over', 'retried')))
        assert [row for row in history
                if row.dead or row.taken_over or row.retried] == []
        # While all services were down, no run was in progress.
        assert [row for row in history if row.by_overlap and any(
            begin <= row.tick / 1e6 <= end for begin, end in group.down)] == []
        assert group.lost() == []


def lives(place, groups, stops, more, url=None):
    """Let some groups live at the same time, and judge them."""
    made = [Group(place, number, more, url) for number in range(groups)]
    try:
        with concurrent.futures.ThreadPoolExecutor(groups) as threads:
            list(threads.map(lambda one: one.live(stops), made))
    finally:
        for one in made:
            one.close()
    judge(made)


# These take two minutes alone, and more beside other tests. All groups run in
# the process of the test. If there were too many of them, the runs would be
# more than 100 ticks late, and misfire=all would give ticks up.
FULL = [pytest.mark.full, pytest.mark.timeout(600),
        pytest.mark.xdist_group('stops')]


@pytest.mark.parametrize('groups, stops', [
    (5, 7), pytest.param(4, 60, marks=FULL)])
def test_a_scheduler_that_stops_around_a_tick_leaves_nothing(
        tmp_path, groups, stops):
    lives(tmp_path, groups, stops, _LOCAL)


@pytest.mark.parametrize('groups, stops', [
    (3, 6), pytest.param(3, 60, marks=FULL)])
def test_services_that_stop_around_a_tick_leave_nothing_on_rabbitmq(
        tmp_path, postgresql, rabbitmq, groups, stops):
    lives(tmp_path, groups, stops, _MESSAGING.format(
        place=tmp_path, broker=rabbitmq.url), postgresql.url)


@pytest.mark.parametrize('groups, stops', [
    (3, 6), pytest.param(3, 60, marks=FULL)])
def test_services_that_stop_around_a_tick_leave_nothing_on_redis(
        tmp_path, redis, groups, stops):
    lives(tmp_path, groups, stops, _MESSAGING.format(
        place=tmp_path, broker=redis.url))


def lock(group, locks):
    """Lock the store against writers, and return true.

    If a run has no recorded result, lock nothing and return false, because a
    stop waits longer for a store that must record a result.
    """
    locks.execute('BEGIN EXCLUSIVE')
    if any(state is State.RUNNING
           for state, in group.rows(tables.lease.c.state)):
        locks.execute('ROLLBACK')
        return False
    return True


def test_a_store_that_does_not_answer_at_the_stop_is_not_waited_for_long(
        tmp_path, caplog):
    """The stop may last a minute, but only the store can still answer."""
    group = Group(tmp_path, 1, _LOCAL + 'session_timeout = 3\n')
    one = group.scheduler
    one.start()
    try:
        waiting.wait_until(lambda: group.tasks.runs, 30)
        with contextlib.closing(sqlite3.connect(
                group.url.removeprefix('sqlite:///'),
                isolation_level=None)) as locks:
            waiting.wait_until(lambda: lock(group, locks), 30)
            waiting.wait_until(lambda: one.status()['problem'], 30)
            with took_at_most(15):
                one.stop()
    finally:
        group.close()

    [line] = lines(caplog, 'stopped before the end')
    assert line['reason'].startswith('the store does not answer')
    assert 'at most 30 s from now' in line.text


@pytest.mark.parametrize('moment', range(8))
def test_a_service_that_is_stopped_while_it_starts_leaves_nothing(
        tmp_path, moment):
    group = Group(tmp_path, 1, _LOCAL)
    before = {*threading.enumerate()}
    group.scheduler.start()
    begin = time.monotonic()
    waiting.wait_until(lambda: time.monotonic() - begin >= moment / 50, 3,
                       interval=0.001)

    group.scheduler.stop()
    group.scheduler.wait()

    assert [row for row in group.rows(tables.lease.c.holder)
            if row.holder] == []
    waiting.wait_until(lambda: not [
        thread.name for thread in {*threading.enumerate()} - before
        if thread.name.startswith('distperiodic')], 20)
    group.close()
