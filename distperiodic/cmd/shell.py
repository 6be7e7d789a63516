# SPDX-License-Identifier: Apache-2.0
"""The program ``distperiodic``: run a command, and report errors in one line.

Exit code 0: the command succeeded and found no problem; 1: it found a problem
or failed; 2: a command, an option or the configuration cannot be used; 255: an
unexpected error occurred. For ``status`` and ``doctor`` 0, 1 and 2 mean fine,
warning and failure. With ``--debug`` an error is shown with its traceback.
"""

import argparse
import atexit
import contextlib
import difflib
import gc
import importlib.metadata
import inspect
import io
import itertools
import logging
import os
import sys
import textwrap
import threading
from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any
from typing import NoReturn

from cliff import app
from cliff import command
from cliff import commandmanager

from distperiodic import exceptions
from distperiodic.cmd import configured
from distperiodic.cmd import deferred_imports
from distperiodic.cmd import display
from distperiodic.cmd import terminal
from distperiodic.core import values

#: The exit code that a shell shows for a program that SIGPIPE ended.
_BROKEN_PIPE = 141
#: The exit code that a shell shows for a program that SIGINT ended.
_INTERRUPTED = 130

#: The commands in the order of ``--help``. Commands of plug-ins come last.
GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ('Run', ('demo', 'scheduler', 'worker')),
    ('Check that all is well', (
        'status', 'top', 'web', 'metrics', 'doctor', 'audit', 'dump')),
    ('Show runs, ticks and the reasons of missed runs', (
        'running', 'waiting', 'next', 'why', 'history', 'objects', 'dead list',
        'job list')),
    ('Control jobs', (
        'job pause', 'job resume', 'job trigger', 'dead requeue')),
    ('Control members', (
        'member list', 'member show', 'member drain', 'member undrain',
        'member set', 'member unset', 'events')),
    ('Tasks', (
        'task submit', 'task show', 'task list', 'task cancel',
        'task retry')),
    ('Ordered queues of tasks', (
        'queue list', 'queue show', 'queue resume', 'queue halt',
        'queue set')),
    ('Partitions', (
        'partition list', 'partition show', 'partition promote')),
    ('Task pools', ('pool list', 'pool show', 'pool reset')),
    ('The ring', ('ring show', 'ring explain', 'ring simulate')),
    ('The database', ('db sync', 'db version', 'db prune')),
    ('This program', ('help', 'complete')),
)


# Commands that may run until they are stopped.
_LASTING = (*dict(GROUPS)['Run'], 'top', 'web', 'metrics')
#: Errors that the caller of a command can correct.
_UNUSABLE = (exceptions.ConfigError, exceptions.InvalidTask,
             exceptions.UnknownTask)


class _OneLine(logging.Formatter):
    """Formatter that writes an error in one line, without its traceback."""

    def format(self, record: logging.LogRecord) -> str:
        if record.exc_info:
            return super().format(record)
        error = record.msg
        text = configured.one_line(record.getMessage())
        if isinstance(error, Exception) and _code_of(error) == (
                configured.CRASHED):
            text = (f'{type(error).__name__}: {text}; this error is '
                    'unexpected, run distperiodic --debug ... to see where '
                    'it was raised')
        return f'distperiodic: {text}'


def _code_of(error: Exception) -> int:
    """Return the exit code of a command that *error* ended."""
    if isinstance(error, _UNUSABLE):
        return configured.UNUSABLE
    if isinstance(error, exceptions.DistperiodicError):
        return configured.FINDING
    return configured.CRASHED


class Help(command.Command):
    """Show the options of a command, or list the commands."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument('command', nargs='*', metavar='COMMAND')
        return parser

    def take_action(self, parsed: argparse.Namespace) -> int:
        assert isinstance(self.app, Shell)
        return self.app.help(parsed.command)


class Complete(command.Command):
    """Print the completion of commands and options for bash."""

    def take_action(self, parsed: argparse.Namespace) -> int:
        from cliff import complete
        found = complete.CompleteCommand(self.app, argparse.Namespace())
        parser = found.get_parser(self.cmd_name or 'complete')
        return found.take_action(parser.parse_args([]))


class _Commands(commandmanager.CommandManager):
    """The commands. Each is imported when it is needed: importing all of them
    would take longer than many commands.
    """

    def load_commands(self, namespace: str) -> None:
        self.group_list.append(namespace)
        found = importlib.metadata.distribution('distperiodic').entry_points
        for entry in found.select(group=namespace):
            self.commands[entry.name.replace('_', ' ')] = entry


class Shell(app.App):
    """Periodic work for very many objects, distributed over many processes."""

    NAME = 'distperiodic'
    # Separate from the library's loggers: their lines are shown only with -v.
    LOG = logging.getLogger('distperiodic-command')
    DEFAULT_VERBOSE_LEVEL = 0
    #: True if the command may run until it is stopped.
    lasting = False

    def __init__(self) -> None:
        super().__init__(
            description=self.__doc__,
            version=importlib.metadata.version('distperiodic'),
            command_manager=_Commands('distperiodic.cli'),
            deferred_help=True)
        self.stdout: Any = terminal.Printable(self.stdout)
        self.stderr: Any = terminal.Printable(self.stderr)
        self.command_manager.add_command('help', Help)
        self.command_manager.add_command('complete', Complete)
        configured.refuse_in_one_line(self.parser, self.NAME)
        self.parser.usage = (
            f'{self.NAME} [options] COMMAND [options of COMMAND]')
        errors = logging.StreamHandler(self.stderr)
        errors.setFormatter(_OneLine())
        self.LOG.handlers[:] = [errors]
        self.LOG.propagate = False
        # Default for an error that occurs before the options are parsed.
        self.options = argparse.Namespace(debug=False)

    def configure_logging(self) -> None:
        """Show the library's log with -v (INFO), -vv or --debug (DEBUG).

        A log file receives the log in any case.
        """
        root = logging.getLogger()
        root.addHandler(logging.NullHandler())
        handlers: list[logging.Handler] = []
        if self.options.log_file:
            handlers.append(logging.FileHandler(self.options.log_file))
        level = self.options.verbose_level + 2 * self.options.debug
        if level:
            handlers.append(logging.StreamHandler(self.stderr))
        for handler in handlers:
            handler.setFormatter(logging.Formatter(
                '%(asctime)s %(levelname)s %(name)s %(message)s'))
            root.addHandler(handler)
        root.setLevel(logging.DEBUG if level > 1 else logging.INFO)

    def run(self, argv: list[str]) -> int:
        """Run one command; return the exit code."""
        try:
            _check_unicode(argv)
            try:
                self.options, rest = self.parser.parse_known_args(argv)
            except SystemExit:
                # The parser has printed the version.
                self.stdout.flush()
                return 0
            self.configure_logging()
            code = (self.help(rest) if self.options.deferred_help or not rest
                    else self.run_subcommand(rest))
            self.stdout.flush()
            return code
        except BrokenPipeError:
            return _BROKEN_PIPE
        except KeyboardInterrupt:
            return _INTERRUPTED
        except Exception as exc:
            if self.options.debug:
                self.LOG.exception(exc)
            else:
                self.LOG.error(exc)
            return _code_of(exc)

    def run_subcommand(self, argv: list[str]) -> int:
        factory, name, rest = self._find(argv)
        found = factory(self, self.options, cmd_name=name)
        parser = found.get_parser(f'{self.NAME} {name}')
        parsed = parser.parse_args(rest)
        self.lasting = name in _LASTING
        if self.lasting:
            gc.enable()
        # Some commands have another option --tasks, which names no class.
        elif not isinstance(getattr(parsed, 'tasks', None), str):
            deferred_imports.defer_imports()
        return found.run(parsed)

    def help(self, argv: list[str]) -> int:
        """Print the help of a command, a group of commands, or the program.

        No pager is used, because a script cannot leave a pager.

        :raises ConfigError: there is no such command.
        """
        words = _leading_words(argv)
        if words[:1] == ['help']:
            words = words[1:] or ['help']
        if not words:
            self.parser.print_help(self.stdout)
            self._print_commands(self._grouped())
            print('\nThe options of one command: '
                  f'{self.NAME} COMMAND --help', file=self.stdout)
        elif alike := self._within(words):
            self._print_commands([(' '.join(words), alike)])
        else:
            factory, name, _ = self._find(words)
            parser = factory(self, self.options, cmd_name=name).get_parser(
                f'{self.NAME} {name}')
            parser.print_help(self.stdout)
        return 0

    def _names(self) -> list[str]:
        return sorted(name for name, _ in self.command_manager)

    def _grouped(self) -> list[tuple[str, Sequence[str]]]:
        """Return the commands by group."""
        names = self._names()
        grouped: list[tuple[str, Sequence[str]]] = [
            (title, [name for name in listed if name in names])
            for title, listed in GROUPS]
        known = {name for _, listed in GROUPS for name in listed}
        others = [name for name in names if name not in known]
        return [*grouped, *([('Others', others)] if others else [])]

    def _within(self, words: Sequence[str]) -> list[str]:
        """Return the commands that begin with *words*."""
        start = ' '.join(words) + ' '
        return [name for name in self._names() if name.startswith(start)]

    def _print_commands(
            self, groups: Iterable[tuple[str, Sequence[str]]]) -> None:
        width = display.width(default=80)
        for title, names in groups:
            print(f'\n{title}:', file=self.stdout)
            for name in names:
                factory, _, _ = self.command_manager.find_command(
                    name.split())
                print(textwrap.fill(
                    _summary(factory), width, initial_indent=f'  {name:<15} ',
                    subsequent_indent=' ' * 18), file=self.stdout)

    def _find(self, argv: list[str]
              ) -> tuple[type[command.Command], str, list[str]]:
        """Return the command, its full name, and its arguments.

        :raises ConfigError: there is no such command; the message names
            similar commands.
        """
        words = _leading_words(argv)
        try:
            factory, given, rest = self.command_manager.find_command(argv)
        except ValueError:
            what = 'option' if not words else 'command'
            # The second word may be an argument if the first word is mistyped.
            known = {name.partition(' ')[0] for name in self._names()}
            wrong = ' '.join(words[:2] if words and words[0] in known
                             else words[:1]) or argv[0]
            near = self._within(words[:1]) if len(words) == 1 else []
            hint = (f'one of {configured.listed(near, 9)}'
                    if near else self._nearest(wrong) if words else '')
            raise exceptions.ConfigError(
                f'there is no {what} {wrong!r}; '
                + (f'did you mean {hint}? ' if hint else '')
                + f'see: {self.NAME} --help') from None
        # The name may have been abbreviated.
        place = f'{factory.__module__}:{factory.__name__}'
        full = next(name for name in self._names()
                    if self.command_manager.commands[name].value == place)
        return factory, full, rest

    def _nearest(self, wrong: str) -> str:
        names = self._names()
        near = difflib.get_close_matches(wrong, names, 3, 0.5) or [
            name for name in names if name.startswith(wrong[:1])]
        return configured.listed(near, 3)


def _check_unicode(argv: Sequence[str]) -> None:
    """Check that all arguments are valid Unicode.

    Python decodes an invalid byte of an argument to a lone surrogate, which no
    database can store.

    :raises ConfigError: An argument has a lone surrogate.
    """
    for number, word in enumerate(argv, 1):
        try:
            word.encode()
        except UnicodeEncodeError:
            raise exceptions.ConfigError(
                f'argument {number}, {values.shown(word)}, is not valid '
                f'{sys.getfilesystemencoding()}; give it in UTF-8, in a '
                'locale that uses UTF-8') from None


def _leading_words(argv: Sequence[str]) -> list[str]:
    """Return the words before the first option."""
    return list(itertools.takewhile(
        lambda word: not word.startswith('-'), argv))


def _summary(factory: type[command.Command]) -> str:
    """Return the first sentence of a command's docstring."""
    text = (inspect.getdoc(factory) or '').partition('\n\n')[0]
    return ' '.join(text.split()).partition('. ')[0].removesuffix('.')


def main(argv: list[str] | None = None) -> int:
    """Run one command; return the exit code."""
    for name in 'stdout', 'stderr':
        # None means that the parent process has closed the descriptor.
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, 'w'))
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Ids and errors may contain characters that the terminal cannot show.
        sys.stdout.reconfigure(errors='backslashreplace')
    if argv is None:
        # The imports of a command create many objects and little garbage. The
        # collector would take an eighth of the CPU time of the process, which
        # ends with the command.
        gc.disable()
    shell = Shell()
    code = shell.run(sys.argv[1:] if argv is None else argv)
    try:
        sys.stdout.flush()
    except OSError:
        # The reader, for example "head", has closed the pipe, or the disk is
        # full; the exit code tells which. Discard the buffered output: the
        # interpreter would report an error when it writes it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if argv is None and not shell.lasting:
        _end(code)
    return code


def _end(code: int) -> NoReturn:
    """End the process as Python does, but without deleting each object.

    That would take a quarter of the CPU time of a short command. The two steps
    before have no public name.
    """
    # Idle threads of executors end only by this call.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in sys.stdout, sys.stderr:
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(code)


if __name__ == '__main__':
    sys.exit(main())
