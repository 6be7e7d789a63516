# SPDX-License-Identifier: Apache-2.0
"""From a batch that came to runs that are granted, and to their ends.

    accept ─► start in the store ─► run the granted ones ─► what they came to
                    │                                             │
                    └─ lost: not ours (any more)                  │
                                                                  ▼
       report ◄──────────── done, dead or retried in the store ◄──┘

This stands where the store can be reached: before the workshop of a worker
that shares the store with its schedulers, else before a scheduler's bus, for
workers that have none. What was granted is held under a lease; it is renewed
for as long as there are signs of the work, and once it is lost the results
do not count.
"""

import dataclasses
import logging
import random
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence

from distperiodic import ports
from distperiodic.core import claim as claim_
from distperiodic.core import job as job_
from distperiodic.core import member as member_
from distperiodic.core import message
from distperiodic.flow import quiet

LOG = logging.getLogger(__name__)

# The longest pause before a retry, in seconds.
_RETRY_CAP = 60.0
# The part of a lease that is left when its holder stops believing in it.
_MARGIN = 0.1

# Leases without a sign after which nobody tells what became of a batch.
_FORGOTTEN = 3

#: Why a run did not begin.
LEASE_ENDED = 'its lease has ended'


#: Its place in what was granted, its claim, and the error.
_Failed = tuple[int, claim_.Claim, str]


class _Grant:
    """A batch whose start was asked for, and what was granted of it."""

    __slots__ = ('asked', 'batch', 'claims', 'holder', 'indexes', 'lease',
                 'left', 'sign', 'until', 'void')

    def __init__(self, batch: message.Batch, now: float):
        self.batch = batch
        self.lease = claim_.granted_lease(batch.lease, batch.id)
        self.holder = member_.process_of(batch.worker)
        #: Monotonic seconds of the request that the trust counts from.
        self.asked = now
        self.until = now
        self.sign = now
        #: None: it was reported what became of it.
        self.claims: list[claim_.Claim | None] = []
        #: Of each claim, its place in the batch.
        self.indexes: Sequence[int] = ()
        self.left = 0
        #: Whether the lease was lost.
        self.void = False

    def take(self, index: int) -> claim_.Claim | None:
        """The claim at *index*; None: it was taken before."""
        if not 0 <= index < len(self.claims):
            return None
        claim, self.claims[index] = self.claims[index], None
        self.left -= claim is not None
        return claim


class Grants:
    """The batches that run, and their leases.

    :param run: takes a batch with what was granted of it.
    :param report: takes each report and the scheduler's entry it is for.
    :param lease: seconds.
    :param sure: whether this process surely still is who stands under that
        entry in its group.
    :param silent: seconds without a renewal after which the leases of a
        process that is gone from its group are taken over; default: *lease*.
    """

    def __init__(self, jobs: Mapping[str, job_.Job], *,
                 store: ports.StoreQueue, clock: ports.Clock, lease: float,
                 run: Callable[[message.Batch], None],
                 report: Callable[[message.Report, str], None],
                 new_lease: Callable[[], str],
                 sure: Callable[[str], bool] = lambda entry: True,
                 silent: float | None = None,
                 random_: random.Random | None = None):
        self._jobs = jobs
        self._store = store
        self._clock = clock
        self._lease = lease
        self._run = run
        self._report = report
        self._new_lease = new_lease
        self._sure = sure
        self._silent = lease if silent is None else min(lease, silent)
        self._random = random_ or random.Random()
        self._grants: dict[tuple[str, str], _Grant] = {}
        self._renewed = clock.monotonic()
        self._told = quiet.Quiet(clock, 10.0)

    def accept(self, batch: message.Batch) -> None:
        """Have the runs of *batch* granted, and begin those that were."""
        if batch.job not in self._jobs:
            # Whoever runs it knows how to refuse.
            self._run(batch)
            return
        key = batch.sender, batch.id
        if key in self._grants:
            LOG.info('batch dropped: batch=%s sender=%s reason=it was '
                     'delivered before', batch.id, batch.sender)
            return
        grant = self._grants[key] = _Grant(batch, self._clock.monotonic())
        self._store.ask(
            lambda store: store.start(
                batch.job, batch.tick, batch.objects, lease=batch.lease,
                into=grant.lease, holder=grant.holder, seconds=self._lease),
            lambda granted: self._granted(grant, granted),
            lambda: self._granted(grant, []))

    def _granted(self, grant: _Grant, granted: list[claim_.Claim]) -> None:
        batch = grant.batch
        grant.until = grant.asked + self._lease * (1.0 - _MARGIN)
        grant.claims = [*granted]
        grant.left = len(granted)
        if len(granted) == len(batch.objects):
            grant.indexes = range(len(granted))
        else:
            places = {key: i for i, key in enumerate(batch.objects)}
            grant.indexes = [places.pop(c.object) for c in granted]
            self._report(message.Report(
                batch.id, batch.worker, lost=list(places.values())),
                batch.sender)
        if not granted:
            self._forget(grant)
            return
        self._run(dataclasses.replace(
            batch, objects=[c.object for c in granted],
            fences=[c.fence for c in granted],
            attempts=[c.attempt for c in granted]))

    def _forget(self, grant: _Grant) -> None:
        self._grants.pop((grant.batch.sender, grant.batch.id), None)

    def may_start(self, batch: message.Batch) -> str | None:
        """None if work of *batch* may begin now, else the reason why not.

        Asked by the threads that run it.
        """
        grant = self._grants.get((batch.sender, batch.id))
        now = self._clock.monotonic()
        if grant is None or now >= grant.until:
            return LEASE_ENDED
        # While it is surely in its group, or has just renewed, nobody takes
        # it for dead.
        if (now >= grant.asked + self._silent * (1.0 - _MARGIN)
                and not self._sure(batch.worker)):
            return LEASE_ENDED
        return None

    def lease_of(self, batch: message.Batch) -> str | None:
        """The lease in which *batch* runs; None: it does not."""
        grant = self._grants.get((batch.sender, batch.id))
        return None if grant is None or grant.void else grant.lease

    def reported(self, report: message.Report, to_entry: str) -> None:
        """What became of granted runs; their indexes are those of what was
        given to run.
        """
        grant = self._grants.get((to_entry, report.batch))
        if grant is None or grant.batch.worker != report.worker:
            # Nothing that was granted, so no result of it counts.
            self._report(dataclasses.replace(
                report, done=[], failed=[], lost=[
                    *report.done, *(i for i, _ in report.failed)]), to_entry)
            return
        grant.sign = self._clock.monotonic()
        told = dataclasses.replace(
            report, failed=[], done=[], refused=[
                (grant.indexes[i], why) for i, why in report.refused
                if grant.take(i) is not None])
        asks: list[tuple[Callable[[ports.ClaimStore], int],
                         Callable[[int], None]]] = []
        done = [(i, claim.object) for i in report.done
                if (claim := grant.take(i)) is not None]
        if done:
            asks.append(self._finishing(grant, done, told))
        failed = [(i, claim, error) for i, error in report.failed
                  if (claim := grant.take(i)) is not None]
        if failed:
            asks += self._failing(grant, failed, told)
        if not grant.left:
            # What is asked already knows all that it needs.
            self._forget(grant)
        if not asks:
            self._report(told, to_entry)
            return
        for call, then in asks[:-1]:
            self._store.ask(call, then)
        call, then_last = asks[-1]

        def over(counted: int) -> None:
            then_last(counted)
            self._report(told, to_entry)
        # Results that cannot be written are not told, either.
        self._store.ask(call, over)

    def _finishing(self, grant: _Grant, done: list[tuple[int, str]],
                   told: message.Report) -> tuple[
                       Callable[[ports.ClaimStore], int],
                       Callable[[int], None]]:
        batch = grant.batch
        keys = [key for _, key in done]

        def call(store: ports.ClaimStore) -> int:
            return store.finish(
                batch.job, batch.tick, keys, lease=grant.lease)

        def then(counted: int) -> None:
            indexes = [grant.indexes[i] for i, _ in done]
            told.done = indexes[:counted]
            self._lose(grant, indexes[counted:], told)
        return call, then

    def _lose(self, grant: _Grant, indexes: list[int],
              told: message.Report) -> None:
        """Results came too late to count."""
        if indexes:
            told.lost = told.lost + indexes
            if self._told.may(grant.batch.job):
                LOG.warning(
                    'results dropped: job=%s batch=%s objects=%d worker=%s '
                    'reason=their lease had ended, and others have them',
                    grant.batch.job, grant.batch.id, len(indexes),
                    grant.batch.worker)

    def _failing(self, grant: _Grant, failed: list[_Failed],
                 told: message.Report) -> list[tuple[
                     Callable[[ports.ClaimStore], int],
                     Callable[[int], None]]]:
        """Failed runs by what comes next: one pause for each attempt."""
        job = self._jobs[grant.batch.job]
        by_pause: dict[float | None, list[_Failed]] = {}
        pauses: dict[int, float] = {}
        for one in failed:
            attempt = one[1].attempt
            pause = None
            if (attempt <= job.retries
                    and job.delivery is not job_.Delivery.AT_MOST_ONCE):
                if attempt not in pauses:
                    pauses[attempt] = self._pause(job, attempt)
                pause = pauses[attempt]
            by_pause.setdefault(pause, []).append(one)
        return [self._failing_alike(grant, pause, some, told)
                for pause, some in by_pause.items()]

    def _pause(self, job: job_.Job, attempt: int) -> float:
        # Doubles, capped, with equal jitter (AWS Architecture Blog,
        # "Exponential Backoff And Jitter", 2015).
        pause = min(_RETRY_CAP,
                    job.retry_backoff * 2.0 ** min(attempt - 1, 16))
        return pause * (0.5 + self._random.random() / 2)

    def _failing_alike(self, grant: _Grant, pause: float | None,
                       failed: list[_Failed],
                       told: message.Report) -> tuple[
                           Callable[[ports.ClaimStore], int],
                           Callable[[int], None]]:
        batch = grant.batch
        failures = [claim_.Failure(claim.object, error)
                    for _, claim, error in failed]
        into = None if pause is None else self._new_lease()

        def call(store: ports.ClaimStore) -> int:
            return store.fail(
                batch.job, batch.tick, failures, lease=grant.lease,
                into=into, seconds=pause or 0.0)

        def then(counted: int) -> None:
            pairs = [(grant.indexes[i], error) for i, _, error in failed]
            if pause is None:
                told.failed = told.failed + pairs[:counted]
            else:
                told.retried = told.retried + pairs[:counted]
            self._lose(grant, [i for i, _ in pairs[counted:]], told)
        return call, then

    def renew(self) -> None:
        """Renew the leases of what gives signs of life; call it at least
        three times a lease. Time in which nobody called it does not count:
        the signs that came meanwhile wait to be read.
        """
        now = self._clock.monotonic()
        away, self._renewed = now - self._renewed, now
        by_holder: dict[str, list[_Grant]] = {}
        for grant in self._grants.values():
            if away > self._lease / 2:
                grant.sign = min(now, grant.sign + away)
            if (grant.left and not grant.void
                    and now - grant.sign <= self._lease):
                by_holder.setdefault(grant.holder, []).append(grant)
        for grant in [g for g in self._grants.values()
                      if now - g.sign > _FORGOTTEN * self._lease]:
            self._forget(grant)
        for holder, grants in by_holder.items():
            self._renew(holder, grants, now)

    def _renew(self, holder: str, grants: list[_Grant], now: float) -> None:
        def renewed(held: set[str]) -> None:
            for grant in grants:
                if grant.lease in held:
                    grant.asked = now
                    grant.until = now + self._lease * (1.0 - _MARGIN)
                else:
                    # Somebody took it; what still runs of it is in vain.
                    grant.void = True
                    grant.until = now
        self._store.ask(
            lambda store: store.renew(
                [grant.lease for grant in grants], holder=holder,
                seconds=self._lease),
            renewed)
