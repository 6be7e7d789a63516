# SPDX-License-Identifier: Apache-2.0
"""Time, chance and processes, without waiting and without threads.

A heap contains the events, each with its instant. If a process is killed, its
events do not happen. If a process is frozen, its events happen after the
freeze. The events of one thread keep their order.

A test moves the clock of :mod:`distperiodic.testing`. Here events move the
time, and each process and the store have their own wall clocks.
"""

import heapq
import itertools
import random

from tests import checker
from tests.oracle.facts import FOREVER
from tests.oracle.facts import SECOND
from tests.oracle.facts import Span

#: Start times of worlds: 00:20 UTC on two days. At 01:00 UTC, in the middle of
#: a long world, the clocks in Berlin go back on the first day and forward on
#: the second.
BEGINS = tuple((day * 86_400 + 1_200) * SECOND for day in (19_659, 19_813))

# Seconds within which all threads of a process continue after a freeze.
_THAWS = 0.05


class World:
    """The current time, the future events, and the seeded random generator."""

    def __init__(self, seed, log=None, begin=BEGINS[0]):
        self.random = random.Random(seed)
        self.begin = begin
        self.t = 0
        self.log = log
        self._heap = []
        self._order = itertools.count()
        self._names = itertools.count(1)
        self.processes = {}
        self.stalls = []
        #: Number of times that each fault occurred.
        self.faults = {}

    @property
    def now(self):
        """The true time, in microseconds."""
        return self.begin + self.t

    def monotonic(self):
        return self.t / SECOND

    def at(self, instant, call, *args):
        heapq.heappush(
            self._heap, (instant, next(self._order), call, args))

    def after(self, seconds, call, *args):
        self.at(self.t + int(seconds * SECOND), call, *args)

    def run(self, until):
        heap, pop = self._heap, heapq.heappop
        while heap and heap[0][0] <= until:
            self.t, _, call, args = pop(heap)
            call(*args)
        self.t = until

    def step(self, until):
        """Let the next event happen. Return False if there is none up to
        *until*.
        """
        if not self._heap or self._heap[0][0] > until:
            return False
        self.t, _, call, args = heapq.heappop(self._heap)
        call(*args)
        return True

    def tell(self, text, *args):
        if self.log is not None:
            self.log(f'{self.t / SECOND:10.4f} {text % args}')

    def happened(self, fault):
        self.faults[fault] = self.faults.get(fault, 0) + 1

    def nonce(self):
        return f'{self.random.getrandbits(64):016x}'

    def name(self):
        return f'l{next(self._names)}'

    def chance(self, share):
        return share > 0 and self.random.random() < share


class Clock:
    """The clocks of one process. Its wall clock may be set."""

    def __init__(self, world, began=0):
        self._world = world
        self._boot = began * SECOND
        self.skew = 0

    def now(self):
        return self._world.now + self.skew

    def monotonic(self):
        return (self._world.t + self._boot) / SECOND


class StoreClock(Clock):
    """The clock of the database, which may be set."""

    def __init__(self, world):
        super().__init__(world)
        #: Each change of the clock, with its lead over true time from then on.
        self.ahead = [(-FOREVER, 0)]

    def step(self, seconds):
        self.skew += int(seconds * SECOND)
        self.ahead.append((self._world.now, self.skew))


class Process:
    """One process from its start to its end.

    :param identity: name on the ring. The next process of the same host has
        the same name.
    """

    def __init__(self, world, identity, nonce=None):
        self.world = world
        self.identity = identity
        self.nonce = nonce or world.nonce()
        self.name = f'{identity}~{self.nonce}'
        self.clock = Clock(world, world.random.randrange(1, 10_000))
        self.alive = True
        self.frozen = False
        #: Time since which the process has not been able to reach the
        #: coordination service. None means that it can reach the service.
        self.cut = None
        #: Earlier intervals in which the process could not reach the
        #: coordination service.
        self.cuts = []
        #: Times of changes of its group, each with the time at which this
        #: process saw the change.
        self.seen = []
        #: Whether the process cannot reach the store.
        self.cut_from_store = False
        #: End of the last such interval.
        self.reached_store = 0
        #: Whether the process is being stopped.
        self.leaving = False
        #: Time at which the process was killed or began to stop.
        self.left = FOREVER
        #: Time at which the process first saw itself among the members. None
        #: means that this has not happened yet.
        self.entered = None
        #: Intervals in which the process was stalled, was not a member, or did
        #: not receive an answer from the store.
        self.unable = []
        #: End of the last interval in which the process was frozen or cut off.
        self.heard = 0
        #: True time until which the process can be certain of its session.
        self.sure_until = float('inf')
        #: Time since which the process has known that it is not a member. None
        #: means that it is a member, or does not know this yet.
        self._out = None
        self._pending = []
        self.runs = []
        world.processes[self.name] = self

    def stands(self, stands):
        """Record whether the process sees itself among the members."""
        now = self.world.now
        if stands and self.entered is None:
            self.entered = now
        elif stands and self._out is not None:
            self.unable.append(Span(self._out, now, 'not a member'))
        self._out = None if stands else now if self._out is None else (
            self._out)

    def later(self, seconds, call, *args, stream='main'):
        world = self.world
        world.at(world.t + int(seconds * SECOND), self.happen, stream, call,
                 args)

    def happen(self, stream, call, args):
        if not self.alive:
            return
        if self.frozen:
            self._pending.append((stream, call, args))
        else:
            call(*args)

    def kill(self):
        if not self.alive:
            return
        self.world.tell('KILL %s', self.name)
        self.end()

    def end(self):
        """End the process and its runs."""
        self.alive = False
        self.left = min(self.left, self.world.now)
        self._pending.clear()
        for run in self.runs:
            run.end, run.outcome = self.world.now, 'killed'
        self.runs.clear()

    def freeze(self, seconds):
        if not self.alive or self.frozen:
            return
        world = self.world
        world.tell('FREEZE %s for %.2f', self.name, seconds)
        self.frozen = True
        until = world.now + int(seconds * SECOND)
        world.stalls.append(checker.Stall(
            self.name, world.now, until, 'frozen'))
        self.unable.append(Span(
            world.now, until + int(_THAWS * SECOND), 'frozen'))
        world.after(seconds, self._thaw)

    def thawed(self):
        """Handle the end of a freeze, before the delayed events."""

    def _thaw(self):
        if not self.alive:
            return
        self.world.tell('THAW %s', self.name)
        self.frozen = False
        self.thawed()
        pending, self._pending = self._pending, []
        # The threads continue in random order, each with its own delayed
        # events.
        begins = {}
        for stream, call, args in pending:
            begin = begins.get(stream)
            if begin is None:
                begin = self.world.random.random() * _THAWS
            begins[stream] = begin + 0.0001
            self.later(begin, call, *args, stream=stream)
