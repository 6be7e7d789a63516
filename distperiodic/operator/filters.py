# SPDX-License-Identifier: Apache-2.0
"""The options that select the rows of lists, and their values.

A command line and the address of a page give the same options, so both are
parsed here.
"""

import argparse
import contextlib
import datetime
from collections.abc import Callable
from typing import NamedTuple
from typing import TypeVar

from distperiodic import exceptions
from distperiodic.core import schedule
from distperiodic.core.wording import moment

Number = TypeVar('Number', int, float)

#: Maximum number of rows or of seconds in an option. Every database and clock
#: can hold this number.
_MOST = 1_000_000_000


def number(text: str, parse: Callable[[str], Number],
           usable: Callable[[Number], bool], expected: str) -> Number:
    """Parse an option that is a number.

    :param expected: Values that can be used, for the error message.
    :raises ArgumentTypeError: the text is no usable number.
    """
    with contextlib.suppress(KeyError, ValueError):
        if usable(found := parse(text)):
            return found
    raise argparse.ArgumentTypeError(
        f'{text!r} cannot be used; give {expected}')


def positive(text: str) -> int:
    """Parse an option that is a whole number above 0."""
    return number(text, int, lambda found: 1 <= found <= _MOST,
                  f'a whole number from 1 to {_MOST}')


def seconds(text: str) -> float:
    """Parse an option that is a number of seconds."""
    return number(text, float, lambda found: 0 < found <= _MOST,
                  f'a number of seconds above 0, at most {_MOST}')


_UNITS = {'s': 1, 'm': 60, 'h': 3600, 'd': 86400}


def duration(text: str) -> float:
    """Parse an option that is a length of time with a unit; return seconds."""
    return number(
        text, lambda text: float(text[:-1]) * _UNITS[text[-1:]],
        lambda found: 0 < found < 1e10,
        'a number with s, m, h or d, such as 30m')


class Since(NamedTuple):
    """The beginning of a period that ends now."""

    text: str
    #: Seconds before now. None means that *instant* is the beginning.
    seconds: float | None
    #: Microseconds since the epoch.
    instant: int = 0

    @property
    def phrase(self) -> str:
        """The period in words."""
        if self.seconds is None:
            return f'since {self.text}'
        return f'in the last {self.text}'

    def before(self, now: int) -> int:
        """Return the beginning of the period, in microseconds since the epoch.

        :raises ConfigError: the beginning is in the future.
        """
        if self.seconds is not None:
            return max(0, now - round(self.seconds * 1e6))
        if self.instant > now:
            raise exceptions.ConfigError(
                f'{self.text} is in the future: the clock of the database '
                f'shows {moment(now)}; give an earlier instant, in UTC or '
                'with its offset from UTC')
        return max(0, self.instant)


class Until(NamedTuple):
    """The end of a period that begins now; see :class:`Since`."""

    text: str
    seconds: float | None
    instant: int = 0

    def after(self, now: int) -> int:
        """Return the end of the period, in microseconds since the epoch.

        :raises ConfigError: the end is not in the future.
        """
        if self.seconds is not None:
            return now + round(self.seconds * 1e6)
        if self.instant <= now:
            raise exceptions.ConfigError(
                f'{self.text} is not in the future: the clock of the database '
                f'shows {moment(now)}; give a later instant, in UTC or '
                'with its offset from UTC')
        return self.instant


def since(text: str) -> Since:
    """Parse an option that is a length of time before now, or an instant."""
    return Since(text, *_period(text))


def until(text: str) -> Until:
    """Parse an option that is a length of time from now, or an instant."""
    return Until(text, *_period(text))


def _period(text: str) -> tuple[float | None, int]:
    """Return a length of time in seconds, or None and an instant."""
    with contextlib.suppress(ValueError):
        at = datetime.datetime.fromisoformat(text)
        if at.tzinfo is None:
            at = at.replace(tzinfo=datetime.UTC)
        return None, schedule.instant_of(at)
    with contextlib.suppress(argparse.ArgumentTypeError):
        return duration(text), 0
    raise argparse.ArgumentTypeError(
        f'{text!r} cannot be used; give a number with s, m, h or d, such as '
        '24h, or an instant (UTC), such as 2026-01-31T06:00')


def add_job(parser: argparse.ArgumentParser,
            required: bool = False) -> None:
    """Add the argument for the name of a job, and its alternative ``--job``.
    """
    parser.add_argument(
        'job', metavar='JOB', nargs='?',
        help='name of the job' if required else
        'name of the job; default: all jobs')
    parser.add_argument(
        '--job', dest='named_job', metavar='JOB', help=argparse.SUPPRESS)


def job_of(parsed: argparse.Namespace) -> str | None:
    """Return the name of the job that the command line names, or None.

    :raises ConfigError: the job was named twice.
    """
    if None not in (parsed.job, parsed.named_job):
        raise exceptions.ConfigError(
            f'--job {parsed.named_job!r} and JOB {parsed.job!r} are both '
            'given; omit --job')
    found: str | None = (
        parsed.job if parsed.named_job is None else parsed.named_job)
    return found


def required_job(parsed: argparse.Namespace) -> str:
    """Return the name of the job that the command line names.

    :raises ConfigError: the job was named twice or not at all.
    """
    found = job_of(parsed)
    if found is None:
        raise exceptions.ConfigError(
            'no job is named; name one of: distperiodic job list')
    return found


def add_limit(parser: argparse.ArgumentParser, what: str) -> None:
    """Add the option that limits the length of a list."""
    parser.add_argument(
        '--limit', type=positive, default=100, metavar='N',
        help=f'show at most this many {what}; default: 100')
