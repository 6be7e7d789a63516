# SPDX-License-Identifier: Apache-2.0
"""Membership over tooz: the one thread that uses the coordination service.

    open a term ─► join ─► confirm ─► read ◄──────┐
         ▲                             │  a watch fired, or a probe is due
         │                             ▼           │
         └──── the term is lost ◄── wait ──────────┘

A *term* is one tooz coordinator under one entry (:mod:`..core.member`). A
term may end for many reasons: the session expired, an operator deleted the
entry, the client is stuck with a server that lost its data, the points or the
slots changed, or the process joins another group. In each case the process
begins its next term. While a process has two entries, all members use the
later one. So a change of points does not interrupt the membership.

If only the entry changes, a term on ZooKeeper continues under the new entry: a
process never needs a second connection, which its server may refuse.

With ``file://``, the entries of dead processes stay on the disk. The driver
ignores entries that are too old. Each entry is one small file, so the files
need little space.

One thread owns all of the state: the terms, the groups and their views.
"""

import dataclasses
import logging
import random
import secrets
import threading
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from typing import NamedTuple

from distperiodic import exceptions
from distperiodic import ports
from distperiodic.adapters.coordination.term import TRUST
from distperiodic.adapters.coordination.term import KazooTerm
from distperiodic.adapters.coordination.term import Term
from distperiodic.adapters.coordination.term import TermLost
from distperiodic.adapters.coordination.url import PUSHING
from distperiodic.adapters.coordination.url import check_backend_url
from distperiodic.core import redaction
from distperiodic.core.job_set import JobRings
from distperiodic.core.job_set import JobSet
from distperiodic.core.member import Member
from distperiodic.core.member import View
from distperiodic.core.member import check_identity
from distperiodic.core.member import parse_entry
from distperiodic.core.member import resolve_entries
from distperiodic.core.member import ring_members
from distperiodic.core.ring import Ring

LOG = logging.getLogger(__name__)

# Minimum seconds between two reads of one group. If two hundred processes join
# at the same time, a member then computes about twenty views instead of two
# hundred. The first read after a pause is never delayed, so a member sees a
# single join at once.
_COALESCE = 0.025


@dataclasses.dataclass(eq=False)
class _Group:
    """One group that this process has joined or watches."""

    name: str
    #: True if this process is a member, False if it only watches.
    member: bool
    #: True if the group contains, or may contain, this process's entry.
    standing: bool = False
    view: View | None = None
    entries: frozenset[str] = frozenset()
    unknown_entries: frozenset[str] = frozenset()
    read_at: float = 0.0
    changed: bool = True
    listeners: list[Callable[[View], None]] = dataclasses.field(
        default_factory=list)


class Announced(NamedTuple):
    """Properties that a process announces in its membership entry."""

    #: Number of points on the ring.
    points: int = 0
    #: Number of runs that this process accepts at a time.
    slots: int = 0
    #: The jobs that this process schedules. None for a process that schedules
    #: no jobs; the views of such a process have no rings of single jobs.
    jobs: JobSet | None = None
    #: True if this process reads the trace contexts of batches.
    traces: bool = False


#: Properties of a process that owns nothing and runs nothing.
NOTHING = Announced()


class ToozMembership:
    """The groups of one process; see :class:`distperiodic.ports.Membership`.

    :param identity: Name of this process on the ring.
    :param session_timeout: Seconds without a heartbeat after which other
        members take over. A timeout in *backend_url* takes precedence, and the
        server may grant another value.
    :param heartbeat_interval: Maximum seconds between reads of a service that
        cannot push changes.
    :param changed: Called with the name of a group, the names of the members
        that have joined it, and the names of those that have left it. It must
        not block.
    :raises ConfigError: the URL is invalid, or its driver has no group
        membership.
    :raises InvalidMemberId: the service cannot store *identity*.
    """

    def __init__(self, backend_url: str, identity: str, *,
                 clock: ports.Clock, announced: Announced = NOTHING,
                 session_timeout: float = 10.0,
                 heartbeat_interval: float = 1.0,
                 changed: Callable[[str, Collection[str], Collection[str]],
                                   None] = lambda group, joined, left: None):
        self._scheme = check_backend_url(backend_url)
        self._url = backend_url
        self._shown = redaction.redact(backend_url)
        self._clock = clock
        self._requested_timeout = session_timeout
        self._interval = heartbeat_interval
        self._members_changed = changed
        points, slots, jobs, traces = announced
        self._me = Member(
            check_identity(identity), secrets.token_hex(8), 0,
            points, slots, jobs=jobs.digest if jobs else 0,
            traces=traces)
        self._jobs = jobs
        #: Sets of jobs that members have, by their digests.
        self._job_sets = {jobs.digest: jobs} if jobs else {}
        # Values for the next term. publish() sets them in any thread. Only the
        # membership thread writes _me.
        self._points = points
        self._slots = slots
        self._lock = threading.Lock()
        # To add a group, replace the whole dictionary, because other threads
        # may be iterating over the current one.
        self._groups: dict[str, _Group] = {}
        self._wake = threading.Event()
        self._changed_condition = threading.Condition()
        self._stopping = threading.Event()
        self._republish = False
        self._connected = False
        self._thread: threading.Thread | None = None
        #: Error that prevents this process from joining its groups, or None.
        self.problem: exceptions.DistperiodicError | None = None
        #: Error to report if this process waits for another entry with its
        #: identity to disappear, or None.
        self._contested: exceptions.DuplicateMember | None = None
        #: Session timeout that the server granted, in seconds. None until this
        #: process has read a group for the first time.
        self.session_timeout: float | None = None

    @property
    def identity(self) -> str:
        return self._me.identity

    @property
    def me(self) -> Member:
        """The entry under which this process is, or will be, in its groups."""
        return self._me

    def join(self, group: str,
             listener: Callable[[View], None] | None = None) -> None:
        """Join *group*. :meth:`view` then returns its members."""
        self._add(group, True, listener)

    def watch(self, group: str,
              listener: Callable[[View], None] | None = None) -> None:
        """Watch *group* without joining it."""
        self._add(group, False, listener)

    def knows(self, group: str) -> bool:
        """Return whether this process has joined *group* or watches it."""
        return group in self._groups

    def _add(self, name: str, member: bool,
             listener: Callable[[View], None] | None) -> None:
        check_identity(name, 'group id')
        with self._lock:
            group = self._groups.get(name)
            if group is None:
                group = _Group(name, False)
                self._groups = {**self._groups, name: group}
            if listener is not None:
                group.listeners.append(listener)
            if member and not group.member:
                group.member = True
                # A term joins groups only when it begins, so begin a new term
                # to join this group.
                self._republish = True
        self._wake.set()

    def start(self) -> None:
        """Start the thread and return at once. See :meth:`wait_joined`."""
        self._thread = threading.Thread(
            target=self._run, name='distperiodic-membership', daemon=True)
        self._thread.start()

    def wait_joined(self, timeout: float) -> None:
        """Wait until :meth:`joined` returns True.

        :raises DuplicateMember: another live process has this identity, or
            the entry of a dead process has not expired yet.
        :raises ConfigError: the driver is not installed or rejects the URL.
        :raises CoordinationUnavailable: no answer within *timeout* seconds.
        """
        with self._changed_condition:
            self._changed_condition.wait_for(self._settled, timeout)
        if not self.joined():
            raise self.problem or self._contested or (
                exceptions.CoordinationUnavailable)(
                f'no answer from {self._shown} within {timeout:.0f} s; '
                'check backend_url and that the service runs')

    def _settled(self) -> bool:
        return (self._stopping.is_set() or self.joined()
                or isinstance(self.problem, (
                    exceptions.DuplicateMember, exceptions.ConfigError)))

    def joined(self) -> bool:
        """Return whether this process is connected and knows its groups.

        The process must have a view of each group. It must also be able to
        trust its views of the groups that it has joined.
        """
        now = self._clock.monotonic()
        return self._connected and all(
            g.view is not None and (not g.member or g.view.trusted(now))
            for g in self._groups.values())

    def view(self, group: str) -> View:
        view = self._groups[group].view
        if view is None:
            raise exceptions.ViewUnknown(
                f'the members of group {group!r} are not known yet: '
                f'{self.problem or "no answer so far"}')
        return view

    def publish(self, *, points: int | None = None,
                slots: int | None = None) -> None:
        """Change the points or slots that other members see."""
        with self._lock:
            was = self._points, self._slots
            if points is not None:
                self._points = points
            if slots is not None:
                self._slots = slots
            if (self._points, self._slots) != was:
                self._republish = True
        self._wake.set()

    def leave(self, group: str, timeout: float = 5.0) -> None:
        """Leave *group*, and keep watching it.

        :param timeout: Maximum seconds to wait.
        """
        with self._lock:
            self._groups[group].member = False
        self._wake.set()
        with self._changed_condition:
            self._changed_condition.wait_for(
                lambda: self._stopping.is_set()
                or not self._groups[group].standing, timeout)

    def stop(self, timeout: float = 5.0) -> None:
        """Leave all groups, and stop the thread.

        While the service is unreachable, the entries of this process stay
        until its session expires.

        :param timeout: Maximum seconds to wait.
        """
        self._stopping.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout)
            if self._thread.is_alive():
                LOG.warning(
                    'leaving took too long: backend=%s timeout=%.1f; other '
                    'members see this one leave when its session expires',
                    self._shown, timeout)
        self._notify()

    # -- the membership thread runs everything below

    def _run(self) -> None:
        delay = 0.1
        old: Term | None = None
        broken = False
        while not self._stopping.is_set():
            with self._lock:
                self._me = dataclasses.replace(
                    self._me.next_term(broken=broken),
                    points=self._points, slots=self._slots)
                self._republish = False
            broken = True
            term: Term | None = None
            try:
                if old is not None and old.renames:
                    term, old = old, None
                    term.rename(self._me.entry)
                else:
                    term = self._open()
                    term.connect()
                self._serve_from(term, old)
                delay = 0.1
            except TermLost as exc:
                if not self._stopping.is_set():
                    LOG.warning(
                        'term lost: member=%s entry=%s reason=%s; the '
                        'next term begins now; without a store, no run '
                        'starts until this process has joined again',
                        self.identity, self._me.entry, exc)
                delay = 0.1
            except exceptions.DistperiodicError as exc:
                self._report(exc, delay)
            except Exception as exc:
                LOG.exception('membership failed: member=%s; the next '
                              'attempt is in %.1f s', self.identity, delay)
                self._report(exceptions.CoordinationUnavailable(str(exc)),
                             None)
            else:
                if self._republish and not self._stopping.is_set():
                    # Let the next term join before this term ends. Then other
                    # members always see an entry of this process.
                    old = term
                    broken = False
                    continue
            self._distrust()
            for ended in (old, term):
                if ended is not None:
                    ended.close()
            old = None
            # Do not wait on _wake: the old client sets _wake when it closes.
            self._stopping.wait(delay * random.uniform(0.8, 1.2))
            delay = min(delay * 2, 2.0)

    def _report(self, problem: exceptions.DistperiodicError,
                delay: float | None) -> None:
        if str(problem) != str(self.problem) and delay is not None:
            LOG.error('not in the group: member=%s reason=%s; this process '
                      'retries until it has joined', self.identity, problem)
        self.problem = problem
        self._notify()

    def _notify(self) -> None:
        with self._changed_condition:
            self._changed_condition.notify_all()

    def _distrust(self) -> None:
        self._connected = False
        for group in self._groups.values():
            if group.view is not None and group.view.me is not None:
                group.view = dataclasses.replace(
                    group.view, me=None, trusted_until=0.0)
                self._notify_listeners(group)

    def _open(self) -> Term:
        pushes = self._scheme in PUSHING
        return (KazooTerm if pushes else Term)(
            self._url, self._me.entry, wake=self._wake,
            stopping=self._stopping, clock=self._clock,
            requested_timeout=self._requested_timeout, interval=self._interval,
            jobs=self._jobs.text if self._jobs else '')

    def _serve_from(self, term: Term,
                    old: Term | None) -> None:
        """Join under *term*, then keep the views current until it ends."""
        for group in self._groups.values():
            group.standing = group.member
            if group.member:
                self._join(term, group)
        term.drop_old()
        if old is not None:
            old.close()
        self.problem = None
        self._connected = True
        self._notify()
        for group in self._groups.values():
            # A new client has no watches yet.
            group.changed = True
        while True:
            # Clear the event before the checks, so that any change during the
            # checks ends the wait below.
            self._wake.clear()
            if self._stopping.is_set() or self._republish:
                return
            now = self._clock.monotonic()
            term.check()
            groups = list(self._groups.values())
            self._leave_groups(term, groups)
            if not groups:
                # Without a group there is nothing to read or renew.
                self._wake.wait()
                continue
            changed = self._groups_to_read(term, groups, now)
            early = [g for g in changed
                     if term.pushes and now - g.read_at < _COALESCE]
            if term.pushes and not changed and now >= term.next_probe:
                term.confirm()
                self._renew(term)
            for group in changed:
                if group not in early:
                    self._read(term, group)
            self._wake.wait(_COALESCE if early else max(
                0.0, term.next_probe - self._clock.monotonic()))

    @staticmethod
    def _groups_to_read(term: Term, groups: list[_Group],
                        now: float) -> list[_Group]:
        """Return the groups whose members may have changed."""
        if term.pushes:
            return [g for g in groups if g.changed or term.changed(g.name)]
        return groups if now >= term.next_probe or any(
            g.changed for g in groups) else []

    def _leave_groups(self, term: Term, groups: list[_Group]) -> None:
        """Leave the groups for which :meth:`leave` was called."""
        for group in groups:
            if group.standing and not group.member:
                if group.view is not None:
                    # Stop owning objects before the entry disappears, because
                    # other members then own them.
                    group.view = dataclasses.replace(
                        group.view, me=None, trusted_until=0.0)
                term.leave(group.name)
                group.standing = False
                group.changed = True
                self._notify()

    def _join(self, term: Term, group: _Group) -> None:
        """Join *group* once no other process in it has this identity."""
        waited_from = self._clock.monotonic()
        while group.member and not self._stopping.is_set():
            rivals = self._rivals(term.read(group.name))
            if not rivals:
                term.join(group.name)
                # If two processes with this identity join at the same time,
                # the second one to write sees the entry of the first. So at
                # least one of them detects the conflict.
                rivals = self._rivals(term.read(group.name))
                if not rivals:
                    group.changed = True
                    self._contested = None
                    was = group.view.me if group.view is not None else None
                    if was is not None and was.tenure == self._me.tenure:
                        LOG.info('entry changed: group=%s member=%s entry=%s',
                                 group.name, self.identity, self._me.entry)
                    else:
                        LOG.info('joined: group=%s member=%s entry=%s',
                                 group.name, self.identity, self._me.entry)
                    return
                term.leave(group.name)
            self._contested = exceptions.DuplicateMember(
                f'member id {self.identity!r} has an entry in group '
                f'{group.name!r} already ({", ".join(sorted(rivals))}); wait '
                'until it expires if its process has died, '
                f'{term.timeout:g} s after its last sign of life; otherwise '
                'give each process its own member_id')
            waited = self._clock.monotonic() - waited_from
            if waited > term.timeout + 1.0:
                # The entry of a dead process would have expired by this time.
                self._report(exceptions.DuplicateMember(
                    f'member id {self.identity!r} is in use in group '
                    f'{group.name!r} by another live process '
                    f'({", ".join(sorted(rivals))}); give each process its '
                    'own member_id'), 0.0)
            self._wake.wait(random.uniform(0.05, 0.25))
            self._wake.clear()
            term.check()

    def _rivals(self, entries: Iterable[str]) -> list[str]:
        found = []
        for entry in entries:
            other = parse_entry(entry)
            if (other is not None and other.identity == self.identity
                    and other.nonce != self._me.nonce):
                found.append(entry)
        return found

    def _read(self, term: Term, group: _Group) -> None:
        requested_at = self._clock.monotonic()
        group.changed = False
        entries = frozenset(term.read(group.name))
        group.read_at = requested_at
        joined = group.name in term.joined
        if joined and self._me.entry not in entries:
            raise TermLost(
                'the entry of this process is no longer in group '
                f'{group.name!r}')
        me = self._me if joined else None
        until = term.heard + TRUST * term.timeout
        self.session_timeout = term.timeout
        if group.view is not None and entries == group.entries:
            unchanged = group.view.me == me and (
                me is None or group.view.trusted(requested_at))
            group.view = dataclasses.replace(
                group.view, me=me, trusted_until=until)
            if not unchanged:
                self._notify_listeners(group)
        else:
            self._changed(term, group, entries, me, until)
        # The session was alive at term.heard, so the views of the other groups
        # can be trusted until the same time.
        for other in self._groups.values():
            if other is not group and other.view is not None:
                if other.view.me is not None or not other.member:
                    other.view = dataclasses.replace(
                        other.view, trusted_until=until)

    def _renew(self, term: Term) -> None:
        """Extend the time for which unchanged views are trusted."""
        now = self._clock.monotonic()
        until = term.heard + TRUST * term.timeout
        for group in self._groups.values():
            view = group.view
            if (view is None or group.changed or term.changed(group.name)
                    or view.me is None and group.member):
                continue
            group.view = dataclasses.replace(view, trusted_until=until)
            if view.me is not None and not view.trusted(now):
                self._notify_listeners(group)

    def _changed(self, term: Term, group: _Group, entries: frozenset[str],
                 me: Member | None, until: float) -> None:
        members, unknown_entries = resolve_entries(entries, me)
        for entry in frozenset(unknown_entries) - group.unknown_entries:
            LOG.warning(
                'entry ignored: group=%s entry=%.80r; it is not a '
                'distperiodic entry and owns nothing', group.name, entry)
        group.unknown_entries = frozenset(unknown_entries)
        points = ring_members(members)
        old = group.view
        ring = old.ring.changed_to(points) if old else Ring(points)
        now = self._clock.monotonic()
        same = old is not None and old.members == members
        joined = _names(entries - group.entries)
        left = _names(group.entries - entries)
        group.entries = entries
        group.view = View(
            group.name, members, ring,
            version=(old.version if old else 0) + (not same),
            since=old.since if same and old else now,
            me=me, trusted_until=until,
            rings=self._rings(term, group, members, ring))
        if not same:
            LOG.info(
                'view: group=%s members=%d version=%d joined=%s left=%s',
                group.name, len(members), group.view.version,
                _shortened(joined - left), _shortened(left - joined))
            self._members_changed(group.name, joined - left, left - joined)
        self._notify_listeners(group)

    def _rings(self, term: Term, group: _Group, members: Iterable[Member],
               ring: Ring) -> JobRings | None:
        """Return the rings of single jobs for the next view of *group*."""
        if self._jobs is None:
            return None
        digests = {}
        for member in members:
            if not member.points:
                continue
            digests[member.identity] = member.jobs
            if member.jobs and member.jobs not in self._job_sets:
                text = term.jobs_of(group.name, member.entry)
                found = JobSet.parse(text)
                if found is not None and found.digest == member.jobs:
                    self._job_sets[found.digest] = found
                elif text is not None:
                    LOG.warning(
                        'jobs unknown: group=%s member=%s; its entry states '
                        'no valid set of jobs; with a store the other members '
                        'serve its objects; without a store no other member '
                        'serves them', group.name, member.identity)
        before = None if group.view is None else group.view.rings
        return (JobRings(ring, digests, self._job_sets) if before is None
                else before.changed_to(ring, digests, self._job_sets))

    def _notify_listeners(self, group: _Group) -> None:
        view = group.view
        assert view is not None
        self._notify()
        for listener in group.listeners:
            try:
                listener(view)
            except Exception:
                LOG.exception('a listener failed: group=%s', group.name)


def _names(entries: Iterable[str]) -> frozenset[str]:
    members = map(parse_entry, entries)
    return frozenset(m.identity for m in members if m is not None)


def _shortened(names: Iterable[str]) -> str:
    listed = sorted(names)
    more = f' and {len(listed) - 5} more' if len(listed) > 5 else ''
    return ','.join(listed[:5]) + more if listed else '-'
