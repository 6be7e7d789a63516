# SPDX-License-Identifier: Apache-2.0
"""The choices of a seed: the cluster, its jobs and its faults.

*Short* worlds last minutes, with ticks every few seconds. *Long* worlds last
half an hour or more, with few ticks. In a long world a lost tick is not hidden
soon by a later tick.
"""

import dataclasses
from random import Random

from distperiodic.core import cron
from distperiodic.core import schedule
from distperiodic.core.job import Delivery
from distperiodic.core.job import Job
from distperiodic.core.job import Scope

_Misfire, _Overlap = schedule.Misfire, schedule.Overlap
_BERLIN = 'Europe/Berlin'


@dataclasses.dataclass(frozen=True)
class Life:
    """Durations of a world, in seconds of virtual time."""

    faults_from: float
    faults_until: float
    #: Seconds between two ticks of a job.
    periods: tuple[int, ...]
    lines: tuple[str, ...]
    rules: tuple[schedule.Schedule, ...]
    sessions: tuple[float, ...]
    leases: tuple[float, ...]
    sweeps: tuple[float, ...]
    #: Longest duration of a fault.
    longest: float


SHORT = Life(
    15.0, 120.0, (4, 5, 6, 8, 12), ('* * * * *',),
    (schedule.Every(3), schedule.Every(5), schedule.Every(7)),
    (2.0, 3.0, 5.0), (4.0, 6.0, 10.0), (0.25, 1.0, 1.0), 40.0)
LONG = Life(
    300.0, 4000.0, (300, 600, 900, 1800),
    ('30 * * * *', '*/20 * * * *', '30 2 * * *', '0,30 1-3 * * *'),
    (schedule.Every(240), schedule.Every(900), schedule.Every(1800),
     cron.Cron('*/15 * * * *', _BERLIN), cron.Cron('10,40 2 * * *', _BERLIN)),
    (10.0, 30.0), (40.0, 60.0, 120.0), (10.0,), 900.0)


#: Jobs that a seed may draw.
JOBS = {
    'each': dict(misfire=_Misfire.ALL, overlap=_Overlap.WAIT, retries=2),
    'latest': dict(),
    'skip': dict(misfire=_Misfire.SKIP, retries=1),
    'grace': dict(misfire=_Misfire.SKIP, grace=3.0, retries=1),
    'wait': dict(overlap=_Overlap.WAIT, retries=1),
    'all': dict(misfire=_Misfire.ALL, retries=1),
    'once': dict(delivery=Delivery.AT_MOST_ONCE, retries=2),
    'group': dict(group=True, misfire=_Misfire.ALL, overlap=_Overlap.WAIT,
                  retries=2),
    'nightly': dict(group=True, retries=1),
    'spread': dict(spread=True, retries=1),
    'spread_skip': dict(spread=True, misfire=_Misfire.SKIP, retries=1),
    # The catalogue method of this job accepts arcs, and returns the objects in
    # these arcs.
    'parts': dict(retries=1),
    # Objects of this job have schedules of their own.
    'own': dict(retries=1),
    'at_once': dict(run_immediately=True, retries=1),
    'cron': dict(retries=1),
    'narrow': dict(misfire=_Misfire.ALL, overlap=_Overlap.WAIT,
                   max_in_flight=4, priority=1),
}

#: Limit of the partition that all jobs are in, if one of the jobs has a limit
#: of its own.
MOST = 10

#: Faults that last for some time.
FAULTS = (
    'kill scheduler', 'kill worker', 'stop scheduler', 'stop worker',
    'rolling restart', 'all down', 'freeze short', 'freeze long',
    'store away', 'cut from store', 'broker away', 'ensemble away', 'cut',
    'clock step', 'store clock step', 'catalogue hangs', 'poison',
    'schedule changes', 'objects change', 'own schedule changes', 'pause')
#: Actions that only the real store supports.
OPERATOR = ('trigger', 'requeue', 'prune')
#: Faults that last from the start of the world until all faults are healed.
#: 'ends in its session' is no fault: handlers commit the ends of some runs.
NOISE = (
    'answer lost', 'message lost', 'message doubled', 'message unsent',
    'view lag', 'store slow', 'store errors', 'handlers fail',
    'handlers slow', 'catalogue fails', 'ends in its session')


@dataclasses.dataclass
class Setup:
    """The choices of one seed."""

    long: bool
    sql: bool
    schedulers: int
    workers: int
    slots: int
    local: bool
    lease: float
    session: float
    batch_size: int
    late_after: float
    sweep: float
    objects: int
    jobs: dict[str, Job]
    faults: list[str]
    noise: list[str]
    #: Number of rows in one read of the store.
    page: int = 2000
    #: Maximum pause in seconds between two late scans of a large job.
    rest: float = 60.0
    #: Possible numbers of points. Each member gets one of these numbers.
    points: tuple[int, ...] = (8, 40, 40, 100)
    #: Least duration of a run, in seconds.
    takes: float = 0.0
    #: True if members differ: the runs of the second worker take twice as
    #: long, and the schedulers start one after the other.
    differ: bool = False
    #: Schedules that objects may have of their own. If this is empty, the
    #: schedules in ``life`` are used.
    rules: tuple[schedule.Schedule, ...] = ()

    @property
    def life(self):
        return life_of(self.long, self.sql)

    @property
    def lag(self):
        """Maximum delay of a view, in seconds."""
        return 3.0 if 'view lag' in self.noise else 0.05

#: Durations for long worlds with the store in SQLite. A call of this store
#: costs a hundred times as much as a call of the store in memory.
LONG_IN_SQL = dataclasses.replace(
    LONG, faults_until=1800.0, periods=(120, 300, 600), longest=300.0)


def job_of(name, rule):
    """Return the job *name* with the schedule *rule*."""
    options = dict(JOBS[name])
    if options.pop('group', False):
        options['scope'] = Scope.GROUP
    else:
        options['scope'] = Scope.OBJECTS
        options['objects'] = f'list_{name}'
    return Job(name, rule, **options)


def life_of(long, sql):
    if long:
        return LONG_IN_SQL if sql else LONG
    return SHORT


def schedule_of(random, life, name):
    """Return a schedule that the job *name* may have."""
    if name == 'cron':
        return cron.Cron(random.choice(life.lines), _BERLIN)
    return schedule.Every(random.choice(life.periods))


def draw(random: Random, **given):
    """Draw the cluster of a seed.

    :param given: settings that replace drawn ones. ``without`` contains faults
        and noise to leave out.
    """
    without = given.pop('without', ())
    long = given.get('long', random.random() < 0.25)
    sql = given.get('sql', random.random() < 0.06)
    life = life_of(long, sql)
    # If a tick waits because of a limit, each sweep checks it. In long worlds,
    # the processes sweep too rarely for a job with such a limit.
    names = sorted(JOBS.keys() - {'narrow'} if long else JOBS)
    jobs = {name: job_of(name, schedule_of(random, life, name))
            for name in random.sample(
                names, 2 if sql else random.randint(2, 4))}

    def some(of, share):
        return [one for one in of if random.random() < share
                and one not in without]
    session = random.choice(life.sessions)
    if sql:
        # A late scan in SQLite costs a hundred times as much as in memory. If
        # the session timeout is long, late scans are rare.
        session = max(life.sessions)
    drawn = dict(
        long=long, sql=sql,
        schedulers=random.choice([1, 2, 3, 3, 4]),
        workers=random.choice([1, 2, 3, 3]), slots=random.choice([4, 8]),
        local=random.random() < 0.25, lease=random.choice(life.leases),
        session=session, batch_size=random.choice([1, 3, 500]),
        late_after=random.choice([session / 2, session / 4]),
        sweep=random.choice(life.sweeps), objects=random.choice([3, 6, 9]),
        jobs=jobs,
        faults=some(FAULTS, random.choice([0.1, 0.2, 0.5])) + (
            some(OPERATOR, 0.5) if sql else []),
        noise=some(NOISE, random.choice([0.0, 0.1, 0.25, 0.6])))
    if sql:
        drawn |= dict(objects=3, schedulers=min(3, drawn['schedulers']),
                      sweep=max(life.sweeps), lease=max(life.leases))
    if random.random() < 0.3:
        # A catalogue of more than one page is read arc by arc. Use few arcs,
        # because each arc costs one call.
        drawn |= dict(page=3, rest=1.0, points=(8,))
    setup = Setup(**{**drawn, **given})
    # The product requires a sweep interval within these limits.
    setup.sweep = min(setup.sweep, setup.session / 2, setup.lease / 4)
    return setup
