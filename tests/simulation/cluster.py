# SPDX-License-Identifier: Apache-2.0
"""A cluster that shares a store, and everything that befalls it.

A seed draws the cluster, its jobs, and a subset of the faults. They come for
a while, are healed, and after a time in which everything has to recover the
record is read::

    0 ── faults ──────────────── healed ── recovery ── the end
         kill, freeze, outages            no faults
"""

import collections
import dataclasses
import logging
import random as random_

from distperiodic.core import job as job_
from distperiodic.core import partition
from distperiodic.core import ring
from distperiodic.core import schedule
from tests import checker
from tests.simulation import bugs
from tests.simulation import members
from tests.simulation import store as store_
from tests.simulation import wires
from tests.simulation import world as world_

SECOND = world_.SECOND

#: Seconds of virtual time.
FAULTS_FROM = 15
FAULTS_UNTIL = 120

_Misfire, _Overlap = schedule.Misfire, schedule.Overlap


def _job(name, period, **options):
    if options.pop('group', False):
        options['scope'] = job_.Scope.GROUP
    else:
        options['scope'] = job_.Scope.OBJECTS
        options['objects'] = f'list_{name}'
    return job_.Job(name, schedule.Every(period), **options)


#: What a seed may draw.
JOBS = {
    'each': lambda period: _job(
        'each', period, misfire=_Misfire.ALL, overlap=_Overlap.WAIT,
        retries=2),
    'latest': lambda period: _job('latest', period),
    'skip': lambda period: _job(
        'skip', period, misfire=_Misfire.SKIP, retries=1),
    'wait': lambda period: _job(
        'wait', period, overlap=_Overlap.WAIT, retries=1),
    'once': lambda period: _job(
        'once', period, delivery=job_.Delivery.AT_MOST_ONCE, retries=2),
    'group': lambda period: _job(
        'group', period, group=True, misfire=_Misfire.ALL,
        overlap=_Overlap.WAIT, retries=2),
    'spread': lambda period: _job('spread', period, spread=True, retries=1),
    # Its catalogue method takes the arcs, and gives the objects in them.
    'parts': lambda period: _job('parts', period, retries=1),
    # Its objects have a schedule of their own, of half its period.
    'own': lambda period: _job('own', period, retries=1),
    'narrow': lambda period: _job(
        'narrow', period, misfire=_Misfire.ALL, overlap=_Overlap.WAIT,
        max_in_flight=4, priority=1),
}

#: Where a job has a limit its partition, which is that of all, has one, too.
MOST = 10

#: Faults that come and go.
FAULTS = (
    'kill scheduler', 'kill worker', 'freeze short', 'freeze long',
    'store away', 'broker away', 'ensemble away', 'cut', 'clock step',
    'catalogue hangs', 'poison')
#: Faults that are there all the time.
NOISE = (
    'answer lost', 'message lost', 'message doubled', 'message unsent',
    'view lag', 'store slow', 'handlers fail', 'handlers slow')
#: Noise that has a draw of its own, so that the seeds of before it came are
#: the worlds that they were.
CATALOGUE_FAILS = 'catalogue fails'


@dataclasses.dataclass
class Setup:
    """What a seed drew."""

    schedulers: int
    workers: int
    slots: int
    local: bool
    lease: float
    session: float
    batch_size: int
    late_after: float
    objects: int
    jobs: dict[str, int]
    faults: list[str]
    noise: list[str]


def draw(random, local=None, without=()):
    """The cluster of a seed.

    :param without: faults and noise that are left out.
    """
    known = set(JOBS)
    jobs = {name: random.choice([4, 5, 6, 8, 12])
            for name in ['each', *sorted(random.sample(
                sorted(known - {'each'}), random.randint(1, 3)))]}

    def some(of, share):
        return [one for one in of if random.random() < share
                and one not in without]
    is_local = random.random() < 0.25 if local is None else local
    return Setup(
        schedulers=random.choice([1, 2, 3, 3, 4]),
        workers=random.choice([1, 2, 3, 3]), slots=random.choice([4, 8]),
        local=is_local, lease=random.choice([4.0, 6.0, 10.0]),
        session=random.choice([2.0, 3.0, 5.0]),
        batch_size=random.choice([1, 3, 500]),
        late_after=random.choice([1.0, 2.0, 5.0]),
        objects=random.choice([3, 6, 9]), jobs=jobs,
        faults=some(FAULTS, random.choice([0.1, 0.25, 0.6])),
        noise=some(NOISE, random.choice([0.1, 0.25, 0.6])))


class Cluster:
    """See the picture above.

    :param bug: the name of a planted bug; see :mod:`.bugs`.
    """

    def __init__(self, seed, *, bug=None, log=None, local=None,
                 without=()):
        self.world = world_.World(seed, log)
        random = self.world.random
        self.bug = bugs.BUGS[bug] if bug else bugs.Bug()
        self.setup = setup = draw(random, local, without)
        if (CATALOGUE_FAILS not in without
                and random_.Random(f'{CATALOGUE_FAILS} {seed}').random()
                < 0.25):
            setup.noise.append(CATALOGUE_FAILS)
        self.world.tell('SETUP %s', setup)
        self.jobs = {name: JOBS[name](period)
                     for name, period in setup.jobs.items()}
        self.partitions = {}
        if any(job.max_in_flight for job in self.jobs.values()):
            self.partitions['default'] = partition.Partition('default', MOST)
        noise = set(setup.noise)
        self.store = self.bug.store(store_.SharedStore)(
            world_.StoreClock(self.world))
        if log is not None:
            self.store.told(self.world.tell)
        self.line = wires.Line(
            lost=0.03 if 'answer lost' in noise else 0.0,
            slow=0.03 if 'store slow' in noise else 0.0)
        self.broker = wires.Broker(
            self.world, lost=0.1 if 'message lost' in noise else 0.0,
            doubled=0.1 if 'message doubled' in noise else 0.0,
            unsent=0.1 if 'message unsent' in noise else 0.0)
        self.ensemble = wires.Ensemble(
            self.world, setup.session, 3.0 if 'view lag' in noise else 0.05)
        self._fails = 0.1 if 'handlers fail' in noise else 0.0
        self._slow = 0.02 if 'handlers slow' in noise else 0.0
        #: How many reads of a catalogue fail.
        self.unread = 0.1 if CATALOGUE_FAILS in noise else 0.0
        self.sweeps = self.bug.sweeps
        self._objects = {
            name: [f'{name}-{n}' for n in range(setup.objects)]
            for name in setup.jobs}
        names = [f's{n}' for n in range(setup.schedulers)]
        self.points = {name: random.choice([8, 40, 40, 100])
                       for name in names}
        self.runs = []
        self.effects = []
        self._fences = {}
        self.windows = []
        #: The job and object that processes die of.
        self._deadly = None
        self._going = collections.defaultdict(list)
        self._all_going = []
        self._here = {name: None for name in names}
        self._here.update(
            (f'w{n}', None) for n in range(
                0 if setup.local else setup.workers))
        for name in self._here:
            self.world.after(2 * random.random(), self._boot, name)
        self._plan()

    # -- processes

    def _boot(self, name, nonce=None):
        kind = members.Scheduler if name[0] == 's' else members.Worker
        self._here[name] = process = kind(self, name, nonce)
        self.world.tell('BOOT %s', process.name)

    def queue(self, process):
        return self.bug.queue(wires.StoreQueue(
            process, self.store, self.line), process)

    def objects_of(self, job, arcs):
        """What the catalogue method of *job* gives: objects, their own
        schedules, and whether it has looked at the arcs.
        """
        objects = self._objects[job]
        if job == 'own':
            rule = self._rule_of(self.jobs[job])
            return objects, dict.fromkeys(objects, rule), False
        if job == 'parts':
            return [key for key in objects if any(
                low <= ring.position_of(key) <= high
                for low, high in arcs)], {}, True
        return objects, {}, False

    @staticmethod
    def _rule_of(job):
        """When the objects of *job* are due."""
        if job.name == 'own':
            return schedule.Every(job.schedule.period_us(0) / SECOND / 2)
        return job.schedule

    # -- handlers

    def behaviour(self, run):
        """How many seconds *run* takes, and whether it fails."""
        random = self.world.random
        seconds = 0.01 + 0.1 * random.random()
        if self._slow and random.random() < self._slow:
            seconds = 1.5 * self.setup.lease * random.random()
        return seconds, random.random() < self._fails

    def began(self, run):
        """*run* begins; who else runs that object, and why may it?"""
        world = self.world
        self.runs.append(run)
        if self._deadly == (run.job, run.object):
            process = world.processes[run.process]
            process.later(0.01, self._dies, process, stream='death')
        run.stale = run.fence != self.store.fence_of(run.job, run.object)
        going = self._going[run.job, run.object]
        going[:] = [one for one in going if one.end is None]
        for other in going:
            process = world.processes[other.process]
            if not process.pool.trusts(other):
                world.stalls.append(checker.Stall(
                    process.name, world.now, world.now, 'untrusted'))
        going.append(run)
        if self.partitions:
            self._count_beside(run)

    def _count_beside(self, run):
        going = self._all_going
        going[:] = [one for one in going if one.end is None]
        for one in going:
            process = self.world.processes[one.process]
            if not process.frozen and process.pool.trusts(one):
                run.beside += one.job == run.job
                run.within += 1
        going.append(run)

    def effect(self, run):
        pair = run.job, run.object
        accepted = run.fence >= self._fences.get(pair, -1)
        if accepted:
            self._fences[pair] = run.fence
        self.effects.append(checker.Effect(
            self.world.now, *run.key, run.fence, accepted))

    # -- faults

    def _plan(self):
        random = self.world.random
        for fault in self.setup.faults:
            for _ in range(random.randint(1, 4)):
                begin = random.uniform(FAULTS_FROM, FAULTS_UNTIL - 20)
                self.world.after(begin, self._befall, fault)
        self.world.after(FAULTS_UNTIL, self._heal)

    def _befall(self, fault):
        random, world = self.world.random, self.world
        seconds = min(self._lasts(fault), FAULTS_UNTIL - world.t / SECOND)
        kind = fault[5:] if fault.startswith('kill') else ''
        some = [one for one in self._here.values()
                if one is not None and one.alive and (
                    not kind or one.identity[0] == kind[0])]
        if fault == 'catalogue hangs':
            some = [one for one in some if one.identity[0] == 's']
        if not some:
            return
        process = random.choice(some)
        getattr(self, '_' + fault.replace(' ', '_'))(process, seconds)
        world.happened(fault)
        world.tell('FAULT %s for %.2f', fault, seconds)
        if fault == 'poison':
            # What it does is told as the deaths of processes.
            return
        if fault == 'clock step':
            # Nothing may come of it: all go by the clock of the store.
            return
        if fault != 'catalogue hangs':
            self._window(fault, seconds)
        else:
            # One of the others makes up for it.
            self._window(fault, seconds, mild=sum(
                one.reader.hangs for one in some) == 1 < len(some))

    def _window(self, fault, seconds, mild=False):
        """For so long after *fault* a tick may be missed by policy."""
        setup, now = self.setup, self.world.now
        after = setup.session + 8
        self.windows.append(checker.Window(
            now, now + int((seconds + after) * SECOND), fault,
            mild))

    def _lasts(self, fault):
        random, setup = self.world.random, self.setup
        if fault == 'freeze short':
            return random.uniform(0.1, 0.7 * setup.session)
        if fault == 'freeze long':
            return random.uniform(setup.session, 3 * setup.lease)
        if fault.startswith('kill'):
            return random.uniform(0.1, 3 * setup.session)
        return random.uniform(1.0, 40.0)

    def _kill_scheduler(self, process, seconds):
        process.kill()
        self.ensemble.unheard(process, process.group)
        nonce = process.nonce if self.bug.same_nonce else None
        self.world.after(seconds, self._boot, process.identity, nonce)

    _kill_worker = _kill_scheduler

    def _freeze_short(self, process, seconds):
        if not process.frozen:
            process.freeze(seconds)
            self.ensemble.unheard(process, process.group)

    _freeze_long = _freeze_short

    def _store_away(self, process, seconds):
        self.line.away = True
        self.world.after(seconds, setattr, self.line, 'away', False)

    def _broker_away(self, process, seconds):
        self.broker.away = True
        self.world.after(seconds, setattr, self.broker, 'away', False)

    def _ensemble_away(self, process, seconds):
        self.ensemble.leave()
        self.world.after(seconds, self.ensemble.heal)

    def _cut(self, process, seconds):
        if process.cut:
            return
        process.cut = True
        self.ensemble.unheard(process, process.group)
        self.world.after(seconds, self._mend, process)

    def _mend(self, process):
        process.cut = False
        if not process.frozen:
            self.ensemble.heard(process, process.group)

    def _clock_step(self, process, seconds):
        process.clock.skew += int(
            self.world.random.uniform(-20.0, 20.0) * SECOND)

    def _poison(self, process, seconds):
        """Processes die of one object for a while, and are started anew."""
        job = self.world.random.choice(sorted(self._objects))
        self._deadly = job, self.world.random.choice(self._objects[job])
        self.world.after(seconds, setattr, self, '_deadly', None)

    def _dies(self, process):
        if process.alive:
            seconds = self.setup.session * self.world.random.random()
            self._kill_scheduler(process, seconds)
            self.world.happened('death')
            self._window('death', seconds)

    def _catalogue_hangs(self, process, seconds):
        process.reader.hang()
        self.world.after(seconds, process.reader.go_on)

    def _heal(self):
        """The end of all faults; what was killed is started again soon."""
        self.world.tell('HEALED')
        line, broker = self.line, self.broker
        line.away = broker.away = False
        line.lost = line.slow = 0.0
        broker.lost = broker.doubled = broker.unsent = 0.0
        self._fails = self._slow = 0.0
        self.ensemble.lag = 0.05
        if self.ensemble.away:
            self.ensemble.heal()
        for process in self._here.values():
            if process is not None:
                process.clock.skew = 0

    # -- what came of it

    def run(self):
        """Live through it all; returns the record of it."""
        setup = self.setup
        recovery = 4 * setup.lease + 3 * setup.session + 30
        end = FAULTS_UNTIL + recovery + 30
        level = logging.root.manager.disable
        if self.world.log is None:
            logging.disable(logging.CRITICAL)
        try:
            self.world.run(int(end * SECOND))
        finally:
            logging.disable(level)
        policies = {
            name: checker.Policy(
                name, self._rule_of(job).period_us(0),
                every=(job.misfire is _Misfire.ALL
                       and job.overlap is _Overlap.WAIT),
                phased=job.spread,
                at_most_once=job.delivery is job_.Delivery.AT_MOST_ONCE,
                most=job.retries + 6,
                at_once=job.max_in_flight or 1 << 30,
                at_once_within=MOST if self.partitions else 1 << 30,
                silent=name == 'own')
            for name, job in self.jobs.items()}
        expected = []
        for name, job in self.jobs.items():
            rule = self._rule_of(job)
            tick = rule.after(world_.BEGIN + 8 * SECOND)
            while tick < world_.BEGIN + (end - 30) * SECOND:
                for key in ([name] if job.scope is job_.Scope.GROUP
                            else self._objects[name]):
                    expected.append((name, key, tick))
                tick = rule.after(tick)
        return checker.Record(
            world_.BEGIN, self.world.now, policies, expected, self.runs,
            self.store.claims, self.effects, self.world.stalls,
            self.windows, 25 * SECOND, self.store.accounts)
