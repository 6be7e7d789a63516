# SPDX-License-Identifier: Apache-2.0
"""The plan of the demo: the changes of the group, and their times.

    0               0.22              0.44          0.65  + session + 4 s   1
    |--- 3 members ---|- a 4th joins -|-- kill -9 --|- SIGSTOP -|- SIGCONT -|

Ten times a second, the scene reads the records of the handlers and the members
of the group, and updates the display. It observes the group from outside, as
``distperiodic status`` does, and sends no request to a member.
"""

import collections
import contextlib
import dataclasses
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading

from rich.console import Console
from rich.live import Live
from rich.text import Text

from distperiodic import exceptions
from distperiodic.adapters.local.clock import SystemClock
from distperiodic.core.ring import Ring
from distperiodic.demo import account
from distperiodic.demo import member
from distperiodic.demo import picture
from distperiodic.demo import servers

_WORKERS = 2
_PERIOD_US = round(member.PERIOD * 1e6)
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


@dataclasses.dataclass
class Seat:
    """One member or worker, as seen from outside."""

    process: subprocess.Popen[bytes]
    #: Last change of the process, or 'up'.
    state: str = ''
    #: Instant of this change, in seconds on the monotonic clock. None means
    #: that the other members have noticed the change.
    changed_at: float | None = None
    #: Tenure of the process's current entry in the group. None means that the
    #: process is not in the group.
    tenure: int | None = None


class Scene:
    """One run of the demo.

    :param live: Place of the picture. None means that there is no picture.
    :param members: Number of members at the beginning.
    :param hosts: Number of hosts to ping.
    :param urls: URLs of the coordination service, the broker and the database,
        as in :class:`~distperiodic.demo.servers.Servers`.
    """

    def __init__(self, console: Console, live: Live | None, *, seconds: float,
                 members: int, hosts: int, urls: tuple[str, str, str]):
        self._console = console
        self._live = live
        #: Length of the run, in seconds.
        self.length = seconds
        self._members = members
        self.hosts = member.hosts_of(hosts)
        self._urls = urls
        #: Ticks by instant, in microseconds since the epoch.
        self.ticks: dict[int, account.PingedTick] = collections.defaultdict(
            account.PingedTick)
        #: The ticks that are counted.
        self.counted: list[account.PingedTick] = []
        #: Changes of the group, in the order in which they were noticed.
        self.changes: list[str] = []
        #: Processes by name.
        self.seats: dict[str, Seat] = {}
        #: Processes that did not end cleanly: 'member-1 (exit code 1)'.
        self.failed: list[str] = []
        self.ring = Ring({})
        #: Owner of each host. Empty means that there are no members.
        self.owners: dict[str, str] = {}
        self._clock = SystemClock()
        self._pause = threading.Event()
        self._began = float('inf')
        self._next_tick = 1 << 62

    @property
    def elapsed(self) -> float:
        """Seconds since all of the first processes have joined."""
        return max(0.0, self._clock.monotonic() - self._began)

    @property
    def tick(self) -> tuple[account.PingedTick, int]:
        """The newest tick, and the microseconds since then."""
        now = self._clock.now()
        return self.ticks[now - now % _PERIOD_US], now % _PERIOD_US

    def perform(self) -> None:
        """Run the demo from beginning to end.

        :raises DistperiodicError: a server cannot be used, or a process
            failed.
        :raises KeyboardInterrupt: a signal has ended the demo.
        """
        with contextlib.ExitStack() as stack:
            self._place = pathlib.Path(stack.enter_context(
                tempfile.TemporaryDirectory(
                    prefix='distperiodic-demo-', ignore_cleanup_errors=True)))
            self._servers = servers.Servers(self._place, *self._urls)
            for number in signal.SIGTERM, signal.SIGHUP:
                signal.signal(number, signal.default_int_handler)
            (self._place / 'demo.conf').write_text(
                self._servers.options(len(self.hosts)))
            self._records = stack.enter_context(
                open(self._place / 'records', 'a+'))
            self._log = stack.enter_context(open(self._place / 'log', 'a+'))
            stack.callback(self._servers.clear)
            self._observer = self._servers.observe()
            stack.callback(self._observer.stop, 3.0)
            #: Session timeout in seconds, as the server granted it.
            self.session = self._observer.session_timeout or servers.SESSION
            stack.callback(self._kill_all)
            self._gather()
            self._play()
            self.end()
            if self.failed:
                self.say(f'last line of the log: {self._last_line()}')

    def end(self) -> None:
        """End all processes, and find those that do not end cleanly."""
        for seat in self.seats.values():
            seat.process.terminate()
        for name, seat in self.seats.items():
            with contextlib.suppress(subprocess.TimeoutExpired):
                seat.process.wait(30.0)
            code = seat.process.returncode
            if code != 0 and seat.state != 'is killed':
                self.failed.append(f'{name} (' + (
                    'still runs' if code is None else f'exit code {code}')
                    + ')')

    def _kill_all(self) -> None:
        for seat in self.seats.values():
            seat.process.kill()
            seat.process.wait()

    def _gather(self) -> None:
        """Start the first processes and wait until all have joined."""
        for kind, most in (('worker', _WORKERS if self._urls[1] else 0),
                           ('member', self._members)):
            for number in range(most):
                self._start(kind, number + 1)
        deadline = self._clock.monotonic() + 60
        while (any(seat.changed_at for seat in self.seats.values())
               and self._clock.monotonic() < deadline):
            self._look()
        self._check_noticed()
        self._began = self._clock.monotonic()
        self._next_tick = (self._clock.now() // _PERIOD_US + 2) * _PERIOD_US
        owned = collections.Counter(self.owners.values())
        self.say('all processes have joined; ' + ', '.join(
            f'{name} owns {owned[name]}' for name in sorted(owned)))

    def _start(self, kind: str, number: int) -> None:
        name = f'{kind}-{number}'
        # In a session of its own, the process does not receive Ctrl-C.
        self.seats[name] = Seat(subprocess.Popen(  # noqa: S603
            [sys.executable, '-m', 'distperiodic.demo.member', kind, name,
             str(self._place), str(len(self.hosts)), str(os.getpid())],
            stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log,
            start_new_session=True))
        self._change(name, 'joins')

    def _play(self) -> None:
        # The group must notice the loss of the killed member before the next
        # member is frozen, and the frozen member must rejoin before the end.
        first, frozen = self._next_tick, self.session + _FROZEN_BEYOND_SESSION
        self.length = max(
            self.length, (self.session + 2.0) / (_FREEZE - _KILL),
            (frozen + self.session + _COUNTED_AFTER) / (1.0 - _FREEZE))
        self._look_until(self.length * _JOIN)
        self._start('member', self._members + 1)
        self._look_until(self.length * _KILL, idle=True)
        self._change('member-2', 'is killed', signal.SIGKILL)
        self._look_until(self.length * _FREEZE, idle=True)
        with self._servers.unlocked():
            self._change('member-3', 'is frozen', signal.SIGSTOP)
        self._look_until(self.elapsed + frozen)
        self._check_noticed()
        self._change('member-3', 'wakes', signal.SIGCONT)
        self._look_until(self.length)
        self._check_noticed()
        last = self._clock.now() - round((self.session + _COUNTED_AFTER) * 1e6)
        self.counted = [
            self.ticks[at] for at in range(first, last, _PERIOD_US)]

    def _look_until(self, seconds: float, idle: bool = False) -> None:
        """Look until *seconds* have elapsed.

        :param idle: True if the runs of the current tick must also have ended,
            unless this takes longer than two periods. If a process stops after
            a run has ended and before the store has recorded the end, the run
            is repeated. The number of such runs depends on the load of the
            machine, so it would say nothing about the library.
        """
        while self.elapsed < seconds or (
                idle and self.elapsed < seconds + 2 * member.PERIOD
                and (len(self.tick[0].runs) < len(self.hosts)
                     or self.tick[1] < _PERIOD_US / 2)):
            self._look()

    def _change(self, name: str, what: str,
                number: signal.Signals | None = None) -> None:
        """Begin a planned change of a process.

        :param number: Signal to send. None means no signal.
        """
        seat = self.seats[name]
        seat.state, seat.changed_at = what, self._clock.monotonic()
        if number is not None:
            seat.process.send_signal(number)
            what += f' ({number.name})'
        self.say(f'{name} {what}')

    def _check_noticed(self) -> None:
        for name, seat in self.seats.items():
            if seat.changed_at is not None:
                raise exceptions.DistperiodicError(
                    f'{name} {seat.state}, but no member noticed; run the '
                    'demo again on a machine that is less busy')

    def say(self, text: str) -> None:
        """Print a line about an event that happened now."""
        line = Text(f'{picture.moment(self.elapsed)}  {text}')
        if self._live is not None:
            # Longer lines would divide the picture from the events.
            line.truncate(self._console.width, overflow='ellipsis')
        self._console.print(line, soft_wrap=True)

    def update(self) -> None:
        """Draw the current state."""
        if self._live is not None:
            self._live.update(picture.draw(self, self._console.width),
                              refresh=True)

    def _look(self) -> None:
        self._pause.wait(0.1)
        for name, seat in self.seats.items():
            if seat.process.poll() is not None and seat.state != 'is killed':
                raise exceptions.DistperiodicError(
                    f'{name} ended by itself: {self._last_line()}')
        for line in self._records:
            host, tick, late, process = line.split()
            self.ticks[int(tick)].runs[host].append(process)
            self.ticks[int(tick)].late.append(int(late) / 1e6)
        self._compare_members()
        while self._next_tick + _SHOW_US <= self._clock.now():
            self.say(picture.tick_line(self, self._next_tick))
            self._next_tick += _PERIOD_US
        self.update()

    def _last_line(self) -> str:
        return (self._log.read().splitlines() or ['-'])[-1]

    def _compare_members(self) -> None:
        """Handle the changes of the groups since the last call."""
        views = [self._observer.view(one) for one in self._servers.groups]
        there = {one.identity: one.tenure
                 for view in views for one in view.members}
        changed = {name: seat for name, seat in self.seats.items()
                   if seat.tenure != there.get(name)}
        if not changed:
            return
        before, self.ring = self.owners, views[0].ring
        self.owners = {host: self.ring.owner_of(host) for host in self.hosts
                       if len(self.ring)}
        moved, least = account.moves(before, self.owners, changed)
        for name, seat in changed.items():
            planned, seat.tenure = seat.changed_at, there.get(name)
            seat.changed_at = None
            if planned is None:
                seat.state = 'left' if seat.tenure is None else 'rejoined'
                when = 'not planned; is this machine very busy?'
            else:
                when = f'seen after {self._clock.monotonic() - planned:.1f} s'
            if self.elapsed:
                self.changes.append(f'{name} {seat.state}: {when}, {moved} '
                                    f'hosts moved, {least} had to')
                self.say(self.changes[-1])
            if seat.tenure is not None:
                seat.state = 'up'
