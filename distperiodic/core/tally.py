# SPDX-License-Identifier: Apache-2.0
"""Values of the metrics of one process, or of several processes together.

    events ──► Tally ──► JSON ──► sum of the Tallies of all processes

A tally is not thread-safe.
"""

import bisect
import itertools
import json
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

from distperiodic.core import metric_table as table
from distperiodic.core import telemetry
from distperiodic.core.metric_table import MergedBy
from distperiodic.core.metric_table import Metric
from distperiodic.core.metric_table import MetricKind
from distperiodic.core.metric_table import MetricSource

#: Upper bounds of the buckets of each histogram, inclusive, in seconds. One
#: more bucket has no upper bound.
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
           30.0, 60.0, 300.0, 900.0, 3600.0)


class Key(NamedTuple):
    """A metric, and the values of its labels."""

    metric: str
    labels: tuple[str, ...]


class Distribution:
    """Numbers of times by bucket, and the sum of the times in seconds."""

    __slots__ = ('buckets', 'sum')

    def __init__(self) -> None:
        #: Number of times in each bucket, but not in the buckets below it.
        self.buckets = [0] * (len(BUCKETS) + 1)
        self.sum = 0.0

    def add(self, amounts: telemetry.Amounts) -> None:
        """Add times. A negative time counts as 0."""
        for seconds, number in amounts:
            if seconds < 0.0:
                seconds = 0.0
            self.buckets[bisect.bisect_left(BUCKETS, seconds)] += number
            self.sum += seconds * number

    def merge(self, other: 'Distribution') -> None:
        """Add all times of *other*."""
        self.buckets = [one + more for one, more in zip(
            self.buckets, other.buckets, strict=True)]
        self.sum += other.sum


class Tally:
    """Values of the metrics; see the docstring of this module."""

    def __init__(self) -> None:
        #: Values of counters and gauges.
        self.values: dict[Key, float] = {}
        self.distributions: dict[Key, Distribution] = {}

    def begin(self, jobs: Iterable[str]) -> None:
        """Begin the missing counters of processes at 0.

        Prometheus computes the increase of a counter from its first sample. If
        a counter began at its first event, no alert would show this event. The
        counters of tasks are left out, because the types of tasks are unknown.

        :param jobs: Names of the jobs that have counters.
        """
        values = {**table.LABEL_VALUES, 'job': tuple(jobs)}
        for metric in table.METRICS:
            if (metric.source is MetricSource.PROCESS
                    and metric.kind is MetricKind.COUNTER
                    and values.keys() >= set(metric.labels)):
                for labels in itertools.product(
                        *(values[label] for label in metric.labels)):
                    self.values.setdefault(Key(metric.name, labels), 0)

    def add(self, event: telemetry.Event) -> None:
        """Count *event*."""
        _COUNT[type(event)](self, event)

    def count(self, metric: Metric, *labels: str, number: float = 1) -> None:
        """Add *number* to a counter, or to a gauge of this process."""
        key = Key(metric.name, labels)
        self.values[key] = self.values.get(key, 0) + number

    def set(self, metric: Metric, *labels: str, value: float) -> None:
        """Set a gauge."""
        self.values[Key(metric.name, labels)] = value

    def observe(self, metric: Metric, *labels: str,
                amounts: telemetry.Amounts) -> None:
        """Add times to a histogram."""
        key = Key(metric.name, labels)
        found = self.distributions.get(key)
        if found is None:
            found = self.distributions[key] = Distribution()
        found.add(amounts)

    def merge(self, other: 'Tally') -> None:
        """Add the values of another process."""
        for key, value in other.values.items():
            known = self.values.get(key)
            if known is None:
                self.values[key] = value
            elif table.BY_NAME[key.metric].merged_by is MergedBy.MAX:
                self.values[key] = max(known, value)
            else:
                self.values[key] = known + value
        for key, found in other.distributions.items():
            self.distributions.setdefault(key, Distribution()).merge(found)

    def without_gauges(self) -> 'Tally':
        """Return the values that remain valid when the process has ended."""
        kept = Tally()
        kept.merge(self)
        kept.values = {
            key: value for key, value in kept.values.items()
            if table.BY_NAME[key.metric].kind is MetricKind.COUNTER}
        return kept

    def text(self) -> str:
        """Return the values as JSON."""
        return json.dumps({
            'values': [[*key, value] for key, value in self.values.items()],
            'distributions': [
                [*key, found.buckets, found.sum]
                for key, found in self.distributions.items()]})

    @classmethod
    def parse(cls, text: str) -> 'Tally':
        """Return the tally of a text that :meth:`text` has returned.

        Metrics that this release does not have are left out.

        :raises ValueError: The text is not of this form.
        """
        tally = cls()
        try:
            found = json.loads(text)
            for metric, labels, value in found['values']:
                if metric in table.BY_NAME:
                    tally.values[Key(metric, tuple(labels))] = float(value)
            for metric, labels, buckets, total in found['distributions']:
                if metric in table.BY_NAME and (
                        len(buckets) == len(BUCKETS) + 1):
                    one = tally.distributions[
                        Key(metric, tuple(labels))] = Distribution()
                    one.buckets, one.sum = buckets, total
        except (KeyError, TypeError) as exc:
            raise ValueError(f'not a tally: {exc}') from exc
        return tally


def _claimed(tally: Tally, event: telemetry.ObjectsClaimed) -> None:
    path = event.path.value
    tally.count(table.CLAIMS, event.job, path, number=event.objects)
    tally.observe(table.CLAIM_DELAY, event.job, path,
                  amounts=((event.delay, event.objects),))


def _started(tally: Tally, event: telemetry.RunsStarted) -> None:
    tally.count(table.RUNS_STARTED, event.job, number=event.objects)
    tally.observe(table.RUN_WAITING, event.job, amounts=event.waited)


def _timed(tally: Tally, event: telemetry.RunsTimed) -> None:
    tally.observe(table.RUN_LATENESS, event.job, amounts=event.lateness)
    tally.observe(table.RUN_DURATION, event.job, amounts=event.durations)


def _listed(tally: Tally, event: telemetry.CatalogueListed) -> None:
    tally.count(table.CATALOGUE_READS, event.job, 'read')
    tally.set(table.CATALOGUE_OBJECTS, event.job, value=event.objects)


def _by_objects(metric: Metric) -> Callable[[Tally, Any], None]:
    """Return a function that counts the objects of an event by job."""
    def count(tally: Tally, event: Any) -> None:
        tally.count(metric, event.job, number=event.objects)
    return count


_COUNT: Mapping[type[telemetry.Event], Callable[[Tally, Any], None]] = {
    telemetry.TickDue: lambda tally, event: tally.count(
        table.TICKS_DUE, event.job),
    telemetry.ObjectsClaimed: _claimed,
    telemetry.BatchDispatched: _by_objects(table.DISPATCHED),
    telemetry.RunsStarted: _started,
    telemetry.RunsTimed: _timed,
    telemetry.RunsEnded: lambda tally, event: tally.count(
        table.RUNS, event.job, event.outcome.value, number=event.objects),
    telemetry.RunsRetried: lambda tally, event: tally.count(
        table.RUNS, event.job, telemetry.RunOutcome.RETRIED.value,
        number=event.objects),
    telemetry.ResultsRejected: _by_objects(table.FENCED),
    telemetry.LeaseLost: _by_objects(table.LEASES_LOST),
    telemetry.ClaimsTakenOver: _by_objects(table.TAKEN_OVER),
    telemetry.ClaimsReclaimed: _by_objects(table.RECLAIMED),
    telemetry.TicksSkipped: lambda tally, event: tally.count(
        table.TICKS_SKIPPED, event.job, event.cause.value,
        number=event.ticks),
    telemetry.TicksLost: lambda tally, event: tally.count(
        table.TICKS_LOST, event.job, number=event.ticks),
    telemetry.CatalogueListed: _listed,
    telemetry.CatalogueFailed: lambda tally, event: tally.count(
        table.CATALOGUE_READS, event.job, 'failed'),
    telemetry.MemberJoined: lambda tally, event: tally.count(
        table.MEMBER_CHANGES, event.role.value, 'joined'),
    telemetry.MemberLeft: lambda tally, event: tally.count(
        table.MEMBER_CHANGES, event.role.value, 'left'),
    telemetry.MemberActive: lambda tally, event: None,
    telemetry.TaskMoved: lambda tally, event: tally.count(
        table.TASKS, event.type, event.status.value),
    telemetry.QueueHalted: lambda tally, event: tally.count(
        table.QUEUES_HALTED),
    telemetry.MessageRefused: lambda tally, event: tally.count(
        table.REJECTED_MESSAGES),
}
