# SPDX-License-Identifier: Apache-2.0
"""What nobody has claimed.

The ring decides who tries first; the store decides who may. So whatever its
owner has not claimed in time, any member may. Each looks at what it has not
asked for of its own part, and at the part of one other member, a different
one at each tick::

    tick                      tick + late_after
     |--- owners claim ---------|--- a look at the part of the next one ---

So with members that agree each part is looked at by one more than its owner,
and what two of them disagree about is claimed by whoever looks first. What
was looked at is looked at again only when the ring changes. Where a catalogue
method gives the objects of a part alone, it is asked once more, for the part
of that other member.
"""

from collections.abc import Sequence

from distperiodic.core import job as job_
from distperiodic.core import member as member_
from distperiodic.core.schedule import SECOND
from distperiodic.core.schedule import Instant
from distperiodic.flow import own_time
from distperiodic.flow.clockwork import LOOK_AGAIN
from distperiodic.flow.clockwork import JobState
from distperiodic.flow.clockwork import Reading
from distperiodic.flow.clockwork import What
from distperiodic.flow.own_part import OwnPart


class Late:
    """For all jobs of one member.

    :param after: seconds, but at most half a period, after which what its
        owner has not claimed is claimed by others.
    """

    def __init__(self, part: OwnPart, after: float):
        self._part = part
        self._claimer = part.claimer
        self._clockwork = part.clockwork
        self._after = int(after * SECOND)

    def expect(self, state: JobState) -> None:
        """A tick begins: look after it in time."""
        self._clockwork.push(
            state.last + self._grace(state), state, What.LATE)

    def _grace(self, state: JobState) -> Instant:
        """How late a tick is when others than its owner claim it."""
        return min(self._after, state.job.schedule.period_us(state.last) // 2)

    def look(self, state: JobState, now: Instant,
             view: member_.View) -> str | None:
        """Claim what is due and nobody has claimed.

        :returns: whose part must be read for it, since ours alone was; it
            goes on at :meth:`read`.
        """
        part, job, read = self._part, state.job, state.read
        if job.too_late(state.last, now):
            return None
        if job.scope is job_.Scope.GROUP:
            if state.last > part.began:
                self._claimer.claim(
                    job, (state.newest(state.last),), [job.name])
            return None
        if read is None or self._claimer.asked[job.name]:
            self._clockwork.push(now + LOOK_AGAIN, state, What.LATE)
            return None
        if state.partial and state.read_for is not view.ring:
            # It is of the part that was ours then. Once that of now is read
            # all of it is looked at: at this ring there was no look yet.
            return part.identity
        if state.missed[0]:
            part.settle_missed(state, part.ids(view, read))
        other = self._turn_of(state, view)
        # What was held may begin just before a tick.
        tick = state.newest(state.last)
        since, state.looked = state.looked, now
        if self._claimer.failed(job):
            since = None
        ring, claimed = state.claimed
        if (ring is not view.ring or claimed != tick or since is None
                or state.own.schedules or state.wave is not None):
            self._claim(state, tick, read, read.catalogue.subset_ids(
                view.ring, part.identity), now, since)
        if state.partial:
            state.late_since = since
        elif other is not None:
            self._claim(state, tick, read, read.catalogue.subset_ids(
                view.ring, other), now, since)
        if state.wave is not None and now < state.wave.end:
            self._clockwork.push(now + self._grace(state), state, What.LATE)
        return other if state.partial else None

    def read(self, state: JobState, tick: Instant, reading: Reading,
             now: Instant) -> None:
        """What had to be read was read, for *tick*."""
        self._claim(state, tick, reading, reading.catalogue.ids, now,
                    state.late_since)

    def _turn_of(self, state: JobState, view: member_.View) -> str | None:
        """At whose part to look for the last tick, beside our own. All take
        the same step, so that no part is left out.
        """
        members = sorted(view.ring.members)
        others = len(members) - 1
        if not others:
            return None
        turn = state.last // state.job.schedule.period_us(state.last) % others
        mine = members.index(self._part.identity)
        return members[(mine + 1 + turn) % len(members)]

    def _claim(self, state: JobState, tick: Instant, reading: Reading,
               ids: Sequence[str], now: Instant,
               since: Instant | None) -> None:
        """Claim those of *ids* whose time has come.

        :param since: the look before; what was late by then was looked at.
            None: there was none at this ring.
        """
        own: list[tuple[tuple[Instant, ...], str]] = []
        if reading.schedules:
            least = self._part.began if since is None else max(
                self._part.began, since - self._after)
            for key in ids:
                rule = reading.schedules.get(key)
                due = rule and rule.at_or_before(now - self._after)
                if due and due > least:
                    own.append(((due,), key))
            ids = [key for key in ids if key not in reading.schedules]
        if state.wave is not None:
            self._in_wave(state, state.wave, ids, now, since)
        elif ids:
            self._part.claim_all(state, (tick,), ids)
        self._part.claim_own(state.job, own, reading.schedules)

    def _in_wave(self, state: JobState, wave: own_time.Wave,
                 ids: Sequence[str], now: Instant,
                 since: Instant | None) -> None:
        """The same, of objects with a phase: those whose time has not come
        in this period are late for the one before.
        """
        grace = self._grace(state)
        least = self._part.began
        late: dict[Instant, list[str]] = {}
        before = state.job.schedule.at_or_before(wave.tick - 1)
        for key in ids:
            tick, due = wave.tick, wave.due(key)
            if due > now - grace:
                if before is None:
                    continue
                tick, due = before, due - (wave.tick - before)
            if tick > least and (since is None or due > since - grace):
                late.setdefault(tick, []).append(key)
        for tick in sorted(late):
            self._part.claim_all(state, (tick,), late[tick])
