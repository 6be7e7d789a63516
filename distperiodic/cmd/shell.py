# SPDX-License-Identifier: Apache-2.0
"""The program ``distperiodic``: finds the command, says errors in one line.

Exit code 0: done; 1: it could not be done, and one line on stderr says why
and what to do. ``status`` and ``doctor`` have 0, 1, 2 for fine, warning and
failure. With ``--debug`` an error comes with its traceback.
"""

import argparse
import importlib.metadata
import io
import logging
import os
import sys

from cliff import app
from cliff import commandmanager

from distperiodic import exceptions
from distperiodic.cmd import configured

#: The exit code of a program that SIGPIPE ends, as the shell has it.
_NOBODY_READS = 141


class _OneLine(logging.Formatter):
    """An error as one line, and with where it came from only on demand."""

    def format(self, record: logging.LogRecord) -> str:
        if record.exc_info:
            return super().format(record)
        error = record.msg
        text = configured.one_line(record.getMessage())
        if isinstance(error, Exception) and not isinstance(
                error, (exceptions.DistperiodicError, ValueError)):
            text = (f'{type(error).__name__}: {text}; nobody expected this '
                    'error here, run distperiodic --debug ... to see where '
                    'it came from')
        return f'distperiodic: {text}'


class Shell(app.App):
    """Periodic work over very many objects, on many processes."""

    NAME = 'distperiodic'
    # Not the library's own logger: what that says while a command runs is
    # for those who ask for it with -v.
    LOG = logging.getLogger('distperiodic-command')
    DEFAULT_VERBOSE_LEVEL = 0

    def __init__(self) -> None:
        super().__init__(
            description=self.__doc__,
            version=importlib.metadata.version('distperiodic'),
            command_manager=commandmanager.CommandManager(
                'distperiodic.cli'))
        configured.refuse_in_one_line(self.parser, self.NAME)
        errors = logging.StreamHandler(self.stderr)
        errors.setFormatter(_OneLine())
        self.LOG.handlers[:] = [errors]
        self.LOG.propagate = False
        # For the error that comes before there are any.
        self.options = argparse.Namespace(debug=False)

    def configure_logging(self) -> None:
        """What the library logs, only with -v (INFO) and -vv (DEBUG)."""
        root = logging.getLogger()
        root.addHandler(logging.NullHandler())
        places: list[logging.Handler] = []
        if self.options.log_file:
            places.append(logging.FileHandler(self.options.log_file))
        level = self.options.verbose_level + 2 * self.options.debug
        if level:
            places.append(logging.StreamHandler(self.stderr))
        for place in places:
            place.setFormatter(logging.Formatter(
                '%(asctime)s %(levelname)s %(name)s %(message)s'))
            root.addHandler(place)
        root.setLevel(logging.DEBUG if level > 1 else logging.INFO)

    def interact(self) -> None:
        self.run(['--help'])

    def run_subcommand(self, argv: list[str]) -> int:
        try:
            self.command_manager.find_command(argv)
        except ValueError:
            what = 'option' if argv[0].startswith('-') else 'command'
            near = '' if what == 'option' else (
                'did you mean '
                f'{configured.listed(self.get_fuzzy_matches(argv[0]), 3)}? ')
            self.LOG.error(
                'there is no %s %r; %ssee: distperiodic --help', what,
                argv[0], near)
            return 1
        return super().run_subcommand(argv)


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Ids and errors are in any language, and a terminal is not.
        sys.stdout.reconfigure(errors='backslashreplace')
    code = Shell().run(sys.argv[1:] if argv is None else argv)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever reads, as "head" does, has read enough. What is left must
        # not be written when the interpreter ends, where it would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _NOBODY_READS
    return code


if __name__ == '__main__':
    sys.exit(main())
