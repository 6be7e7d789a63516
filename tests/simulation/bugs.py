# SPDX-License-Identifier: Apache-2.0
"""Bugs that are planted in a world, to check that the checker finds them.

No bug changes the code of the product. A bug changes the answer of a port, or
the way in which the simulation drives a process.
"""

import types

from distperiodic.adapters.local.memory_rows import ClaimRow
from distperiodic.adapters.local.memory_rows import EndedClaim
from distperiodic.adapters.local.memory_rows import LeaseRow
from distperiodic.core import due
from distperiodic.core.claim import UNBOUNDED
from distperiodic.core.claim import Move
from distperiodic.core.claim import State
from tests.simulation import ensemble


class Bug:
    """No bug. Each subclass breaks one promise."""

    #: Whether schedulers search for claims whose lease has expired.
    sweeps = True
    #: Whether a restarted process has the nonce of its predecessor.
    same_nonce = False
    #: Whether the ring of a job consists of the members that have the job.
    job_rings = True
    #: Settings with which the bug has an effect; see :func:`.draws.draw`.
    given = types.MappingProxyType({})

    def store(self, kind):
        """Return the class of the store, derived from the correct class."""
        return kind

    def sql_store(self, kind):
        """Return the class of the store in SQLite, derived from the correct
        class.
        """
        return kind

    def task_store(self, kind):
        """Return the class of the clients' store, derived from the correct
        class.
        """
        return kind

    def queue(self, queue, process):
        """Return the store queue of a process."""
        return queue


class NoFence(Bug):
    """The result of an old run ends the current run of the object."""

    # A worker that was frozen may still send the result of an old run.
    given = types.MappingProxyType({
        'local': False, 'workers': 3,
        'faults': 4 * ('freeze long', 'freeze short')})

    def store(self, kind):
        class Store(kind):
            def finish(self, lease, objects, *times):
                for key in objects:
                    row = self._rows[lease.job].get(key)
                    if _runs(row) and row.lease.id != lease.id:
                        self.journal.claims[
                            lease.job, key, row.tick].counted.append(
                                self.journal.granted.get((lease.id, key), 0))
                        self._end(row.lease.id, [key], Move.FINISH)
                super().finish(lease, objects, *times)
                return set(objects)
        return Store


class NoCompareAtFinish(Bug):
    """A result counts, even if its claim has ended or was taken over."""

    def store(self, kind):
        class Store(kind):
            def finish(self, lease, objects, *times):
                counted = super().finish(lease, objects, *times)
                name, job, tick = lease
                for key in objects:
                    if key not in counted and (
                            name, key, Move.FINISH) not in self._all_ended:
                        self.journal.end(
                            job, key, tick, State.DONE.value,
                            self.journal.granted.get((name, key), 0))
                return set(objects)
        return Store


class TwoWin(Bug):
    """Two claims may have the same key (job, object, tick)."""

    def store(self, kind):
        class Store(kind):
            def claim(self, request, lease):
                rows, tick = self._rows.get(request.job, {}), request.tick
                for key in request.objects:
                    row = rows.get(key)
                    if (isinstance(row, ClaimRow) and row.tick == tick
                            and row.lease.id != lease.id):
                        rows[key] = EndedClaim(
                            tick - 1, tick - 1, row.since, row.attributes,
                            None, None)
                return super().claim(request, lease)
        return Store


class NoLease(Bug):
    """An expired lease is never taken over."""

    def store(self, kind):
        class Store(kind):
            def take_over_expired(self, *args, **options):
                return []
        return Store


class ShortLease(Bug):
    """Leases end earlier than their holders expect."""

    def store(self, kind):
        class Store(kind):
            def _until(self, seconds):
                return super()._until(0.1 * seconds)
        return Store


class NoSweep(Bug):
    """No scheduler searches for expired leases."""

    sweeps = False


class NoCompareAtStart(Bug):
    """A run is granted even if another lease now contains the claim."""

    # A batch may reach its worker although its scheduler takes it for unsent.
    given = types.MappingProxyType(
        {'local': False, 'workers': 3, 'noise': ('message unsent',)})

    def store(self, kind):
        class Store(kind):
            def start(self, lease, objects, into, active=None):
                name, job, tick = lease
                rows = self._rows.get(job, {})
                for key in objects:
                    row = rows.get(key)
                    if _runs(row) and row.tick == tick and (
                            row.lease.id != into.id):
                        row.state = State.CLAIMED
                        self._enter(self._leases.get(name) or LeaseRow(
                            name, job, tick, '', self._until(into.seconds)),
                            key, row)
                return super().start(lease, objects, into, active)
        return Store


class SameFence(Bug):
    """A claim that is taken over keeps its fence."""

    def store(self, kind):
        class Store(kind):
            def _reclaim(self, target, key, row, ran=True):
                row.fence -= 1
                return super()._reclaim(target, key, row, ran)
        return Store


class TrustByName(Bug):
    """A process is identified by the name of its host, which it shares with
    its predecessors.
    """

    same_nonce = True


class SupersedeRunning(Bug):
    """A new tick supersedes a claim that runs."""

    def store(self, kind):
        class Store(kind):
            def claim(self, request, lease):
                rows = self._rows.get(request.job, {})
                for key in request.objects:
                    row = rows.get(key)
                    if (request.supersede and _runs(row)
                            and row.tick < request.tick):
                        row.state = State.CLAIMED
                return super().claim(request, lease)
        return Store


class NeverAgain(Bug):
    """A batch that was sent is never sent again."""

    def store(self, kind):
        class Store(kind):
            def reclaim(self, *args, **options):
                return []

            def take_over_expired(self, *arguments):
                kept = self._leases
                self._leases = {
                    name: held for name, held in kept.items()
                    if all(row.state is not State.CLAIMED
                           for row in held.rows.values())}
                before = set(self._leases)
                try:
                    return super().take_over_expired(*arguments)
                finally:
                    for name in before - set(self._leases):
                        del kept[name]
                    kept.update(self._leases)
                    self._leases = kept
        return Store


class NotCounted(Bug):
    """The running objects of a job are not counted."""

    def store(self, kind):
        class Store(kind):
            def running(self, jobs):
                return {}
        return Store


class OthersNotCounted(Bug):
    """Only one job of a partition is counted."""

    def store(self, kind):
        class Store(kind):
            def running(self, jobs):
                return super().running(jobs[:1])
        return Store


class AsBelieved(Bug):
    """A skip counts all ticks that its member believes to be missed. Some of
    these ticks may have been settled since the member read the row.
    """

    def store(self, kind):
        class Store(kind):
            def skip(self, request):
                return super().skip(request._replace(
                    missed=lambda last: request.missed(due.ALWAYS)))
        return Store


class NotAccounted(Bug):
    """The missed ticks before a skipped tick are not counted."""

    def store(self, kind):
        class Store(kind):
            def skip(self, request):
                return super().skip(request._replace(missed=None))
        return Store


class Forgiving(Bug):
    """The count of attempts that were lost with their workers starts again at
    each tick.
    """

    def store(self, kind):
        class Store(kind):
            def claim(self, request, lease):
                answer = super().claim(
                    request._replace(max_attempts=UNBOUNDED), lease)
                for one in answer.won:
                    self._rows[request.job][one.object].attempt = 1
                return answer._replace(won=[
                    one._replace(attempt=1) for one in answer.won])
        return Store


class NoLateClaim(Bug):
    """Each member claims only objects that it owns by the ring."""

    def queue(self, queue, process):
        if process.group == ensemble.SCHEDULERS:
            queue._store = _OnlyItsOwn(queue._store, process)
        return queue


class OneRing(Bug):
    """One ring divides the objects of all jobs. So members may own objects of
    jobs that they lack.
    """

    job_rings = False


class _OnlyItsOwn:
    def __init__(self, store, process):
        self._store = store
        self._process = process

    def __getattr__(self, name):
        return getattr(self._store, name)

    def claim(self, request, lease):
        ring = self._process.views[ensemble.SCHEDULERS].ring
        return self._store.claim(request._replace(objects=[
            key for key in request.objects
            if self._process.identity in ring.members
            and ring.owner_of(key) == self._process.identity]), lease)


def _runs(row):
    return isinstance(row, ClaimRow) and row.state is State.RUNNING


BUGS = {
    'no fence': NoFence(),
    'no compare at finish': NoCompareAtFinish(),
    'no compare at start': NoCompareAtStart(),
    'no unique claim': TwoWin(),
    'no lease': NoLease(),
    'short lease': ShortLease(),
    'no sweep': NoSweep(),
    'same fence': SameFence(),
    'trust by name': TrustByName(),
    'supersede what runs': SupersedeRunning(),
    'never again': NeverAgain(),
    'no late claim': NoLateClaim(),
    'runs not counted': NotCounted(),
    'other jobs not counted': OthersNotCounted(),
    'missed as believed': AsBelieved(),
    'missed not counted': NotAccounted(),
    'losses forgotten': Forgiving(),
    'one ring for all jobs': OneRing(),
}
