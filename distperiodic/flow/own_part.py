# SPDX-License-Identifier: Apache-2.0
"""How one member claims its part of the ring, and what it takes down of the
ticks that it does not run.
"""

import logging
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

from distperiodic import ports
from distperiodic.core import job as job_
from distperiodic.core import member as member_
from distperiodic.core import schedule
from distperiodic.core.claim import SkippedBy
from distperiodic.core.schedule import Instant
from distperiodic.flow import claiming
from distperiodic.flow import clockwork as clockwork_
from distperiodic.flow.clockwork import JobState
from distperiodic.flow.clockwork import What

LOG = logging.getLogger(__name__)


class OwnPart:
    """One member's part.

    :param identity: its name on the ring.
    :param shared: whether all members claim in one store.
    """

    def __init__(self, clock: ports.Clock, claimer: claiming.Claimer,
                 clockwork: clockwork_.Clockwork, *, identity: str,
                 shared: bool):
        self.identity = identity
        self.shared = shared
        self.claimer = claimer
        self.clockwork = clockwork
        #: When this process began.
        self.began = clock.now()
        self.counts = claimer.counts
        #: Job, number and reason of what was dropped and not told yet.
        self._dropped: list[tuple[str, int, str]] = []

    def ids(self, view: member_.View, reading: clockwork_.Reading,
            of: str | None = None) -> list[str]:
        """Objects without a schedule of their own.

        :param of: the member whose part it is; default: ours.
        """
        ids = reading.catalogue.subset_ids(view.ring, of or self.identity)
        if reading.schedules:
            ids = [i for i in ids if i not in reading.schedules]
        return ids

    def fresh(self, job: job_.Job, tick: Instant) -> bool:
        """Whether *tick* is also for objects that never had one: a tick from
        before this process began is only for those that missed it.
        """
        return (not self.shared or tick > self.began
                or job.run_immediately)

    def claim_all(self, state: JobState, ticks: tuple[Instant, ...],
                  objects: Sequence[str]) -> None:
        """Claim any number of objects, a big number in pieces."""
        self.claimer.claim_all(
            state.job, ticks, objects, self.fresh(state.job, ticks[-1]))
        self._push_pieces(state)

    def claim_own(self, job: job_.Job,
                  due: Iterable[tuple[tuple[Instant, ...], str]],
                  rules: Mapping[str, schedule.Schedule]) -> None:
        """Claim objects for ticks of their own schedules.

        :param due: ticks, and whose they are.
        :param rules: the schedules, by object.
        """
        # What an object has missed is told by its own schedule; the others
        # are claimed together, whatever theirs is.
        every = job.misfire is schedule.Misfire.ALL
        together: dict[tuple[tuple[Instant, ...], schedule.Schedule | None],
                       list[str]] = {}
        for ticks, key in due:
            if ticks:
                together.setdefault(
                    (ticks, rules[key] if every else None), []).append(key)
        for (ticks, _), keys in sorted(together.items(),
                                       key=lambda one: one[0][0]):
            self.claimer.claim(job, ticks, keys, rule=rules[keys[0]])

    def claim_piece(self, state: JobState) -> None:
        self.claimer.claim_next(state.job)
        self._push_pieces(state)

    def _push_pieces(self, state: JobState) -> None:
        if self.claimer.unfinished(state.job):
            # Later than now, so that all that is due has its turn first.
            self.clockwork.push(self.clockwork.now() + 1, state, What.PIECES)

    def miss(self, state: JobState, number: int, before: Instant,
             reason: str) -> None:
        """That many ticks are not run, the last ones before *before*."""
        name = state.job.name
        self.counts[name, 'missed'] += number
        self._dropped.append((name, number, reason))
        state.missed = (
            state.missed[0] + number,
            state.job.schedule.at_or_before(before - 1) or before, reason)

    def settle_missed(self, state: JobState,
                      objects: Sequence[str]) -> None:
        """Have it taken down what *objects* of ours have missed."""
        number, newest, reason = state.missed
        if number:
            state.missed = 0, newest, ''
            self.claimer.settle(state.job, newest, objects,
                                SkippedBy.MISFIRE, reason,
                                state.job.schedule)

    def tell(self) -> None:
        """Log what was dropped since the last time."""
        if not self._dropped:
            return
        # A process that stood still has missed ticks of all its jobs.
        dropped, self._dropped = self._dropped, []
        name, _, reason = dropped[0]
        LOG.warning(
            'ticks dropped: jobs=%d number=%d first=%s reason=%s',
            len({d[0] for d in dropped}), sum(d[1] for d in dropped), name,
            reason)
        for name, number, reason in dropped[1:]:
            LOG.debug('ticks dropped: job=%s number=%d reason=%s', name,
                      number, reason)
