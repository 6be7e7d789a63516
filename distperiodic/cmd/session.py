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
from typing import TYPE_CHECKING
from typing import Protocol

from cliff import command

from distperiodic import exceptions
from distperiodic import loading
from distperiodic.cmd import configured
from distperiodic.operator.sources import Sources

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oslo_config import cfg

    from distperiodic import opts
    from distperiodic import periodic
    from distperiodic.operator.auditing import ActionRecord
    from distperiodic.operator.group_reader import GroupStore
    from distperiodic.operator.members import MemberAdmin
    from distperiodic.operator.ring_members import RingMembers
    from distperiodic.tasks import Client

    class Hint(Protocol):
        def __call__(self, verb: str,
                     members: Sequence[tuple[str, str]] = (),
                     action: str = '') -> None: ...


class Session(Sources):
    """The sources with which one command works, and what it changes.

    :param parsed: The command line.
    :param command: The command, whose name the records of actions contain.
    """

    def __init__(self, parsed: argparse.Namespace, command: 'Configured'):
        super().__init__(parsed, lambda: configuration(parsed))
        self._command = command

    def print(self, text: str) -> None:
        print(text, file=self._command.app.stdout, flush=True)

    @functools.cached_property
    def tasks(self) -> 'periodic.PeriodicTasks | None':
        """The tasks that --tasks names. None means that it is not given.

        :raises ConfigError: the tasks cannot be loaded.
        """
        if self.parsed.tasks is None:
            return None
        return loading.load_tasks(self.parsed.tasks, self.conf)

    @functools.cached_property
    def store(self) -> 'GroupStore':
        """The store of the group.

        :raises ConfigError: there is no store.
        """
        self.check_store()
        return self.resources.enter_context(
            contextlib.closing(self._open_store()))

    def _open_store(self) -> 'GroupStore':
        from distperiodic.operator.group_reader import GroupStore
        return GroupStore(self.settings.connection, self.settings.group)

    @functools.cached_property
    def members(self) -> 'MemberAdmin | RingMembers':
        """The members of the group, and commands to them, with or without a
        store.

        :raises ConfigError: there is neither a store nor a broker.
        """
        if self.settings.connection:
            from distperiodic.operator.members import MemberAdmin
            return MemberAdmin(self.store, self.actor)
        return self.ring_members

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

    # -- actions

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
