# SPDX-License-Identifier: Apache-2.0
"""The database of the simulated cluster, and what it takes down."""

from distperiodic import ports
from distperiodic.adapters import memory
from distperiodic.core import claim as claim_
from distperiodic.core.claim import State
from tests import checker

_END = {move: state for state, move in claim_.ENDING_MOVES.items()}


class SharedStore(memory.MemoryClaimStore):
    """The store in memory, with the promises that a single member has no need
    of: a tick before an object's last one is nobody's, so is one that has not
    come, and whatever ended is told again to who asks again.

    :param clock: of the store; it does not step.
    """

    def __init__(self, clock):
        super().__init__(clock)
        #: (job, object, tick) to its claim.
        self.claims = {}
        #: (lease, object) to the fence that was granted in it.
        self.granted = {}
        self._ends = {}
        #: (job, object) to its account.
        self.accounts = {}

    def claim(self, job, tick, objects, *, lease, holder, seconds, supersede,
              fresh=True, rule='', **options):
        early = tick - claim_.EARLIEST - self.now()
        if early > 0:
            return claim_.Claimed([], [], 0, [], [], early)
        rows = self._rows_of(job)
        open_ = {}
        asked = []
        for key in objects:
            row = rows.get(key)
            if row is not None:
                if row.settled > tick or row.settled == tick != row.tick:
                    if fresh and row.since is None:
                        self.sync(job, [ports.Listed(key, rule, tick - 1)],
                                  [], at=tick)
                    continue
                if (row.tick < tick and isinstance(row, memory._Row)
                        and row.state not in claim_.ENDINGS):
                    open_[key] = row.tick
            asked.append(key)
        answer = super().claim(
            job, tick, asked, lease=lease, holder=holder, seconds=seconds,
            supersede=supersede, fresh=fresh, rule=rule, **options)
        for won in answer.won:
            self.accounts.setdefault(
                (job, won.object), checker.Account(tick)).last = tick
            if won.object in open_:
                self._note_end(job, won.object, open_[won.object],
                               State.SUPERSEDED)
            self._note_claim(job, won, lease)
        return answer

    def skip(self, job, tick, objects, *, holder, by, reason, missed=None):
        if tick - claim_.EARLIEST > self.now():
            return 0
        before = {row.object: row.settled for row in self.look(job, objects)
                  if row.settled < tick}
        for key, settled in before.items():
            account = self.accounts.setdefault(
                (job, key), checker.Account(tick))
            account.skipped += 1 + (missed(settled) if missed else 0)
            account.last = tick
        return super().skip(job, tick, objects, holder=holder, by=by,
                            reason=reason, missed=missed)

    def _note_claim(self, job, won, lease):
        key = job, won.object, won.tick
        known = self.claims.get(key)
        if known is None:
            self.claims[key] = checker.Claim(*key, self.now())
            self._ends[key] = lease
        elif self._ends[key] != lease:
            known.claimed += 1

    def _note_end(self, job, name, tick, state, lease=''):
        claim = self.claims[job, name, tick]
        claim.endings.append((self.now(), state.value))
        if state is State.DONE:
            claim.counted.append(self.granted.get((lease, name), 0))

    def start(self, job, tick, objects, *, lease, into, holder, seconds):
        known = into in self._leases
        granted = super().start(job, tick, objects, lease=lease, into=into,
                                holder=holder, seconds=seconds)
        if not known:
            for one in granted:
                self.claims[job, one.object, one.tick].grants.append(
                    one.fence)
                self.granted[into, one.object] = one.fence
        return granted

    def _end(self, objects, lease, move):
        held = self._leases.get(lease)
        if held is not None:
            for key, row in list(self._standing(lease, objects, move)):
                self._note_end(
                    held.job, key, row.tick, _END[move], lease)
                self._ends[lease, key, move] = True
        super()._end(objects, lease, move)
        return {key for key in objects if (lease, key, move) in self._ends}

    def told(self, tell):
        """The same store, with each call told to *tell*."""
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
