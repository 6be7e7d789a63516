# SPDX-License-Identifier: Apache-2.0
"""There is more work than the workers can do, for minutes.

Each run takes two seconds, so that a period has more due objects than the
slots can run. No other fault disturbs the world.
"""

import collections
import dataclasses
import itertools

import pytest

from distperiodic.core import schedule
from distperiodic.flow.scheduler.in_flight import Line
from tests import checker
from tests.oracle.facts import FOREVER
from tests.oracle.facts import SECOND
from tests.simulation import draws
from tests.simulation.cluster import Cluster

_PERIOD, _TAKES = 4, 2.0
#: Seconds until the overload lasts, and from then on the longest time for
#: which a slot may be free.
_BEGUN, _IDLE = 15, 1.0
#: Seconds until all claims have run that schedulers made before the last
#: scheduler started. Their objects may have other owners since then.
_SETTLED = 90
_OVERLOADED = dict(
    long=False, slots=2, lease=10.0, session=5.0, batch_size=500,
    late_after=2.5, sweep=1.0, faults=[], noise=[], takes=_TAKES)


def unfair(cluster, together):
    """Yield a finding for each owner whose objects did not take turns: one of
    them began two more runs than another.

    :param together: Seconds within which runs that were sent one after the
        other may begin in any order.
    """
    counts = collections.defaultdict(collections.Counter)
    for job, key in cluster.catalogues.listings:
        counts[job, cluster.owner_of(job, key)][key] = 0
    uneven = {}
    for run in cluster.runs:
        owner = run.job, cluster.owner_of(run.job, run.object)
        runs = counts[owner]
        runs[run.object] += 1
        if max(runs.values()) <= 1 + min(runs.values()):
            uneven.pop(owner, None)
        elif run.start > uneven.setdefault(
                owner, run.start) + together * SECOND:
            yield checker.Finding('unfair', f'{owner}: {dict(runs)}')


def overtaken(cluster, together, settled=0):
    """Yield a finding for each object that was due and did not run while
    another object of its owner began two runs.

    This rule also holds if not all objects are always due: with
    ``overlap=skip``, an object is not due for a tick that comes during its
    run.

    :param together: As for :func:`unfair`.
    :param settled: Seconds since which the owners have been the same.
    """
    settled = cluster.world.begin + settled * SECOND
    runs_of = collections.defaultdict(list)
    for run in cluster.runs:
        runs_of[run.job, cluster.owner_of(run.job, run.object)].append(run)
    for one in cluster.judge().objects:
        owner = one.pair[0], cluster.owner_of(*one.pair)
        for since, start in _waits(cluster, one):
            end = min(start, cluster.world.now) - together * SECOND
            others = collections.Counter(
                run.object for run in runs_of[owner]
                if since < run.start < end and run.object != one.pair[1])
            if since >= settled and max(others.values(), default=0) > 1:
                yield checker.Finding('overtaken', (
                    f'{one.pair} waited from {since} to {start}: {others}'))


def _waits(cluster, one):
    """Yield, for each run of an object, since when it was due and when it
    began. The last pair has no run.
    """
    job = cluster.setup.jobs[one.pair[0]]
    skips = (job.overlap is schedule.Overlap.SKIP
             and job.misfire is not schedule.Misfire.ALL)
    tick = ended = -FOREVER
    runs = [run for run in cluster.runs if (run.job, run.object) == one.pair]
    for run in [*runs, None]:
        since = min((max(due.at, ended) for due in one.dues
                     if due.must and due.tick > tick
                     and not (skips and due.at <= ended)), default=FOREVER)
        yield since, FOREVER if run is None else run.start
        if run is not None:
            tick, ended = run.tick, FOREVER if run.end is None else run.end


def idle(cluster, longest=_IDLE):
    """Yield a finding for each time for which a slot was free too long.

    :param longest: Seconds for which a slot may be free.
    """
    by_process = collections.defaultdict(list)
    for run in cluster.runs:
        by_process[run.process].append(run)
    for process, runs in by_process.items():
        slots = cluster.slots[process.partition('~')[0]]
        changes = sorted(itertools.chain(
            ((run.start, 1) for run in runs),
            ((run.end, -1) for run in runs if run.end is not None)))
        busy = 0
        for (at, change), (until, _) in itertools.pairwise(changes):
            busy += change
            if (at > cluster.world.begin + _BEGUN * SECOND
                    and busy < slots
                    and until - at > longest * SECOND):
                yield checker.Finding('idle', (
                    f'{process}: {busy} runs from {at} to {until}'))


@pytest.mark.parametrize(('name', 'local', 'schedulers', 'workers'), [
    *((name, True, 1, 0) for name in ('latest', 'skip', 'all', 'spread')),
    *((name, False, 1, 1) for name in ('latest', 'skip', 'all', 'spread')),
    ('latest', True, 3, 0), ('latest', False, 3, 2), ('spread', False, 3, 2)])
def test_objects_take_turns_and_no_slot_idles(
        name, local, schedulers, workers):
    job = draws.job_of(name, schedule.Every(_PERIOD))
    cluster = Cluster(3, jobs={name: job}, tasks=False, **_OVERLOADED | dict(
        local=local, schedulers=schedulers, workers=workers,
        objects=9 * (schedulers if local else workers)))
    # The pools of schedulers may differ.
    cluster.slots['s2'] = 3
    cluster.run()
    # If several schedulers share the workers, a run may wait at a worker until
    # the run of another scheduler ends.
    together = 0.1 if local or schedulers == 1 else _TAKES

    assert len(cluster.runs) > 100
    assert [*unfair(cluster, together), *idle(cluster)] == []


@pytest.mark.parametrize('name', ['spread', 'own'])
def test_objects_take_turns_in_the_pools_of_several_schedulers(name):
    """Some schedulers own so few objects that an object is not due at each
    tick, because it still runs. Then the numbers of runs may differ.
    """
    cluster = Cluster(6, jobs={name: draws.job_of(
        name, schedule.Every(_PERIOD))}, tasks=False, **_OVERLOADED | dict(
            local=True, schedulers=3, workers=0, objects=27))
    cluster.slots['s2'] = 3
    cluster.run()

    assert len(cluster.runs) > 500
    assert [*overtaken(cluster, 0.1)] == []


def test_objects_take_turns_though_many_short_runs_are_sent_together():
    """Their starts say little about their turns."""
    cluster = Cluster(4, jobs={'all': draws.job_of(
        'all', schedule.Every(_PERIOD))}, tasks=False, **_OVERLOADED | dict(
            local=False, schedulers=1, workers=1, objects=60, takes=0.2))
    cluster.run()
    # Objects that start within this time may change their order.
    together = Line.STEP / SECOND

    assert len(cluster.runs) > 1_500
    assert [*unfair(cluster, together), *overtaken(cluster, together),
            *idle(cluster)] == []


#: Seconds that a run takes at most.
_LONGEST = _TAKES + 0.11
#: Jobs with each misfire and overlap policy, with phases, and with schedules
#: of the objects.
_JOBS = ('latest', 'skip', 'all', 'wait', 'each', 'spread', 'spread_skip',
         'own')


@pytest.mark.parametrize('name', _JOBS)
def test_objects_take_turns_though_other_schedulers_see_that_they_are_late(
        name):
    """Each scheduler owns so many objects that they are always due."""
    cluster = Cluster(2, jobs={name: draws.job_of(
        name, schedule.Every(_PERIOD))}, tasks=False, **_OVERLOADED | dict(
            local=False, schedulers=3, workers=2, slots=3, objects=45,
            points=(400,)))
    cluster.run()

    # No object has run before it had its last owner.
    assert cluster.ensemble.rings[-1][0] < cluster.runs[0].start
    assert len(cluster.runs) > 500
    assert [*unfair(cluster, _LONGEST), *overtaken(cluster, _LONGEST),
            *idle(cluster)] == []


@pytest.mark.parametrize(('name', 'retries'), [
    ('each', 0), ('each', 2), ('latest', 2), ('wait', 1)])
def test_objects_take_turns_though_runs_fail(name, retries):
    """Another scheduler does not claim an object whose run has just failed,
    and leaves its retry to the scheduler that sent the run.
    """
    job = draws.job_of(name, schedule.Every(_PERIOD))
    cluster = Cluster(1, jobs={name: dataclasses.replace(
        job, retries=retries)}, tasks=False, **_OVERLOADED | dict(
            local=False, schedulers=3, workers=2, slots=3, objects=45,
            points=(400,)))
    cluster.fails = 0.5 if retries else 1.0
    cluster.run()

    assert len(cluster.runs) > 500
    assert [*unfair(cluster, _LONGEST), *overtaken(cluster, _LONGEST),
            *idle(cluster)] == []


@pytest.mark.parametrize('differ', [False, True])
@pytest.mark.parametrize(('workers', 'slots'), [(2, 2), (2, 1), (3, 1)])
def test_objects_take_turns_though_workers_have_few_slots(
        workers, slots, differ):
    """Each of three schedulers sends runs to each worker. None of these runs
    waits at a slow worker while other objects of its owner run again.
    """
    cluster = Cluster(3, jobs={'all': draws.job_of(
        'all', schedule.Every(_PERIOD))}, tasks=False, **_OVERLOADED | dict(
            local=False, schedulers=3, workers=workers, slots=slots,
            objects=8 * workers * slots, points=(8,), differ=differ))
    cluster.run()

    assert len(cluster.runs) > (72 if differ else 98) * workers * slots
    assert [*overtaken(cluster, 2 * _LONGEST if differ else _LONGEST,
                       _SETTLED if differ else 0)] == []


@pytest.mark.parametrize(('seed', 'schedulers', 'workers'), [
    (9, 3, 2), (4, 4, 3)])
def test_objects_take_turns_though_schedulers_own_few_objects(
        seed, schedulers, workers):
    """All due objects of a scheduler are at workers of one slot, so none waits
    at the scheduler.
    """
    cluster = Cluster(seed, jobs={'all': draws.job_of(
        'all', schedule.Every(_PERIOD))}, tasks=False, **_OVERLOADED | dict(
            local=False, schedulers=schedulers, workers=workers, slots=1,
            objects=5 * workers, points=(8,), differ=True))
    cluster.run()

    assert len(cluster.runs) > 72 * workers
    assert [*overtaken(cluster, 2 * _LONGEST, _SETTLED)] == []


@pytest.mark.parametrize('name', _JOBS)
def test_objects_take_turns_where_members_differ(name):
    """Schedulers start at different times and own different numbers of
    objects. One worker has more slots, and is slower.
    """
    cluster = Cluster(3, jobs={name: draws.job_of(
        name, schedule.Every(_PERIOD))}, tasks=False, **_OVERLOADED | dict(
            local=False, schedulers=3, workers=2, slots=3, objects=45,
            differ=True))
    cluster.slots['w1'] = 4
    cluster.run()

    # A scheduler with few objects leaves slots free. The others learn this
    # with the next sign of life of a worker.
    signs = cluster.setup.session / 4

    assert len(cluster.runs) > 400
    assert [*overtaken(cluster, 2 * _LONGEST, _SETTLED),
            *idle(cluster, _IDLE + signs)] == []
