# SPDX-License-Identifier: Apache-2.0
"""A process is asked to stop at every step of a tick.

The steps are the events of the world: calls to the store that are sent, arrive
or are answered, messages that are sent or received, and runs that begin or
end. Nothing else disturbs the world.
"""

import logging

import pytest

from distperiodic.core import schedule
from tests import checker
from tests.oracle.facts import SECOND
from tests.simulation import draws
from tests.simulation.cluster import Cluster

JOBS = ('each', 'latest', 'once', 'narrow')
_PERIOD = 20
#: The tick in seconds, and the seconds after it in which its events occur.
TICK, EVENTS = 40.0, 0.6
#: Seconds within which another process must run what was given back.
SOON = 3.5
_QUIET = dict(
    long=False, workers=2, slots=2, lease=10.0, session=5.0, batch_size=4,
    late_after=2.5, sweep=1.0, objects=5, schedulers=2, faults=[], noise=[])


def world(**given):
    """Return a cluster shortly before the tick."""
    jobs = {name: draws.job_of(name, schedule.Every(_PERIOD))
            for name in JOBS}
    cluster = Cluster(7, jobs=jobs, tasks=False, **{**_QUIET, **given})
    cluster.world.run(int((TICK - 0.05) * SECOND))
    return cluster


def events_of(**given):
    """Return the number of events of the tick."""
    cluster, number = world(**given), 0
    while cluster.world.step(int((TICK + EVENTS) * SECOND)):
        number += 1
    cluster.stores.close()
    return number


def stopped_after(step, name, **given):
    """Stop a process after *step* events. Return the findings."""
    cluster = world(**given)
    for _ in range(step):
        cluster.world.step(int((TICK + EVENTS) * SECOND))
    process = cluster.here[name]
    process.stop()
    cluster.world.run(int((TICK + 15) * SECOND))
    cluster.stores.close()
    tick = cluster.world.begin + int(TICK * SECOND)
    late = tick + int(SOON * SECOND)
    ran = {run.key: run for run in cluster.runs if run.start <= late}
    return [str(one) for one in (
        *checker.check(cluster.record()), *cluster.judge().findings)] + [
        f'alive: {name} has not ended' for _ in range(process.alive)] + [
        f'late: {job} object {n} of the tick has not run'
        for job in JOBS for n in range(_QUIET['objects'])
        if (job, f'{job}-{n}', tick) not in ran] + [
        f'repeated: {run}' for run in cluster.runs if run.attempt > 1]


# With SQLite, a step takes five times as long.
@pytest.mark.parametrize(('sql', 'each'), [
    (False, 1), pytest.param(True, 2, marks=pytest.mark.full)],
    ids=['memory', 'SQLite'])
@pytest.mark.parametrize(('local', 'name'), [
    (True, 's0'), (False, 's0'), (False, 'w0')], ids=[
        'scheduler with a pool', 'scheduler', 'worker'])
def test_nothing_is_left_when_a_process_stops_at_any_step_of_a_tick(
        local, name, sql, each):
    logging.disable(logging.CRITICAL)
    given = dict(local=local, sql=sql)
    try:
        steps = events_of(**given)
        assert steps > 40
        found = {step: findings for step in range(0, steps, each)
                 if (findings := stopped_after(step, name, **given))}
    finally:
        logging.disable(logging.NOTSET)

    assert not found, '\n'.join(
        f'after {step} events: {findings[:4]}'
        for step, findings in list(found.items())[:5])
