# SPDX-License-Identifier: Apache-2.0
"""From objects that are due to claims that were won.

    due ─► claim ─► won ─► offer to the dispatcher
              └──► busy: an earlier tick of the object has not ended
                     ├─ overlap=skip ─► skipped
                     └─ overlap=wait ─► waiting ─► its run ends ─► claim

An object that is behind by several ticks runs them one after the other,
whatever its overlap policy: that one is about runs that take too long.
"""

import collections
import dataclasses
import functools
import logging
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import NamedTuple

from distperiodic import ports
from distperiodic.core import claim as claim_
from distperiodic.core import job as job_
from distperiodic.core import schedule
from distperiodic.core.schedule import Instant
from distperiodic.flow import dispatch
from distperiodic.flow import quiet

LOG = logging.getLogger(__name__)

# Why an object is skipped by its overlap policy.
_BUSY = 'an earlier run goes on'
# Ticks of one object that may wait for its earlier runs.
_MOST_WAITING = 100


@dataclasses.dataclass(slots=True)
class _Piece:
    """What is still to be claimed of the ticks of a job."""

    ticks: tuple[Instant, ...]
    objects: Sequence[str]
    fresh: bool
    at: int = 0


class _Open:
    """What one job has begun to claim and not claimed yet."""

    __slots__ = ('pieces', 'waiting')

    def __init__(self) -> None:
        self.pieces: collections.deque[_Piece] = collections.deque()
        #: Objects that wait for their earlier run, and for what ticks.
        self.waiting: dict[str, collections.deque[Instant]] = {}


class _Asked(NamedTuple):
    """One question to the store; see :meth:`Claimer.claim`."""

    job: job_.Job
    rule: schedule.Schedule
    tick: Instant
    objects: Sequence[str]
    behind: set[str] | None
    fresh: bool
    #: Whether the objects have missed ticks, of which this is the first.
    catching_up: bool = False


class Claimer:
    """Claims for one member, under the overlap policy of each job.

    :param holder: under what name leases are held, asked at each claim.
    :param lease: seconds.
    :param piece: a big tick is claimed in pieces of so many objects, each
        under a lease of its own; between two of them other jobs have their
        turn.
    :param shared: whether the store knows what others have claimed.
    :param sweep: seconds between two looks for jobs that are paused.
    """

    def __init__(self, jobs: Mapping[str, job_.Job], *,
                 clock: ports.Clock, store: ports.StoreQueue,
                 holder: Callable[[], str], new_lease: Callable[[], str],
                 lease: float, piece: int, shared: bool,
                 dispatcher: dispatch.Dispatcher, sweep: float = 0.0):
        self._clock = clock
        self._store = store
        self._holder = holder
        self._new_lease = new_lease
        self._lease = lease
        self._piece = piece
        self._shared = shared
        self._dispatcher = dispatcher
        self._open = {name: _Open() for name in jobs}
        #: Job to how many claims the store has not answered.
        self.asked: collections.Counter[str] = collections.Counter()
        self._closed = False
        self._told_skipped = quiet.Quiet(clock, 0.9)
        #: What was skipped and not told yet: by job, with the tick, the
        #: first object and their number.
        self._skipped: dict[
            str, tuple[job_.Job, Instant, str, int]] = {}
        #: (job, outcome) to a number of ticks or objects.
        self.counts = dispatcher.counts
        dispatcher.freed = self._freed
        #: Jobs whose ticks are skipped, and why.
        self._paused: dict[str, str] = {}
        self._sweep = sweep
        self._looked = clock.monotonic()
        self._asking = False
        if shared:
            # Nothing is claimed before it is known what is paused.
            self.asked.update(list(self._open))
            self._look(lambda: self.asked.subtract(list(self._open)))

    def sweep(self) -> None:
        """Look for jobs that were paused or resumed since the last look."""
        now = self._clock.monotonic()
        if (self._shared and not self._asking
                and now - self._looked >= self._sweep):
            self._looked = now
            self._look(lambda: None)

    def _look(self, then: Callable[[], None]) -> None:
        self._asking = True

        def known(paused: dict[str, str]) -> None:
            self._asking = False
            for name in sorted(paused.keys() - self._paused.keys()):
                LOG.info('job paused: job=%s reason=%s; its ticks are skipped '
                         'until: distperiodic job resume', name,
                         paused[name])
            for name in sorted(self._paused.keys() - paused.keys()):
                LOG.info('job resumed: job=%s; it goes on with its next '
                         'tick', name)
            self._paused = paused
            then()

        def failed() -> None:
            self._asking = False
            then()
        jobs = list(self._open)
        self._store.ask(lambda store: store.paused(jobs), known, failed)

    def claim_all(self, job: job_.Job, ticks: tuple[Instant, ...],
                  objects: Sequence[str], fresh: bool = True) -> None:
        """Claim any number of objects: a first piece now, the others at
        :meth:`claim_next`, for as long as :meth:`unfinished`.
        """
        if not objects:
            return
        pieces = self._open[job.name].pieces
        pieces.append(_Piece(ticks, objects, fresh))
        if len(pieces) == 1:
            self.claim_next(job)

    def unfinished(self, job: job_.Job) -> bool:
        """Whether there is more to claim of what was begun."""
        return bool(self._open[job.name].pieces)

    def claim_next(self, job: job_.Job) -> None:
        """Claim one more piece, if there is any."""
        pieces = self._open[job.name].pieces
        if not pieces:
            return
        piece = pieces[0]
        self.claim(job, piece.ticks,
                   piece.objects[piece.at:piece.at + self._piece],
                   fresh=piece.fresh)
        piece.at += self._piece
        if piece.at >= len(piece.objects):
            pieces.popleft()

    def claim(self, job: job_.Job, ticks: Sequence[Instant],
              objects: Sequence[str],
              behind: set[str] | None = None, fresh: bool = True,
              rule: schedule.Schedule | None = None) -> None:
        """Claim *objects* for *ticks*, oldest first, and offer what was won.

        :param behind: objects that were claimed for an earlier one of these
            ticks before; those that are won now are added.
        :param fresh: whether objects that nobody ever claimed are taken.
        :param rule: of their ticks; None: the job's.
        """
        if behind is None and len(ticks) > 1:
            behind = set()
        for tick in ticks:
            self._ask(_Asked(job, rule or job.schedule, tick, objects,
                             behind, fresh))

    def _ask(self, asked: '_Asked') -> None:
        job, tick = asked.job, asked.tick
        if job.name in self._paused:
            self.counts[job.name, 'paused'] += len(asked.objects)
            self.settle(job, tick, asked.objects,
                        f'paused: {self._paused[job.name]}')
            return
        lease, holder = self._new_lease(), self._holder()
        after = None
        every = job.misfire is schedule.Misfire.ALL
        if every and self._shared and not asked.catching_up:
            after = asked.rule.at_or_before(tick - 1)
        self.asked[job.name] += 1

        def claimed(answer: claim_.Claimed) -> None:
            self.asked[job.name] -= 1
            self._claimed(asked, lease, answer)

        def failed() -> None:
            self.asked[job.name] -= 1
            self.counts[job.name, 'claims failed'] += len(asked.objects)
        self._store.ask(
            lambda store: store.claim(
                job.name, tick, asked.objects, lease=lease, holder=holder,
                seconds=self._lease, supersede=not every,
                fresh=asked.fresh, after=after),
            claimed, failed)

    def _claimed(self, asked: '_Asked', lease: str,
                 claimed: claim_.Claimed) -> None:
        job, tick, won = asked.job, asked.tick, claimed.won
        late: set[str] = set()
        if asked.behind is not None:
            late = asked.behind
            late.update(c.object for c in won)
        if asked.catching_up:
            # Who lost one here lost it to somebody who goes on with it.
            lost = {*asked.objects}.difference(
                claimed.busy, (c.object for c in won))
            for key in lost:
                self._open[job.name].waiting.pop(key, None)
        if claimed.behind:
            self._catch_up(asked, claimed.behind)
        if claimed.busy:
            self._busy(job, tick, claimed.busy, late)
        if won:
            self.counts[job.name, 'claimed'] += len(won)
            if self._open[job.name].waiting:
                self._overtake(job, tick, won)
            self._dispatcher.offer(job, lease, won, claimed.superseded)

    def _catch_up(self, asked: '_Asked',
                  behind: Sequence[tuple[str, Instant]]) -> None:
        """Claim the first tick that these objects have missed; the others
        wait for it.
        """
        job, rule = asked.job, asked.rule
        waiting = self._open[job.name].waiting
        together: dict[Instant, list[str]] = {}
        for key, last in behind:
            together.setdefault(last, []).append(key)
        for last, keys in sorted(together.items()):
            missed: collections.deque[Instant] = collections.deque(
                maxlen=_MOST_WAITING)
            dropped, newest = 0, last
            following = rule.after(last)
            while following <= asked.tick:
                if len(missed) == _MOST_WAITING:
                    self.counts[job.name, 'missed'] += len(keys)
                    dropped, newest = dropped + 1, missed[0]
                missed.append(following)
                following = rule.after(following)
            if dropped:
                self.settle(job, newest, keys, 'too many missed ticks',
                            dropped)
            first = missed.popleft()
            for key in keys:
                waiting[key] = collections.deque(missed)
            self._ask(_Asked(job, rule, first, keys, set(keys), True, True))

    def _busy(self, job: job_.Job, tick: Instant, busy: list[str],
              behind: set[str]) -> None:
        """An earlier tick of these objects has not come to its end."""
        if job.overlap is schedule.Overlap.SKIP:
            over = [key for key in busy if key not in behind]
            if over:
                self._skip(job, tick, over)
                self.settle(job, tick, over, _BUSY)
            busy = [key for key in busy if key in behind]
        waiting = self._open[job.name].waiting
        replaced: dict[Instant, list[str]] = {}
        for key in busy:
            queue = waiting.setdefault(key, collections.deque())
            if queue and tick < queue[0]:
                queue.appendleft(tick)
                continue
            if job.misfire is schedule.Misfire.ALL:
                if len(queue) == _MOST_WAITING:
                    replaced.setdefault(queue.popleft(), []).append(key)
            elif queue:
                # One run is going on, one waits: a newer tick replaces it.
                replaced.setdefault(queue.popleft(), []).append(key)
            queue.append(tick)
        for old, keys in sorted(replaced.items()):
            self._skip(job, old, keys)
            self.settle(job, old, keys, _BUSY)

    def _overtake(self, job: job_.Job, tick: Instant,
                  won: Sequence[claim_.Claim]) -> None:
        """What waits for an earlier tick than *tick* has no turn any more."""
        waiting = self._open[job.name].waiting
        for claim in won:
            queue = waiting.get(claim.object)
            while queue and queue[0] <= tick:
                self._skip(job, queue.popleft(), [claim.object])
            if queue is not None and not queue:
                del waiting[claim.object]

    def _freed(self, job: job_.Job, objects: list[str]) -> None:
        """Runs came to an end; what waited for them is claimed now."""
        waiting = self._open[job.name].waiting
        if not waiting or self._closed:
            return
        together: dict[Instant, list[str]] = {}
        for key in objects:
            queue = waiting.get(key)
            if queue:
                together.setdefault(queue.popleft(), []).append(key)
                if not queue:
                    del waiting[key]
        for tick in sorted(together):
            self.claim(job, (tick,), together[tick], set(together[tick]))

    def settle(self, job: job_.Job, tick: Instant, objects: Sequence[str],
               reason: str, ticks: int = 1) -> None:
        """Have it taken down that these objects do not run for *tick*, where
        the store is shared: nobody else claims them for it then.

        :param ticks: for how many ticks, of which this is the newest.
        """
        if not self._shared:
            return
        holder = self._holder()

        def call(store: ports.ClaimStore, some: Sequence[str]) -> int:
            return store.skip(job.name, tick, some, holder=holder,
                              reason=reason, ticks=ticks)
        for at in range(0, len(objects), self._piece):
            self._store.ask(
                functools.partial(
                    call, some=objects[at:at + self._piece]),
                lambda number: None)

    def _skip(self, job: job_.Job, tick: Instant,
              objects: Sequence[str]) -> None:
        first, number = objects[0], len(objects)
        self.counts[job.name, 'skipped'] += number
        known = self._skipped.get(job.name)
        if known is not None:
            _, tick, first, before = known
            number += before
        self._skipped[job.name] = job, tick, first, number

    def tell(self) -> None:
        """Log what was skipped: one line for a job and tick, not one for
        each look at it.
        """
        for name in list(self._skipped):
            if self._told_skipped.may(name):
                job, tick, first, number = self._skipped.pop(name)
                LOG.info(
                    'skipped: job=%s tick=%s objects=%d first=%r overlap=%s '
                    'reason=%s', name,
                    schedule.datetime_of(tick).isoformat(), number, first,
                    job.overlap.value, _BUSY)

    def leave(self, job: job_.Job) -> None:
        """Leave to others what was begun and not claimed yet."""
        begun = self._open[job.name]
        begun.pieces.clear()
        begun.waiting.clear()

    def close(self) -> None:
        """Claim nothing more when a run ends."""
        self._closed = True
