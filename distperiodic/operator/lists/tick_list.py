# SPDX-License-Identifier: Apache-2.0
"""The outcomes of ticks."""

import argparse
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING

from distperiodic.core import wording
from distperiodic.core.histogram import Histogram
from distperiodic.core.outcomes import OUTCOMES
from distperiodic.operator import capacity
from distperiodic.operator import cells
from distperiodic.operator import filters
from distperiodic.operator.sources import Sources

if TYPE_CHECKING:
    from distperiodic.operator.activity import Ticked


def _times(kind: str, longest: str,
           histogram: 'Callable[[Ticked], Histogram]'
           ) -> 'dict[str, Callable[[Ticked], object]]':
    """Return the columns of times, which are empty until a run has ended."""
    def milliseconds(micros: float | None) -> object:
        return (cells.Cell('', None) if micros is None
                else round(micros / 1000))
    return {
        f'Mean {kind} (ms)': lambda tick: milliseconds(histogram(tick).mean),
        f'P95 {kind} (ms)': lambda tick: milliseconds(
            histogram(tick).quantile(0.95)),
        f'{longest} {kind} (ms)': lambda tick: milliseconds(
            histogram(tick).max if histogram(tick).count else None)}


class Ticks(cells.DeclaredList['Ticked']):
    """Show the outcome of each tick as numbers of objects, the newest first.

    The column Due is the sum of Done, Dead, Skipped, Superseded, Cancelled and
    Open. The column Skipped is the sum of Misfire, Overlap, Paused and Lost.

    Lateness is the time from the instant at which an object was due to the
    start of its first run, in milliseconds. Objects that were not started have
    no lateness: see the columns Superseded and Open. P95 means that 95 % of
    the values are not greater. The column
    Retried is the number of attempts that failed and were retried. The column
    Taken over is the number of claims that were taken over from processes that
    were gone or silent. The column Processes is the number of schedulers and
    workers that took part. Entries without a process, such as those of a
    trigger or a requeue, count as one more. The column Slowest object is the
    object of the longest run; it is empty if all runs were short.

    A table omits empty columns; select them with -c.
    """

    columns = {
        'Job': lambda tick: tick.job,
        'Tick': lambda tick: wording.moment(tick.tick),
        # The numbers of objects by outcome.
        **{outcome.title: operator.attrgetter(f'counts.{name}')
           for name, outcome in OUTCOMES.items() if outcome.title},
        'Processes': lambda tick: tick.members,
        **_times('late', 'Most', lambda tick: tick.late),
        **_times('run', 'Longest', lambda tick: tick.ran),
        'Slowest object': lambda tick: tick.slowest,
        'Reason': lambda tick: cells.Cell(_reason(tick), tick.reason)}

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        filters.add_job(parser)
        parser.add_argument(
            '--since', type=filters.since, default='1h', metavar='TIME',
            help='show the ticks since TIME: an age such as 90s, 30m, 1h or '
                 '7d, or an instant in UTC; default: 1h')
        filters.add_limit(parser, 'ticks')

    def fetch(self, sources: Sources) -> 'list[Ticked]':
        from distperiodic.operator import activity
        from distperiodic.operator import members
        parsed = sources.parsed
        job = filters.job_of(parsed)
        store = sources.store
        since = parsed.since.before(store.now())
        ticks = activity.history(
            store, job=job, since=since, limit=parsed.limit)
        loads = activity.loads(store, since)
        rows = members.members(store)
        self.empty = (
            f'No tick {parsed.since.phrase}; give an earlier --since, or '
            'check the last tick of each job: distperiodic job list.')
        self.cut = (f'The newest {wording.plural(len(ticks), "tick")}; '
                    'see --limit.')
        if ticks and job is None:
            self.sentence = ' '.join(
                f'Partition {one.partition} needs {one.needed:.1f} of its '
                f'{one.slots:,} slots on average, and {one.busy:.1f} were '
                'busy.' for one in capacity.of_loads(
                    loads, rows, sources.settings.session_timeout))
        return ticks


def _reason(tick: 'Ticked') -> str:
    """Return the reason, with the number of objects that it concerns.

    Without the number, one skipped object among many would read as if the
    whole tick had been skipped.
    """
    counts = tick.counts
    if tick.reason and counts.skipped:
        return f'{counts.skipped:,} of {counts.due:,} skipped: {tick.reason}'
    return tick.reason
