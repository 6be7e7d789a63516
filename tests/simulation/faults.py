# SPDX-License-Identifier: Apache-2.0
"""The faults of a cluster: one method for each fault, with the fault's name.

A method causes the fault, and schedules its end after the given seconds.
"""

import dataclasses
import random

from tests.oracle.facts import Span
from tests.simulation import draws


class Faults:
    """The faults of *cluster*."""

    def __init__(self, cluster):
        self._cluster = cluster
        self._world = cluster.world
        self._random = cluster.world.random
        self._setup = cluster.setup
        #: (job, object) of the object whose handler kills each process that
        #: runs it.
        self.deadly = None

    def plan(self):
        """Draw the times of the faults."""
        life = self._setup.life
        for fault in self._setup.faults:
            for _ in range(self._random.randint(1, 4)):
                self._world.after(self._when(life), self.befall, fault)
        self._world.after(life.faults_until, self._cluster.heal)

    def _when(self, life):
        """Return an instant for a fault: near a tick of some job, or at
        random.
        """
        random = self._random
        last = life.faults_until - 20
        at = random.uniform(life.faults_from, last)
        if self._setup.long and random.random() < 0.7:
            name = random.choice(sorted(self._setup.jobs))
            now = self._world.begin + int(at * 1e6)
            tick = self._setup.jobs[name].schedule.after(now)
            near = (tick - self._world.begin) / 1e6 - random.uniform(-3, 10)
            if life.faults_from < near < last:
                return near
        return at

    def befall(self, fault, process=None, seconds=None):
        """Cause *fault* now.

        :param process: process that the fault affects. None means any process.
        :param seconds: duration of the fault. None means a random one.
        """
        world = self._world
        if seconds is None:
            seconds = self._lasts(fault)
        seconds = min(
            seconds, self._setup.life.faults_until - world.t / 1e6)
        if process is None:
            some = [one for one in self._cluster.here.values()
                    if one is not None and one.alive and not one.leaving
                    and one.identity[0] in self._whom(fault)]
            if self._cluster.standby is not None:
                some = self._cluster.standby.victims(some)
            if not some:
                return
            process = self._random.choice(some)
        if seconds > 0:
            world.happened(fault)
            world.tell('FAULT %s of %s for %.2f', fault, process.name,
                       seconds)
            getattr(self, fault.replace(' ', '_'))(process, seconds)

    @staticmethod
    def _whom(fault):
        if fault.endswith('scheduler') or fault == 'catalogue hangs':
            return 's'
        return 'w' if fault.endswith(('worker', 'signs cut')) else 'sw'

    def _lasts(self, fault):
        random, setup = self._random, self._setup
        if fault == 'freeze short':
            return random.uniform(0.1, 0.7 * setup.session)
        if fault == 'freeze long':
            return random.uniform(setup.session, 3 * setup.lease)
        if fault.startswith(('kill', 'stop', 'rolling', 'schedule')):
            return random.uniform(0.1, 3 * setup.session)
        longest = setup.life.longest
        return random.choice([random.uniform(1.0, 40.0),
                              random.uniform(1.0, longest)])

    # -- processes

    def kill_scheduler(self, process, seconds):
        cluster = self._cluster
        process.kill()
        cluster.ensemble.unheard(process, process.group)
        nonce = process.nonce if cluster.bug.same_nonce else None
        self._world.after(seconds, cluster.boot, process.identity, nonce)

    kill_worker = kill_scheduler

    def stop_scheduler(self, process, seconds):
        self._world.tell('STOP %s', process.name)
        process.stop()
        self._boot_when_over(process, seconds)

    stop_worker = stop_scheduler

    def _boot_when_over(self, process, seconds):
        """Start the next process of this name when this process has ended."""
        if process.alive:
            self._world.after(0.2, self._boot_when_over, process, seconds)
        else:
            self._world.after(seconds, self._cluster.boot, process.identity)

    def rolling_restart(self, process, seconds):
        """Restart the processes one after another. Each process starts with
        the newest jobs.
        """
        pause = 0.0
        for identity in sorted(self._cluster.here):
            self._world.after(pause, self.restart, identity)
            pause += seconds

    def restart(self, identity):
        """Restart a process with the newest jobs."""
        process = self._cluster.here[identity]
        self._cluster.configure(identity)
        if process is not None and process.alive and not process.frozen and (
                not process.leaving):
            self.stop_scheduler(process, 0.1 + self._random.random())

    def schedule_changes(self, process, seconds):
        """Change the schedule of a job. A process gets the new schedule at its
        next start.
        """
        setup, cluster = self._setup, self._cluster
        name = self._random.choice(sorted(setup.jobs))
        cluster.newest_jobs[name] = dataclasses.replace(
            cluster.newest_jobs[name], schedule=draws.schedule_of(
                self._random, setup.life, name))
        self.rolling_restart(process, seconds)

    def all_down(self, process, seconds):
        """Kill all schedulers, and start them again later. Soon after the
        restart, kill one of them again.
        """
        for one in list(self._cluster.here.values()):
            if one is not None and one.alive and one.identity[0] == 's' and (
                    not one.leaving):
                self.kill_scheduler(one, seconds + self._random.random())
        self._world.after(seconds + 1.0 + self._random.random(),
                          self.befall, 'kill scheduler')

    def freeze_short(self, process, seconds):
        if not process.frozen:
            process.freeze(seconds)
            self._cluster.ensemble.unheard(process, process.group)

    freeze_long = freeze_short

    def poison(self, process, seconds):
        """For some time, kill each process that runs a certain object. Killed
        processes start again.
        """
        jobs = self._cluster.catalogues
        job = self._random.choice(sorted(self._setup.jobs))
        objects = jobs.objects(job)
        if objects:
            self.deadly = job, self._random.choice(objects)
            self._world.after(seconds, setattr, self, 'deadly', None)

    def dies(self, process):
        if process.alive:
            self._world.happened('death')
            self.kill_scheduler(
                process, self._setup.session * self._random.random())

    # -- servers and connections

    def store_away(self, process, seconds):
        self._cluster.line.go_away(self._world.now)
        self._world.after(seconds, self._store_back)

    def _store_back(self):
        self._cluster.line.come_back(self._world.now)

    def cut_from_store(self, process, seconds):
        process.cut_from_store = True
        self._world.after(seconds, self.reach_store, process)

    def reach_store(self, process):
        """Let *process* reach the store again."""
        if process.cut_from_store:
            process.cut_from_store = False
            process.reached_store = self._world.now

    def broker_away(self, process, seconds):
        self._cluster.broker.away = True
        self._world.after(
            seconds, setattr, self._cluster.broker, 'away', False)

    def ensemble_away(self, process, seconds):
        self._cluster.ensemble.go_away()
        self._world.after(seconds, self._cluster.ensemble.heal)

    def cut(self, process, seconds):
        if process.cut is None:
            process.cut = self._world.now
            self._cluster.ensemble.unheard(process, process.group)
            self._world.after(seconds, self._mend, process)

    def _mend(self, process):
        process.cuts.append(Span(process.cut, self._world.now, 'cut'))
        process.cut = None
        if not process.frozen:
            self._cluster.ensemble.heard(process, process.group)

    def all_signs_cut(self, process, seconds):
        """Cut *process* off from the coordination service and the store."""
        self.cut(process, seconds)
        self.cut_from_store(process, seconds)

    def promote(self, process, seconds):
        """Make an operator choose the active worker of the partition."""
        self._cluster.standby.promote()

    def clock_step(self, process, seconds):
        """Set the wall clock of *process*. The change must have no effect,
        because all processes use the clock of the store.
        """
        process.clock.skew += int(self._random.uniform(-20.0, 20.0) * 1e6)

    def store_clock_step(self, process, seconds):
        most = self._cluster.most_step
        seconds = self._random.uniform(-most, most)
        if self._setup.sql:
            # If the clock of a host is set back, the clock of a store on this
            # host continues at half speed. The oracle does not model this, so
            # set the clock only forward.
            seconds = abs(seconds)
        self._cluster.clock.step(seconds)

    # -- catalogues

    def catalogue_hangs(self, process, seconds):
        process.reader.hang()
        self._world.after(seconds, process.reader.go_on)

    def objects_change(self, process, seconds):
        """Remove some objects and list them again later. Add one new object.
        """
        catalogues, random = self._cluster.catalogues, self._random
        job = random.choice(sorted(self._setup.jobs))
        objects = catalogues.objects(job)
        if job in ('group', 'nightly') or not objects:
            return
        for key in random.sample(objects, random.randint(1, len(objects))):
            catalogues.go(job, key)
            self._world.after(
                seconds * random.random(), catalogues.come, job, key)
        catalogues.come(job, f'{job}-new{self._world.t}')

    def own_schedule_changes(self, process, seconds):
        if 'own' in self._setup.jobs:
            for key in self._cluster.catalogues.objects('own'):
                if self._random.random() < 0.5:
                    self._cluster.catalogues.turn('own', key)

    # -- operators

    def pause(self, process, seconds):
        job = self._random.choice(sorted(self._setup.jobs))
        self._cluster.pause(job)
        self._world.after(seconds, self._cluster.resume, job)

    def trigger(self, process, seconds):
        self._cluster.operator.trigger(
            self._random.choice(sorted(self._setup.jobs)))

    def requeue(self, process, seconds):
        self._cluster.operator.requeue()

    def prune(self, process, seconds):
        self._cluster.operator.prune()


class Locks:
    """Rows that other transactions have locked for a moment, in a quarter of
    the worlds.

    The locks have their own random generator, so that the worlds of older
    seeds do not change.
    """

    #: Duration of a lock in seconds, and the seconds for which the row then
    #: stays free.
    _LASTS, _FREE = 0.02, 1.0

    def __init__(self, seed, world):
        self._random = random.Random(f'locks of {seed}')
        self._share = self._random.choice([0.0, 0.0, 0.0, 0.05])
        self._world = world
        #: Time at which each row was last locked.
        self._begun = {}

    def __call__(self, job, key):
        if not self._share:
            return False
        now = self._world.monotonic()
        age = now - self._begun.get((job, key), float('-inf'))
        if age < self._LASTS + self._FREE:
            return age < self._LASTS
        if self._random.random() < self._share:
            self._begun[job, key] = now
            return True
        return False


class Releases:
    """An older release, which lacks a job, in a quarter of the worlds.

    Some processes start with it, and later have the newest release. In half
    of these worlds, some return to the older release, and stay with it::

        s0 ─ older ──┐ restart ─ newest ─────────────── newest ──
        s1 ─ newest ─┘                  └ restart ─ older ───────

    The releases have their own random generator, so that the worlds of older
    seeds do not change.
    """

    def __init__(self, seed, cluster):
        self._random = random.Random(f'releases of {seed}')
        self._cluster = cluster
        self._names = sorted(cluster.here)
        jobs = sorted(cluster.setup.jobs)
        #: The job that the older release lacks.
        self.job = self._random.choice(jobs)
        #: The names whose next process has the older release.
        self.older = set()
        if (len(cluster.points) > 1 and len(jobs) > 1
                and self._random.random() < 0.25):
            self._plan()

    def _plan(self):
        life, world = self._cluster.setup.life, self._cluster.world
        self.older = self._some()
        middle = (life.faults_from + life.faults_until) / 2
        world.after(self._random.uniform(life.faults_from, middle),
                    self._upgrade, set())
        if self._random.random() < 0.5:
            world.after(self._random.uniform(middle, life.faults_until - 10),
                        self._upgrade, self._some())

    def _some(self):
        """Return at least one, but not all, of the schedulers, and some of the
        workers.
        """
        schedulers = sorted(self._cluster.points)
        workers = [name for name in self._names if name[0] == 'w']
        return {name for some, least in ((schedulers, 1), (workers, 0))
                for name in self._random.sample(some, self._random.randint(
                    least, max(0, len(some) - 1)))}

    def _upgrade(self, older):
        self.older = older
        self._cluster.world.happened('release')
        pause = 0.0
        for name in self._names:
            self._cluster.world.after(
                pause, self._cluster.faults.restart, name)
            pause += 5 * self._random.random()

    def lacks(self, name, job):
        """Return whether the next process of a name lacks *job*."""
        return job == self.job and name in self.older
