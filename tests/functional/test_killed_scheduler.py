# SPDX-License-Identifier: Apache-2.0
"""A scheduler that is killed with SIGKILL before its ticks."""

import collections
import time

import pytest
import sqlalchemy as sa

from tests import forks
from tests import programs
from tests import waiting
from tests.functional import every_kind
from tests.functional.every_kind import JOBS
from tests.functional.every_kind import SPACING


class Host:
    """Runs schedulers one after another, with the default store."""

    def __init__(self, place):
        self.place = place
        self.record = place / 'record.jsonl'
        self.record.touch()
        self.config = programs.write_config(
            place / 'service.conf', DEFAULT={'graceful_shutdown_timeout': 20},
            distperiodic={'group': 'kinds', 'state_path': place / 'state'})
        self.started = []

    def start(self):
        program = forks.Program(
            [*programs.PYTHON, '-m', every_kind.__name__, self.config,
             self.record], self.place / f'log-{len(self.started)}')
        self.started.append(program)
        return program

    def select(self, statement):
        """Return the first column of all rows of the store; None means that
        the scheduler has not finished creating the tables.
        """
        store = self.place / 'state' / 'kinds.sqlite'
        if not store.exists():
            return None
        engine = sa.create_engine(f'sqlite:///{store}')
        try:
            with engine.connect() as connection:
                return list(connection.scalars(sa.text(statement)))
        except sa.exc.OperationalError:
            return None
        finally:
            engine.dispose()

    def listed(self):
        """Return the jobs whose object the store lists."""
        return set(self.select(
            'SELECT name FROM distperiodic_claim JOIN distperiodic_job '
            'ON distperiodic_job.id = job WHERE since IS NOT NULL') or ())

    def idle(self):
        """Tell whether no tick is claimed, running or waits for a retry."""
        return self.select('SELECT id FROM distperiodic_lease') == []

    def runs(self):
        return [(one['job'], one['tick'], one['pid'])
                for one in programs.records(self.record)]


@pytest.fixture
def host(tmp_path):
    made = Host(tmp_path)
    yield made
    for program in made.started:
        program.kill()


@pytest.mark.timeout(600)
def test_a_tick_that_came_while_the_scheduler_was_dead_runs_once_of_each_kind(
        host):
    first = host.start()
    waiting.wait_until(lambda: host.listed() == {*JOBS}, 60)
    waiting.wait_until(
        lambda: 'immediate' in {job for job, _, _ in host.runs()}, 30)
    # If it were killed during a run, this run would be repeated, and the tick
    # that comes meanwhile would be skipped (overlap). So all runs have ended,
    # and the minute is neither so young nor so old that others are due.
    waiting.wait_until(
        lambda: 5 <= time.time() % SPACING < SPACING - 10 and host.idle(), 30,
        'the runs did not end', interval=0.1)
    killed = first.kill()
    tick = time.time() // SPACING * SPACING + SPACING
    before = host.runs()

    # By then all jobs are due, also the jobs with a phase.
    waiting.wait_until(lambda: time.time() > tick + 1.5, SPACING + 5,
                       interval=0.1)
    host.start()
    waiting.wait_until(
        lambda: {job for job, at, _ in host.runs() if at == tick} == {*JOBS},
        45, f'not all ran for {tick}: {host.runs()}')
    # A second run of the same tick would begin before the next tick.
    waiting.wait_until(
        lambda: {job for job, at, _ in host.runs()
                 if at == tick + SPACING} == {*JOBS}, SPACING + 45)

    runs = host.runs()
    assert not [run for run in before if run[1] == tick]
    assert [pid for _, at, pid in runs if at == tick and pid in killed] == []
    assert set(collections.Counter(
        (job, at) for job, at, _ in runs).values()) == {1}
