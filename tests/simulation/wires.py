# SPDX-License-Identifier: Apache-2.0
"""The ports of a simulated process: what it may ask of its world."""

import dataclasses
import functools

from distperiodic import exceptions
from distperiodic.core import catalogue as catalogue_
from distperiodic.core import member as member_
from distperiodic.core import ring as ring_
from tests.simulation import world as world_

SCHEDULERS = 'group'
WORKERS = 'group.workers.default'


@functools.lru_cache(maxsize=512)
def _ring(points):
    return ring_.Ring(dict(points))


class Ensemble:
    """The coordination service: entries, sessions, and who watches them.

    :param session: seconds.
    :param lag: seconds, the most by which a view comes late.
    """

    def __init__(self, world, session, lag):
        self.world = world
        self.session = session
        self.lag = lag
        self.away = False
        self._entries = {SCHEDULERS: {}, WORKERS: {}}
        self._watchers = {SCHEDULERS: [], WORKERS: []}
        self._version = 0
        self._missed = set()

    def watch(self, process, group):
        self._watchers[group].append(process)
        self._show(process, group)

    def join(self, process, group, member):
        """*process* tries to become *member*, until it is."""
        if process.cut or self.away or any(
                one.identity == member.identity and not one.same_process(
                    member) for one in self._entries[group].values()):
            process.later(0.3, self.join, process, group, member,
                          stream='membership')
            return
        self._entries[group][process.name] = member
        process.member = member
        process.sure_until = float('inf')
        self._changed(group)

    def unheard(self, process, group):
        """*process* was killed, stopped or cut off a moment ago."""
        world = self.world
        process.sure_until = min(
            process.sure_until,
            world.t + int(self.session / 2 * world_.SECOND))
        world.after(self.session * (0.8 + 0.2 * world.random.random()),
                    self._expire, process, group, world.t)

    def heard(self, process, group):
        """It can be reached again; its session may be there still."""
        process.heard = self.world.t
        process.later(0.1 * self.world.random.random(), self._answered,
                      process, group, stream='membership')

    def _answered(self, process, group):
        if process.name in self._entries[group] and not process.cut:
            process.sure_until = float('inf')

    def _expire(self, process, group, since):
        if self.away:
            self.world.after(self.session, self._expire, process, group,
                             since)
            return
        heard = process.alive and not process.frozen and not process.cut
        member = self._entries[group].get(process.name)
        if member is None or heard or (
                process.alive and process.heard > since):
            return
        self.world.tell('EXPIRED %s', process.name)
        del self._entries[group][process.name]
        self._changed(group)
        self._rejoin(process, group, member)

    def _rejoin(self, process, group, member):
        if process.alive:
            # Told as soon as it can be reached again.
            process.later(0.05 + self.world.random.random(), self.join,
                          process, group, member.next_term(True),
                          stream='membership')

    def leave(self):
        """It is away; nobody can be sure of a session for long."""
        self.away = True
        for process in self._processes():
            process.sure_until = min(
                process.sure_until,
                self.world.t + int(self.session / 2 * world_.SECOND))

    def _processes(self):
        return [process for process in self.world.processes.values()
                if process.alive]

    def heal(self):
        self.away = False
        for process in self._processes():
            if not process.frozen and not process.cut:
                self.heard(process, process.group)
        for group in sorted(self._missed):
            self._changed(group)
        self._missed.clear()

    def _changed(self, group):
        self._version += 1
        watchers = self._watchers[group] = [
            one for one in self._watchers[group] if one.alive]
        for process in watchers:
            self._show(process, group)

    def _show(self, process, group):
        if self.away:
            self._missed.add(group)
            return
        entries = tuple(
            one.entry for one in self._entries[group].values())
        process.later(
            0.002 + self.lag * self.world.random.random(), self._seen,
            process, group, self._version, entries, stream='membership')

    def _seen(self, process, group, version, entries):
        if process.cut:
            process.later(0.3, self._seen, process, group, version, entries,
                          stream='membership')
            return
        known = process.views.get(group)
        if known is not None and known.version > version:
            return
        me = process.member
        members, _ = member_.settle(entries, me)
        process.views[group] = member_.View(
            group, members,
            _ring(tuple(member_.ring_members(members).items())), version,
            process.clock.monotonic(),
            me if me in members else None, float('inf'))
        process.viewed(process.views[group])


class Membership:
    """What one process sees. See :class:`distperiodic.ports.Membership`."""

    def __init__(self, process):
        self._process = process

    def view(self, group):
        view = self._process.views.get(group)
        if view is None:
            raise exceptions.ViewUnknown('nothing yet')
        return view


@dataclasses.dataclass
class Line:
    """How well the store is reached.

    :param lost: the share of answers that never come.
    :param slow: the share of calls that take up to a second.
    """

    away: bool = False
    lost: float = 0.0
    slow: float = 0.0


class StoreQueue:
    """As the store's thread: one call at a time, each until it is answered.
    What comes first goes before all but the call that is under way. See
    :class:`distperiodic.ports.StoreQueue`.
    """

    def __init__(self, process, store, line):
        self._process = process
        self._store = store
        self._line = line
        self._asked = []
        self._pause = 0.1
        self.away = False

    def ask(self, call, then, failed=None, *, first=False):
        self._asked.insert(1 if first else len(self._asked), (call, then))
        if len(self._asked) == 1:
            self._soon(0.0, self._send)

    def _soon(self, seconds, call, *args):
        self._process.later(seconds, call, *args, stream='store')

    def _delay(self):
        random = self._process.world.random
        if self._line.slow and random.random() < self._line.slow:
            return random.random()
        return 0.0005 + 0.004 * random.random()

    def _send(self):
        # From here on it is on its way, whatever becomes of the process.
        world = self._process.world
        world.after(self._delay(), self._arrive, *self._asked[0])

    def _arrive(self, call, then):
        world = self._process.world
        if self._line.away:
            self._soon(self._delay(), self._again)
            return
        if world.chance(self._line.lost):
            world.happened('answer lost')
            # Done, not done, or done when nobody thinks of it any more.
            done = world.random.random()
            if done < 0.6:
                call(self._store)
            elif done < 0.8:
                world.after(5 * world.random.random(), call, self._store)
            self._soon(self._delay(), self._again)
            return
        self._soon(self._delay(), self._answered, then, call(self._store))

    def _again(self):
        self.away = True
        self._soon(self._pause, self._send)
        self._pause = min(2 * self._pause, 2.0)

    def _answered(self, then, answer):
        self.away = False
        self._pause = 0.1
        self._process.later(0.0, self._process.look, then, answer)
        del self._asked[0]
        if self._asked:
            self._send()


@dataclasses.dataclass
class Broker:
    """How well messages travel; shares of all of them, and seconds."""

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
        """*sender* gives up *batch* to its worker."""
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
        self._deliver(member_.process_of(batch.worker), _accept,
                      batch, _copy_of_batch)

    def report(self, report, to_entry):
        if self.away:
            return
        self._deliver(member_.process_of(to_entry), _reported, report,
                      _copy_of_report)


def _accept(process, batch):
    process.look(process.accept, batch)


def _reported(process, report):
    process.look(process.reported, report)


def _copy_of_batch(batch):
    return dataclasses.replace(
        batch, objects=[*batch.objects], fences=[*batch.fences],
        attempts=[*batch.attempts])


def _copy_of_report(report):
    return dataclasses.replace(
        report, done=[*report.done], failed=[*report.failed],
        retried=[*report.retried], refused=[*report.refused],
        lost=[*report.lost])


class Reader:
    """Catalogues that answer later. See
    :class:`distperiodic.ports.CatalogueReader`.

    :param unread: how many of the reads fail, each for once.
    """

    def __init__(self, process, objects, unread):
        self._process = process
        self._objects = objects
        self._unread = unread
        #: Jobs whose last read failed; their next one does not.
        self._failed = set()
        self._known = {}
        self.hangs = False
        self._waiting = []

    def read(self, job, tick, ticket, arcs):
        random = self._process.world.random
        seconds = 0.001 + 0.02 * random.random()
        if random.random() < 0.02:
            seconds += 2 * random.random()
        self._process.later(seconds, self._answer, job.name, ticket, arcs,
                            stream=f'catalogue {job.name}')

    def hang(self):
        self.hangs = True

    def go_on(self):
        self.hangs = False
        waiting, self._waiting = self._waiting, []
        for asked in waiting:
            self._answer(*asked)

    def _answer(self, job, ticket, arcs):
        if self.hangs:
            self._waiting.append((job, ticket, arcs))
            return
        known = self._known.setdefault(job, catalogue_.Catalogues(keep=1))
        objects, own, partial = self._objects(job, arcs)
        reading = catalogue_.Reading(known.of(objects), own, partial)
        if (self._unread and job not in self._failed
                and self._process.world.random.random() < self._unread):
            self._failed.add(job)
            reading = OSError('it was there a moment ago')
        else:
            self._failed.discard(job)
        self._process.look(
            self._process.flow.ticker.catalogue_read, job, ticket, reading)
