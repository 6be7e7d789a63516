# SPDX-License-Identifier: Apache-2.0
"""``distperiodic history``: the outcome of each tick."""

import argparse
import collections
import operator
from collections.abc import Callable
from collections.abc import Sequence
from typing import TYPE_CHECKING
from typing import Any

from distperiodic.cmd import configured
from distperiodic.cmd import display
from distperiodic.cmd.session import Session
from distperiodic.core.histogram import Histogram
from distperiodic.core.outcomes import OUTCOMES
from distperiodic.operator.member_rows import MemberRow
from distperiodic.operator.member_rows import slots
from distperiodic.operator.member_rows import topics

if TYPE_CHECKING:
    from distperiodic.operator.activity import Load
    from distperiodic.operator.activity import Ticked

_ALWAYS = ('Job', 'Tick', 'Due', 'Done', 'Mean late (ms)', 'Most late (ms)',
           'Mean run (ms)')


def _times(kind: str, longest: str,
           histogram: 'Callable[[Ticked], Histogram]'
           ) -> 'dict[str, Callable[[Ticked], object]]':
    """Return the columns of times, which are empty until a run has ended."""
    def milliseconds(micros: float | None) -> object:
        return (display.Cell('', None) if micros is None
                else round(micros / 1000))
    return {
        f'Mean {kind} (ms)': lambda tick: milliseconds(histogram(tick).mean),
        f'P95 {kind} (ms)': lambda tick: milliseconds(
            histogram(tick).quantile(0.95)),
        f'{longest} {kind} (ms)': lambda tick: milliseconds(
            histogram(tick).max if histogram(tick).count else None)}


class History(display.List['Ticked']):
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

    columns = {
        'Job': lambda tick: tick.job,
        'Tick': lambda tick: configured.moment(tick.tick),
        # The numbers of objects by outcome.
        **{outcome.title: operator.attrgetter(f'counts.{name}')
           for name, outcome in OUTCOMES.items() if outcome.title},
        'Processes': lambda tick: tick.members,
        **_times('late', 'Most', lambda tick: tick.late),
        **_times('run', 'Longest', lambda tick: tick.ran),
        'Reason': lambda tick: display.Cell(_reason(tick), tick.reason)}

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        configured.add_job(parser)
        parser.add_argument(
            '--since', type=configured.since, default='1h', metavar='TIME',
            help='show the ticks since TIME: an age such as 90s, 30m, 1h or '
                 '7d, or an instant in UTC; default: 1h')
        configured.add_limit(parser, 'ticks')

    def fetch(self, session: Session) -> 'list[Ticked]':
        from distperiodic.operator import activity
        from distperiodic.operator import members
        parsed = session.parsed
        job = configured.job_of(parsed)
        store = session.store
        since = parsed.since.before(store.now())
        ticks = activity.history(
            store, job=job, since=since, limit=parsed.limit)
        loads = activity.loads(store, since)
        rows = members.members(store)
        self.empty = (
            f'No tick {parsed.since.phrase}; give an earlier --since, or '
            'check the last tick of each job: distperiodic job list.')
        self.cut = (f'The newest {configured.plural(len(ticks), "tick")}; '
                    'see --limit.')
        if ticks and job is None:
            self.sentence = _use_of_slots(
                loads, rows, session.settings.session_timeout)
        return ticks

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
