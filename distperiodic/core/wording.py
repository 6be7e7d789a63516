# SPDX-License-Identifier: Apache-2.0
"""Numbers, names and times as words in sentences for people."""

from collections.abc import Sequence

from distperiodic.core import schedule

_UNITS = {'s': 1, 'm': 60, 'h': 3600, 'd': 86400}


def one_line(text: object) -> str:
    """Return *text* without line breaks, for an error message."""
    return ' '.join(str(text).split())


def plural(number: int, word: str) -> str:
    """Return a number and its noun, such as '1 member' or '3 members'."""
    if number != 1:
        word = f'{word[:-1]}ies' if word.endswith('y') else f'{word}s'
    return f'{number:,} {word}'


def listed(names: Sequence[str], most: int = 5) -> str:
    """Return the first *most* names, and the number of the other names."""
    more = f' and {len(names) - most} more' if len(names) > most else ''
    return ', '.join(names[:most]) + more


def second(micros: int) -> str:
    """Format an instant like :func:`moment`, in whole seconds."""
    return moment(micros // 1_000_000 * 1_000_000)


def age(seconds: float) -> str:
    """Format a length of time in its two largest units, such as '3h12m'."""
    left = int(seconds)
    if left < 1:
        return f'{seconds:.1f}s'
    parts = []
    for unit, length in reversed(_UNITS.items()):
        number, left = divmod(left, length)
        parts.append(f'{number}{unit}' if number else '')
    first = next(at for at, part in enumerate(parts) if part)
    return ''.join(parts[first:first + 2])


def moment(micros: int) -> str:
    """Format an instant in ISO 8601 and UTC; omit a fraction of zero."""
    return schedule.nearest_datetime(micros).isoformat().replace(
        '+00:00', 'Z')


def until(micros: int | None) -> str:
    """Return the end of a pause as the end of a sentence."""
    return '' if micros is None else f' until {moment(micros)}'


def percent(part: float, whole: float = 1.0) -> str:
    """Format a share as a percentage."""
    return f'{100.0 * part / whole:.1f} %' if whole else '-'


def identity(holder: str) -> str:
    """Return the identity of a process from its name as a holder of leases."""
    return holder.partition('~')[0]
