# SPDX-License-Identifier: Apache-2.0
"""What was committed in a store, told alike by every kind of store."""

from tests import checker
from tests.oracle import facts as facts_


class Journal:
    """Claims with their grants and endings, and what was skipped.

    :param now: the true time.
    """

    def __init__(self, now):
        self._now = now
        #: (job, object, tick) to its claim.
        self.claims = {}
        self.skips = []
        #: (job, object) to the newest tick that was decided.
        self.settled = {}
        self._leases = {}
        #: (lease, object) to the fence that was granted in it.
        self.granted = {}
        #: Job to each schedule that was put in force, and when.
        self.adopted = {}
        #: (job, object) to each change: when, whether it is listed, its own
        #: schedule and since when it counts.
        self.listed = {}

    def claim(self, job, name, tick, lease, *, settles=True):
        """It was claimed, or, if it is known, claimed once more."""
        key = job, name, tick
        known = self.claims.get(key)
        if known is None:
            self.claims[key] = checker.Claim(*key, self._now())
            self._leases[key] = lease
        elif self._leases[key] != lease:
            known.claimed += 1
        if settles:
            self.settled[job, name] = tick

    def grant(self, job, name, tick, fence, lease):
        claim = self.claims[job, name, tick]
        if claim.granted is None:
            claim.granted = self._now()
        claim.grants.append(fence)
        self.granted[lease, name] = fence

    def end(self, job, name, tick, state, fence=None):
        """It came to an end; a result counted, if it is done."""
        claim = self.claims[job, name, tick]
        claim.endings.append((self._now(), state))
        if state == 'done':
            claim.counted.append(fence)

    def reopen(self, job, name, tick):
        """An operator has put it back."""
        self.claims[job, name, tick].endings.pop()

    def skip(self, job, name, before, until, by):
        self.skips.append(facts_.Skip(
            self._now(), job, name, before, until, by))
        self.settled[job, name] = until
