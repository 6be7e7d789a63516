# SPDX-License-Identifier: Apache-2.0
"""How late runs begin and how long they last, for the history of ticks.

Each process collects one pair of histograms for each job and tick. When it
records results, it writes the whole pair to its row of the history::

    executor ── timings ──► RunTimeBook ── texts ──► store, with the results

A text replaces the previous one of the same process. So a repeated call to the
store counts nothing twice, and no statement reads the row.
"""

import collections
import dataclasses
from collections.abc import Callable
from collections.abc import Sequence

from distperiodic import ports
from distperiodic.core import message
from distperiodic.core import telemetry
from distperiodic.core.histogram import Histogram
from distperiodic.core.job import Job
from distperiodic.core.ring import position_of
from distperiodic.core.schedule import SECOND
from distperiodic.core.schedule import Instant
from distperiodic.core.schedule import phase_us

#: Number of objects of one tick of a job that a process names as late by more
#: than a period. Further ones are only counted as late: while the group is
#: behind, the records of all of them would hold it back.
MOST_NAMED = 1_000
# Number of ticks, of all jobs, whose histograms are kept. Runs of a tick that
# end after the runs of this number of other ticks replace the histograms of
# the earlier runs of their tick.
_KEPT = 10_000


@dataclasses.dataclass(slots=True)
class _Pair:
    started: Histogram
    ran: Histogram
    #: Microseconds from the tick to the next one. 0 means that the tick is not
    #: one of the job's schedule: an object has a schedule of its own, or an
    #: operator triggered the tick. None means that it was not needed yet.
    period: int | None = None
    #: Number of objects that were named as late by more than a period.
    named: int = 0
    #: Object of the longest run. Empty means unknown.
    slowest: str = ''

    def period_of(self, job: Job, tick: Instant) -> int:
        if self.period is None:
            self.period = (job.schedule.period_us(tick) if
                           job.schedule.at_or_before(tick) == tick else 0)
        return self.period


class RunTimeBook:
    """Histograms of the runs of one process, by job and tick.

    :param now: Returns the time by the clock of the ticks.
    :param monotonic: Returns the time of the monotonic clock, in seconds.
    :param late_after: Seconds after which a start counts as late.
    :param sink: Receives the times of these runs.
    """

    def __init__(self, now: Callable[[], Instant],
                 monotonic: Callable[[], float], late_after: float,
                 sink: ports.EventSink):
        self._now = now
        self._monotonic = monotonic
        self._late_after = int(late_after * SECOND)
        self._sink = sink
        self._pairs: collections.OrderedDict[tuple[str, Instant], _Pair] = (
            collections.OrderedDict())

    def note(self, job: Job, tick: Instant, objects: Sequence[str],
             timings: Sequence[message.Timing],
             due: Sequence[Instant] = (),
             attempts: Sequence[int] = ()) -> ports.RunTimes:
        """Add runs to the histograms of a tick, and return the histograms.

        :param objects: Objects of the batch to which the indexes in *timings*
            refer.
        :param due: Instant at which each object was due. Empty means that the
            schedule of the job determines this instant.
        :param attempts: Attempt of each object. Empty means that the caller
            does not need the objects that began more than a period late.
        """
        if not timings:
            return ports.NO_TIMES
        key = job.name, tick
        pair = self._pairs.get(key)
        if pair is None:
            pair = self._pairs[key] = _Pair(Histogram(), Histogram())
            if len(self._pairs) > _KEPT:
                self._pairs.popitem(last=False)
        else:
            self._pairs.move_to_end(key)
        # The clock of the ticks when the monotonic clock was zero.
        base = self._now() - int(self._monotonic() * SECOND) - tick
        late, behind = 0, list[str]()
        began_late: list[tuple[float, int]] = []
        for index, first, number, began, seconds in timings:
            longest = pair.ran.max
            pair.ran.add(int(seconds * SECOND) // number, number)
            if pair.ran.max > longest:
                pair.slowest = objects[index] if number == 1 else ''
            if not first:
                continue
            lateness = base + int(began * SECOND)
            if due:
                lateness -= due[index] - tick
            elif job.spread and (period := pair.period_of(job, tick)):
                # Objects with their own schedule have no phase.
                lateness -= phase_us(position_of(objects[index]), period)
            pair.started.add(lateness, first)
            began_late.append((lateness / SECOND, first))
            if lateness > self._late_after:
                late += first
                if attempts and not due and pair.named < MOST_NAMED and (
                        0 < pair.period_of(job, tick) < lateness):
                    named = [objects[at] for at in range(
                        index, index + number) if attempts[at] == 1]
                    behind += named
                    pair.named += len(named)
        if self._sink.open:
            self._sink.put(telemetry.RunsTimed(
                job.name, tick, began_late,
                [(one.seconds / one.runs, one.runs) for one in timings]))
        return ports.RunTimes(late, pair.started.text(), pair.ran.text(),
                              tuple(behind), pair.slowest)
