# SPDX-License-Identifier: Apache-2.0
"""A group in a SQLite file, and its page."""

from distperiodic import opts
from distperiodic.adapters.sql.store import SqlClaimStore
from distperiodic.core.claim import Failure
from distperiodic.core.claim import HeldLease
from distperiodic.core.claim import SkippedBy
from distperiodic.core.claim_request import NewLease
from distperiodic.core.claim_request import SkipRequest
from distperiodic.core.histogram import Histogram
from distperiodic.ports import RunTimes
from tests import claiming

SECOND = 1_000_000


class Group:
    """A group in a SQLite file, and its page."""

    def __init__(self, url, conf, client):
        self.url = url
        conf.set_override('connection', url, opts.GROUP)
        self.store = SqlClaimStore(self.url, namespace='tests')
        self.now = self.store.now() // SECOND * SECOND
        self.client = client

    def skip(self, job, *objects, ago=5, tick=None):
        """Skip objects for a tick in the past."""
        assert len(self.store.skip(SkipRequest(
            job, tick or self.now - ago * SECOND, objects, 'api',
            SkippedBy.PAUSE, 'paused'))) == len(objects)

    def run(self, job, *objects, dead=(), ago=5, tick=None, behind=(),
            ran=0, worker='w-1'):
        """Run objects for a tick in the past.

        :param behind: Objects that begin more than a period late.
        :param ran: Seconds of the longest run, which is that of the first
            object.
        """
        tick = tick or self.now - ago * SECOND
        times = RunTimes(len(behind), behind=behind)
        if ran:
            longest = Histogram()
            longest.add(ran * SECOND)
            times = times._replace(ran=longest.text(), slowest=objects[0])
        claiming.claim(self.store, job, tick, objects, lease='l',
                       holder='api', seconds=60.0, supersede=False)
        running = HeldLease('r', job, tick)
        self.store.start(HeldLease('l', job, tick), objects,
                         NewLease('r', worker, 60.0))
        self.store.finish(running, [o for o in objects if o not in dead],
                          times)
        self.store.fail(running, [
            Failure(key, f'{key} is ill') for key in dead], None)

    def get(self, path, **more):
        return self.client.get(path, **more)

    def text(self, path):
        answer = self.get(path)
        assert answer.status_code == 200, answer.text
        return answer.text
