# SPDX-License-Identifier: Apache-2.0
"""What was committed in a store, told alike by every kind of store."""

from tests import checker
from tests.oracle.facts import Skip


class Journal:
    """Claims with their grants and endings, and what was skipped.

    :param now: the true time.
    """

    def __init__(self, now):
        self._now = now
        #: (job, object, tick) to its claim.
        self.claims = {}
        self.skips = []
        self._leases = {}
        #: (lease, object) to the fence that was granted in it.
        self.granted = {}
        #: Each schedule that was put in force: when, of which job, its text.
        self.adopted = []

    def adopt(self, job, text):
        self.adopted.append((self._now(), job, text))

    def claim(self, job, name, tick, lease):
        """It was claimed, or, if it is known, claimed once more."""
        key = job, name, tick
        known = self.claims.get(key)
        if known is None:
            self.claims[key] = checker.Claim(*key, self._now())
            self._leases[key] = lease
        elif self._leases[key] != lease:
            known.claimed += 1

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

    def skip(self, job, name, before, until, by, counted=None):
        self.skips.append(Skip(
            self._now(), job, name, before, until, by, counted))
