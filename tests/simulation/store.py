# SPDX-License-Identifier: Apache-2.0
"""The store of the simulated cluster that is kept in memory."""

from distperiodic.adapters import memory
from distperiodic.core import claim as claim_
from distperiodic.core.claim import State

_END = {move: state for state, move in claim_.ENDING_MOVES.items()}


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

    def now(self):
        return self._store_clock.now()

    def claim(self, job, tick, objects, *, lease, holder, seconds, supersede,
              fresh=True, after=None, **options):
        early = tick - claim_.EARLIEST - self.now()
        if early > 0:
            return claim_.Claimed([], [], 0, [], early)
        rows = self._rows.get(job, {})
        open_ = {}
        asked = []
        behind = []
        for key in objects:
            row = rows.get(key)
            if row is not None:
                last = row if isinstance(row, int) else row.tick
                settled = self.journal.settled[job, key]
                if settled > tick or settled == tick != last:
                    continue
                if after is not None and settled < after:
                    behind.append((key, settled))
                    continue
                if (not isinstance(row, int) and last < tick
                        and row.state not in claim_.ENDINGS):
                    open_[key] = last
            asked.append(key)
        answer = super().claim(
            job, tick, asked, lease=lease, holder=holder, seconds=seconds,
            supersede=supersede, fresh=fresh, **options)
        for won in answer.won:
            if won.object in open_:
                self.journal.end(job, won.object, open_[won.object],
                                 State.SUPERSEDED.value)
            self.journal.claim(job, won.object, won.tick, lease)
        return answer._replace(behind=behind)

    def skip(self, job, tick, objects, *, holder, by, reason, missed=None):
        if tick - claim_.EARLIEST > self.now():
            return 0
        counted = 0
        for key in dict.fromkeys(objects):
            settled = self.journal.settled.get((job, key))
            if settled is not None and settled < tick:
                self.journal.skip(job, key, settled, tick, by.value)
                counted += 1
        return counted

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

    def paused(self, jobs):
        return {job: why for job, why in self._paused.items() if job in jobs}

    def told(self, tell):
        """Have each call told to *tell*."""
        def telling(name, call):
            def told(*args, **options):
                answer = call(*args, **options)
                if answer or name not in ('overdue', 'renew'):
                    tell('STORE %s %s %s -> %s', name, args, options, answer)
                return answer
            return told
        for name in ('claim', 'start', 'finish', 'fail', 'take_back',
                     'renew', 'overdue', 'drop', 'skip'):
            setattr(self, name, telling(name, getattr(self, name)))

    def fence_of(self, job, name):
        """Under which fence a run of that object may begin now; None: under
        none.
        """
        row = self._rows[job].get(name)
        if isinstance(row, memory._Row) and row.state is State.RUNNING:
            return row.fence
        return None
