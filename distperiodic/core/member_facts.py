# SPDX-License-Identifier: Apache-2.0
"""Facts about one process in its report: catalogues, slots, store, view,
subscribers.

A report is JSON. It contains ages in seconds, and no instants, so that it does
not depend on the clock of the process. The reader subtracts the ages from the
instant of the report::

    monotonic times --► ages in seconds (report) --► instants (operator)

A fact that is missing or has another form is unknown: another release may have
written the report.
"""

import math
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

from distperiodic.core.schedule import SECOND
from distperiodic.core.schedule import Instant

#: Number of periods, and minimum seconds, after which a run without a timeout
#: counts as hanging.
HANGING_PERIODS, HANGING_SECONDS = 2, 5.0
# Such a run must also take longer than this multiple of the average duration
# of the runs of its job.
_UNUSUAL = 5
# Maximum age in a report, in seconds. An older age is invalid.
_MAX_SECONDS = 1e10


def hangs(age: float, period: float | None, mean: float | None) -> bool:
    """Return whether a run without a timeout counts as hanging.

    :param age: Seconds since the run began.
    :param period: Period of the job in seconds. None means that the job has no
        schedule, so none of its runs counts.
    :param mean: Average duration of the job's runs in seconds. None means that
        no run of the job has ended here.
    """
    return period is not None and age > max(
        HANGING_PERIODS * period, HANGING_SECONDS, _UNUSUAL * (mean or 0.0))


class CatalogueFact(NamedTuple):
    """A catalogue that one process cannot read, or does not finish to read.
    """

    job: str
    #: Error of the last read. Empty means that the last read did not fail.
    error: str
    #: When the first read of the present series of failures failed.
    failing_since: Instant | None
    #: When the read that has not returned yet began.
    reading_since: Instant | None
    #: When the process last read the catalogue successfully. None means never.
    read_at: Instant | None


class RunFact(NamedTuple):
    """A run in progress."""

    job: str
    object: str
    tick: Instant
    #: When the handler was called.
    since: Instant
    #: Timeout of the run, in seconds. None means no timeout.
    timeout: float | None


class PoolFact(NamedTuple):
    """The slots of one process for one partition."""

    partition: str
    size: int
    #: Number of slots that run a handler, including hanging runs without a
    #: timeout.
    busy: int
    #: Number of objects that wait for a slot.
    queued: int
    #: Number of runs that hang: their timeout has expired but their handler
    #: has not returned, or they have no timeout and :func:`hangs` applies. A
    #: run after its timeout occupies no slot, because its thread was replaced.
    hanging: int
    #: The run that has lasted longest, without runs after their timeout.
    oldest: RunFact | None
    #: The hanging runs that began first.
    hanging_runs: list[RunFact]

    @property
    def free(self) -> int:
        return max(0, self.size - self.busy)


class StoreFact(NamedTuple):
    """The recent calls of one process to its store; times in seconds."""

    #: Number of calls that were measured.
    calls: int
    #: Median and maximum duration of these calls.
    p50: float
    max: float
    #: Number of calls without an answer, and the time since the oldest of
    #: them began to be executed or repeated.
    queued: int
    waits: float
    #: Since when the store has been slow. None means that it is not slow.
    slow_since: Instant | None
    #: True if the store has refused the last call, which is repeated.
    away: bool = False


class ViewFact(NamedTuple):
    """The view that one process has of its group."""

    #: See :func:`distperiodic.core.member.ring_digest`.
    digest: str
    #: Number of members.
    members: int
    since: Instant | None
    #: True if the process may act on the view.
    trusted: bool


class SubscriberFact(NamedTuple):
    """A subscriber to the events of one process that does not receive all.
    """

    name: str
    #: Error of the last call that has failed lately. Empty means none.
    error: str
    #: Number of events dropped, if some were dropped lately.
    dropped: int
    #: When the call that has not returned yet began.
    calling_since: Instant | None


class ProcessReport:
    """Reader of the facts in the report of one process.

    :param state: The report.
    :param at: Instant of the report, in microseconds of the reader's clock.
    """

    def __init__(self, state: Mapping[str, Any], at: Instant):
        self._state = state
        self._at = at

    def _instant(self, age: object) -> Instant | None:
        seconds = _seconds(age)
        return None if seconds is None else self._at - round(
            seconds * SECOND)

    @property
    def started(self) -> Instant | None:
        """When the process started. None means unknown."""
        return self._instant(self._state.get('up_s'))

    @property
    def unhealthy_since(self) -> Instant | None:
        """Since when the process has not been healthy.

        None means that it is healthy, or unknown.
        """
        return self._instant(self._state.get('unhealthy_s'))

    @property
    def catalogues(self) -> list[CatalogueFact]:
        return [CatalogueFact(
            _text(one, 'job'), _text(one, 'error'),
            self._instant(one.get('failing_s')),
            self._instant(one.get('reading_s')),
            self._instant(one.get('read_s')))
            for one in _dicts(self._state.get('catalogues'))]

    @property
    def pools(self) -> list[PoolFact]:
        pools, slots = (_dict(self._state.get(name))
                        for name in ('pools', 'slots'))
        found = []
        for name in sorted(pools):
            pool, more = _dict(pools[name]), _dict(slots.get(name))
            oldest = self._runs([more.get('oldest')])
            found.append(PoolFact(
                name, _number(pool, 'size'), _number(pool, 'busy'),
                _number(pool, 'queued'),
                max(_number(pool, 'hanging'), _number(more, 'hanging')),
                oldest[0] if oldest else None,
                self._runs(more.get('hanging_runs'))))
        return found

    def _runs(self, runs: object) -> list[RunFact]:
        found = []
        for one in _dicts(runs):
            since = self._instant(one.get('age_s'))
            if since is not None:
                found.append(RunFact(
                    _text(one, 'job'), _text(one, 'object'),
                    _number(one, 'tick'), since,
                    _seconds(one.get('timeout_s'))))
        return found

    @property
    def store(self) -> StoreFact | None:
        """None means that the process has no store, or unknown."""
        found = _dicts([self._state.get('store')])
        if not found:
            return None
        [store] = found
        p50, most, waits = (_seconds(store.get(name)) or 0.0
                            for name in ('p50_s', 'max_s', 'waits_s'))
        return StoreFact(
            _number(store, 'calls'), p50, most, _number(store, 'queued'),
            waits, self._instant(store.get('slow_s')),
            store.get('away') is True)

    @property
    def broker(self) -> str:
        """Reason why the process cannot reach its broker. Empty means that the
        broker answers, or that this is unknown.
        """
        return _text(self._state, 'broker')

    @property
    def metrics(self) -> str:
        """Reason why the process cannot serve its metrics. Empty means that
        they are served, or that this is unknown.
        """
        return _text(self._state, 'metrics')

    @property
    def spans(self) -> str:
        """Reason why the process creates no spans. Empty means that it can
        create them, that it must not, or that this is unknown.
        """
        return _text(self._state, 'spans')

    @property
    def subscribers(self) -> list[SubscriberFact]:
        return [SubscriberFact(
            _text(one, 'name'), _text(one, 'error'), _number(one, 'dropped'),
            self._instant(one.get('calling_s')))
            for one in _dicts(self._state.get('subscribers'))]

    @property
    def clock_ahead(self) -> float | None:
        """Seconds by which the clock of the process is ahead of the store's
        clock. None means unknown.
        """
        ahead = self._state.get('clock_ahead_s')
        if not isinstance(ahead, int | float):
            return None
        seconds = _seconds(abs(ahead))
        return None if seconds is None else math.copysign(seconds, ahead)

    @property
    def view(self) -> ViewFact | None:
        """None means that the process has no view of its group."""
        found = _dicts([self._state.get('view')])
        return ViewFact(
            _text(found[0], 'digest'), _number(found[0], 'members'),
            self._instant(found[0].get('age_s')),
            found[0].get('trusted') is True) if found else None


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _dicts(values: object) -> list[dict[str, Any]]:
    return [one for one in values if isinstance(one, dict)] if isinstance(
        values, list) else []


def _seconds(value: object) -> float | None:
    # JSON knows infinity and NaN, from which no instant can be computed.
    return float(value) if isinstance(value, int | float) and (
        not isinstance(value, bool) and 0 <= value <= _MAX_SECONDS) else None


def _text(values: Mapping[str, Any], name: str) -> str:
    value = values.get(name)
    return value if isinstance(value, str) else ''


def _number(values: Mapping[str, Any], name: str) -> int:
    value = values.get(name)
    return value if type(value) is int else 0
