# SPDX-License-Identifier: Apache-2.0
"""The journal of a store's commits, in one form for every kind of store."""

from tests import checker
from tests.oracle.facts import Skip


class Journal:
    """Claims with their grants and ends, and the skips.

    :param now: returns the true time.
    :param requeues: instants at which an operator requeued dead claims.
    """

    def __init__(self, now, requeues=()):
        self._now = now
        self._requeues = {*requeues}
        #: Claims by (job, object, tick).
        self.claims = {}
        self.skips = []
        self._leases = {}
        #: The granted fence, by (lease, object).
        self.granted = {}
        #: Instant of each grant, by (job, object, tick, fence).
        self.grant_times = {}
        #: Time, job and text of each schedule that came into force.
        self.adopted = []

    def adopt(self, job, text):
        self.adopted.append((self._now(), job, text))

    def claim(self, job, name, tick, lease):
        """Record that the store reported a claim as new. If the claim was
        already recorded with another lease, count the second report.
        """
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
        self.grant_times[job, name, tick, fence] = self._now()
        self.granted[lease, name] = fence

    def end(self, job, name, tick, state, fence=None):
        """Record the end of a claim. The result of its run counts if *state*
        is done.
        """
        claim = self.claims[job, name, tick]
        claim.endings.append((self._now(), state))
        if state == 'done':
            claim.counted.append(fence)

    def reopen(self, job, name, tick):
        """Record that an ended claim is open again.

        Only an operator may requeue a claim. If no operator did this now, the
        claim counts as made twice, which the checker reports.
        """
        claim = self.claims[job, name, tick]
        claim.endings.pop()
        if self._now() in self._requeues:
            claim.requeued.append(self._now())
        else:
            claim.claimed += 1

    def skip(self, job, name, before, until, by, counted=None):
        self.skips.append(Skip(
            self._now(), job, name, before, until, by, counted))
