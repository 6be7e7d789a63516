# SPDX-License-Identifier: Apache-2.0
"""Membership and ring, for programs that ask "is this object mine?".

The first of three doors (the others: :mod:`distperiodic.periodic`,
:mod:`distperiodic.service`). It gives the second rung of the guarantees:
the load is split; while members join, leave or die an object can be served
twice or not at all; a member that is not sure of its view says so.

Nothing connects in a constructor, so an instance may be a class attribute
and may be made before a fork: it connects at first use, in the process that
uses it.
"""

import os
import secrets
import threading
from collections.abc import Sequence
from typing import Any

from oslo_config import cfg

from distperiodic import exceptions
from distperiodic import opts
from distperiodic.adapters import backend_url as backend_url_
from distperiodic.adapters import clock as clock_
from distperiodic.adapters import coordination
from distperiodic.adapters import local
from distperiodic.core import catalogue
from distperiodic.core import masking
from distperiodic.core import member as member_
from distperiodic.core import ring as ring_


class Coordinator:
    """This process's place among the others.

    :param backend_url: tooz URL; empty: there are no others.
    :param group_id: the group joined at start, if any.
    :param member_id: name on the ring, else unique to this process.
    :param conf: where the other options come from; default: the global one.
        They are read when this process connects, so *conf* need not have
        read its files before.
    :param replicas: points on the ring; default: the option
        ``hash_ring_replicas_count``, which SIGHUP may change.
    :param session_timeout: seconds; default: the option.
    :param observe: look at the group and be no member of it. It owns
        nothing, and can tell who does.
    :raises ConfigError: the URL or an argument cannot be used.
    :raises InvalidMemberId: the service could not carry *member_id* or
        *group_id*.
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
                'pass the URL, as in HashRing(conf.distperiodic.backend_url, '
                'group, conf=conf)')
        if replicas is not None and not (
                1 <= replicas <= member_.MAX_POINTS):
            raise exceptions.ConfigError(
                f'replicas {replicas} cannot be used; a member of a ring has '
                f'1 to {member_.MAX_POINTS} points, and who is to have none '
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
        self._clock = clock_.SystemClock()
        self._named = member_id is not None
        if member_id is not None:
            member_.check_identity(member_id)
        if group_id is not None:
            member_.check_identity(group_id, 'group id')
        if self.backend_url:
            backend_url_.check(self.backend_url)
        self._member_id = member_id
        self._groups: list[str] = [group_id] if group_id is not None else []
        self._membership: coordination.Membership | None = None
        self._stopped = False
        #: Why the last attempt to connect failed.
        self._failed: exceptions.DistperiodicError | None = None
        # The processes that made the membership and the name; not this one
        # after a fork.
        self._pid: int | None = None
        self._named_in: int | None = None
        self._locks: dict[int, threading.RLock] = {}

    @property
    def _lock(self) -> 'threading.RLock':
        # One for each process: a lock that another thread held at a fork
        # would be held in the child for ever.
        return self._locks.setdefault(os.getpid(), threading.RLock())

    @property
    def member_id(self) -> str:
        """This process's name on the ring; another one after a fork,
        unless it was given.
        """
        with self._lock:
            if self._member_id is None or (
                    not self._named and self._named_in != os.getpid()):
                self._named_in = os.getpid()
                self._member_id = (f'{local.host_name()}:{os.getpid()}:'
                                   f'{secrets.token_hex(4)}')
            return self._member_id

    @property
    def _session_timeout(self) -> float:
        return float(self._given_timeout
                     or opts.value(self._conf, 'session_timeout'))

    @property
    def _patience(self) -> float:
        # Long enough for the entry of a dead namesake to fall.
        return self._session_timeout * 1.5 + 2.0

    def start(self, timeout: float | None = None) -> None:
        """Connect, join the group, and wait for a trusted view.

        :param timeout: seconds to wait; default 1.5 session timeouts + 2.
        :raises ConfigError: an option cannot be used.
        :raises CoordinationUnavailable: the service did not answer.
        :raises DuplicateMember: another live process has our identity.
        """
        self._stopped = False
        self._connect(timeout)

    def _connect(self, timeout: float | None = None) -> None:
        if not self.backend_url:
            return
        failed = self._failed
        # Threads that come meanwhile wait, and find it started; or, if it
        # could not be, they do not wait for as long once more.
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
        # After a fork the parent's client stays behind untouched: closing
        # it here would end the parent's session.
        identity = self.member_id
        points = 0
        if not self._observe:
            points = self._replicas or opts.value(
                self._conf, 'hash_ring_replicas_count')
        membership = coordination.Membership(
            self.backend_url, identity, clock=self._clock,
            points=points, session_timeout=self._session_timeout,
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
                self._patience if timeout is None else timeout)
        except exceptions.DistperiodicError:
            self._leave(timeout=1.0)
            raise

    def _mutated(self, conf: cfg.ConfigOpts, changes: object) -> None:
        """Mutable options were read again."""
        points = opts.read_again(conf, 'hash_ring_replicas_count')
        membership = self._membership
        if (points is not None and membership is not None
                and self._pid == os.getpid()):
            membership.publish(points=points)

    def stop(self, timeout: float = 5.0) -> None:
        """Leave all groups until :meth:`start` is called again; bounded,
        also while the service is away.
        """
        self._stopped = True
        self._leave(timeout)

    def _leave(self, timeout: float) -> None:
        membership, self._membership = self._membership, None
        if membership is not None and self._pid == os.getpid():
            membership.stop(timeout)

    def is_started(self) -> bool:
        """Whether this process, and not one that it was forked from, is
        connected or trying to be.
        """
        return self._membership is not None and self._pid == os.getpid()

    def heartbeat(self) -> None:
        """Be in the group: connect if that was not done yet.

        Signs of life are given by a thread; calling this is not needed to
        stay in, and harmless.

        :raises CoordinationUnavailable: not connected, and cannot be.
        :raises ViewUnknown: it was stopped.
        """
        if self.backend_url:
            self._started()

    def join_group(self, group_id: str) -> None:
        """Belong to *group_id* as well; returns when the view is there."""
        member_.check_identity(group_id, 'group id')
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
            membership.wait_joined(self._patience)

    def get_members(self, group_id: str) -> list[str]:
        """The identities of all members of *group_id*, in order.

        :raises ViewUnknown: they are not known; never an empty list instead.
        """
        if not self.backend_url:
            return [self.member_id]
        return [m.identity for m in self.view(group_id).members]

    def view(self, group_id: str) -> member_.View:
        """The last known view of *group_id*, trusted or not.

        A group that was not joined is looked at from outside, from now on.
        """
        membership = self._started()
        if not membership.knows(group_id):
            membership.watch(group_id)
            membership.wait_joined(self._patience)
        return membership.view(group_id)

    def _started(self) -> coordination.Membership:
        if not self._stopped:
            self._connect()
        membership = self._membership
        if membership is None:
            # A thread that still asks must not bring it back.
            raise exceptions.ViewUnknown(
                f'member {self.member_id!r} was stopped; it belongs to no '
                'group until start() is called again')
        return membership


class HashRing(Coordinator):
    """Which objects are this process's, by the consistent-hash ring.

    Objects are anything with ``.id``, or str or int. With an empty
    *backend_url* all of them are ours.

    A process that only asks who owns an object, such as an API, passes
    ``observe=True``: else it is given objects that it does not serve.
    """

    def __init__(self, backend_url: str | None, group_id: str, **kwargs: Any):
        super().__init__(backend_url, group_id, **kwargs)
        self._catalogues = catalogue.Catalogues()

    def ring_view(self) -> member_.View:
        """The view of the ring's own group, if it can be trusted now.

        :raises ViewUnknown: it cannot. Somebody else may own by now what
            the last view says is ours, so there is no answer.
        """
        assert self.group_id is not None
        view = self.view(self.group_id)
        if not (view.trusted(self._clock.monotonic()) or self._observe
                and self._clock.monotonic() < view.trusted_until):
            raise exceptions.ViewUnknown(
                f'member {self.member_id!r} has not heard from '
                f'{masking.mask(self.backend_url)} for so long that '
                'objects may have changed hands; it goes on by itself when '
                'the service answers')
        return view

    def get_subset(
            self, objects: 'Sequence[Any] | catalogue.Catalogue'
    ) -> list[Any]:
        """Those of *objects* that are this process's, in the order given.

        A list that was asked about before is known again by its ids, and
        then costs a comparison. A :class:`~.catalogue.Catalogue` need not
        be compared: it costs what this process owns.

        :raises ViewUnknown: the view is not known or not trusted.
        :raises InvalidObject: an object has no usable id.
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
        """The identity of the member that owns *obj*.

        :raises ViewUnknown: the view is not known or not trusted, or the
            group has no members.
        """
        key = catalogue.id_of(obj)
        if not self.backend_url:
            return self.member_id
        ring = self.ring_view().ring
        if not ring.members:
            raise exceptions.ViewUnknown(
                f'group {self.group_id!r} has no members, so nobody owns '
                f'{key!r}')
        return ring.owner_of(key)

    def owns(self, obj: Any) -> bool:
        """Whether *obj* is this process's."""
        return self.get_owner(obj) == self.member_id

    def get_arcs(self) -> tuple[ring_.Arc, ...]:
        """This process's part of the ring, for a catalogue in a database:
        ``WHERE position BETWEEN low AND high``, an OR of all arcs.
        """
        if not self.backend_url:
            return (ring_.Arc(ring_.MIN_POSITION, ring_.MAX_POSITION),)
        return self.ring_view().ring.arcs(self.member_id)
