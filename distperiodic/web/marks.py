# SPDX-License-Identifier: Apache-2.0
"""The marks of values on the page: instants, states and numbers.

Texts from users may contain characters that reorder or hide the text around
them. The page shows escapes in their place, as the command line does.
"""

import re
from typing import Any

from markupsafe import Markup
from markupsafe import escape

from distperiodic.core import printable
from distperiodic.operator import health
from distperiodic.operator.health import Severity

_INSTANT = re.compile(r'\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z')
# Number of characters above which a text in a cell may break anywhere.
_LONG = 40
# Number of characters up to which a text in a cell does not break.
_SHORT = 16
#: Classes of the words that name a state.
_STATES = {
    'good': ('ok', 'running', 'succeeded', 'done', 'active', 'open', 'ran'),
    'bad': ('failed', 'stuck', 'dead', 'silent', 'no answer', 'not healthy',
            'halted', 'failure', 'lost', 'fail'),
    'warn': ('warning', 'rolling_back', 'retry', 'waits for retry', 'warn'),
    'calm': ('stopped', 'cancelled', 'waiting', 'claimed', 'listed', 'standby',
             'granted', 'not run', 'drained', 'shared', 'skipped')}
_CLASSES = {word: name for name, words in _STATES.items() for word in words}
#: Titles of the columns whose values are states.
STATE_TITLES = frozenset({'State', 'Status', 'Health', 'Drained', 'state',
                          'status'})


def visible(value: object) -> str:
    """Return the text of a value, with escapes for what does not print."""
    return printable.escaped(str(value))


def instant(text: str) -> Markup:
    """Mark an instant in UTC. A script adds the time since then."""
    return Markup('<time datetime="{0}" title="{0}">{1}</time>').format(
        text, text.replace('T', ' ').replace('Z', '')
        .partition('.')[0] + 'Z')


def state(text: str) -> Markup:
    """Mark the name of a state."""
    return Markup('<span class="chip {}">{}</span>').format(
        state_class(text), text.replace('_', ' '))


def state_class(text: str) -> str:
    """Return the class of a state, in the style sheet."""
    code = health.CODES.get(text)
    if code is not None:
        return 'bad' if code.severity is Severity.FAILURE else 'warn'
    return _CLASSES.get(text.lower(), 'calm')


def value(given: object, title: str = '') -> Markup:
    """Mark a value in a cell.

    :param title: Title of its column.
    """
    if given is None or given == '':
        return Markup()
    if isinstance(given, bool):
        return Markup('yes') if given else Markup('no')
    if isinstance(given, int):
        return Markup('{}').format(f'{given:,}')
    text = visible(given)
    if _INSTANT.fullmatch(text):
        return instant(text)
    if title == 'Drained':
        return state('drained') if text == 'yes' else Markup('no')
    if title in STATE_TITLES:
        return Markup('<span class="chip-list">{}</span>').format(
            Markup(' ').join(map(state, text.split(', '))))
    length = ('long' if len(text) > _LONG
              else 'short' if len(text) <= _SHORT else 'usual')
    return Markup('<bdi class="{}">{}</bdi>').format(length, escape(text))


def is_number(given: object) -> bool:
    """Return whether a value is aligned like a number."""
    return isinstance(given, (int, float)) and not isinstance(given, bool)


def seconds_long(micros: Any) -> str:
    """Return microseconds as text, in a unit that fits."""
    if micros is None:
        return ''
    seconds = micros / 1e6
    return (f'{seconds * 1e3:.0f} ms' if seconds < 1 else f'{seconds:.1f} s'
            if seconds < 120 else f'{seconds / 60:.0f} min')
