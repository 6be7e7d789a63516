# SPDX-License-Identifier: Apache-2.0
"""``distperiodic history``: the outcome of each tick."""

import argparse
import collections
from collections.abc import Sequence
from typing import TYPE_CHECKING
from typing import Any

from cliff import lister

from distperiodic.cmd import configured
from distperiodic.cmd import display
from distperiodic.core.outcomes import OUTCOMES

if TYPE_CHECKING:
    from distperiodic.core.histogram import Histogram
    from distperiodic.operator.activity import Load
    from distperiodic.operator.activity import Ticked
    from distperiodic.operator.member_rows import MemberRow

_ALWAYS = ('Job', 'Tick', 'Due', 'Done', 'Mean late (ms)', 'Most late (ms)',
           'Mean run (ms)')
# Columns of the times of runs. They are empty until a run has ended.
_TIMES = ('Mean late (ms)', 'P95 late (ms)', 'Most late (ms)',
          'Mean run (ms)', 'P95 run (ms)', 'Longest run (ms)')
# Headings of the numbers of objects, by the names of the numbers.
_TITLES = {name: outcome.title for name, outcome in OUTCOMES.items()
           if outcome.title}


class History(display.Table, lister.Lister):
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
                    ) -> tuple[Sequence[str], list[Sequence[object]]]:
        from distperiodic.operator.activity import Activity
        from distperiodic.operator.members import MemberQueries
        job = configured.job_of(parsed)
        settings = self.database(parsed)
        with self.store(parsed, Activity) as activity:
            since = parsed.since.before(activity.group.now())
            ticks = activity.history(
                job=job, since=since, limit=parsed.limit)
            loads = activity.loads(since)
        with self.store(parsed, MemberQueries) as queries:
            members = queries.members()
        if not ticks:
            self.sentence = (
                f'No tick {parsed.since.phrase}; give an earlier --since, or '
                'check the last tick of each job: distperiodic job list.')
        elif len(ticks) == parsed.limit:
            self.sentence = (
                f'The newest {configured.plural(len(ticks), "tick")}; '
                'see --limit.')
        if ticks and job is None:
            self.sentence = ' '.join(filter(None, [
                self.sentence, _use_of_slots(
                    loads, members, settings.session_timeout)]))
        none = None if parsed.formatter in display.FOR_PROGRAMS else ''

        def times(*histograms: 'Histogram') -> list[object]:
            return [none if value is None else round(value / 1000)
                    for one in histograms for value in (
                        one.mean, one.quantile(0.95),
                        one.max if one.count else None)]
        return (('Job', 'Tick', *_TITLES.values(), 'Processes', *_TIMES,
                 'Reason'),
                [(tick.job, configured.moment(tick.tick),
                  *(getattr(tick.counts, name) for name in _TITLES),
                  tick.members, *times(tick.late, tick.ran),
                  _reason(tick) if none == '' else tick.reason)
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


def _use_of_slots(loads: 'Sequence[Load]', members: 'Sequence[MemberRow]',
                  session_timeout: float) -> str:
    """Return a sentence that compares the work with the slots."""
    from distperiodic.operator.member_rows import slots
    from distperiodic.operator.member_rows import topics
    by_job, found = topics(members), slots(members, session_timeout)
    needed: dict[str, float] = collections.defaultdict(float)
    busy: dict[str, float] = collections.defaultdict(float)
    for load in loads:
        topic = by_job.get(load.job)
        if topic is not None and topic in found:
            needed[topic] += load.needed
            busy[topic] += load.busy
    return ' '.join(
        f'Partition {topic} needs {needed[topic]:.1f} of its '
        f'{found[topic]:,} slots on average, and {busy[topic]:.1f} were busy.'
        for topic in sorted(found) if needed[topic] or busy[topic])


def _reason(tick: 'Ticked') -> str:
    """Return the reason, with the number of objects that it concerns.

    Without the number, one skipped object among many would read as if the
    whole tick had been skipped.
    """
    counts = tick.counts
    if tick.reason and counts.skipped:
        return f'{counts.skipped:,} of {counts.due:,} skipped: {tick.reason}'
    return tick.reason
