# SPDX-License-Identifier: Apache-2.0
"""``distperiodic history``: the outcome of each tick."""

import argparse
from collections.abc import Sequence
from typing import Any

from cliff import lister

from distperiodic.cmd import configured
from distperiodic.cmd import display

_ALWAYS = ('Job', 'Tick', 'Due', 'Done', 'Mean late (ms)', 'Most late (ms)')


class History(display.Table, lister.Lister):
    """Show the outcome of each tick as numbers of objects, the newest first.

    The column Due is the sum of Done, Dead, Skipped, Superseded, Cancelled and
    Open. The column Skipped is the sum of Misfire, Overlap, Paused and Lost.

    Lateness is the time from a tick to its claims, in milliseconds. The column
    Retried is the number of attempts that failed and were retried. The column
    Taken over is the number of claims that were taken over from processes that
    were gone or silent. The column Processes is the number of schedulers and
    workers that took part. Entries without a process, such as those of a
    trigger or a requeue, count as one more.

    A table omits empty columns; select them with -c.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        configured.add_job(parser)
        parser.add_argument(
            '--since', type=configured.since, default='1h', metavar='TIME',
            help='show the ticks since TIME: an age such as 90s, 30m, 1h or '
                 '7d, or an instant in UTC; default: 1h')
        configured.add_limit(parser, 'ticks')
        return parser

    def take_action(self, parsed: argparse.Namespace
                    ) -> tuple[Sequence[str], list[Sequence[Any]]]:
        from distperiodic.operator.activity import Activity
        job = configured.job_of(parsed)
        with self.store(parsed, Activity) as activity:
            ticks = activity.history(
                job=job,
                since=parsed.since.before(activity.group.now()),
                limit=parsed.limit)
        if not ticks:
            self.sentence = (
                f'No tick {parsed.since.phrase}; give an earlier --since, or '
                'check the last tick of each job: distperiodic job list.')
        elif len(ticks) == parsed.limit:
            self.sentence = (
                f'The newest {configured.plural(len(ticks), "tick")}; '
                'see --limit.')
        none = None if parsed.formatter in display.FOR_PROGRAMS else ''
        return (('Job', 'Tick', 'Due', 'Done', 'Dead', 'Skipped',
                 'Misfire', 'Overlap', 'Paused', 'Lost', 'Superseded',
                 'Cancelled', 'Open', 'Retried', 'Taken over',
                 'Processes', 'Mean late (ms)',
                 'Most late (ms)', 'Reason'),
                [(tick.job, configured.moment(tick.tick), tick.due,
                  tick.done, tick.dead, tick.skipped, tick.by_misfire,
                  tick.by_overlap, tick.by_pause, tick.by_lost,
                  tick.superseded, tick.cancelled, tick.open, tick.retried,
                  tick.taken_over,
                  tick.members,
                  # Only claimed objects have a lateness.
                  *((tick.mean, tick.latest) if tick.due > tick.skipped
                    else (none, none)), tick.reason)
                 for tick in ticks])

    def produce_output(self, parsed: argparse.Namespace,
                       columns: Sequence[str], data: Any) -> int:
        if parsed.formatter == 'table' and not parsed.columns:
            shown = [name for at, name in enumerate(columns)
                     if name in _ALWAYS or any(row[at] for row in data)]
            data = [[row[columns.index(name)] for name in shown]
                    for row in data]
            columns = shown
        return super().produce_output(parsed, columns, data)
