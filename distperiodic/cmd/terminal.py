# SPDX-License-Identifier: Apache-2.0
"""Output of commands and processes that is safe for a terminal."""

import contextlib
import copy
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING
from typing import TextIO

from distperiodic import exceptions
from distperiodic.core import printable

if TYPE_CHECKING:
    from distperiodic import ports

# Seconds for which the same line of a library is not logged again.
_REPEATED = 60.0
# Text that stands for the message of a record.
_MARK = '\0'


class Output:
    """Text stream whose errors are the errors of a command.

    :param stream: The stream that receives the text.
    """

    def __init__(self, stream: TextIO):
        #: The stream that receives the text.
        self.stream = stream

    def write(self, text: str) -> int:
        """Write *text*, and return its length.

        :raises DistperiodicError: The text cannot be written, for example
            because the disk is full.
        """
        with _explained():
            self.stream.write(text)
        return len(text)

    def flush(self) -> None:
        with _explained():
            self.stream.flush()

    def isatty(self) -> bool:
        return self.stream.isatty()

    @property
    def encoding(self) -> str:
        return self.stream.encoding


class Printable(Output):
    """Output that escapes the characters that a terminal would obey.

    Every command writes to this stream, so no id, name, reason or error of a
    user reaches a terminal unescaped. The output formats json and yaml have no
    such characters, so they pass unchanged.
    """

    def write(self, text: str) -> int:
        super().write(printable.escaped_lines(text))
        return len(text)


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Let an error name the output, unless its reader has gone."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as exc:
        raise exceptions.DistperiodicError(
            f'the output cannot be written: {exc.strerror or exc}') from exc


class LogFormatter(logging.Formatter):
    """Formatter that makes the lines of another formatter printable.

    All lines after the first either have the prefix of the first line, such as
    those of a traceback, or are indented. So a text from a user cannot forge a
    log line.

    :param inner: The formatter that creates the lines.
    """

    def __init__(self, inner: logging.Formatter):
        super().__init__()
        self._inner = inner

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        if not message.isprintable():
            record = copy.copy(record)
            record.msg = printable.escaped_lines(message).replace(
                '\n', '\n    ')
            record.args = ()
        text = printable.escaped_lines(self._inner.format(record))
        if '\n' not in text:
            return text
        # The inner formatter may add the text of an error to the first line,
        # and formats a traceback with a prefix.
        prefix = self._prefix(record)
        first, *others = text.split('\n')
        return '\n'.join([first, *(
            line if line.startswith((prefix or '    ', '    '))
            else f'    {line}' for line in others)])

    def _prefix(self, record: logging.LogRecord) -> str:
        """Return the text of the line of *record* before its message."""
        bare = copy.copy(record)
        bare.msg, bare.args = _MARK, ()
        bare.exc_info = bare.exc_text = bare.stack_info = None
        return printable.escaped_lines(
            self._inner.format(bare).partition(_MARK)[0])


class Repeated(logging.Filter):
    """Filter that drops lines of a library that repeat a recent line.

    A library for messages logs each attempt of each of its connections.

    :param loggers: Names of the loggers of the libraries.
    :param clock: Clock for the time since the last line.
    """

    def __init__(self, loggers: tuple[str, ...], clock: 'ports.Clock'):
        # Only services use this class, and its imports are slow.
        from distperiodic.flow import log_throttle
        super().__init__()
        self._loggers = loggers
        self._throttle = log_throttle.LogThrottle(clock, _REPEATED)

    def filter(self, record: logging.LogRecord) -> bool:
        return not record.name.startswith(self._loggers) or (
            # The values in the message may change with each attempt.
            self._throttle.allow(f'{record.name} {record.msg}'))
