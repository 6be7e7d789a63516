# SPDX-License-Identifier: Apache-2.0
"""A cluster in memory, whose clock only the test advances."""

import collections
import datetime
import itertools
import math
from collections.abc import Callable
from types import TracebackType

from distperiodic import periodic
from distperiodic.core import schedule
from distperiodic.core.member import View
from distperiodic.core.member import ring_members
from distperiodic.core.ring import Ring
from distperiodic.core.schedule import SECOND
from distperiodic.testing.clock import FrozenClock
from distperiodic.testing.member import ClusterMember
from distperiodic.testing.member import ClusterSettings
from distperiodic.testing.record import Record
from distperiodic.testing.record import Run
from distperiodic.testing.store import SharedMemoryStore

# A member trusts its view for this fraction of the session timeout after each
# heartbeat, as in the services.
_TRUST = 2 / 3
# Maximum number of rounds in which the members act at one instant. If a
# cluster needed more rounds, it would probably never become idle.
_TURNS = 10_000


class Cluster:
    """Members that share the jobs of one class, without servers or threads.

    Time passes only in :meth:`advance` and :meth:`advance_to`. A run takes no
    time unless *run_time* is set. Use the cluster as a context manager, or
    call :meth:`close`.

    :param tasks: The class of the tasks, or a function that returns an
        instance. The cluster calls it as ``tasks(conf)`` for each member.
        *tasks* may also be an instance; all members then share this instance.
    :param members: Number of members at the beginning. Their names are
        ``member-1``, ``member-2`` and so on.
    :param conf: Configuration that is passed to *tasks*.
    :param start: Aware datetime at which the cluster starts. The default is
        the beginning of 2030, UTC.
    :param session_timeout: Seconds until the other members notice that a
        member was killed or is frozen.
    :param late_claim_after: Seconds after a tick until other members claim an
        object that its owner has not claimed. At most half of the job's period
        is used.
    :param lease: Seconds until a lease that is not renewed expires.
    :param run_time: Duration of each run in seconds. The handler is called at
        the end of this time, unless the member is killed earlier. A test can
        therefore kill a member while runs on this member are in progress.
    :raises ValueError: *members* is less than 1, or *start* has no time zone.
    """

    def __init__(self, tasks: (periodic.PeriodicTasks
                               | Callable[..., periodic.PeriodicTasks]),
                 members: int = 1, *, conf: object = None,
                 start: datetime.datetime | None = None,
                 session_timeout: float = 10.0,
                 late_claim_after: float = 5.0, lease: float = 60.0,
                 run_time: float = 0.0):
        if members < 1:
            raise ValueError(f'members is {members}; a cluster has at least '
                             'one member')
        self.clock = FrozenClock() if start is None else FrozenClock(start)
        self._tasks = tasks
        self._conf = conf
        self._settings = ClusterSettings(
            session_timeout, late_claim_after, lease, run_time)
        self._record = Record()
        self._store = SharedMemoryStore(self.clock)
        #: Members whose processes exist, including frozen members.
        self._members: dict[str, ClusterMember] = {}
        #: Members in the group, including killed members whose session has not
        #: expired yet.
        self._group: dict[str, ClusterMember] = {}
        self._numbers = itertools.count(1)
        self._nonces = itertools.count(1)
        self._version = 0
        #: Functions to call later, by the monotonic time in seconds.
        self._later: dict[float, list[Callable[[], None]]] = (
            collections.defaultdict(list))
        for _ in range(members):
            self._add(f'member-{next(self._numbers)}')
        self._show()
        self._settle()

    def __enter__(self) -> 'Cluster':
        return self

    def __exit__(self, kind: type[BaseException] | None,
                 error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End all members. No handler runs after this call."""
        self._members.clear()
        self._later.clear()

    # -- state

    @property
    def runs(self) -> list[Run]:
        """All runs so far, oldest first."""
        return list(self._record.runs)

    @property
    def members(self) -> list[str]:
        """Names of the members in the group.

        A killed member stays in the group until its session expires.
        """
        return sorted(self._group)

    def owner_of(self, object_id: str | int) -> str:
        """Return the name of the member that owns an object."""
        return Ring(ring_members(
            member.entry for member in self._group.values()
        )).owner_of(str(object_id))

    # -- time

    def advance(self, seconds: float) -> None:
        """Let *seconds* pass, and run all work that becomes due.

        :raises ValueError: *seconds* is negative. To set the clock back, call
            ``clock.set()``.
        """
        if seconds < 0:
            raise ValueError(f'seconds is {seconds:g}; time does not go back')
        end = self.clock.monotonic() + seconds
        while True:
            self._settle()
            now = self.clock.monotonic()
            if now >= end:
                return
            wake = min([end, *self._later, *(
                member.next() for member in self._members.values()
                if member.awake)])
            # Advance at least one microsecond, the resolution of the clock.
            self.clock.advance(max(1 / SECOND, min(wake, end) - now))
            for moment in sorted(self._later):
                if moment <= self.clock.monotonic() + 0.5 / SECOND:
                    for call in self._later.pop(moment):
                        call()

    def advance_to(self, time: datetime.datetime) -> None:
        """Let time pass until the wall clock shows *time*.

        :raises ValueError: *time* has passed.
        """
        self.advance((time - self.clock.time).total_seconds())

    def _settle(self) -> None:
        """Let all members do all work that is due at this instant."""
        for _ in range(_TURNS):
            busy = [member.turn() for member in list(self._members.values())]
            if not any(busy):
                return
        raise AssertionError(
            f'the cluster is still busy after {_TURNS} turns at '
            f'{self.clock.time:%H:%M:%S.%f}')

    # -- changes of members

    def join(self, name: str | None = None) -> str:
        """Start a member, and return its name.

        :param name: Name of the member. The default is ``member-N`` with the
            next number. To restart a member that was killed, give its name.
        :raises ValueError: The name is taken.
        """
        if name is None:
            name = f'member-{next(self._numbers)}'
        if name in self._members:
            raise ValueError(f'member {name!r} is already in the cluster')
        self._add(name)
        self._show()
        self._settle()
        return name

    def leave(self, name: str) -> None:
        """Stop a member, as SIGTERM does, but without waiting for its runs.

        The other members run the objects whose runs have not ended.
        """
        member = self._member(name)
        member.drain()
        del self._members[name]
        del self._group[name]
        self._show()
        self._settle()

    def kill(self, name: str) -> None:
        """Kill a member, as ``kill -9`` does.

        The runs in progress on this member never end. After
        ``session_timeout`` the other members notice that the member is gone.
        """
        self._member(name)
        del self._members[name]
        self._miss(name)

    def freeze(self, name: str) -> None:
        """Freeze a member, as SIGSTOP does.

        The other members notice this after ``session_timeout``. :meth:`thaw`
        resumes the member.
        """
        member = self._member(name)
        member.awake = False
        member.distrust(self.clock.monotonic()
                        + _TRUST * self._settings.session_timeout)
        self._miss(name)

    def thaw(self, name: str) -> None:
        """Resume a frozen member, as SIGCONT does.

        If the session of the member has expired, the member detects this, and
        rejoins the group.
        """
        member = self._member(name)
        member.awake = True
        # The member acts once on its old view before it receives the current
        # view.
        member.turn()
        if self._group.get(name) is not member:
            self._group[name] = member
            member.entry = member.entry.next_term(broken=True)
        self._show()
        self._settle()

    def pause(self, job: str) -> None:
        """Pause a job, as ``distperiodic job pause`` does."""
        self._store.pause(job, 'paused by a test')

    def resume(self, job: str) -> None:
        """Resume a job, as ``distperiodic job resume`` does."""
        self._store.resume(job)

    def _miss(self, name: str) -> None:
        """Remove a member from the group after the session timeout.

        If the member is awake at that time, it stays in the group.
        """
        missed = self._group[name]

        def expire() -> None:
            if self._group.get(name) is missed and not (
                    self._members.get(name) is missed and missed.awake):
                del self._group[name]
                self._show()
        self._later[self.clock.monotonic()
                    + self._settings.session_timeout].append(expire)

    def _add(self, name: str) -> None:
        tasks = (self._tasks if isinstance(self._tasks, periodic.PeriodicTasks)
                 else self._tasks(self._conf))
        member = ClusterMember(
            name, tasks, clock=self.clock, store=self._store,
            record=self._record, settings=self._settings,
            nonce=next(self._nonces))
        self._members[name] = self._group[name] = member

    def _member(self, name: str) -> ClusterMember:
        try:
            return self._members[name]
        except KeyError:
            raise ValueError(
                f'no member {name!r} is running; the members are '
                f'{", ".join(sorted(self._members)) or "none"}') from None

    def _show(self) -> None:
        """Set the view of all members that are awake to the current group."""
        self._version += 1
        now = self.clock.monotonic()
        entries = tuple(self._group[name].entry
                        for name in sorted(self._group))
        ring = Ring(ring_members(entries))
        for name, member in self._members.items():
            if member.awake and self._group.get(name) is member:
                member.show(View(
                    'cluster', entries, ring, version=self._version,
                    since=now, me=member.entry, trusted_until=math.inf))

    # -- assertions

    def assert_ran(self, job: str, object_id: str | int | None = None, *,
                   times: int | None = None,
                   tick: datetime.datetime | None = None) -> list[Run]:
        """Check that a job ran, and return its runs, oldest first.

        A failed attempt counts as a run.

        :param job: Name of the job.
        :param object_id: Id of an object. None means any object.
        :param times: Number of runs. None means at least one.
        :param tick: Tick of the runs, an aware datetime. None means any tick.
        :raises AssertionError: The number of runs is not the expected one. The
            message lists the runs of the job.
        :raises ValueError: No job has this name.
        """
        self._check_job(job)
        found = self._record.find(job, object_id, tick)
        holds = bool(found) if times is None else len(found) == times
        wanted = 'at least once' if times is None else _times(times)
        self._record.check(
            holds, lambda: f'{_what(job, object_id, tick)} should have run '
            f'{wanted}, but ran {_times(len(found))}; runs of {job!r}:', job)
        return found

    def refute_ran(self, job: str, object_id: str | int | None = None, *,
                   tick: datetime.datetime | None = None) -> None:
        """Check that a job did not run; see :meth:`assert_ran`.

        :raises AssertionError: The job ran. The message lists its runs.
        :raises ValueError: No job has this name.
        """
        self._check_job(job)
        found = self._record.find(job, object_id, tick)
        self._record.check(
            not found, lambda: f'{_what(job, object_id, tick)} should not '
            f'have run, but ran {_times(len(found))}; runs of {job!r}:', job)

    def _check_job(self, job: str) -> None:
        for member in self._group.values():
            if job not in member.tasks.jobs:
                raise ValueError(
                    f'there is no job {job!r}; the jobs are '
                    f'{", ".join(member.tasks.jobs) or "none"}')


def _times(number: int) -> str:
    return 'once' if number == 1 else f'{number} times'


def _what(job: str, object_id: str | int | None,
          tick: datetime.datetime | None) -> str:
    text = f'job {job!r}'
    if object_id is not None:
        text += f' object {str(object_id)!r}'
    return text if tick is None else f'{text} tick {tick.isoformat()}'


def run_tick(tasks: periodic.PeriodicTasks, job: str, *,
             after: datetime.datetime | None = None) -> list[Run]:
    """Run one tick of a job for all objects of its catalogue.

    The call does not wait for retries. With ``spread``, it simulates the whole
    period after the tick, in which the objects are due. That takes about one
    second of real time for an hour. Other jobs that are due meanwhile, or in
    the second before the tick, also run.

    :param tasks: Instance of the class of tasks.
    :param job: Name of the job.
    :param after: Aware datetime. The call runs the first tick of the job after
        this time. The default is the beginning of 2030, UTC.
    :returns: The runs of *job* for that tick.
    :raises InvalidJob: No job has this name.
    :raises ValueError: *after* has no time zone.
    """
    # Unlike handler(), this method rejects commands, which have no ticks.
    tasks.catalogue(job)
    begin = FrozenClock() if after is None else FrozenClock(after)
    grid, spread = tasks.jobs[job].schedule, tasks.jobs[job].spread
    at = grid.after(begin.now())
    tick = schedule.datetime_of(at)
    with Cluster(tasks, start=tick - datetime.timedelta(seconds=1)) as one:
        one.advance(1)
        if spread:
            one.advance(grid.period_us(at) / schedule.SECOND)
        return [run for run in one.runs
                if run.job == job and run.tick == tick]
