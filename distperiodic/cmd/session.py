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

from cliff import command

from distperiodic import exceptions
from distperiodic import loading
from distperiodic.cmd import configured
from distperiodic.operator.action_sources import ActionSources

if TYPE_CHECKING:
    from oslo_config import cfg

    from distperiodic import periodic
    from distperiodic.operator.action_sources import Hint
    from distperiodic.operator.auditing import ActionRecord


class Session(ActionSources):
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

    # -- actions

    def recorded(self, target: str, **arguments: object
                 ) -> 'contextlib.AbstractContextManager[ActionRecord]':
        """Record the action that the body of the context carries out.

        :param arguments: Details of the action for the record. Values of None
            are left out.
        :raises ConfigError: there is no store.
        """
        assert self._command.cmd_name is not None
        return self.record(self._command.cmd_name, target, **{
            name: value for name, value in arguments.items()
            if value is not None})

    def prepare_hint(self) -> 'Hint':
        """Return a function that sends a hint to members; see
        :meth:`.ActionSources.hint`.

        If the hint cannot be sent, the function prints a note.
        """
        return self.hint(lambda problem: self.print(f'note: {problem}'))


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

    def _load_hooks(self) -> None:
        # cliff would search all installed packages for hooks of the command.
        self._hooks = []


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
