# SPDX-License-Identifier: Apache-2.0
"""The session of a command: its configuration, its store and its group.

To run one command, the program also loads the modules of other commands.
Packages that are slow to load (tooz, oslo.messaging, rich) are therefore
imported inside the functions that need them.
"""

import abc
import argparse
import contextlib
import functools
import os
from typing import TYPE_CHECKING
from typing import Protocol

from cliff import command

from distperiodic import exceptions
from distperiodic import loading
from distperiodic.adapters.local.clock import SystemClock
from distperiodic.cmd import configured
from distperiodic.operator.live_group import Group
from distperiodic.operator.live_group import read_group

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oslo_config import cfg

    from distperiodic import opts
    from distperiodic import periodic
    from distperiodic.operator.auditing import ActionRecord
    from distperiodic.operator.auditing import Actor
    from distperiodic.operator.group_reader import GroupStore
    from distperiodic.operator.members import MemberAdmin
    from distperiodic.operator.ring_members import RingMembers
    from distperiodic.tasks import Client

    class Hint(Protocol):
        def __call__(self, verb: str,
                     members: Sequence[tuple[str, str]] = (),
                     action: str = '') -> None: ...

# Maximum seconds to wait for the members' replies to a query over the bus.
_REPLIES = 5.0


class Session:
    """The parts with which one command works, each created at its first use.

    :param parsed: The command line.
    :param command: The command, whose name the records of actions contain.
    """

    def __init__(self, parsed: argparse.Namespace, command: 'Configured'):
        self.parsed = parsed
        self.clock = SystemClock()
        #: The resources that the end of the session closes.
        self.resources = contextlib.ExitStack()
        self._command = command

    def __enter__(self) -> 'Session':
        return self

    def __exit__(self, *exc: object) -> None:
        self.resources.close()

    def print(self, text: str) -> None:
        print(text, file=self._command.app.stdout, flush=True)

    # -- configuration

    @functools.cached_property
    def conf(self) -> 'cfg.ConfigOpts':
        """The options.

        :raises ConfigError: a file cannot be read.
        """
        return configuration(self.parsed)

    @functools.cached_property
    def settings(self) -> 'opts.Settings':
        """The values of the options.

        :raises ConfigError: an option cannot be used.
        """
        from distperiodic import opts
        return opts.settings(self.conf)

    @functools.cached_property
    def tasks(self) -> 'periodic.PeriodicTasks | None':
        """The tasks that --tasks names. None means that it is not given.

        :raises ConfigError: the tasks cannot be loaded.
        """
        if self.parsed.tasks is None:
            return None
        return loading.load_tasks(self.parsed.tasks, self.conf)

    # -- the group

    @functools.cached_property
    def group(self) -> 'Group':
        """The group, as the coordination service lists it.

        :raises ConfigError: no coordination service is configured.
        :raises CoordinationUnavailable: the service does not answer.
        """
        return read_group(self.check_backend(), self.clock)

    @functools.cached_property
    def members(self) -> 'MemberAdmin | RingMembers':
        """The members of the group, and commands to them, with or without a
        store.

        :raises ConfigError: there is neither a store nor a broker.
        """
        if self.settings.connection:
            from distperiodic.operator.members import MemberAdmin
            return MemberAdmin(self.store, self.actor)
        if self.settings.dispatcher != 'messaging':
            raise exceptions.ConfigError(
                'there is neither a store nor a broker, so no member can be '
                'reached; set [distperiodic] connection, or dispatcher = '
                'messaging and transport_url; --config-file names the file')
        from distperiodic.operator.ring_members import RingMembers
        return self.resources.enter_context(contextlib.closing(RingMembers(
            self.conf, self.settings, actor=self.actor, clock=self.clock,
            wait=_REPLIES)))

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
    def store(self) -> 'GroupStore':
        """The store of the group.

        :raises ConfigError: there is no store.
        """
        settings = self.check_store()
        from distperiodic.operator.group_reader import GroupStore
        return self.resources.enter_context(contextlib.closing(
            GroupStore(settings.connection, settings.group)))

    @functools.cached_property
    def client(self) -> 'Client':
        """A client of the tasks of the group.

        :raises ConfigError: there is no store.
        """
        return self.open_client(self.check_store())

    def open_client(self, settings: 'opts.Settings') -> 'Client':
        """Return a client, which the end of the session closes.

        :raises ConfigError: a file of SQLite does not exist.
        """
        from distperiodic import tasks
        from distperiodic.operator import group_reader
        if not settings.embedded:
            group_reader.check_file(settings.connection)
        return self.resources.enter_context(contextlib.closing(
            tasks.Client(self.conf)))

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

    # -- actions

    @functools.cached_property
    def actor(self) -> 'Actor':
        """The user who runs this command, the host and the reason."""
        from distperiodic.adapters.local.process_slot import host_name
        from distperiodic.adapters.local.process_slot import user_name
        from distperiodic.operator.auditing import Actor
        return Actor(user_name(), host_name(), getattr(
            self.parsed, 'why', ''))

    def recorded(self, target: str, **arguments: object
                 ) -> 'contextlib.AbstractContextManager[ActionRecord]':
        """Record the action that the body of the context carries out.

        :param arguments: Details of the action for the record. Values of None
            are left out.
        :raises ConfigError: there is no store.
        """
        from distperiodic.operator import auditing
        assert self._command.cmd_name is not None
        return auditing.recorded(
            self.store, self.actor, self._command.cmd_name, target,
            **{name: value for name, value in arguments.items()
               if value is not None})

    def prepare_hint(self) -> 'Hint':
        """Return a function that sends a hint to members.

        Members that receive the hint read the store at once. The arguments of
        the function are the command, the partitions and names of the members
        (an empty sequence means all members), and the id of the recorded
        action, if there is one. If the hint cannot be sent, the function
        prints a note that the members read the store at their next sweep. With
        ``dispatcher = local`` there is no bus, and the function does nothing.
        """
        settings = self.check_store()
        if settings.dispatcher != 'messaging':
            return lambda verb, members=(), action='': None
        from distperiodic.operator.hints import Hints
        hints = Hints(self.conf, settings, self.actor)

        def hint(verb: str, members: 'Sequence[tuple[str, str]]' = (),
                 action: str = '') -> None:
            problem = hints.send(verb, members, action)
            if problem:
                self.print(f'note: {problem}; the members read the change '
                           f'within {settings.sweep_interval:g} s '
                           '(sweep_interval)')
        return hint


def configuration(parsed: argparse.Namespace,
                  logs: bool = False) -> 'cfg.ConfigOpts':
    """Return the options in a new ConfigOpts.

    :param logs: True registers the options of oslo.log as well.
    :raises ConfigError: a file cannot be read.
    """
    from oslo_config import cfg

    from distperiodic import opts
    conf = cfg.ConfigOpts()
    opts.register_opts(conf)
    if logs:
        from oslo_log import log
        log.register_options(conf)
    arguments = [
        word for name in ('config_file', 'config_dir')
        for value in getattr(parsed, name)
        for word in ('--' + name.replace('_', '-'), value)]
    try:
        conf(arguments, project='distperiodic', prog='distperiodic',
             default_config_dirs=[] if parsed.config_file else None)
    except (cfg.Error, OSError, UnicodeDecodeError) as exc:
        named = '' if isinstance(exc, cfg.Error) else (
            f'{configured.listed(parsed.config_file + parsed.config_dir)}: ')
        raise exceptions.ConfigError(
            f'{named}{configured.one_line(exc)}; correct --config-file or '
            '--config-dir, or the file itself') from exc
    return conf


class Configured(command.Command):
    """Base class of commands: the options that name configuration files."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        configured.refuse_in_one_line(parser, prog_name)
        group = parser.add_argument_group('configuration')
        group.add_argument(
            '--config-file', action='append', default=[], metavar='FILE',
            help='read this configuration file; may be repeated, and later '
                 'files take precedence. Default: the first distperiodic.conf '
                 'in ~/.distperiodic, ~, /etc/distperiodic and /etc')
        group.add_argument(
            '--config-dir', action='append', default=[], metavar='DIR',
            help='also read all *.conf files in this directory')
        self.add_options(parser)
        return parser

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add the options of this command."""

    def get_epilog(self) -> str:
        # cliff's own epilog names the package of the command. To find this
        # name, cliff reads the metadata of all installed packages, which is
        # slow.
        return self._epilog or ''


class RecordedCommand(Configured):
    """Base class of commands that change something, and record it."""

    #: True if the user must give a reason.
    reason_required = False

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            '--reason', '--why', dest='why', default='', metavar='TEXT',
            required=self.reason_required,
            help='the reason, for other operators; "events" shows it')

    def take_action(self, parsed: argparse.Namespace) -> int | None:
        with Session(parsed, self) as session:
            return self.act(session)

    @abc.abstractmethod
    def act(self, session: Session) -> int | None:
        """Carry out the command; return its exit code, or None for success."""
