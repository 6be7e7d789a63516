# SPDX-License-Identifier: Apache-2.0
"""Membership and ring, for programs that look up the owner of an object.

This is the smallest entry point of the library. The others are
:mod:`distperiodic.periodic`, :mod:`distperiodic.service`,
:mod:`distperiodic.tasks` and :mod:`distperiodic.dispenser`. While the members
stay the same, each object has exactly one owner. While members join, leave or
die, an object may temporarily have two owners or none. A member that cannot
trust its view raises an error instead of returning an owner.

A constructor never connects. An instance may be a class attribute, and may be
created before a fork. Each process that uses the instance connects at its
first call.
"""

import os
import secrets
import threading
from collections.abc import Sequence
from typing import Any

from oslo_config import cfg

from distperiodic import exceptions
from distperiodic import opts
from distperiodic.adapters.coordination.membership import Announced
from distperiodic.adapters.coordination.membership import ToozMembership
from distperiodic.adapters.coordination.url import check_backend_url
from distperiodic.adapters.local.clock import SystemClock
from distperiodic.adapters.local.process_slot import host_name
from distperiodic.core import catalogue
from distperiodic.core import redaction
from distperiodic.core.member import MAX_POINTS
from distperiodic.core.member import View
from distperiodic.core.member import check_identity
from distperiodic.core.ring import MAX_POSITION
from distperiodic.core.ring import MIN_POSITION
from distperiodic.core.ring import Arc


class Coordinator:
    """Membership of this process in groups of a coordination service.

    :param backend_url: tooz URL. Empty means that this process is alone.
    :param group_id: Group to join when the process connects. None means no
        group.
    :param member_id: Name of this process on the ring. None means a name that
        is unique to this process.
    :param conf: Configuration with the other options. The default is the
        global configuration of oslo.config. The options are read when this
        process connects, so *conf* need not be loaded earlier.
    :param replicas: Number of points on the ring. The default is the option
        ``hash_ring_replicas_count``. If the operator changes this option, a
        running process uses the new value after it has called
        ``conf.mutate_config_files()``.
    :param session_timeout: Seconds until the session of a silent process
        expires. The default is the option of the same name.
    :param heartbeat_interval: Seconds between two heartbeats. The default is
        the option ``coordinator_heartbeat_interval``.
    :param observe: True watches the groups without joining them. An observer
        owns no objects, but can look up the owner of any object.
    :raises ConfigError: The URL or an argument cannot be used.
    :raises InvalidMemberId: *member_id* or *group_id* is not a name that every
        coordination service can store.
    """

    def __init__(self, backend_url: str | None, group_id: str | None = None,
                 *, member_id: str | None = None,
                 conf: cfg.ConfigOpts | None = None,
                 replicas: int | None = None,
                 session_timeout: float | None = None,
                 heartbeat_interval: float | None = None,
                 observe: bool = False):
        if not (backend_url is None or isinstance(backend_url, str)):
            raise exceptions.ConfigError(
                f'backend_url cannot be a {type(backend_url).__name__}; '
                'pass the URL: HashRing(conf.distperiodic.backend_url, '
                'group, conf=conf)')
        if replicas is not None and not (
                1 <= replicas <= MAX_POINTS):
            raise exceptions.ConfigError(
                f'replicas {replicas} cannot be used; a member of a ring has '
                f'1 to {MAX_POINTS} points, and a process that owns nothing '
                'passes observe=True')
        if observe and not backend_url:
            raise exceptions.ConfigError(
                'without a backend_url there is no group to observe')
        self.backend_url = backend_url or ''
        self.group_id = group_id
        self._conf = cfg.CONF if conf is None else conf
        self._replicas = replicas
        self._given_timeout = session_timeout
        self._interval = heartbeat_interval
        self._observe = observe
        self._clock = SystemClock()
        self._named = member_id is not None
        if member_id is not None:
            check_identity(member_id)
        if group_id is not None:
            check_identity(group_id, 'group id')
        if self.backend_url:
            check_backend_url(self.backend_url)
        self._member_id = member_id
        self._groups: list[str] = [group_id] if group_id is not None else []
        self._membership: ToozMembership | None = None
        self._stopped = False
        #: Error of the last failed attempt to connect.
        self._failed: exceptions.DistperiodicError | None = None
        # Ids of the processes that created the membership and the member id.
        # In a forked child, these ids differ from the child's process id.
        self._pid: int | None = None
        self._named_in: int | None = None
        self._locks: dict[int, threading.RLock] = {}

    @property
    def _lock(self) -> 'threading.RLock':
        # Each process has its own lock. If another thread held a shared lock
        # during a fork, the child could never acquire it.
        return self._locks.setdefault(os.getpid(), threading.RLock())

    @property
    def member_id(self) -> str:
        """Name of this process on the ring.

        After a fork, the child gets a new name, unless the constructor
        received a *member_id*.
        """
        with self._lock:
            if self._member_id is None or (
                    not self._named and self._named_in != os.getpid()):
                self._named_in = os.getpid()
                self._member_id = (f'{host_name()}:{os.getpid()}:'
                                   f'{secrets.token_hex(4)}')
            return self._member_id

    @property
    def _session_timeout(self) -> float:
        return float(self._given_timeout
                     or opts.value(self._conf, 'session_timeout'))

    @property
    def _join_timeout(self) -> float:
        # A dead process with the same identity may have left an entry. This
        # timeout is long enough for that entry to expire.
        return self._session_timeout * 1.5 + 2.0

    def start(self, timeout: float | None = None) -> None:
        """Connect, join the group, and wait for a trusted view.

        :param timeout: Maximum number of seconds to wait. The default is 1.5
            times the session timeout, plus 2.
        :raises ConfigError: An option cannot be used.
        :raises CoordinationUnavailable: The coordination service did not
            answer.
        :raises DuplicateMember: Another live process has this identity; or a
            process with this identity has died, and *timeout* is shorter than
            the time until its entry expires.
        """
        self._stopped = False
        self._connect(timeout)

    def _connect(self, timeout: float | None = None) -> None:
        if not self.backend_url:
            return
        failed = self._failed
        # If another thread is connecting, wait until its attempt ends. If that
        # attempt fails, raise the same error: a second attempt would take as
        # long, and would probably fail as well.
        with self._lock:
            if self.is_started():
                return
            if self._failed is not None and self._failed is not failed:
                raise self._failed
            try:
                self._start(timeout)
            except exceptions.DistperiodicError as exc:
                self._failed = exc
                raise

    def _start(self, timeout: float | None) -> None:
        # A forked child must not close the client of its parent, because that
        # would end the session of the parent.
        identity = self.member_id
        points = 0
        if not self._observe:
            points = self._replicas or opts.value(
                self._conf, 'hash_ring_replicas_count')
        membership = ToozMembership(
            self.backend_url, identity, clock=self._clock,
            announced=Announced(points),
            session_timeout=self._session_timeout,
            heartbeat_interval=self._interval or opts.value(
                self._conf, 'coordinator_heartbeat_interval'))
        for group in self._groups:
            if self._observe:
                membership.watch(group)
            else:
                membership.join(group)
        if points and not self._replicas:
            self._conf.register_mutate_hook(self._mutated)
        self._membership, self._pid = membership, os.getpid()
        membership.start()
        try:
            membership.wait_joined(
                self._join_timeout if timeout is None else timeout)
        except exceptions.DistperiodicError:
            self._leave(timeout=1.0)
            raise

    def _mutated(self, conf: cfg.ConfigOpts, changes: object) -> None:
        """Publish the number of points after a reload of the options."""
        membership = self._membership
        if membership is None or self._pid != os.getpid():
            return
        points = opts.reloaded(conf, 'hash_ring_replicas_count')
        if points is not None:
            membership.publish(points=points)

    def stop(self, timeout: float = 5.0) -> None:
        """Leave all groups until :meth:`start` is called again.

        :param timeout: Maximum duration of the call in seconds, even if the
            service is unreachable.
        """
        self._stopped = True
        self._leave(timeout)

    def _leave(self, timeout: float) -> None:
        membership, self._membership = self._membership, None
        if membership is not None and self._pid == os.getpid():
            membership.stop(timeout)

    def is_started(self) -> bool:
        """Return whether this process is connected or is connecting.

        A connection that was inherited in a fork does not count.
        """
        return self._membership is not None and self._pid == os.getpid()

    def heartbeat(self) -> None:
        """Connect if this process is not connected.

        A background thread sends the heartbeats, so callers need not call
        this method regularly.

        :raises ConfigError: An option cannot be used.
        :raises CoordinationUnavailable: This process was not connected, and
            the attempt to connect failed.
        :raises DuplicateMember: Another live process has this identity.
        :raises ViewUnknown: This coordinator was stopped.
        """
        if self.backend_url:
            self._started()

    def join_group(self, group_id: str) -> None:
        """Join the additional group *group_id* and wait for its view.

        An observer watches the group instead. The call waits for at most 1.5
        times the session timeout, plus 2 seconds.

        :param group_id: Name of the group.
        :raises InvalidMemberId: *group_id* is not a name that every
            coordination service can store.
        :raises CoordinationUnavailable: The coordination service did not
            answer.
        :raises DuplicateMember: Another live process has this identity.
        :raises ViewUnknown: This coordinator was stopped.
        """
        check_identity(group_id, 'group id')
        with self._lock:
            if group_id not in self._groups:
                self._groups.append(group_id)
            if not self.backend_url:
                return
            membership = self._started()
            if self._observe:
                membership.watch(group_id)
            else:
                membership.join(group_id)
            membership.wait_joined(self._join_timeout)

    def get_members(self, group_id: str) -> list[str]:
        """Return the identities of all members of *group_id*, sorted.

        The members are those of the last known view, even if it is not
        trusted. An empty list means that the group has no members; if there is
        no view yet, the method raises an error. Without a *backend_url* this
        process is the only member.

        :param group_id: Name of the group. If this process has not joined it,
            it observes the group from now on.
        :raises ViewUnknown: There is no view yet, or this coordinator was
            stopped.
        :raises CoordinationUnavailable: The coordination service did not
            answer.
        """
        if not self.backend_url:
            return [self.member_id]
        return [m.identity for m in self.view(group_id).members]

    def view(self, group_id: str) -> View:
        """Return the last known view of *group_id*, even if it is not trusted.

        If this process has not joined the group, it observes the group from
        now on.

        :param group_id: Name of the group.
        :raises ViewUnknown: There is no view yet, this coordinator was
            stopped, or it has no *backend_url*.
        :raises CoordinationUnavailable: The coordination service did not
            answer.
        """
        membership = self._started()
        if not membership.knows(group_id):
            membership.watch(group_id)
            membership.wait_joined(self._join_timeout)
        return membership.view(group_id)

    def _started(self) -> ToozMembership:
        if not self._stopped:
            self._connect()
        membership = self._membership
        if membership is None:
            # A late call from another thread must not restart this
            # coordinator.
            raise exceptions.ViewUnknown(
                f'member {self.member_id!r} belongs to no group, because it '
                'was stopped or has no backend_url; call start(), or pass a '
                'backend_url')
        return membership


class HashRing(Coordinator):
    """Consistent-hash ring that assigns objects to the members of a group.

    An object is a str, an int, or any value with an attribute ``id``. With an
    empty *backend_url* this process owns all objects.

    A process that only looks up owners, such as an API, must pass
    ``observe=True``. Otherwise the ring assigns objects to it.

    :param backend_url: tooz URL. Empty means that this process is alone.
    :param group_id: Group whose members form the ring.
    :param member_id: Name of this process on the ring. :class:`Coordinator`
        documents this parameter and the following parameters in full.
    :param conf: Configuration with the other options.
    :param replicas: Number of points on the ring.
    :param session_timeout: Seconds until the session of a silent process
        expires.
    :param heartbeat_interval: Seconds between two heartbeats.
    :param observe: True watches the group without joining it.
    :raises ConfigError: The URL or an argument cannot be used.
    :raises InvalidMemberId: *member_id* or *group_id* is not a name that every
        coordination service can store.
    """

    def __init__(self, backend_url: str | None, group_id: str, *,
                 member_id: str | None = None,
                 conf: cfg.ConfigOpts | None = None,
                 replicas: int | None = None,
                 session_timeout: float | None = None,
                 heartbeat_interval: float | None = None,
                 observe: bool = False):
        super().__init__(
            backend_url, group_id, member_id=member_id, conf=conf,
            replicas=replicas, session_timeout=session_timeout,
            heartbeat_interval=heartbeat_interval, observe=observe)
        self._catalogues = catalogue.Catalogues()

    def ring_view(self) -> View:
        """Return the view of this ring's group, if it can be trusted now.

        :raises ViewUnknown: The view cannot be trusted. Objects that this
            process owns in the view may already have another owner.
        :raises CoordinationUnavailable: The coordination service did not
            answer.
        """
        assert self.group_id is not None
        view = self.view(self.group_id)
        if not (view.trusted(self._clock.monotonic()) or self._observe
                and self._clock.monotonic() < view.trusted_until):
            raise exceptions.ViewUnknown(
                f'member {self.member_id!r} has not heard from '
                f'{redaction.redact(self.backend_url)} for too long, so '
                'objects may have other owners; the member continues by '
                'itself when the service answers')
        return view

    def get_subset(
            self, objects: 'Sequence[Any] | catalogue.Catalogue'
    ) -> list[Any]:
        """Return the *objects* that this process owns, in the given order.

        The positions of the last few lists are cached. For a list with the
        same ids as a cached one, the method only compares the ids. A
        :class:`~.catalogue.Catalogue` needs no comparison: while the ring is
        unchanged, the cost of a call depends only on the number of objects
        that this process owns.

        :param objects: List of objects, or a :class:`~.catalogue.Catalogue`.
            Each object is a str, an int, or a value with an attribute ``id``.
        :raises ViewUnknown: The view is unknown or cannot be trusted.
        :raises CoordinationUnavailable: The coordination service did not
            answer.
        :raises InvalidObject: An object has no usable id.
        """
        if isinstance(objects, catalogue.Catalogue):
            if not self.backend_url:
                return list(objects.objects)
            return objects.subset(self.ring_view().ring, self.member_id)
        given = objects if isinstance(
            objects, (list, tuple)) else list(objects)
        if not self.backend_url:
            return list(given)
        known = self._catalogues.of(given)
        ring = self.ring_view().ring
        if known.same_objects(given):
            return known.subset(ring, self.member_id)
        return known.pick(given, ring, self.member_id)

    def get_owner(self, obj: Any) -> str:
        """Return the identity of the member that owns *obj*.

        :param obj: Object with an ``.id``, or a str or int.
        :raises ViewUnknown: The view is unknown or cannot be trusted, or the
            group has no members.
        :raises CoordinationUnavailable: The coordination service did not
            answer.
        :raises InvalidObject: The object has no usable id.
        """
        key = catalogue.id_of(obj)
        if not self.backend_url:
            return self.member_id
        ring = self.ring_view().ring
        if not len(ring):
            raise exceptions.ViewUnknown(
                f'group {self.group_id!r} has no members on the ring, so '
                f'{key!r} is unowned')
        return ring.owner_of(key)

    def owns(self, obj: Any) -> bool:
        """Return whether this process owns *obj*.

        :param obj: Object with an ``.id``, or a str or int.
        :raises ViewUnknown: The view is unknown or cannot be trusted, or the
            group has no members.
        :raises CoordinationUnavailable: The coordination service did not
            answer.
        :raises InvalidObject: The object has no usable id.
        """
        return self.get_owner(obj) == self.member_id

    def get_arcs(self) -> tuple[Arc, ...]:
        """Return the arcs of the ring that this process owns.

        If a table has a column with the position of each object, a query can
        select the objects of this process: ``WHERE position BETWEEN low AND
        high``, with an OR over all arcs.

        :returns: Disjoint arcs in ascending order. Without a *backend_url* the
            result is one arc with all positions. An observer has no arcs.
        :raises ViewUnknown: The view is unknown or cannot be trusted.
        :raises CoordinationUnavailable: The coordination service did not
            answer.
        """
        if not self.backend_url:
            return (Arc(MIN_POSITION, MAX_POSITION),)
        return self.ring_view().ring.arcs(self.member_id)
