# SPDX-License-Identifier: Apache-2.0
"""The connections of a simulated process to its store and to its workers.

The store queue of :mod:`tests.unit.world` answers at once, or when a test
allows it. Here, calls and answers take virtual time, and both may be lost.
"""

import dataclasses
import types

from distperiodic import exceptions
from distperiodic.core.member import process_of
from tests.oracle.facts import SECOND
from tests.oracle.facts import Span

# Microseconds. If a call takes longer than this, the store counts as not
# answering.
_IN_TIME = SECOND // 50


@dataclasses.dataclass
class Line:
    """The quality of the connections to the store.

    :param lost: share of the answers that are lost.
    :param slow: share of the calls that take up to a second.
    :param delay: range of the one-way delay of the other calls and answers,
        in seconds.
    """

    away: bool = False
    lost: float = 0.0
    slow: float = 0.0
    delay: float = 0.004
    #: Intervals in which the store was unreachable.
    outages: list = dataclasses.field(default_factory=list)
    _since: int = 0

    def go_away(self, now):
        if not self.away:
            self.away, self._since = True, now

    def come_back(self, now):
        if self.away:
            self.away = False
            self.outages.append(Span(self._since, now, 'away'))


class StoreQueue:
    """Model of the store's thread: one call at a time, repeated until it is
    answered.

    An urgent call precedes all waiting calls, but not the current call. See
    :class:`distperiodic.ports.StoreQueue`.
    """

    def __init__(self, process, stores, line):
        self._process = process
        self._happen = process.happen
        self._world = process.world
        self._random = process.world.random.random
        self._store = stores.store_of(process)
        self._holders = stores.holders
        self._line = line
        self._asked = []
        self._pause = 0.1
        #: Time at which the current call was made.
        self._since = 0
        #: Leases that a late copy of a call has acquired. The call was
        #: repeated, and may have been answered before.
        self.acquired_late = set()
        self.away = False

    @property
    def urgent(self):
        return types.SimpleNamespace(
            submit=lambda call, then, failed=None: self._ask(1, call, then))

    def submit(self, call, then, failed=None):
        self._ask(len(self._asked), call, then)

    def _ask(self, place, call, then):
        asked = self._asked
        asked.insert(place, (call, then))
        if len(asked) == 1:
            self._since = self._world.now
            self._send()

    @property
    def unanswered(self):
        """Time since which the current call has been unanswered. None means
        that there is no call.
        """
        return self._since if self._asked else None

    def _soon(self, call, args):
        """Deliver a call to the process after a one-way delay."""
        self._world.at(self._world.t + self._delay(), self._happen, 'store',
                       call, args)

    def _delay(self):
        """Return a one-way delay in microseconds."""
        random, slow = self._random, self._line.slow
        if slow and random() < slow:
            return int(random() * SECOND)
        return int((0.0005 + self._line.delay * random()) * SECOND)

    def _send(self):
        # From here on the call is in transit, and continues even if the
        # process dies.
        self._world.at(self._world.t + self._delay(), self._arrive,
                       *self._asked[0])

    def _arrive(self, call, then):
        world, line = self._world, self._line
        if line.away or self._process.cut_from_store:
            self._soon(self._again, ())
            return
        if line.lost and world.chance(line.lost):
            world.happened('answer lost')
            # The call takes effect now, takes effect later, or never takes
            # effect.
            done = world.random.random()
            if done < 0.6:
                self._try(call)
            elif done < 0.8:
                world.after(
                    5 * world.random.random(), self._try_late, call)
            self._soon(self._again, ())
            return
        try:
            answer = call(self._store)
        except exceptions.StoreUnavailable:
            self._soon(self._again, ())
        else:
            self._soon(self._answered, (then, answer))

    def _try(self, call):
        try:
            call(self._store)
        except exceptions.StoreUnavailable:
            self._world.happened('error without an answer')

    def _try_late(self, call):
        before = self._holders().keys()
        self._try(call)
        self.acquired_late |= self._holders().keys() - before

    def _again(self):
        self.away = True
        self._process.later(self._pause, self._send, stream='store')
        self._pause = min(2 * self._pause, 2.0)

    def _answered(self, then, answer):
        process, now = self._process, self._world.now
        if now > self._since + _IN_TIME:
            process.unable.append(Span(
                self._since, now, 'no answer'))
        self.away = False
        self._pause = 0.1
        del self._asked[0]
        if self._asked:
            self._since = now
            self._send()
        process.look(then, answer)


@dataclasses.dataclass
class Broker:
    """The quality of message delivery.

    The shares of lost and doubled messages apply to all messages, the share of
    unsent ones only to batches. The delay is in seconds.
    """

    world: object
    away: bool = False
    lost: float = 0.0
    doubled: float = 0.0
    unsent: float = 0.0
    delay: float = 0.02

    def _deliver(self, process_name, give, what, copy):
        world = self.world
        if world.chance(self.lost):
            world.happened('message lost')
            return
        times = 1
        if world.chance(self.doubled):
            world.happened('message doubled')
            times = 2
        for number in range(times):
            seconds = 0.001 + self.delay * world.random.expovariate(1.0)
            if number:
                seconds += 10 * world.random.random()
            world.after(seconds, self._arrive, process_name, give,
                        copy(what))

    def _arrive(self, process_name, give, what):
        process = self.world.processes.get(process_name)
        if process is not None:
            process.happen('main', give, (process, what))

    def send(self, sender, batch):
        """Send *batch* from *sender* to its worker."""
        world = self.world
        if self.away:
            sender.later(0.5 + 2 * world.random.random(), sender.unsent,
                         batch, 'the broker is away')
            return
        if world.chance(self.unsent):
            world.happened('message unsent')
            sender.later(world.random.random(), sender.unsent, batch,
                         'no confirm')
            if world.chance(0.5):
                return
        else:
            sender.later(0.002, sender.sent, batch)
        self._deliver(process_of(batch.worker), _accept,
                      batch, _copy_of_batch)

    def notify(self, process, task):
        """Send a notice of *task* to *process*, a scheduler."""
        if not self.away:
            self._deliver(process.name, _noticed, task, str)

    def report(self, report, to_entry):
        if self.away:
            return
        self._deliver(process_of(to_entry), _reported, report,
                      _copy_of_report)


def _accept(process, batch):
    process.look(process.accept, batch)


def _reported(process, report):
    process.look(process.reported, report)


def _noticed(process, task):
    process.look(process.noticed, task)


def _copy_of_batch(batch):
    return dataclasses.replace(
        batch, objects=[*batch.objects], fences=[*batch.fences],
        attempts=[*batch.attempts])


def _copy_of_report(report):
    return dataclasses.replace(
        report, done=[*report.done], failed=[*report.failed],
        retried=[*report.retried], refused=[*report.refused],
        lost=[*report.lost])
