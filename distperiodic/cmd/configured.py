# SPDX-License-Identifier: Apache-2.0
"""The options and the words that commands share."""

import argparse
from typing import NoReturn

from distperiodic import exceptions
from distperiodic.core import wording
from distperiodic.operator import filters

#: Exit codes, like those of oslo.upgradecheck. FINE: the command succeeded and
#: found no problem. FINDING: the command found a problem, or failed. UNUSABLE:
#: a command, an option or the configuration cannot be used. CRASHED: an
#: unexpected error occurred.
FINE, FINDING, UNUSABLE, CRASHED = 0, 1, 2, 255

# The words that all commands share.
age = wording.age
identity = wording.identity
listed = wording.listed
moment = wording.moment
one_line = wording.one_line
percent = wording.percent
plural = wording.plural
second = wording.second
# The options that lists and other commands share.
add_job = filters.add_job
add_limit = filters.add_limit
duration = filters.duration
job_of = filters.job_of
positive = filters.positive
required_job = filters.required_job
seconds = filters.seconds
since = filters.since
until = filters.until


def days(text: str) -> float:
    """Parse an option that is a number of days."""
    return filters.number(text, float, lambda found: 0 < found < 100_000,
                          'a number of days above 0')


def add_tasks(parser: argparse.ArgumentParser, purpose: str) -> None:
    """Add the option that names the tasks.

    :param purpose: Purpose of the option, for its help.
    """
    parser.add_argument(
        '--tasks', metavar='MODULE:CLASS',
        help=f'the PeriodicTasks class that schedulers run: {purpose}')


def add_expected(parser: argparse.ArgumentParser) -> None:
    """Add the options with the expected numbers of processes."""
    parser.add_argument(
        '--expect', type=positive, metavar='N',
        help='number of schedulers expected; fewer cause a warning')
    parser.add_argument(
        '--expect-workers', type=positive, metavar='N',
        help='number of workers expected in all partitions together; '
             'fewer cause a warning')


def refuse_in_one_line(parser: argparse.ArgumentParser, prog: str) -> None:
    """Make *parser* raise ConfigError on errors, instead of exiting."""
    def error(message: str) -> NoReturn:
        raise exceptions.ConfigError(
            f'{message}; see: {prog} --help') from None
    # cliff creates the parser, so this method cannot be defined in a subclass.
    parser.error = error  # type: ignore[method-assign]
