# SPDX-License-Identifier: Apache-2.0
"""Objects that do not begin with the tick of their job: those with a phase in
its period, and those with a schedule of their own.

What of them is due and ours is claimed here; see
:mod:`distperiodic.flow.own_time` for when that is.
"""

from collections.abc import Sequence

from distperiodic.core import member as member_
from distperiodic.core import schedule
from distperiodic.core.claim import SkippedBy
from distperiodic.core.schedule import Instant
from distperiodic.flow import own_time
from distperiodic.flow.clockwork import JobState
from distperiodic.flow.clockwork import Reading
from distperiodic.flow.own_part import OwnPart


class OffGrid:
    """For all jobs of one member."""

    def __init__(self, part: OwnPart):
        self._part = part
        self._claimer = part.claimer
        self._clockwork = part.clockwork

    # -- a schedule of its own

    def own_due(self, state: JobState, now: Instant,
                view: member_.View) -> None:
        """Claim what is due and ours of objects with their own schedule."""
        job = state.job
        ours: list[tuple[tuple[Instant, ...], str]] = []
        due = state.own.take(now)
        for key, first, newest in due:
            if view.ring.owner_of(key) == self._part.identity:
                ticks: tuple[Instant, ...] = (newest,)
                if first != newest or job.grace is not None:
                    ticks = self._caught_up(state, key, first, now)
                ours.append((ticks, key))
        self._part.claim_own(job, ours, state.own.schedules)
        self._clockwork.push_own(state, now, len(due))

    def _caught_up(self, state: JobState, key: str, first: Instant,
                   now: Instant) -> tuple[Instant, ...]:
        """What the misfire policy runs of an object's own ticks."""
        job = state.job
        rule = state.own.schedules[key]
        newest = rule.at_or_before(now) or first
        grace = (rule.period_us(newest) if job.grace is None
                 else job.grace_us(newest))
        due = schedule.due_ticks(
            rule, first - 1, now, job.misfire, grace_us=grace)
        if due.dropped:
            self._part.counts[job.name, 'missed'] += due.dropped
            following = due.run[0] if due.run else newest + 1
            self._claimer.settle(
                job, rule.at_or_before(following - 1) or newest, [key],
                SkippedBy.MISFIRE, due.reason, rule, since=first)
        return due.run

    # -- a phase

    def begin_wave(self, state: JobState, ticks: tuple[Instant, ...],
                   reading: Reading, now: Instant, view: member_.View,
                   since: Instant | None) -> None:
        """Begin *ticks* of objects with a phase.

        :param since: objects whose time came up to then are left out.
        """
        behind: set[str] = set()
        if state.wave is not None:
            # The last of the tick before are due by now, and no look at
            # them may have come in between.
            self._claim_wave(state, state.wave, now, view)
            if len(ticks) > 1:
                behind = state.wave.behind
        if len(ticks) > 1:
            # Periods that are over: all their objects are due.
            self._claimer.claim(state.job, ticks[:-1],
                                self._part.ids(view, reading), behind)
        state.wave = own_time.Wave(
            ticks[-1], reading.catalogue,
            state.job.schedule.period_us(ticks[-1]), since,
            behind)
        self._clockwork.push_wave(state, now)

    def wave_due(self, state: JobState, now: Instant,
                 view: member_.View) -> None:
        """Claim what is due and ours of objects with a phase."""
        if state.wave is not None:
            self._clockwork.push_wave(
                state, now, self._claim_wave(state, state.wave, now, view))

    def _claim_wave(self, state: JobState, wave: own_time.Wave, now: Instant,
                    view: member_.View) -> int:
        """Claim what is due and ours; returns how many were looked at."""
        part, job = self._part, state.job
        positions, ids = wave.catalogue.positions, wave.catalogue.ids

        def ours(indexes: Sequence[int]) -> list[str]:
            return [
                ids[i] for i in indexes
                if view.ring.owner_at(positions[i]) == part.identity
                and ids[i] not in state.own.schedules]
        if job.misfire is schedule.Misfire.SKIP and job.grace is not None:
            late = ours(wave.take(now - job.grace_us(wave.tick) - 1))
            part.counts[job.name, 'missed'] += len(late)
            self._claimer.settle(job, wave.tick, late, SkippedBy.MISFIRE,
                                 'misfire=skip and later than the grace',
                                 job.schedule)
        behind = wave.behind if wave.behind or now >= wave.end else None
        number = 0
        for until in (part.began, now):
            due = wave.take(until)
            number += len(due)
            mine = ours(due)
            if mine:
                self._claimer.claim(job, (wave.tick,), mine, behind,
                                    part.fresh(job, until))
        return number
