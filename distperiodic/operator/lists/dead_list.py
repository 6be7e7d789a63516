# SPDX-License-Identifier: Apache-2.0
"""Objects whose runs failed for good."""

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from distperiodic.core import wording
from distperiodic.operator import cells
from distperiodic.operator import filters
from distperiodic.operator import member_rows
from distperiodic.operator.sources import Sources

if TYPE_CHECKING:
    from distperiodic.operator.activity import Failing


def add_conditions(parser: argparse.ArgumentParser, what: str) -> None:
    """Add the options that select objects by their last failure.

    :param what: Effect of the options, for their help.
    """
    parser.add_argument(
        '--since', type=filters.since, metavar='WHEN',
        help=f'{what} that failed after this time: a length of time before '
             'now, such as 24h, or an instant (UTC)')
    parser.add_argument(
        '--error', metavar='TEXT',
        help=f'{what} whose error contains this text, in the same case')


class DeadObjects(cells.DeclaredList['Failing']):
    """Show the objects that failed for good and have not succeeded since.

    An object stays in the list until it succeeds. In a row is the number of
    ticks that have failed since the last success. In the state dead, the
    object waits for its next tick or for "dead requeue"; in any other state, a
    later tick is claimed already.
    """

    cut = 'The newest {}; see --limit.'

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        filters.add_job(parser)
        parser.add_argument(
            '--object', metavar='OBJECT', help='show only this object')
        add_conditions(parser, 'show only objects')
        parser.add_argument(
            '--traceback', action='store_true',
            help='also show the traceback of the error')
        filters.add_limit(parser, 'objects, those of the newest ticks')

    def fetch(self, sources: Sources) -> 'list[Failing]':
        from distperiodic.operator import activity
        from distperiodic.operator import members
        parsed = sources.parsed
        job = filters.job_of(parsed)
        found = activity.failing(
            sources.store, job=job, limit=parsed.limit, key=parsed.object,
            since=None if parsed.since is None else parsed.since.before(
                sources.store.now()),
            error=parsed.error, tracebacks=parsed.traceback)
        role_of = member_rows.roles(members.members(sources.store))
        columns: dict[str, Callable[[Failing], object]] = {
            'Job': lambda dead: dead.job,
            'Object': lambda dead: dead.object,
            'Tick': lambda dead: wording.moment(dead.tick),
            'Attempt': lambda dead: dead.attempt,
            'Worker': lambda dead: dead.worker,
            'Role': lambda dead: role_of(dead.worker),
            'At': lambda dead: wording.moment(dead.at),
            'In a row': lambda dead: dead.runs,
            'State': lambda dead: dead.state.value,
            'Error': lambda dead: wording.one_line(dead.error)}
        if parsed.traceback:
            columns['Traceback'] = lambda dead: cells.Lines(dead.traceback)
        self.columns = columns
        self.empty = (
            'No object has failed without a later success'
            if parsed.object is None else
            f'Object {parsed.object!r} has not failed without a later '
            'success') + ''.join(
            f' {words}' for words, given in (
                (parsed.since and parsed.since.phrase, parsed.since),
                (f'with {parsed.error!r} in its error', parsed.error))
            if given) + '.'
        return found
