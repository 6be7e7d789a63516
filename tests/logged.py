# SPDX-License-Identifier: Apache-2.0
"""Log lines, read as their event and their keys: tests do not know the prose.

doc/source/reference/log-lines.rst lists both.
"""

import re

# As tests/unit/test_documentation.py reads them in the source.
_EVENT = re.compile(r': (?=\S* ?\w+=)|;| \(')
_KEY = re.compile(r'(\w+)=(.*?)(?= \w+=|; |$)', re.DOTALL)


class Line(dict):
    """Keys and values, as text, of one line."""

    def __init__(self, message, level='', error=None):
        super().__init__(_KEY.findall(message))
        self.event = _EVENT.split(message)[0]
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


def events(caplog):
    return [line.event for line in lines(caplog)]
