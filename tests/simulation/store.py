# SPDX-License-Identifier: Apache-2.0
"""The store in memory of the simulated cluster."""

from distperiodic.adapters.local.memory_rows import ClaimRow
from distperiodic.core.claim import ENDING_MOVES
from distperiodic.core.claim import ENDINGS
from distperiodic.core.claim import State
from distperiodic.testing.store import SharedMemoryStore

_END = {move: state for state, move in ENDING_MOVES.items()}


class SharedStore(SharedMemoryStore):
    """The shared store in memory, which keeps a journal of its transitions.

    :param clock: clock of the store.
    :param locked: returns whether another transaction has locked the row of a
        job and object. A database skips such rows in some calls.
    """

    def __init__(self, clock, journal, locked=lambda job, key: False):
        super().__init__(clock)
        self.journal = journal
        self._locked = locked

    def adopt(self, schedules, others=None):
        before = dict(self._schedules)
        super().adopt(schedules, others)
        for job, (text, _) in self._schedules.items():
            if before.get(job, ('',))[0] != text:
                self.journal.adopt(job, text)

    def claim(self, request, lease):
        job = request.job
        open_ = {
            key: row.tick for key in request.objects
            if isinstance(row := self._rows_of(job).get(key), ClaimRow)
            and row.tick < request.tick and row.state not in ENDINGS}
        answer = super().claim(request, lease)
        for won in answer.won:
            if won.object in open_:
                self.journal.end(job, won.object, open_[won.object],
                                 State.SUPERSEDED.value)
            self.journal.claim(job, won.object, won.tick, lease.id)
        return answer

    def take_over_expired(self, request, into):
        if self._locked('', 'a lease'):
            # A lease with a locked row is taken over by a later search.
            return []
        return super().take_over_expired(request, into)

    def skip(self, request):
        job, tick, missed = request.job, request.tick, request.missed
        objects = [key for key in request.objects
                   if not self._locked(job, key)]
        if self._may_skip(request):
            for row in self.rows_of(job, objects):
                if row.settled < tick:
                    self.journal.skip(
                        job, row.object, row.settled, tick, request.by.value,
                        1 + (missed(row.settled) if missed else 0))
        return super().skip(request._replace(objects=objects))

    def start(self, lease, objects, into, active=None):
        known = into.id in self._leases
        granted = super().start(lease, objects, into, active)
        if not known:
            for one in granted:
                self.journal.grant(
                    lease.job, one.object, one.tick, one.fence, into.id)
        return granted

    def _end(self, lease, objects, move):
        held = self._leases.get(lease)
        for key, row in list(self._standing(lease, objects, move)):
            self.journal.end(
                held.job, key, row.tick, _END[move].value,
                self.journal.granted.get((lease, key), 0))
        return super()._end(lease, objects, move)

    def lease_holders(self):
        """Return the holder of each lease that has one, by the lease.

        A retry is only kept for a process, which need not do anything for it.
        """
        return {lease: one.holder for lease, one in self._leases.items()
                if one.holder and not one.retry}

    def fence_of(self, job, name):
        """Return the fence under which a run of this object may begin now.
        None means that no run may.
        """
        row = self._rows[job].get(name)
        if isinstance(row, ClaimRow) and row.state is State.RUNNING:
            return row.fence
        return None
