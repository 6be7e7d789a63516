# SPDX-License-Identifier: Apache-2.0
"""Log lines, read as their event and their keys: tests do not know the prose.

doc/source/reference/log-lines.rst lists both. Lines of this process come from
pytest's ``caplog``, those of other processes from the text of their log.
"""

import re

# As tests/unit/test_documentation.py reads them in the source.
_EVENT = re.compile(r': (?=\S* ?\w+=)|;| \(')
_KEY = re.compile(r'(\w+)=(.*?)(?= \w+=|; |$)', re.DOTALL)
# How programs write a line: level, name of the logger, message.
_WRITTEN = re.compile(
    r' (DEBUG|INFO|WARNING|ERROR|CRITICAL) distperiodic[\w.]* (.*)')


class Line(dict):
    """Keys and values, as text, of one line."""

    def __init__(self, message, level='', error=None):
        super().__init__(_KEY.findall(message))
        self.event = _EVENT.split(message)[0]
        #: The whole line, for values and remedies behind its keys.
        self.text = message
        self.level = level
        #: The exception that was logged with it.
        self.error = error

    def has(self, **keys):
        """Whether it has these values, whatever else it has."""
        return {key: str(value) for key, value in keys.items()}.items() <= (
            self.items())


def lines(caplog, event=None):
    """The lines of *event*, oldest first; None: all."""
    found = [Line(record.getMessage(), record.levelname,
                  record.exc_info and record.exc_info[1])
             for record in caplog.records]
    return [line for line in found if event in (None, line.event)]


def written(text, event=None):
    """The lines of *event* in the text of a log file; None: all.

    Neither lines of other libraries nor tracebacks are among them.
    """
    found = [Line(message, level) for level, message in _WRITTEN.findall(text)]
    return [line for line in found if event in (None, line.event)]


def events(caplog):
    return [line.event for line in lines(caplog)]
