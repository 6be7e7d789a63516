# SPDX-License-Identifier: Apache-2.0
"""Log lines as an event and keys, so that tests do not compare prose.

doc/source/reference/log-lines.rst lists the events and keys. Lines of this
process come from pytest's ``caplog``. Lines of other processes come from the
text of their log.
"""

import re

# tests/unit/test_documentation.py finds the events of the log calls in the
# source with the same expression.
_EVENT = re.compile(r': (?=\S* ?\w+=)|;| \(')
_KEY = re.compile(r'(\w+)=(.*?)(?= \w+=|; |$)', re.DOTALL)
# The format of a line in a program's log: level, logger, message.
_WRITTEN = re.compile(
    r' (DEBUG|INFO|WARNING|ERROR|CRITICAL) distperiodic[\w.]* (.*)')


class Line(dict):
    """The keys of one line, each with its value as text."""

    def __init__(self, message, level='', error=None):
        super().__init__(_KEY.findall(message))
        self.event = _EVENT.split(message)[0]
        #: The whole line, with the text after its keys.
        self.text = message
        self.level = level
        #: The exception that was logged with the line, or None.
        self.error = error

    def has(self, **keys):
        """Return True if the line has these keys and values, among others."""
        return {key: str(value) for key, value in keys.items()}.items() <= (
            self.items())


def lines(caplog, event=None):
    """Return the lines of *event*, oldest first; None means all events."""
    found = [Line(record.getMessage(), record.levelname,
                  record.exc_info and record.exc_info[1])
             for record in caplog.records]
    return [line for line in found if event in (None, line.event)]


def written(text, event=None):
    """Return the lines of *event* in a log file's text; None means all events.

    The result contains no tracebacks, and no lines of other libraries.
    """
    found = [Line(message, level) for level, message in _WRITTEN.findall(text)]
    return [line for line in found if event in (None, line.event)]


def events(caplog):
    return [line.event for line in lines(caplog)]
