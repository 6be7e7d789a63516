# SPDX-License-Identifier: Apache-2.0
"""The plan of the demo: the changes of the group, and their times.

    0               0.22              0.44          0.65  + session + 4 s   1
    |--- 3 members ---|- a 4th joins -|-- kill -9 --|- SIGSTOP -|- SIGCONT -|

One loop runs ten times a second. It makes the next change when the change is
due, reads the records of the handlers, handles changes of the group, and
updates the display. The scene observes the group from outside, as
``distperiodic status`` does, and sends no request to a member.
"""

import contextlib
import dataclasses
import pathlib
import queue
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable
from collections.abc import Iterator
from typing import Protocol

from distperiodic import exceptions
from distperiodic.adapters.coordination.membership import Membership
from distperiodic.adapters.local.clock import SystemClock
from distperiodic.core.member import View
from distperiodic.core.ring import Ring
from distperiodic.demo import pings
from distperiodic.demo import processes
from distperiodic.demo import record
from distperiodic.demo import servers
from distperiodic.demo.account import Account
from distperiodic.demo.account import Change
from distperiodic.demo.account import Movement
from distperiodic.demo.account import Tick
from distperiodic.demo.account import movement

WORKERS = 2
_PERIOD_US = round(pings.PERIOD * 1e6)
_JOIN, _KILL, _FREEZE = 0.22, 0.44, 0.65
# Seconds for which a member stays frozen after its session has expired, so
# that the demo shows the take-over by the other members.
_FROZEN_BEYOND_SESSION = 4.0
# Microseconds from a tick until its result is shown. Runs that a dead or
# frozen member had started may not have ended by then.
_SHOW_US = 1_600_000
# A tick is counted if, at the end of the demo, it is older than the session
# plus this number of seconds. By then each of its pings has finished or is
# missed.
_COUNTED_AFTER = 4.0
_LOOK = 0.1


@dataclasses.dataclass(frozen=True)
class Plan:
    """The settings that the user chose."""

    seconds: float
    members: int
    objects: int
    backend_url: str
    transport_url: str
    connection: str


class Seat:
    """One member or worker, as seen from outside."""

    def __init__(self, number: int, process: processes.Process):
        self.number = number
        self.process = process
        self.state = 'starting'
        #: Tenure of the process's current entry in the group. None means that
        #: the process is not in the group.
        self.tenure: int | None = None
        self.served = 0

    @property
    def name(self) -> str:
        return self.process.name


class Show(Protocol):
    """The display of a scene."""

    def event(self, seconds: float, text: str) -> None:
        """Show an event that happened *seconds* after the beginning."""

    def tick(self, scene: 'Scene', tick: Tick) -> None:
        """Show the result of a tick."""

    def update(self, scene: 'Scene') -> None:
        """Show the current state. Called in each pass of the loop."""


class Scene:
    """One run of the demo."""

    def __init__(self, plan: Plan, show: Show):
        self.plan = plan
        self.hosts = pings.hosts(plan.objects)
        self.account = Account(self.hosts, _PERIOD_US)
        self.ring = Ring({})
        self.seats: dict[str, Seat] = {}
        # Changes that the group has not noticed yet, by the name of the
        # process.
        self._pending: dict[str, Change] = {}
        self._show = show
        self._clock = SystemClock()
        self._pause = threading.Event()
        #: Length of the run, in seconds.
        self.length = plan.seconds
        #: Session timeout in seconds, as the server granted it.
        self.session = float(servers.SESSION)
        self._began: float | None = None
        self._views: queue.SimpleQueue[tuple[int, View]] = (
            queue.SimpleQueue())
        self._judged = 0
        #: The instants at which the frozen member was replaced and, later,
        #: rejoined.
        self.replaced: list[int] = []
        #: Group and process of each entry that was ever in the group.
        self._known: set[tuple[str, str]] = set()
        #: Names of the processes that did not end cleanly.
        self.unclean: list[str] = []

    # -- read by the display

    @property
    def elapsed(self) -> float:
        """Seconds since all of the first processes have joined."""
        return 0.0 if self._began is None else (
            self._clock.monotonic() - self._began)

    @property
    def members(self) -> list[Seat]:
        return [s for s in self.seats.values()
                if s.process.kind == 'scheduler']

    @property
    def workers(self) -> list[Seat]:
        return [s for s in self.seats.values() if s.process.kind == 'worker']

    @property
    def now(self) -> int:
        """Microseconds since the epoch."""
        return self._clock.now()

    def current(self) -> Tick:
        """Return the newest tick."""
        return self.account.tick_at(self.now // _PERIOD_US * _PERIOD_US)

    def seat_of(self, pid: int) -> Seat | None:
        for seat in self.seats.values():
            if seat.process.pid == pid:
                return seat
        return None

    # -- the whole run

    def perform(self) -> Account:
        """Run the demo from beginning to end.

        :raises ConfigError: a URL cannot be used.
        :raises CoordinationUnavailable: the coordination service is
            unavailable.
        :raises BusUnavailable: the broker is unavailable.
        """
        with contextlib.ExitStack() as stack:
            place = pathlib.Path(tempfile.mkdtemp(
                prefix='distperiodic-demo-'))
            stack.callback(shutil.rmtree, place, ignore_errors=True)
            self._servers = servers.Servers(
                place, self.plan.backend_url, self.plan.transport_url,
                self.plan.connection, self._clock)
            self._servers.check()
            stack.enter_context(_ended_by_signals())
            (place / 'runs').mkdir()
            self._records = record.Reader(place / 'runs')
            self.company = processes.Company(
                self._servers.write_config(self.plan.objects),
                place / 'runs', self.plan.objects)
            stack.callback(self._servers.sweep_up, self._known)
            self._watch(stack)
            stack.enter_context(self.company)
            self._gather()
            self._play()
            self.unclean = self.company.end()
        return self.account

    def _watch(self, stack: contextlib.ExitStack) -> None:
        """Start to observe the group."""
        observer = Membership(
            self._servers.backend_url, 'audience', clock=self._clock,
            session_timeout=servers.SESSION,
            heartbeat_interval=servers.HEARTBEAT)
        observer.watch(self._servers.group, self._seen)
        if self.plan.transport_url:
            observer.watch(self._servers.workers_group, self._seen)
        observer.start()
        stack.callback(observer.stop, 3.0)
        observer.wait_joined(15.0)
        self.session = observer.session_timeout or self.session

    # -- the beginning

    def _gather(self) -> None:
        """Start the first processes and wait until all have joined."""
        self._say(f'starting {self.plan.members} member processes'
                  + (f' and {WORKERS} workers' if self.plan.transport_url
                     else ''))
        if self.plan.transport_url:
            for number in range(1, WORKERS + 1):
                self._add('worker', number)
        for number in range(1, self.plan.members + 1):
            self._add('scheduler', number)
        deadline = self._clock.monotonic() + 60
        while not all(s.tenure for s in self.seats.values()):
            if self._clock.monotonic() > deadline:
                raise exceptions.DistperiodicError(
                    'not all processes joined within 60 s: '
                    + '; '.join(f'{s.name}: {s.process.last_words()}'
                                for s in self.seats.values()
                                if not s.tenure)
                    + '; is this machine very busy?')
            self._look()
        self.account.changes.clear()
        self._pending.clear()
        self._began = self._clock.monotonic()
        self.account.first = (
            (self.now + _PERIOD_US // 2) // _PERIOD_US + 1) * _PERIOD_US
        self._judged = self.account.first - _PERIOD_US
        owned = self._owned()
        self._say('all members have joined; ' + ', '.join(
            f'{s.name} owns {owned.get(s.name, 0)}' for s in self.members))

    def _add(self, kind: str, number: int) -> Seat:
        name = f'{"member" if kind == "scheduler" else "worker"}-{number}'
        seat = Seat(number, self.company.start(kind, name))
        self.seats[name] = seat
        self._did(f'{name} joins', name)
        return seat

    def _owned(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for host in self.hosts if len(self.ring) else ():
            owner = self.ring.owner_of(host)
            found[owner] = found.get(owner, 0) + 1
        return found

    # -- the plan

    def _play(self) -> None:
        # The group must notice the loss of the killed member before the next
        # member is frozen, and the frozen member must rejoin before the end.
        frozen = self.session + _FROZEN_BEYOND_SESSION
        self.length = length = max(
            self.plan.seconds, (self.session + 2.0) / (_FREEZE - _KILL),
            (frozen + self.session + _COUNTED_AFTER) / (1.0 - _FREEZE))
        if length > self.plan.seconds:
            self._say(f'the demo takes {length:.0f} s, since the server '
                      f'grants sessions of {self.session:g} s')
        scenes: list[tuple[float, Callable[[], None]]] = [
            (length * _JOIN, self._one_joins),
            (length * _KILL, self._one_is_killed),
            (length * _FREEZE, self._one_freezes),
            (length * _FREEZE + frozen, self._it_wakes)]
        end = self.now + round((length - self.elapsed
                                - self.session - _COUNTED_AFTER) * 1e6)
        self.account.last = end // _PERIOD_US * _PERIOD_US
        while self.elapsed < length:
            while scenes and self.elapsed >= scenes[0][0]:
                scenes.pop(0)[1]()
            self._look()

    def _one_joins(self) -> None:
        seat = self._add('scheduler', len(self.members) + 1)
        self._say(f'{seat.name} starts')

    def _one_is_killed(self) -> None:
        seat = self.members[1]
        self._wait_until_idle()
        self._did(f'{seat.name} is killed', seat.name)
        seat.process.kill()
        seat.state = 'killed'
        self._say(f'{seat.name} is killed (kill -9)')

    def _one_freezes(self) -> None:
        seat = self.members[2 if len(self.members) > 2 else 0]
        self._wait_until_idle()
        with processes.nobody_holds(self._servers.lock):
            self._did(f'{seat.name} is frozen', seat.name)
            seat.process.freeze()
        seat.state = 'frozen'
        self._say(f'{seat.name} is frozen (SIGSTOP) for '
                  f'{self.session + _FROZEN_BEYOND_SESSION:.0f} s, longer '
                  f'than its session of {self.session:g} s')

    def _wait_until_idle(self) -> None:
        """Wait until no run is in progress, but for at most one period.

        If a process stops after a run has ended and before the store has
        recorded the end, the run is repeated. The number of such runs depends
        on the load of the machine, so it would say nothing about the library.
        """
        deadline = self._clock.monotonic() + pings.PERIOD
        while (self._servers.runs_in_progress()
               and self._clock.monotonic() < deadline):
            self._look()

    def _it_wakes(self) -> None:
        seat = next(s for s in self.members if s.process.frozen)
        self._did(f'{seat.name} wakes', seat.name)
        seat.process.thaw()
        seat.state = 'woken'
        self._say(f'{seat.name} resumes (SIGCONT); it does not know yet that '
                  'it was replaced')

    def _did(self, what: str, who: str) -> None:
        change = Change(what, who, self.now)
        self.account.changes.append(change)
        if who in self._pending:
            # The process resumed before the group noticed that it was frozen.
            self._pending[who].planned = False
        self._pending[who] = change

    # -- observation

    def _look(self) -> None:
        self._pause.wait(_LOOK)
        self.company.check()
        for run in self._records.news():
            self.account.add(run)
            seat = self.seat_of(run.pid)
            if seat is not None:
                seat.served += 1
        while True:
            try:
                self._viewed(*self._views.get_nowait())
            except queue.Empty:
                break
        while self._began is not None and (
                self._judged + _PERIOD_US + _SHOW_US <= self.now):
            self._judged += _PERIOD_US
            if self._judged >= self.account.first:
                self._show.tick(self, self.account.tick_at(self._judged))
        self._show.update(self)

    def _seen(self, view: View) -> None:
        # Called in the thread of the membership.
        self._views.put((self._clock.now(), view))

    def _viewed(self, at: int, view: View) -> None:
        """Handle a change of the group."""
        there = {m.identity: m.tenure for m in view.members}
        self._known.update((view.group, m.process) for m in view.members)
        of_members = view.group == self._servers.group
        seats = self.members if of_members else self.workers
        changed = [s for s in seats if s.tenure != there.get(s.name)]
        moved = None
        if of_members:
            moved = movement(self.hosts, self.ring, view.ring,
                             [s.name for s in changed])
        for seat in changed:
            was, seat.tenure = seat.tenure, there.get(seat.name)
            if seat.tenure is None:
                self._left(at, seat, moved)
            else:
                self._joined(at, seat, was, moved)
        if of_members:
            self.ring = view.ring

    def _left(self, at: int, seat: Seat,
              moved: Movement | None) -> None:
        change = self._noticed(at, seat, moved, 'was replaced')
        if seat.state == 'frozen':
            seat.state = 'replaced'
            self.replaced = [at]
        elif seat.state == 'up':
            seat.state = 'lost'
        self._say(f'{seat.name} has left'
                  + (f', seen after {change.delay:.1f} s'
                     if change.planned else ' (not planned)')
                  + self._moved(moved))

    def _joined(self, at: int, seat: Seat, was: int | None,
                moved: Movement | None) -> None:
        again = seat.state in ('replaced', 'woken', 'lost') or (
            was is not None)
        change = self._noticed(at, seat, moved, 'rejoined')
        if again and self.replaced and len(self.replaced) == 1:
            self.replaced.append(at)
        seat.state = 'up'
        if self._began is None:
            return
        self._say(f'{seat.name} has rejoined by itself, {change.delay:.1f} s '
                  'later' if again and change.planned else
                  f'{seat.name} has rejoined' if again else
                  f'{seat.name} has joined {change.delay:.1f} s after its '
                  'start', moved)

    def _noticed(self, at: int, seat: Seat,
                 moved: Movement | None,
                 what: str) -> Change:
        change = self._pending.pop(seat.name, None)
        if change is None:
            change = Change(f'{seat.name} {what}', seat.name, at,
                            planned=False)
            self.account.changes.append(change)
        change.noticed, change.movement = at, moved
        return change

    def _moved(self, moved: Movement | None) -> str:
        if moved is None:
            return ''
        return f': {moved.moved} hosts moved, {moved.least} had to'

    def _say(self, text: str,
             moved: Movement | None = None) -> None:
        self._show.event(self.elapsed, text + self._moved(moved))

    # -- the end

    def incomplete(self) -> list[str]:
        """Return the reasons why the result of the demo is incomplete."""
        found = [f'{c.what}, but no member noticed'
                 for c in self.account.changes
                 if c.planned and c.noticed is None]
        if len(self.replaced) != 2:
            found.append('no member was replaced and rejoined')
        if not self.account.total().ticks:
            found.append('no tick was counted')
        return found + [f'{name} did not end cleanly'
                        for name in self.unclean]


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Make SIGTERM and SIGHUP end the demo in the same way as Ctrl-C.

    The signals then raise an exception, so that the demo cleans up.
    """
    def end(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    old = {number: signal.signal(number, end)
           for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
