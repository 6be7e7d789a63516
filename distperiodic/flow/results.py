# SPDX-License-Identifier: Apache-2.0
"""What granted runs came to, and how the store is told.

    done ──────────────────────────► finish ──┐
    failed, with attempts left ────► fail, into a lease of its retry
    failed for the last time ──────► fail, dead ──┴─► counted, or lost

Only what the store counts is reported as such. The rest came too late: the
lease had ended, and others have these objects.
"""

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

#: The longest pause before a retry, in seconds.
RETRY_CAP = 60.0

#: Earlier than any instant of the monotonic clock.
NEVER = float('-inf')

#: What the store is asked, and who is told which objects counted.
Ask = tuple[Callable[[ports.ClaimStore], set[str]],
            Callable[[set[str]], None]]
#: Its place in what was granted, its claim, and the error.
Failed = tuple[int, claim_.Claim, str]


class Grant:
    """A batch whose start was asked for, and what was granted of it."""

    __slots__ = ('asked', 'batch', 'claims', 'holder', 'indexes', 'lease',
                 'left', 'progress', 'saving', 'sign', 'until')

    def __init__(self, batch: message.Batch, now: float):
        self.batch = batch
        self.lease = claim_.granted_lease(batch.lease, batch.id)
        self.holder = member_.holder_of(batch.worker)
        #: Monotonic seconds of the request that the trust counts from.
        self.asked = now
        #: Until when its runs may begin. NEVER: the lease was lost.
        self.until = now
        self.sign = now
        #: None: it was reported what became of it.
        self.claims: list[claim_.Claim | None] = []
        #: Of each claim, its place in the batch.
        self.indexes: Sequence[int] = ()
        self.left = 0
        #: What runs said of themselves and was not saved yet, by object.
        self.progress: dict[str, str] = {}
        #: Whether the store is asked to save some.
        self.saving = False

    @property
    def void(self) -> bool:
        """Whether the lease was lost."""
        return self.until == NEVER

    def take(self, index: int) -> claim_.Claim | None:
        """The claim at *index*; None: it was taken before."""
        if not 0 <= index < len(self.claims):
            return None
        claim, self.claims[index] = self.claims[index], None
        self.left -= claim is not None
        return claim


class Results:
    """Asks to be made of the store, in this order.

    :param random_: of the pauses before retries.
    :param told: which jobs were written of in the log lately.
    """

    def __init__(self, jobs: Mapping[str, job_.Job], *,
                 new_lease: Callable[[], str], random_: random.Random,
                 told: quiet.Quiet):
        self._jobs = jobs
        self._new_lease = new_lease
        self._random = random_
        self._told = told

    def finishing(self, grant: Grant, done: list[tuple[int, str]],
                  told: message.Report) -> Ask:
        """Have runs end as done.

        :param done: their places in what was granted, and their objects.
        :param told: the report, which is to say what counted.
        """
        batch = grant.batch
        keys = [key for _, key in done]

        def call(store: ports.ClaimStore) -> set[str]:
            return store.finish(
                batch.job, batch.tick, keys, lease=grant.lease)

        def then(counted: set[str]) -> None:
            told.done = [grant.indexes[i] for i, key in done
                         if key in counted]
            if len(told.done) < len(done):
                self._lose(grant, [grant.indexes[i] for i, key in done
                                   if key not in counted], told)
        return call, then

    def _lose(self, grant: Grant, indexes: list[int],
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

    def failing(self, grant: Grant, failed: list[Failed],
                told: message.Report) -> list[Ask]:
        """The same for failed runs, by what comes next: one pause for each
        attempt.
        """
        job = self._jobs[grant.batch.job]
        by_pause: dict[float | None, list[Failed]] = {}
        pauses: dict[int, float] = {}
        for one in failed:
            attempt = one[1].attempt
            pause = None
            if job.tries_again(attempt):
                if attempt not in pauses:
                    pauses[attempt] = self.pause(job, attempt)
                pause = pauses[attempt]
            by_pause.setdefault(pause, []).append(one)
        return [self._failing_alike(grant, pause, some, told)
                for pause, some in by_pause.items()]

    def pause(self, job: job_.Job, attempt: int) -> float:
        """Seconds from the failure of *attempt* to the next one: doubled each
        time, capped, with equal jitter (AWS Architecture Blog, "Exponential
        Backoff And Jitter", 2015).
        """
        pause = min(RETRY_CAP,
                    job.retry_backoff * 2.0 ** min(attempt - 1, 16))
        return pause * (0.5 + self._random.random() / 2)

    def _failing_alike(self, grant: Grant, pause: float | None,
                       failed: list[Failed],
                       told: message.Report) -> Ask:
        batch = grant.batch
        failures = [claim_.Failure(claim.object, error,
                                   told.tracebacks.get(i, ''))
                    for i, claim, error in failed]
        into = None if pause is None else self._new_lease()

        def call(store: ports.ClaimStore) -> set[str]:
            return store.fail(
                batch.job, batch.tick, failures, lease=grant.lease,
                into=into, seconds=pause or 0.0)

        def then(counted: set[str]) -> None:
            pairs = [(grant.indexes[i], error) for i, claim, error in failed
                     if claim.object in counted]
            if pause is None:
                told.failed = told.failed + pairs
            else:
                told.retried = told.retried + pairs
            self._lose(grant, [grant.indexes[i] for i, claim, _ in failed
                               if claim.object not in counted], told)
        return call, then
