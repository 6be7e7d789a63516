# SPDX-License-Identifier: Apache-2.0
"""The store of the simulated cluster that is kept in memory."""

from distperiodic import ports
from distperiodic.adapters.local import memory
from distperiodic.adapters.local.memory_rows import ClaimRow
from distperiodic.core.claim import EARLIEST
from distperiodic.core.claim import ENDING_MOVES
from distperiodic.core.claim import ENDINGS
from distperiodic.core.claim import Claimed
from distperiodic.core.claim import State
from distperiodic.core.schedule import SECOND

_END = {move: state for state, move in ENDING_MOVES.items()}


class SharedStore(memory.MemoryClaimStore):
    """The store in memory, with the promises that a single member has no need
    of: a tick before an object's last one is nobody's, so is one that has not
    come, and whatever ended is told again to who asks again.

    :param clock: of the store.
    """

    def __init__(self, clock, journal):
        super().__init__(clock)
        self.journal = journal
        self._store_clock = clock
        self._ends = {}
        self._paused = {}
        #: Since when, and until when, each job was attended without a gap.
        self._attended = {}

    def now(self):
        return self._store_clock.now()

    def adopt(self, schedules):
        before = dict(self._schedules)
        super().adopt(schedules)
        for job, (text, _) in self._schedules.items():
            if before.get(job, ('',))[0] != text:
                self.journal.adopt(job, text)

    def attend(self, jobs, checked):
        now = self.now()
        found = super().attend(jobs, checked)
        for job, gap in jobs.items():
            since, until = self._attended.get(job, (now, None))
            if until is None or abs(now - until) > gap * SECOND:
                since = now
            paused = self._paused.get(job)
            if paused is None:
                self._attended[job] = since, now
            _, text, in_force, _, settled = found[job]
            found[job] = ports.JobStatus(
                paused, text, in_force, since, settled)
        return found

    def claim(self, job, tick, objects, *, lease, holder, seconds, supersede,
              include_new=True, rule='', due_at=None, **options):
        early = ((tick if due_at is None else due_at) - EARLIEST
                 - self.now())
        if early > 0:
            return Claimed([], [], 0, [], [], early)
        rows = self._rows_of(job)
        open_ = {}
        asked = []
        for key in objects:
            row = rows.get(key)
            if row is not None:
                if row.settled > tick or row.settled == tick != row.tick:
                    if include_new and row.since is None:
                        self.sync(job, [ports.Listed(key, rule, tick - 1)],
                                  [], at=tick)
                    continue
                if (row.tick < tick and isinstance(row, ClaimRow)
                        and row.state not in ENDINGS):
                    open_[key] = row.tick
            asked.append(key)
        answer = super().claim(
            job, tick, asked, lease=lease, holder=holder, seconds=seconds,
            supersede=supersede, include_new=include_new, rule=rule, **options)
        for won in answer.won:
            if won.object in open_:
                self.journal.end(job, won.object, open_[won.object],
                                 State.SUPERSEDED.value)
            self.journal.claim(job, won.object, won.tick, lease)
        return answer

    def skip(self, job, tick, objects, *, holder, by, reason, missed=None,
             schedule=''):
        if tick - EARLIEST > self.now() or not self._in_force(
                job, schedule):
            return 0
        for row in self.rows_of(job, objects):
            if row.settled < tick:
                self.journal.skip(
                    job, row.object, row.settled, tick, by.value,
                    1 + (missed(row.settled) if missed else 0))
        return super().skip(job, tick, objects, holder=holder, by=by,
                            reason=reason, missed=missed, schedule=schedule)

    def start(self, job, tick, objects, *, lease, into, holder, seconds):
        known = into in self._leases
        granted = super().start(job, tick, objects, lease=lease, into=into,
                                holder=holder, seconds=seconds)
        if not known:
            for one in granted:
                self.journal.grant(job, one.object, one.tick, one.fence, into)
        return granted

    def _end(self, objects, lease, move):
        held = self._leases.get(lease)
        if held is not None:
            for key, row in list(self._standing(lease, objects, move)):
                self.journal.end(
                    held.job, key, row.tick, _END[move].value,
                    self.journal.granted.get((lease, key), 0))
                self._ends[lease, key, move] = True
        super()._end(objects, lease, move)
        return {key for key in objects if (lease, key, move) in self._ends}

    def pause(self, job):
        self._paused[job] = 'by an operator'

    def resume(self, job):
        self._paused.pop(job, None)

    def fence_of(self, job, name):
        """Under which fence a run of that object may begin now; None: under
        none.
        """
        row = self._rows[job].get(name)
        if isinstance(row, ClaimRow) and row.state is State.RUNNING:
            return row.fence
        return None
