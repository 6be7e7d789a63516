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
import itertools
import logging
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import NamedTuple

from distperiodic import ports
from distperiodic.core import claim as claim_
from distperiodic.core import job as job_
from distperiodic.core import schedule
from distperiodic.core.claim import SkippedBy
from distperiodic.core.schedule import Instant
from distperiodic.flow import again
from distperiodic.flow import dispatch
from distperiodic.flow import in_hand
from distperiodic.flow import quiet

LOG = logging.getLogger(__name__)

# Why an object is skipped by its overlap policy.
_BUSY = 'an earlier run goes on'
# Why the ticks are given up that an object has missed.
_NOT_IN_TIME = 'nobody claimed them in time'
# Ticks of one object that may wait for its earlier runs.
_MOST_WAITING = 100


@dataclasses.dataclass(slots=True)
class _Piece:
    """What is still to be claimed of the ticks of a job."""

    ticks: tuple[Instant, ...]
    objects: Sequence[str]
    fresh: bool
    at: int = 0


class _Line(NamedTuple):
    """Ticks of one object that wait for its earlier run."""

    #: Of its ticks; the job's, or its own.
    rule: schedule.Schedule
    ticks: collections.deque[Instant]


class _Open:
    """What one job has begun to claim and not claimed yet."""

    __slots__ = ('pieces', 'waiting')

    def __init__(self) -> None:
        self.pieces: collections.deque[_Piece] = collections.deque()
        #: Objects that wait for their earlier run, and for what ticks.
        self.waiting: dict[str, _Line] = {}


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
        self._jobs = jobs
        self._open = {name: _Open() for name in jobs}
        #: Job to how many claims the store has not answered.
        self.asked: collections.Counter[str] = collections.Counter()
        self._closed = False
        self._told_skipped = quiet.Quiet(clock, 0.9)
        #: What was skipped and not told yet: by job, with the tick, the
        #: first object and their number.
        self._skipped: dict[
            str, tuple[job_.Job, Instant, str, int]] = {}
        #: Jobs of which some was asked for and never answered.
        self._failed: set[str] = set()
        #: What was asked too early, and when it may be asked again.
        self._early: list[tuple[float, _Asked]] = []
        #: Told when the store refuses a tick as too early.
        self.refused: Callable[[], None] = lambda: None
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
        """Look for jobs that were paused or resumed since the last look, and
        ask again for what was asked too early, or waits for runs of others.
        """
        now = self._clock.monotonic()
        if self._early:
            due = [asked for at, asked in self._early if at <= now]
            self._early = [one for one in self._early if one[0] > now]
            for asked in due:
                self._ask(asked)
        if (self._shared and not self._asking
                and now - self._looked >= self._sweep):
            self._looked = now
            self._look(lambda: None)
            for name, begun in self._open.items():
                if begun.waiting and not self.asked[name]:
                    self._ask_for_waiting(name, begun.waiting)

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

    @property
    def away(self) -> bool:
        """Whether the store is; whatever it is asked then waits."""
        return self._store.away

    def failed(self, job: job_.Job) -> bool:
        """Whether something was asked for, since the last call, that the
        store could not answer at all.
        """
        had = job.name in self._failed
        self._failed.discard(job.name)
        return had

    def claim_all(self, job: job_.Job, ticks: tuple[Instant, ...],
                  objects: Sequence[str], fresh: bool = True) -> None:
        """Claim any number of objects: a first piece now, the others at
        :meth:`claim_next`, for as long as :meth:`unfinished`.

        See :meth:`claim` for the rest.
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
            # No statement is about more than the store does in a moment.
            for at in range(0, len(objects), self._piece):
                self._ask(_Asked(
                    job, rule or job.schedule, tick,
                    objects[at:at + self._piece], behind, fresh))

    def _ask(self, asked: '_Asked') -> None:
        job, tick = asked.job, asked.tick
        if job.name in self._paused:
            self.counts[job.name, 'paused'] += len(asked.objects)
            self.settle(job, tick, asked.objects, SkippedBy.PAUSE,
                        f'paused: {self._paused[job.name]}', asked.rule)
            return
        lease, holder = self._new_lease(), self._holder()
        after = self._after(asked)
        every = job.misfire is schedule.Misfire.ALL
        self.asked[job.name] += 1

        def claimed(answer: claim_.Claimed) -> None:
            self.asked[job.name] -= 1
            if answer.early:
                self._too_early(asked, answer.early / schedule.SECOND)
            else:
                self._claimed(asked, in_hand.Own(lease, holder), answer)

        def failed() -> None:
            self.asked[job.name] -= 1
            self._failed.add(job.name)
            self.counts[job.name, 'claims failed'] += len(asked.objects)
        self._store.ask(
            lambda store: store.claim(
                job.name, tick, asked.objects, lease=lease, holder=holder,
                seconds=self._lease, supersede=not every,
                fresh=asked.fresh, after=after,
                most=again.most_attempts(job)),
            claimed, failed)

    def _too_early(self, asked: '_Asked', seconds: float) -> None:
        """The store's clock was set back, or ours was wrong."""
        self.counts[asked.job.name, 'too early'] += len(asked.objects)
        self._early.append((self._clock.monotonic() + seconds, asked))
        self.refused()

    def _after(self, asked: '_Asked') -> Instant | None:
        """The tick that an object must have had, or it is behind; None: that
        is no matter.

        Who drops ticks of its own part takes it down. Before a process
        began it may be that nobody was there, and of what others have missed
        it knows nothing: an object that is behind tells of it.
        """
        if not self._shared or asked.catching_up:
            return None
        job, rule = asked.job, asked.rule
        if _may_be_new(job, rule):
            return None
        return rule.at_or_before(asked.tick - 1)

    def _claimed(self, asked: '_Asked', own: in_hand.Own,
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
            if job.misfire is schedule.Misfire.ALL:
                self._catch_up(asked, claimed.behind)
            else:
                self._give_up(asked, claimed.behind)
        if claimed.busy:
            self._busy(asked, claimed.busy, late)
        if won:
            self.counts[job.name, 'claimed'] += len(won)
            if self._open[job.name].waiting:
                self._overtake(job, tick, won)
            self._dispatcher.offer(job, own, won, claimed.superseded)

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
            # The newest ones, backwards: there may have been a year of them.
            missed: collections.deque[Instant] = collections.deque()
            newest: Instant | None = asked.tick
            while (newest is not None and newest > last
                    and len(missed) < _MOST_WAITING):
                missed.appendleft(newest)
                newest = rule.at_or_before(newest - 1)
            if newest is not None and newest > last:
                dropped = rule.count(last, newest)
                self.counts[job.name, 'missed'] += dropped * len(keys)
                self.settle(job, newest, keys, SkippedBy.MISFIRE,
                            'too many missed ticks', rule)
            first = missed.popleft()
            for key in keys:
                waiting[key] = _Line(rule, collections.deque(missed))
            self._ask(_Asked(job, rule, first, keys, set(keys), True, True))

    def _give_up(self, asked: '_Asked',
                 behind: Sequence[tuple[str, Instant]]) -> None:
        """Take down what these objects have missed, and claim them anew."""
        job, rule = asked.job, asked.rule
        newest = rule.at_or_before(asked.tick - 1)
        assert newest is not None
        waiting = self._open[job.name].waiting
        together: dict[Instant, list[str]] = {}
        replaced: dict[Instant, list[str]] = {}
        for key, last in behind:
            line = waiting.pop(key, None)
            if line is not None:
                # It was not missed: it waited for the run before.
                replaced.setdefault(line.ticks[-1], []).append(key)
                last = max(last, line.ticks[-1])
            if last < newest:
                together.setdefault(last, []).append(key)
        self._replace(job, replaced, rule)
        for last, keys in sorted(together.items()):
            number = rule.count(last, newest)
            self.counts[job.name, 'missed'] += number * len(keys)
            self.settle(job, newest, keys, SkippedBy.MISFIRE,
                        _NOT_IN_TIME, rule)
        self._ask(asked._replace(objects=[key for key, _ in behind],
                                 catching_up=True))

    def _busy(self, asked: '_Asked', busy: list[str],
              behind: set[str]) -> None:
        """An earlier tick of these objects has not come to its end."""
        job, tick = asked.job, asked.tick
        if job.overlap is schedule.Overlap.SKIP:
            over = [key for key in busy if key not in behind]
            if over:
                self._skip(job, tick, over)
                self.settle(job, tick, over, SkippedBy.OVERLAP, _BUSY,
                            asked.rule)
            busy = [key for key in busy if key in behind]
        waiting = self._open[job.name].waiting
        replaced: dict[Instant, list[str]] = {}
        for key in busy:
            queue = waiting.setdefault(
                key, _Line(asked.rule, collections.deque())).ticks
            if tick in queue:
                # Looked at once more, since it is late.
                continue
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
        self._replace(job, replaced, asked.rule)

    def _replace(self, job: job_.Job, waited: dict[Instant, list[str]],
                 rule: schedule.Schedule) -> None:
        """A newer tick takes the place of these, which waited for a run."""
        for tick, keys in sorted(waited.items()):
            self._skip(job, tick, keys)
            self.settle(job, tick, keys, SkippedBy.OVERLAP, _BUSY, rule)

    def _overtake(self, job: job_.Job, tick: Instant,
                  won: Sequence[claim_.Claim]) -> None:
        """What waits for an earlier tick than *tick* has no turn any more."""
        waiting = self._open[job.name].waiting
        for claim in won:
            line = waiting.get(claim.object)
            if line is None:
                continue
            while line.ticks and line.ticks[0] <= tick:
                self._skip(job, line.ticks.popleft(), [claim.object])
            if not line.ticks:
                del waiting[claim.object]

    def _freed(self, job: job_.Job, objects: list[str]) -> None:
        """Runs came to an end; what waited for them is claimed now."""
        waiting = self._open[job.name].waiting
        if not waiting or self._closed:
            return
        together: dict[tuple[Instant, schedule.Schedule], list[str]] = {}
        for key in objects:
            line = waiting.get(key)
            if line is not None and line.ticks:
                together.setdefault(
                    (line.ticks.popleft(), line.rule), []).append(key)
                if not line.ticks:
                    del waiting[key]
        for (tick, rule), keys in sorted(
                together.items(), key=lambda item: item[0][0]):
            self.claim(job, (tick,), keys, set(keys), rule=rule)

    def _ask_for_waiting(self, name: str,
                         waiting: dict[str, _Line]) -> None:
        """Ask for some of what waits for runs that are not in our hands: they
        were taken over, or wait for a retry, and nobody tells us of their
        ends.
        """
        here = self._dispatcher.objects_of(name)
        some = list(itertools.islice(
            (key for key in waiting if key not in here), self._piece))
        for key in some:
            # The others come first at the next look.
            waiting[key] = waiting.pop(key)
        self._freed(self._jobs[name], some)

    def settle(self, job: job_.Job, tick: Instant, objects: Sequence[str],
               by: SkippedBy, reason: str, rule: schedule.Schedule,
               since: Instant | None = None) -> None:
        """Have it taken down that these objects do not run for *tick*, nor
        for what each of them has missed before, where the store is shared:
        nobody else claims them for it then.

        :param rule: of their ticks.
        :param since: when they surely had that rule, if it is their own;
            before that they missed nothing. None: at *tick*.
        """
        if not self._shared:
            return
        holder = self._holder()
        least: Instant | None = None
        if _may_be_new(job, rule):
            least = tick - 1 if since is None else since - 1

        def missed(last: Instant) -> int:
            return rule.count(
                last if least is None else max(last, least), tick - 1)

        def call(store: ports.ClaimStore, some: Sequence[str]) -> int:
            return store.skip(job.name, tick, some, holder=holder, by=by,
                              reason=reason, missed=missed)
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


def _may_be_new(job: job_.Job, rule: schedule.Schedule) -> bool:
    """Whether an object with that rule may have had another one until now,
    and missed nothing.
    """
    return (job.misfire is not schedule.Misfire.ALL
            and rule is not job.schedule)
