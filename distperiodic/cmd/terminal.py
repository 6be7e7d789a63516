# SPDX-License-Identifier: Apache-2.0
"""Output of commands and processes that is safe for a terminal."""

import copy
import logging
from typing import TextIO

from distperiodic.core import printable


class Printable:
    """Text stream that escapes the characters that a terminal would obey.

    Every command writes to this stream, so no id, name, reason or error of a
    user reaches a terminal unescaped. The output formats json and yaml have no
    such characters, so they pass unchanged.

    :param stream: The stream that receives the text.
    """

    def __init__(self, stream: TextIO):
        #: The stream that receives the text.
        self.stream = stream

    def write(self, text: str) -> int:
        self.stream.write(printable.escaped_lines(text))
        return len(text)

    def flush(self) -> None:
        self.stream.flush()

    def isatty(self) -> bool:
        return self.stream.isatty()

    @property
    def encoding(self) -> str:
        return self.stream.encoding


class LogFormatter(logging.Formatter):
    """Formatter that makes the lines of another formatter printable.

    The lines of a message after the first are indented, so that a text from a
    user cannot forge a log line.

    :param inner: The formatter that creates the lines.
    """

    def __init__(self, inner: logging.Formatter):
        super().__init__()
        self._inner = inner

    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        if not text.isprintable():
            record = copy.copy(record)
            record.msg = printable.escaped_lines(text).replace('\n', '\n    ')
            record.args = ()
        # The inner formatter may add the text of an error.
        return printable.escaped_lines(self._inner.format(record))
