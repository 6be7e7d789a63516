# SPDX-License-Identifier: Apache-2.0
"""The sources of a query: the options, the store and the group.

A command uses few of them, so packages that are slow to load (tooz,
oslo.messaging) are imported inside the functions that need them.
"""

import argparse
import contextlib
import functools
import os
from collections.abc import Callable
from typing import TYPE_CHECKING
from typing import Any
from typing import Self

from distperiodic import exceptions
from distperiodic.adapters.local.clock import SystemClock
from distperiodic.operator.live_group import Group
from distperiodic.operator.live_group import read_group

if TYPE_CHECKING:
    from oslo_config import cfg

    from distperiodic import opts
    from distperiodic import periodic
    from distperiodic.operator.auditing import Actor
    from distperiodic.operator.group_reader import GroupReader
    from distperiodic.operator.health import Facts
    from distperiodic.operator.member_rows import MemberRow
    from distperiodic.operator.ring_members import RingMembers

#: Maximum seconds of a statement.
STATEMENT = 2.0
# Maximum seconds to wait for the members' replies to a query over the bus.
_REPLIES = 5.0


class Sources:
    """The sources of one query, each created at its first use.

    :param parsed: The values of the options that select the rows.
    :param read_conf: Returns the configuration.
    """

    def __init__(self, parsed: argparse.Namespace,
                 read_conf: Callable[[], Any]):
        self.parsed = parsed
        self.clock = SystemClock()
        #: The resources that the end of the query closes.
        self.resources = contextlib.ExitStack()
        self._read_conf = read_conf

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.resources.close()

    # -- configuration

    @functools.cached_property
    def conf(self) -> 'cfg.ConfigOpts':
        """The options.

        :raises ConfigError: a file cannot be read.
        """
        found: cfg.ConfigOpts = self._read_conf()
        return found

    @functools.cached_property
    def settings(self) -> 'opts.Settings':
        """The values of the options.

        :raises ConfigError: an option cannot be used.
        """
        from distperiodic import opts
        return opts.settings(self.conf)

    @functools.cached_property
    def tasks(self) -> 'periodic.PeriodicTasks | None':
        """The tasks that the user names. None means that none are named."""
        return None

    # -- the group

    @functools.cached_property
    def group(self) -> 'Group':
        """The group, as the coordination service lists it.

        :raises ConfigError: no coordination service is configured.
        :raises CoordinationUnavailable: the service does not answer.
        """
        return read_group(self.check_backend(), self.clock)

    def facts(self, **known: Any) -> 'Facts':
        """Return the facts from which :mod:`.health` finds what is wrong.

        Without parameters, which are those of :func:`.health_facts.read`, the
        facts are read once.
        """
        return self._read_facts(**known) if known else self._all_facts

    @functools.cached_property
    def _all_facts(self) -> 'Facts':
        return self._read_facts()

    def _read_facts(self, **known: Any) -> 'Facts':
        from distperiodic.operator import health_facts
        return health_facts.read(
            self.settings, self.clock, store_of=lambda: self.store, **known)

    @functools.cached_property
    def ring_members(self) -> 'RingMembers':
        """The members of a group without a store, over the bus.

        :raises ConfigError: there is no broker.
        """
        if self.settings.dispatcher != 'messaging':
            raise exceptions.ConfigError(
                'there is neither a store nor a broker, so no member can be '
                'reached; set [distperiodic] connection, or dispatcher = '
                'messaging and transport_url; --config-file names the file')
        from distperiodic.operator.ring_members import RingMembers
        return self.resources.enter_context(contextlib.closing(RingMembers(
            self.conf, self.settings, actor=self.actor, clock=self.clock,
            wait=_REPLIES)))

    def read_members(self) -> 'tuple[list[MemberRow], list[str]]':
        """Return the members of the group, and why members may be missing.

        :raises ConfigError: there is neither a store nor a broker.
        """
        if self.settings.connection:
            from distperiodic.operator import members
            return members.members(self.store), []
        return self.ring_members.members(), self.ring_members.problems()

    def check_backend(self) -> 'opts.Settings':
        """Return the options of a command that needs the coordination service.

        :raises ConfigError: an option cannot be used, or backend_url is empty.
        """
        from distperiodic.adapters.coordination.url import check_backend_url
        if not self.settings.backend_url:
            raise exceptions.ConfigError(
                '[distperiodic] backend_url is empty, so each process runs '
                'alone and there is no group to show; use --config-file to '
                'name the file that sets backend_url')
        check_backend_url(self.settings.backend_url)
        return self.settings

    # -- the store

    @functools.cached_property
    def store(self) -> 'GroupReader':
        """The store of the group, for statements of a limited duration.

        :raises ConfigError: there is no store.
        """
        self.check_store()
        return self.resources.enter_context(
            contextlib.closing(self._open_store()))

    def _open_store(self) -> 'GroupReader':
        from distperiodic.operator.group_reader import open_reader
        return open_reader(
            self.settings.connection, self.settings.group, STATEMENT)

    def check_store(self, must_exist: bool = True) -> 'opts.Settings':
        """Return the options of a command that needs the store.

        :param must_exist: True if the file of an SQLite store must already
            exist.
        :raises ConfigError: an option cannot be used, or there is no store.
        """
        settings = self.settings
        if not settings.connection:
            raise exceptions.ConfigError(
                'there is no database: neither [distperiodic] connection nor '
                '[database] connection is set, or [distperiodic] connection '
                'is none; use --config-file to name the file that sets one of '
                'them')
        if must_exist and settings.embedded and not os.path.exists(
                settings.store_file):
            raise exceptions.ConfigError(
                f'{settings.store_file} does not exist: a service without '
                'backend_url and connection keeps its claims in this file; '
                'use --config-file to name the file that sets connection, or '
                'the state_path of the service')
        if must_exist:
            # Load SQLAlchemy only if there is a database.
            from distperiodic.operator import group_reader
            group_reader.check_file(settings.connection)
        return settings

    @functools.cached_property
    def actor(self) -> 'Actor':
        """The user who runs this program, the host and the reason."""
        from distperiodic.adapters.local.process_slot import host_name
        from distperiodic.adapters.local.process_slot import user_name
        from distperiodic.operator.auditing import Actor
        return Actor(user_name(), host_name(), getattr(
            self.parsed, 'why', ''))
