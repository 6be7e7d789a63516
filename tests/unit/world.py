# SPDX-License-Identifier: Apache-2.0
"""A world in which the test controls the time.

Each scheduler has the real flow and the real store in memory. The test
provides the clock, the views, the bus to the workers and the catalogues. Times
are in seconds since the world began, which was at midnight.
"""

import collections
import dataclasses
import datetime
import functools
import itertools
import types

from distperiodic import exceptions
from distperiodic.adapters.local.memory import MemoryClaimStore
from distperiodic.adapters.local.reader import CatalogueMethods
from distperiodic.core import message
from distperiodic.core import schedule
from distperiodic.core.catalogue import id_of
from distperiodic.core.claim import Authority
from distperiodic.core.cron import Cron
from distperiodic.core.job import Job
from distperiodic.core.job import Scope
from distperiodic.core.job_set import JobRings
from distperiodic.core.job_set import JobSet
from distperiodic.core.member import Member
from distperiodic.core.member import View
from distperiodic.core.partition import NONE
from distperiodic.core.refusal import Refusal
from distperiodic.core.ring import Ring
from distperiodic.core.ring import position_of
from distperiodic.flow import events
from distperiodic.flow.leases import Book
from distperiodic.flow.run_leases import RunLeases
from distperiodic.flow.scheduler import pipeline
from distperiodic.flow.wiring import SchedulerWiring
from distperiodic.flow.wiring import Wiring
from distperiodic.testing import FrozenClock
from distperiodic.testing.store import SharedMemoryStore
from tests.views import Views

#: 2023-11-16 00:00 UTC in seconds. It is a multiple of a week, so it is a tick
#: of every spacing that the tests use.
BEGIN = 19_677 * 86_400

#: Seconds of the smallest step of the clock.
_LEAST = 1 / schedule.SECOND

#: One start of one object, as its worker received it.
Start = collections.namedtuple(
    'Start', 'at job object tick fence attempt worker member')


def scheduler_wiring(clock, **values):
    """Return the wiring of a scheduler, in which *values* are given."""
    numbers = itertools.count()
    return SchedulerWiring(clock=clock, **{
        'membership': None, 'group': 'group', 'identity': 'me',
        'me': lambda: 'me', 'bus': None, 'reader': None, 'put': [].append,
        'new_lease': lambda: f'lease-{next(numbers)}',
        'sure': lambda entry: True, **values})


def run_leases(jobs, *, store, clock, new_lease, run, report, shared=False,
               silence_timeout=0.0, sure=lambda entry: True, proceeds=False,
               elected=None, notify=lambda tasks: None, **values):
    """Return the grants of a process with *values* in its wiring."""
    return RunLeases(
        Book(Authority.STORE if shared else Authority.RING, jobs, store,
             grants_here=True, silence_timeout=silence_timeout),
        Wiring(clock=clock, new_lease=new_lease, sure=sure, **values), run=run,
        report=report, proceeds=proceeds, elected=elected, notify=notify)


class Clock(FrozenClock):
    """The clock of the test kit, starting when the world begins."""

    def __init__(self):
        super().__init__(schedule.datetime_of(BEGIN * schedule.SECOND))

    def set_back(self, seconds):
        self.set(self.time - datetime.timedelta(seconds=seconds))

    @property
    def seconds(self):
        """Seconds of the wall clock since the world began."""
        return seconds_of(self.now())


def seconds_of(instant):
    """Return *instant* in seconds since the world began."""
    return (instant - BEGIN * schedule.SECOND) / schedule.SECOND


def job(name='poll', *, every=60.0, cron=None, offset=0.0, **options):
    """A job; ``objects=True`` gives it a catalogue."""
    if options.get('objects') is True:
        options['objects'] = f'list_{name}'.replace('-', '_')
    if options.get('objects'):
        options['scope'] = Scope.OBJECTS
    rule = Cron(cron) if cron else schedule.Every(every, offset)
    return Job(name, rule, **options)


def thing(key, **attributes):
    """An object with an id and, for example, a spacing."""
    return types.SimpleNamespace(id=key, **attributes)


def worker(name='w', slots=10, tenure=1, nonce='0' * 16, generation=1,
           points=0):
    return Member(name, nonce, generation, points, slots=slots,
                  tenure=tenure)


class StoreQueue:
    """A queue to a store, which calls the store at once.

    If ``slow`` is true, calls wait for :meth:`answer`. If ``away`` is true,
    they wait for :meth:`come_back`. A call for which the store is unavailable
    fails, and is not repeated. See :class:`distperiodic.ports.StoreQueue`.
    """

    def __init__(self, store):
        self.store = store
        self.away = False
        #: True if calls wait for :meth:`answer`.
        self.slow = False
        #: The waiting calls.
        self.asked = []

    @property
    def urgent(self):
        return types.SimpleNamespace(
            submit=functools.partial(self.ask, urgent=True))

    def submit(self, call, then, failed=lambda: None):
        self.ask(call, then, failed, urgent=False)

    def ask(self, call, then, failed=lambda: None, *, urgent):
        self.asked.insert(0 if urgent else len(self.asked),
                          (call, then, failed))
        if not (self.slow or self.away):
            self.answer()

    def answer(self):
        while self.asked:
            call, then, failed = self.asked.pop(0)
            try:
                answer = call(self.store)
            except exceptions.StoreUnavailable:
                failed()
            else:
                then(answer)

    def come_back(self):
        self.away = False
        self.answer()


class Sink:
    """A subscriber that keeps all events."""

    open = True

    def __init__(self):
        self.events = []

    def put(self, event):
        self.events.append(event)

    def of(self, kind):
        return [one for one in self.events if isinstance(one, kind)]

    def objects(self, kind):
        return sum(one.objects for one in self.of(kind))


class Bus:
    """A bus that records each batch; the test decides its outcome."""

    def __init__(self, scheduler):
        self._scheduler = scheduler
        self.batches = []
        self.open = {}

    def send(self, batch):
        self.batches.append(batch)
        self.open[batch.id] = batch
        self._scheduler.note(batch)


class Reader:
    """Catalogues by the job's name: a list of objects, an exception, or
    Ellipsis for a method that does not return.
    """

    def __init__(self):
        self.given = {}
        #: Jobs whose method returns only the objects of the given arcs.
        self.partial = set()
        self.asked = []
        self._methods = CatalogueMethods(self._method, sort=False)

    def read(self, job, tick, ticket, arcs):
        self.asked.append(types.SimpleNamespace(
            job=job, tick=tick, ticket=ticket, arcs=arcs, answered=False))

    def reading(self, job, arcs):
        try:
            return self._methods.read(job, 0, arcs)
        except Exception as error:
            return error

    def _method(self, name):
        def method(context):
            if isinstance(self.given[name], Exception):
                raise self.given[name]
            return self.given[name]

        def of_arcs(context, arcs):
            return [obj for obj in method(context) if any(
                low <= position_of(id_of(obj)) <= high
                for low, high in arcs)]
        return of_arcs if name in self.partial else method


class Scheduler:
    """One member's flow, called as a service calls it.

    :param workers: Workers of each partition. None means one worker that takes
        10,000 objects.
    :param finishes: True if each run is done as soon as it has started.
    :param store: The store that all schedulers share. None means that the
        scheduler has a store of its own.
    :param silence_timeout: See :class:`distperiodic.flow.leases.Book`.
    :param partial: Jobs whose catalogue has only the objects of the member's
        arcs.
    :param own: Further jobs, kept in a store of the scheduler's own.
    :param bus: None means a :class:`Bus`.
    :param sweep_interval: See :class:`distperiodic.flow.leases.Book`.
    :param wiring: Further values of the wiring.
    """

    def __init__(self, world, name, jobs, *, catalogues=None, workers=None,
                 finishes=True, lease=60.0, batch_size=500, store=None,
                 silence_timeout=0.0, partitions=NONE, partial=(), own=(),
                 bus=None, grants_here=True, sweep_interval=0.0, **wiring):
        self.world = world
        self.name = name
        self.jobs = {j.name: j for j in jobs}
        self.finishes = finishes
        self.starts = []
        self.views = Views()
        self.store = store or MemoryClaimStore(world.clock)
        authority = Authority.RING if store is None else Authority.STORE
        self.queue = StoreQueue(self.store)
        self.queues = {authority: self.queue}
        books = [Book(authority, self.jobs, self.queue,
                      grants_here=grants_here, sweep_interval=sweep_interval,
                      silence_timeout=silence_timeout)]
        if own:
            queue = StoreQueue(MemoryClaimStore(world.clock))
            self.queues[Authority.RING] = queue
            books.append(Book(Authority.RING, {j.name: j for j in own}, queue,
                              grants_here=True))
        self.bus = bus or Bus(self)
        leases = itertools.count(1)
        self.reader = Reader()
        self.reader.given.update(catalogues or {})
        self.reader.partial.update(partial)
        self.flow = pipeline.Pipeline(
            books, scheduler_wiring(
                world.clock, membership=self.views, identity=name,
                me=lambda: f'{name}~{"0" * 16}~1~f1', bus=self.bus,
                reader=self.reader, put=self._put,
                new_lease=lambda: f'{name}-{next(leases)}',
                batch_size=batch_size, lease=lease, partitions=partitions,
                **wiring))
        self.dispatcher = self.flow.dispatcher
        self.ticker = self.flow.tickers[0]
        for topic in {j.topic for j in (*jobs, *own)}:
            self.dispatcher.workers_changed(
                topic, [worker(slots=10_000)] if workers is None else workers)

    def _put(self, event):
        """Handle an event at once, because no other thread runs."""
        self.flow.handle(event)

    # -- state that a test checks

    def note(self, batch):
        at = self.world.clock.seconds
        for key, fence, attempt in zip(
                batch.objects, batch.fences, batch.attempts, strict=True):
            self.starts.append(Start(
                at, batch.job, key, seconds_of(batch.tick), fence, attempt,
                batch.worker.partition('~')[0], self.name))

    def ticks(self, job=None, key=None):
        """Return the ticks that have started, in the order of their starts."""
        return [s.tick for s in self.starts
                if job in (None, s.job) and key in (None, s.object)]

    def count(self, outcome, job=None):
        return sum(n for (name, what), n in self.flow.counters.items()
                   if what == outcome and job in (None, name))

    def assert_accounted_for(self):
        """Assert that each claim is still open in one place, or has ended
        once.
        """
        ended = sum(self.count(what) for what in (
            'done', 'dead', 'retried', 'superseded', 'left to others'))
        dispatcher = self.dispatcher
        assert self.count('claimed') + self.count('taken over') == (
            ended + dispatcher.waiting + dispatcher.outstanding)
        assert dispatcher.outstanding == sum(
            len(b.objects) for b in self.bus.open.values())

    # -- events

    def finish(self, batch=None, *, failed=(), done=None, each=0.001):
        """Report the runs of *batch*, or of all open batches, as ended.

        :param failed: Indexes of the objects that failed.
        :param done: Indexes of the objects that are done. None means all
            others.
        :param each: Seconds of one run.
        """
        for one in [batch] if batch else list(self.bus.open.values()):
            over = done
            if over is None:
                over = [i for i in range(len(one.objects))
                        if i not in failed]
            self.bus.open.pop(one.id, None)
            self.flow.reported(message.Report(
                one.id, one.worker, done=list(over),
                failed=[(i, 'Boom: it failed') for i in failed],
                seconds=each * (len(over) + len(failed))))
        self.flow.run_due()
        self.flow.pump()

    def refuse(self, batch, refusal=Refusal.DRAINING):
        self.bus.open.pop(batch.id)
        self.flow.reported(message.Report(
            batch.id, batch.worker,
            refused=[(i, refusal) for i in range(len(batch.objects))]))

    def unsend(self, batch, reason='the broker is away'):
        self.bus.open.pop(batch.id)
        self._put(events.Unsent(batch, reason))

    def answer(self):
        """Let all catalogue methods return, except those that must hang.

        :returns: True if a method returned.
        """
        returned = False
        for asked in [*self.reader.asked]:
            if not asked.answered and (
                    self.reader.given[asked.job.name] is not ...):
                asked.answered = returned = True
                self._put(events.CatalogueRead(
                    asked.job.name, asked.ticket,
                    self.reader.reading(asked.job, asked.arcs)))
        return returned

    def step(self):
        """Do one iteration of the service's loop. Return the seconds until the
        next one.
        """
        pause = self.flow.run_due()
        changed = self.answer()
        while self.finishes and self.bus.open:
            self.finish()
            changed = True
        if not changed:
            return pause
        if any(not a.answered and self.reader.given[a.job.name] is not ...
               for a in self.reader.asked):
            return 0.0
        return min(pause, self.flow.run_due())


class World:
    """One clock, and the schedulers that use it."""

    #: Seconds between two sweeps for leases and retries, as in a service.
    SWEEP = 0.25

    def __init__(self):
        self.clock = Clock()
        self.schedulers = []
        self._rings = {}

    def scheduler(self, *jobs, name='me', sees='itself', **options):
        """Start a scheduler.

        :param sees: Names of the members in its view. 'itself' means the
            scheduler alone; None means that it has no view yet.
        """
        made = Scheduler(self, name, jobs, **options)
        self.schedulers.append(made)
        if sees is not None:
            self.show(made, [name] if sees == 'itself' else sees)
        return made

    def shared_store(self):
        return SharedMemoryStore(self.clock)

    def group(self, names, *jobs, **options):
        """Start schedulers that share a store and see each other."""
        options.setdefault('store', self.shared_store())
        made = [self.scheduler(*jobs, name=name, sees=None, **options)
                for name in names]
        self.show_all(names)
        return made

    def show(self, scheduler, names, *, tenure=1, trusted=True, since=None):
        """Give *scheduler* a view with the members *names*.

        :param since: Seconds since the last change of the group. None means
            that the group changes now.
        """
        names = tuple(sorted(names))
        ring = self._rings.setdefault(
            names, Ring(dict.fromkeys(names, 40)))
        # A member without a scheduler has the jobs of *scheduler*.
        sets = {n: JobSet.of(scheduler.jobs.values()) for n in names} | {
            one.name: JobSet.of(one.jobs.values()) for one in self.schedulers
            if one.name in names}
        members = tuple(
            Member(n, '0' * 16, 1, 40, tenure=tenure, jobs=sets[n].digest)
            for n in names)
        me = next(m for m in members if m.identity == scheduler.name)
        now = self.clock.monotonic()
        digests = {n: sets[n].digest for n in names}
        known = {one.digest: one for one in sets.values()}
        before = scheduler.views.get('group')
        scheduler.views['group'] = View(
            'group', members, ring, version=1, since=now - (since or 0.0),
            me=me, trusted_until=float('inf') if trusted else 0.0,
            rings=JobRings(ring, digests, known) if before is None
            else before.rings.changed_to(ring, digests, known))
        scheduler.flow.view_changed()

    def show_all(self, names):
        """Give all schedulers in *names* the same view at once."""
        for scheduler in self.schedulers:
            if scheduler.name in names:
                self.show(scheduler, names)

    def distrust(self, scheduler):
        """Make the view of *scheduler* unknown, as if the scheduler might be
        out of its group.
        """
        self._trust_until(scheduler, 0.0)

    def trust(self, scheduler):
        """Make the view of *scheduler* known again, in the same tenure."""
        self._trust_until(scheduler, float('inf'))

    def _trust_until(self, scheduler, until):
        scheduler.views['group'] = dataclasses.replace(
            scheduler.views['group'], trusted_until=until)
        scheduler.flow.view_changed()

    def advance(self, seconds, sweep=SWEEP):
        """Let time pass; each scheduler does its due work in that time.

        :param sweep: Seconds between two sweeps. None disables them.
        """
        end = self.clock.monotonic() + seconds
        next_sweep = self.clock.monotonic()
        while True:
            pause = min(s.step() for s in self.schedulers)
            now = self.clock.monotonic()
            if sweep is not None and now >= next_sweep - _LEAST / 2:
                next_sweep += sweep
                for scheduler in self.schedulers:
                    scheduler.flow.sweep()
                continue
            if end - now < _LEAST / 2:
                return
            wakes = [end, now + pause]
            if sweep is not None:
                wakes.append(next_sweep)
            self.clock.advance(max(_LEAST, min(wakes) - now))

    def turn(self, takes):
        """Let each scheduler do its due work, which takes *takes* seconds for
        each scheduler.
        """
        for scheduler in self.schedulers:
            scheduler.step()
            self.clock.advance(takes)

    def stand_still(self, seconds):
        """Let time pass while all schedulers are suspended."""
        self.clock.advance(seconds)

    def starts(self):
        return sorted(s for one in self.schedulers for s in one.starts)
