# SPDX-License-Identifier: Apache-2.0
"""A cluster that shares a store, with faults.

A seed draws the cluster, its jobs and a subset of the faults. Faults occur for
a while, and then all faults are healed. After some time for the recovery, the
record is judged::

    0 ── faults ──────────────── healed ── recovery ── the end
         kill, freeze, outages            no faults
"""

import collections
import logging
import math

from distperiodic.core import partition
from distperiodic.core import schedule
from distperiodic.core.job import Delivery
from distperiodic.core.ring import Ring
from distperiodic.flow.scheduler import late_claims
from distperiodic.flow.scheduler import pipeline
from tests import checker
from tests.oracle import fates
from tests.oracle.facts import FOREVER
from tests.oracle.facts import Bounds
from tests.oracle.facts import Facts
from tests.oracle.facts import Span
from tests.simulation import bugs
from tests.simulation import draws
from tests.simulation import ensemble
from tests.simulation import faults
from tests.simulation import members
from tests.simulation import planted
from tests.simulation import reading
from tests.simulation import standby
from tests.simulation import stores
from tests.simulation import tasks
from tests.simulation import wires
from tests.simulation.world import BEGINS
from tests.simulation.world import SECOND
from tests.simulation.world import StoreClock
from tests.simulation.world import World

_Misfire, _Overlap = schedule.Misfire, schedule.Overlap
#: If members differ, seconds between the starts of two members of a kind.
_APART = 7


class Cluster:
    """A simulated cluster; see the module's diagram.

    :param bug: name of a planted bug; see :mod:`.bugs`.
    :param given: settings that replace drawn ones; see :func:`.draws.draw`.
    """

    def __init__(self, seed, *, bug=None, log=None, **given):
        has_standby = given.pop('standby', False)
        self.world = World(
            f'standby of {seed}' if has_standby else seed, log,
            BEGINS[seed % len(BEGINS)])
        random = self.world.random
        self.bug = planted.BUGS[bug] if bug else bugs.Bug()
        has_tasks = given.pop('tasks', None)
        self.setup = setup = draws.draw(random, **given)
        if has_tasks is None:
            has_tasks = setup.sql and tasks.have(seed)
        #: Jobs of the commands of tasks, by name.
        self.commands = tasks.commands() if has_tasks else {}
        self.healed = False
        # Set the number of rows above which a job counts as large, and the
        # longest pause between two late scans of a large job.
        pipeline._PAGE = setup.page
        late_claims._LONGEST_PAUSE = setup.rest
        self.world.tell('SETUP %s', setup)
        #: The newest jobs. ``_installed`` has, for each member, the jobs with
        #: which its next process starts.
        self.newest_jobs = dict(setup.jobs)
        self._installed = {}
        #: Each job by its name and the text of its schedule.
        self._known = {}
        self.partitions = {}
        if any(job.max_in_flight for job in setup.jobs.values()):
            self.partitions['default'] = partition.Partition(
                'default', draws.MOST)
        noise = set(setup.noise)
        self.locked = faults.Locks(seed, self.world)
        self.clock = StoreClock(self.world)
        #: Maximum number of seconds by which one fault may set the store's
        #: clock.
        self.most_step = min(2.0, setup.lease / 10)
        self.stores = stores.of(self)
        self.operator = self.stores.operator
        self.line = wires.Line(
            lost=0.03 if 'answer lost' in noise else 0.0,
            slow=0.03 if 'store slow' in noise else 0.0,
            # If pages are small, there are many calls, and each returns few
            # rows. With a longer delay, the calls alone would take longer than
            # the time within which an object must be claimed.
            delay=0.002 if setup.page <= setup.objects else 0.004)
        self.broker = wires.Broker(
            self.world, lost=0.1 if 'message lost' in noise else 0.0,
            doubled=0.1 if 'message doubled' in noise else 0.0,
            unsent=0.1 if 'message unsent' in noise else 0.0)
        self.ensemble = ensemble.Ensemble(
            self.world, setup.session, setup.lag,
            job_rings=self.bug.job_rings)
        self.catalogues = reading.Catalogues(
            self.world, setup.jobs, setup.objects,
            setup.rules or setup.life.rules)
        #: Share of the reads of a catalogue that fail.
        self.catalogue_fails = 0.1 if 'catalogue fails' in noise else 0.0
        #: Share of the runs that fail, and share of the runs that take long.
        self.fails = 0.1 if 'handlers fail' in noise else 0.0
        self.slow = (0.3 if has_standby else 0.02) if (
            'handlers slow' in noise) else 0.0
        #: Duration in seconds of each run that takes long, by (job, object,
        #: tick).
        self._long = {}
        self.sweeps = self.bug.sweeps
        names = [f's{n}' for n in range(setup.schedulers)]
        self.points = {name: random.choice(setup.points)
                       for name in names}
        #: Number of slots of each worker, and of each scheduler with its own
        #: pool.
        self.slots = collections.defaultdict(lambda: setup.slots)
        self.runs = []
        self.effects = []
        #: Findings about processes that stopped gracefully.
        self.left_open = []
        self._fences = {}
        self._pauses = {name: [] for name in setup.jobs}
        self._going = collections.defaultdict(list)
        self._all_going = []
        #: Pairs of a run and another one in progress at its start, in a
        #: process whose release lacks the job of the first one.
        self._uncounting = []
        #: The current process of each member.
        self.here = {name: None for name in names}
        self.here.update(
            (f'w{n}', None) for n in range(
                0 if setup.local else setup.workers))
        self.releases = faults.Releases(seed, self)
        for name in self.here:
            self.configure(name)
            later = _APART * int(name[1:]) if setup.differ else 0
            self.world.after(later + 2 * random.random(), self.boot, name)
        self.faults = faults.Faults(self)
        self.faults.plan()
        self.tasks = tasks.Tasks(self, seed) if has_tasks else None
        self.standby = standby.Judge(self) if has_standby else None

    # -- processes

    def configure(self, identity):
        """Give the newest jobs of its release to the next process of this
        name.
        """
        self._installed[identity] = {
            name: job for name, job in self.newest_jobs.items()
            if not self.releases.lacks(identity, name)}
        for name, job in self.newest_jobs.items():
            self._known[name, job.schedule_text()] = job

    def jobs_of(self, identity):
        return self._installed[identity]

    def with_commands(self, jobs):
        """Return *jobs*, and also the commands of tasks if the world has
        tasks.
        """
        return {**jobs, **self.commands} if self.commands else jobs

    def boot(self, name, nonce=None):
        kind = members.Scheduler if name[0] == 's' else (
            members.Worker if self.standby is None else standby.Worker)
        self.here[name] = process = kind(self, name, nonce)
        self.world.tell('BOOT %s', process.name)

    def stopped(self, process):
        """Check that a process that stopped gracefully holds no lease.

        If a call that was repeated has taken effect once more, the process
        cannot know the leases that this effect acquired.
        """
        left = [lease for lease, holder in self.stores.holders().items()
                if f'{holder}~'.startswith(f'{process.name}~')
                and lease not in process.store.acquired_late]
        if left:
            self.left_open.append(checker.Finding('left open', (
                f'{process.name} stopped at {self.world.t / SECOND:.3f} and '
                f'still holds {len(left)} leases')))

    def queue(self, process):
        return self.bug.queue(wires.StoreQueue(
            process, self.stores, self.line), process)

    def reaches_store(self, process):
        return not self.line.away and not process.cut_from_store

    # -- operators

    def pause(self, job):
        if not self._pauses[job] or (
                self._pauses[job][-1].end < FOREVER):
            self.operator.pause(job, 'for a while')
            self._pauses[job].append(Span(
                self.world.now, FOREVER))

    def resume(self, job):
        last = self._pauses[job][-1]
        if last.end == FOREVER:
            self.operator.resume(job)
            # A member reads only at its sweeps whether a job is paused. So for
            # a member, a pause may end later.
            self._pauses[job][-1] = last._replace(
                end=self.world.now + int((1 + self.setup.sweep) * SECOND))

    def owner_of(self, job, key):
        """Return the owner of an object by the last true ring of its job."""
        members = {one.identity: one.points
                   for one in self.ensemble.rings[-1][1]
                   if job in self.jobs_of(one.identity)}
        return Ring(members).owner_of(key)

    # -- handlers

    def behaviour(self, run):
        """Return the seconds that *run* takes, and whether it fails.

        If a run is slow, each repetition of it is slow, too. So the result of
        one run may arrive while a second run of the same claim is in progress.
        """
        random = self.world.random
        seconds = self.setup.takes + 0.01 + 0.1 * random.random()
        if self.setup.differ and run.process.startswith('w1'):
            seconds *= 2
        claim = run.job, run.object, run.tick
        if self.slow and (
                claim in self._long or random.random() < self.slow):
            seconds = self._long.setdefault(
                claim, 1.5 * self.setup.lease * random.random())
        return seconds, random.random() < self.fails

    def began(self, run):
        """Record that *run* begins. Record a stall for each concurrent run of
        its object whose process no longer trusts the lease of that run.
        """
        world = self.world
        self.runs.append(run)
        if self.faults.deadly == (run.job, run.object):
            process = world.processes[run.process]
            process.later(0.01, self.faults.dies, process, stream='death')
        run.stale = run.fence != self.stores.fence_of(run.job, run.object)
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
        if self.standby is not None:
            self.standby.began(run, [
                one for one in self.runs if one.end is None])

    def _count_beside(self, run):
        going = self._all_going
        going[:] = [one for one in going if one.end is None]
        # A process does not count the runs of jobs that its release lacks.
        counted = self.with_commands(self.world.processes[run.process].jobs)
        for one in going:
            process = self.world.processes[one.process]
            if not process.frozen and process.pool.trusts(one):
                run.beside += one.job == run.job
                if one.job not in counted:
                    continue
                if run.job in self.with_commands(process.jobs):
                    run.within += 1
                else:
                    self._uncounting.append((run, one))
        going.append(run)

    def effect(self, run):
        pair = run.job, run.object
        accepted = run.fence >= self._fences.get(pair, -1)
        if accepted:
            self._fences[pair] = run.fence
        self.effects.append(checker.Effect(
            self.world.now, *run.key, run.fence, accepted))

    def heal(self):
        """End all faults. Killed processes start again soon."""
        self.world.tell('HEALED')
        line, broker = self.line, self.broker
        line.come_back(self.world.now)
        broker.away = False
        line.lost = line.slow = 0.0
        broker.lost = broker.doubled = broker.unsent = 0.0
        self.fails = self.slow = 0.0
        self.healed = True
        self.catalogue_fails = 0.0
        self.ensemble.lag = 0.05
        self.stores.heal()
        if self.ensemble.away:
            self.ensemble.heal()
        for job, pauses in self._pauses.items():
            if pauses:
                self.resume(job)
        for process in self.here.values():
            if process is not None:
                process.clock.skew = 0
                self.faults.reach_store(process)
                if process.group == ensemble.SCHEDULERS:
                    process.reader.fails = 0.0
                    process.reader.go_on()
        if self.tasks is not None:
            self.tasks.heal()

    # -- results

    def run(self):
        """Simulate the whole life of the cluster, and return its record."""
        setup = self.setup
        recovery = 4 * setup.lease + 3 * setup.session + 30
        end = setup.life.faults_until + recovery + 10
        level = logging.root.manager.disable
        if self.world.log is None:
            logging.disable(logging.CRITICAL)
        try:
            self.world.run(int(end * SECOND))
        finally:
            self.stores.close()
            logging.disable(level)
        return self.record()

    def record(self):
        """Return the input of the checker."""
        policies = {
            name: checker.Policy(
                name, every=(job.misfire is _Misfire.ALL
                             and job.overlap is _Overlap.WAIT),
                at_most_once=job.delivery is Delivery.AT_MOST_ONCE,
                most=job.retries + 6,
                at_once=job.max_in_flight or 1 << 30,
                at_once_within=draws.MOST if self.partitions else 1 << 30)
            for name, job in self.setup.jobs.items()}
        journal = self.stores.journal
        for run, other in self._uncounting:
            # If the process of the other run does not count this run, only an
            # earlier grant prevents this run.
            granted, before = (journal.grant_times.get((*one.key, one.fence))
                               for one in (run, other))
            run.within += None in (granted, before) or before <= granted
        for claim in journal.claims.values():
            claim.triggered = (claim.job, claim.tick) in self.stores.triggered
        return checker.Record(
            self.world.begin, self.world.now, policies, self.runs,
            journal.claims, self.effects, self.world.stalls, self.patience)

    def judge(self):
        """Let an oracle judge the record, and return the oracle."""
        journal = self.stores.journal
        oracle = fates.judge(self.facts(), journal.claims, journal.skips)
        oracle.findings += self.left_open
        return oracle

    def _in_force(self):
        """Return the changes of each job, in the order in which its schedules
        came into force.
        """
        found = {name: [] for name in self.setup.jobs}
        for at, name, text in self.stores.journal.adopted:
            found[name].append((at if found[name] else -FOREVER,
                                self._known[name, text]))
        return {name: changes or [(-FOREVER, self.setup.jobs[name])]
                for name, changes in found.items()}

    @property
    def patience(self):
        """Microseconds within which a claim must end."""
        return int((2 * self.setup.lease + 2 * self.setup.session + 10)
                   * SECOND)

    def facts(self):
        """Return the input of the oracle."""
        setup = self.setup
        least = 1.0
        if 'store clock step' in setup.faults:
            least += 2 * self.most_step
        late = least + setup.lag + setup.late_after * (1 + setup.schedulers)
        if setup.page <= setup.objects:
            late += setup.rest
        schedulers = [process.facts()
                      for process in self.world.processes.values()
                      if process.group == ensemble.SCHEDULERS]
        for one in schedulers:
            one.unable += self.line.outages
        # A sweep checks all waiting objects. But if more objects wait than one
        # claim may contain, it checks only a part of those whose runs its own
        # scheduler has dispatched. This part has the size of a claim.
        sweeps = setup.sweep * math.ceil(setup.objects / setup.batch_size)
        return Facts(
            self.world.begin, self.world.now,
            Bounds(*(int(seconds * SECOND) for seconds in (
                least + 0.05, late, sweeps,
                least + setup.lag + setup.sweep + 2.0))),
            schedulers, self.ensemble.rings, self._in_force(),
            self.catalogues.listings, self.catalogues.readings, self._pauses,
            self.stores.triggered, self.clock.ahead)
