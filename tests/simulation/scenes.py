# SPDX-License-Identifier: Apache-2.0
"""Scenes with faults at the worst moment. Each scene once found an error.

A scene is fixed, except for the random durations of runs and calls.
"""

import dataclasses
from collections.abc import Callable

from distperiodic.core import schedule
from tests.simulation import draws
from tests.simulation.cluster import Cluster

_HOUR = 3600
_QUIET = dict(
    long=True, sql=False, local=True, workers=1, slots=8, lease=60.0,
    session=5.0, batch_size=500, late_after=2.5, sweep=5.0, objects=9,
    faults=[], noise=[])


@dataclasses.dataclass
class Scene:
    """A scene: its description, its jobs and its events."""

    text: str
    #: Seconds between the ticks of each job, by name.
    jobs: dict[str, float]
    #: Function that is called with the cluster at the start. It schedules the
    #: events of the scene.
    events: Callable[[Cluster], None]
    given: dict[str, object] = dataclasses.field(default_factory=dict)

    def live(self, **given):
        """Return the findings. *given* overrides settings of the scene."""
        jobs = {name: draws.job_of(name, schedule.Every(seconds))
                for name, seconds in self.jobs.items()}
        cluster = Cluster(
            2, jobs=jobs, **{**_QUIET, **self.given, **given})
        self.events(cluster)
        cluster.run()
        return [str(one) for one in cluster.judge().findings]


def _at(cluster, seconds, fault, name, lasts):
    """Schedule *fault* for the current process of a member."""
    cluster.world.after(seconds, lambda: cluster.faults.befall(
        fault, cluster.here[name], lasts))


def _restart_in_a_wave(cluster):
    _at(cluster, _HOUR + 1200, 'kill scheduler', 's0', 5)


def _slow_catalogue_of_a_wave(cluster):
    _at(cluster, _HOUR - 1, 'catalogue hangs', 's0', 71)


def _one_dies_before_own_ticks(cluster):
    _at(cluster, 1792, 'kill scheduler', 's1', 600)


def _restart_over_own_ticks(cluster):
    _at(cluster, 1795, 'kill scheduler', 's0', 10)


def _deaths_in_an_old_wave(cluster):
    _at(cluster, _HOUR + 30, 'kill scheduler', 's0', 10)
    _at(cluster, _HOUR + 100, 'kill scheduler', 's1', 600)


def _one_dies_in_a_wave(cluster):
    _at(cluster, _HOUR + 300, 'kill scheduler', 's1', 2000)


def _owner_dies_at_start(cluster):
    for name in ('s0', 's1'):
        _at(cluster, _HOUR - 10, 'kill scheduler', name, 60)
    cluster.world.after(_HOUR + 50.5, lambda: _at(
        cluster, 0, 'kill scheduler',
        cluster.owner_of('nightly', 'nightly'), 1500))


def _an_object_is_away_for_an_hour(cluster):
    world, catalogues = cluster.world, cluster.catalogues
    world.after(1000, catalogues.go, 'all', 'all-0')
    world.after(1000 + _HOUR, catalogues.come, 'all', 'all-0')


def _a_job_comes_more_often(cluster):
    def change():
        cluster.newest_jobs['all'] = draws.job_of('all', schedule.Every(60))
        cluster.faults.befall('rolling restart', cluster.here['s0'], 5)
    cluster.world.after(1800 + 950, change)


def _no_worker_for_a_while(cluster):
    _at(cluster, 590, 'kill worker', 'w0', 300)


def _a_look_takes_long(cluster):
    _at(cluster, 1700, 'cut from store', 's1', 50)
    _at(cluster, 1755, 'cut from store', 's0', 300)


def _an_old_catalogue(cluster):
    def change():
        catalogues = cluster.catalogues
        for n in range(9):
            catalogues.come('latest', f'latest-new{n}')
            catalogues.go('latest', f'latest-{n}')
    cluster.world.after(1850, change)
    # Before its session ends, s0 starts again, and s0 is the first member that
    # reads the changed catalogue.
    _at(cluster, 1860, 'kill scheduler', 's0', 1)


def _only_the_last_reaches_the_store(cluster):
    """Cut off all members but the one that scans last for the job."""
    def cut():
        members = sorted(cluster.points)
        first = members.index(cluster.owner_of('all', 'all'))
        for name in members:
            if name != members[first - 1]:
                _at(cluster, 0, 'cut from store', name, 70)
    cluster.world.after(40, cut)


SCENES = {
    'A1 restart': Scene(
        'the scheduler of a spread job with misfire=skip restarts within the '
        'period of the job',
        {'spread_skip': _HOUR}, _restart_in_a_wave, dict(schedulers=1)),
    'A1 slow catalogue': Scene(
        'the catalogue of a spread job with misfire=skip takes 71 s',
        {'spread_skip': _HOUR}, _slow_catalogue_of_a_wave,
        dict(schedulers=1)),
    'A2': Scene(
        'one of three dies 8 s before objects with their own schedules are '
        'due',
        {'own': _HOUR}, _one_dies_before_own_ticks,
        dict(schedulers=3, session=10.0, late_after=5.0, objects=30,
             rules=(schedule.Every(300),))),
    'A3': Scene(
        'the only scheduler is down when objects with their own schedules are '
        'due',
        {'own': _HOUR}, _restart_over_own_ticks,
        dict(schedulers=1, rules=(schedule.Every(1800),))),
    'A4': Scene(
        'one of two is restarted in a spread period, the other dies in it',
        {'spread': 300}, _deaths_in_an_old_wave,
        dict(schedulers=2, session=10.0, objects=150)),
    'A5': Scene(
        'one of two dies in the period of a spread job with misfire=skip',
        {'spread_skip': _HOUR}, _one_dies_in_a_wave, dict(schedulers=2)),
    'A6': Scene(
        'all are down over a nightly tick, and its owner dies at start',
        {'nightly': _HOUR}, _owner_dies_at_start, dict(schedulers=2)),
    'A7 object': Scene(
        'an object of a job with misfire=all is not listed for an hour',
        {'all': 60}, _an_object_is_away_for_an_hour, dict(schedulers=2)),
    'A7 schedule': Scene(
        'the spacing of a job with misfire=all changes from 1800 to 60',
        {'all': 1800}, _a_job_comes_more_often, dict(schedulers=2)),
    'A8': Scene(
        'there is no worker for a while for a job with misfire=all',
        {'all': 60}, _no_worker_for_a_while,
        dict(schedulers=2, local=False)),
    'last rank': Scene(
        'of eight members, only the one that scans last reaches the store',
        {'all': 4}, _only_the_last_reaches_the_store,
        dict(schedulers=8, long=False, sweep=1.0)),
    'late scan': Scene(
        'a late scan waits 50 s for the store, and then the other member is '
        'cut off from the store',
        {'own': 300}, _a_look_takes_long,
        dict(schedulers=2, rules=(schedule.Every(1800),))),
    'old catalogue': Scene(
        'members that gain arcs have an older reading of the catalogue than '
        'another member',
        {'latest': 1800}, _an_old_catalogue,
        dict(schedulers=3, session=10.0)),
}
