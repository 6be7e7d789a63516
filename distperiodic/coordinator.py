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
from distperiodic.core import member as member_
from distperiodic.core import ring as ring_


class Coordinator:
    """This process's place among the others.

    :param backend_url: tooz URL; empty: there are no others.
    :param group_id: the group joined at start, if any.
    :param member_id: name on the ring, else unique to this process.
    :param conf: where the other options come from; default: the global one.
    :param replicas: points on the ring; default: the option
        ``hash_ring_replicas_count``.
    :param session_timeout: seconds; default: the option.
    :raises ConfigError: the URL or an option cannot be used.
    :raises InvalidMemberId: the service could not carry *member_id* or
        *group_id*.
    """

    def __init__(self, backend_url: str | None, group_id: str | None = None,
                 *, member_id: str | None = None,
                 conf: cfg.ConfigOpts | None = None,
                 replicas: int | None = None,
                 session_timeout: float | None = None,
                 heartbeat_interval: float | None = None):
        settings = opts.settings(conf if conf is not None else cfg.CONF)
        if replicas is None:
            replicas = settings.hash_ring_replicas_count
        if not 1 <= replicas <= member_.MAX_POINTS:
            raise exceptions.ConfigError(
                f'replicas {replicas} cannot be used; a member of a ring has '
                f'1 to {member_.MAX_POINTS} points')
        self.backend_url = backend_url or ''
        self.group_id = group_id
        self._replicas = replicas
        self._session_timeout = session_timeout or settings.session_timeout
        self._interval = (heartbeat_interval
                          or settings.coordinator_heartbeat_interval)
        # Long enough for the entry of a dead namesake to fall.
        self._patience = self._session_timeout * 1.5 + 2.0
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

    def start(self, timeout: float | None = None) -> None:
        """Connect, join the group, and wait for a trusted view.

        :param timeout: seconds to wait; default 1.5 session timeouts + 2.
        :raises CoordinationUnavailable: the service did not answer.
        :raises DuplicateMember: another live process has our identity.
        """
        if self.backend_url:
            # Threads that come meanwhile wait and find it started.
            with self._lock:
                if not self.is_started():
                    self._start(timeout)

    def _start(self, timeout: float | None) -> None:
        # After a fork the parent's client stays behind untouched: closing
        # it here would end the parent's session.
        identity = self.member_id
        membership = coordination.Membership(
            self.backend_url, identity, clock=self._clock,
            points=self._replicas, session_timeout=self._session_timeout,
            heartbeat_interval=self._interval)
        for group in self._groups:
            membership.join(group)
        self._membership, self._pid = membership, os.getpid()
        membership.start()
        try:
            membership.wait_joined(
                self._patience if timeout is None else timeout)
        except exceptions.DistperiodicError:
            self.stop(timeout=1.0)
            raise

    def stop(self, timeout: float = 5.0) -> None:
        """Leave all groups; bounded, also while the service is away."""
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
        """
        self.start()

    def join_group(self, group_id: str) -> None:
        """Belong to *group_id* as well; returns when the view is there."""
        member_.check_identity(group_id, 'group id')
        with self._lock:
            if group_id not in self._groups:
                self._groups.append(group_id)
            if not self.backend_url:
                return
            membership = self._started()
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
        self.start()
        membership = self._membership
        if membership is None:
            raise exceptions.ViewUnknown(
                f'member {self.member_id!r} was stopped by another thread; '
                'it belongs to no group until it is started again')
        return membership


class HashRing(Coordinator):
    """Which objects are this process's, by the consistent-hash ring.

    Objects are anything with ``.id``, or str or int. With an empty
    *backend_url* all of them are ours.
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
        if not view.trusted(self._clock.monotonic()):
            raise exceptions.ViewUnknown(
                f'member {self.member_id!r} has not heard from '
                f'{backend_url_.mask(self.backend_url)} for so long that '
                'others may have taken over its objects; it takes them up '
                'again by itself when the service answers')
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
        """The identity of the member that owns *obj*."""
        key = catalogue.id_of(obj)
        if not self.backend_url:
            return self.member_id
        return self.ring_view().ring.owner_of(key)

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
