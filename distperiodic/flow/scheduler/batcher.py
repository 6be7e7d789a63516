# SPDX-License-Identifier: Apache-2.0
"""Creation of batches from waiting claims, and selection of their workers."""

import itertools
import logging
from collections.abc import Sequence

from distperiodic import ports
from distperiodic.core import message
from distperiodic.core import telemetry
from distperiodic.core.claim import precedence_of
from distperiodic.core.job import Job
from distperiodic.core.job import Scope
from distperiodic.flow import log_throttle
from distperiodic.flow.scheduler import in_flight

LOG = logging.getLogger(__name__)

# Seconds until the reservation of a worker for suspects ends. They count again
# from each batch of suspects.
_RESERVED = 10.0


class Batcher:
    """Component that sends waiting claims, in batches, to workers with room.

    The credit window of a worker limits the number of claims that the worker
    receives. The job with the highest priority comes first, and among jobs of
    equal priority the job whose first claim has waited longest. The claims of
    a job are sent in the order of their places (:attr:`.Claim.place`). If only
    a few claims of a job wait, they are divided among all workers that have
    room.

    *Suspects* are claims whose runs were lost more than once. The run of a
    suspect may have killed its workers. Suspects are sent separately from
    other claims, when no other claim of the job has an earlier place. Batches
    of suspects are small, so that a run that kills its worker affects few
    other suspects::

        losses         1               2            more
        batch with     other claims    16 suspects  the claim alone

    If a partition has several workers, one of them is reserved for suspects
    while suspects run. The reservation ends _RESERVED seconds after the last
    batch of suspects, even if their runs have not ended. A run that kills its
    worker is expected to do so within this time.

    :param batch_size: Maximum number of objects in one batch.
    :param throttle: Limits the rate of log lines about one job or partition.
    :param sink: Receives an event for each batch.
    :param tracer: Creates a span for each batch. None means no spans.
    """

    def __init__(self, inflight: in_flight.InFlight, bus: ports.WorkBus,
                 clock: ports.Clock, *, batch_size: int,
                 throttle: log_throttle.LogThrottle,
                 sink: ports.EventSink,
                 tracer: ports.Tracer | None = None):
        self._in_flight = inflight
        self._bus = bus
        self._clock = clock
        self._batch_size = batch_size
        self._throttle = throttle
        self._sink = sink
        self._tracer = tracer
        self._batch_ids = map(str, itertools.count(1))

    def pump(self, partition: str, me: str, sure: bool) -> None:
        """Send the waiting claims of *partition*.

        :param me: This scheduler's membership entry.
        :param sure: True if this member may now start jobs that the ring
            divides among members.
        """
        inflight = self._in_flight
        quarantined = inflight.quarantined(partition)
        if inflight.first(partition) is None and not quarantined:
            return
        workers = [w for w in inflight.workers.get(partition, {}).values()
                   if w.member.slots]
        if not workers:
            if self._throttle.allow('alone ' + partition):
                LOG.warning(
                    'no worker: partition=%s jobs=%d; their objects wait '
                    'for a worker; start one with: distperiodic worker',
                    partition, inflight.jobs_waiting(partition))
            return
        now = self._clock.monotonic()
        for suspects in quarantined:
            if suspects.suspects_are_next and (
                    sure or suspects.job.scope is Scope.MEMBER):
                self._send_suspects(suspects, workers, me, now)
        self._send_waiting(partition, workers, me, sure, now)

    def _send_waiting(self, partition: str,
                      workers: Sequence[in_flight.WorkerState], me: str,
                      sure: bool, now: float) -> None:
        """Send waiting claims until no worker has room for any of them."""
        inflight = self._in_flight
        free = [w for w in workers
                if w.back_off.over(now) and not w.window.full
                and not self._is_reserved(w, now)]
        deferred = []
        shares: dict[str, int] = {}
        while free and (queue := inflight.first(partition)) is not None:
            if not sure and queue.job.scope is not Scope.MEMBER:
                queue.turn = None
                deferred.append(queue)
                continue
            worker = self._send_next(queue, free, shares, me, now)
            if worker is not None:
                if worker.window.full:
                    free.remove(worker)
                inflight.next_turn(queue)
                continue
            # The job or its partition is at its limit, no worker has room for
            # the job, or all its claims were superseded. Other jobs must not
            # wait for it.
            queue.turn = None
            if queue.line.size:
                deferred.append(queue)
                if all(queue.job.name in w.unknown_jobs for w in workers):
                    self._warn_unknown(queue)
        for queue in deferred:
            inflight.next_turn(queue)

    def _warn_unknown(self, queue: in_flight.ClaimQueue) -> None:
        if self._throttle.allow('unknown ' + queue.job.name):
            LOG.warning(
                'no worker: job=%s partition=%s objects=%d; no current worker '
                'knows the job, so its objects wait for a worker that does; '
                'start all processes with the same --tasks', queue.job.name,
                queue.job.topic, queue.line.size)

    @staticmethod
    def _accepts(worker: in_flight.WorkerState, job: str, now: float) -> bool:
        return (job not in worker.unknown_jobs
                and worker.paused.get(job, 0.0) <= now)

    def room_for(self, job: Job) -> int:
        """Return the number of further runs of *job* that workers have room
        for.

        Waiting claims of its partition come first. So the number is 0 if these
        fill the workers.
        """
        now = self._clock.monotonic()
        room = sum(
            worker.window.room(worker.window.cost(job.name))
            for worker in self._in_flight.workers.get(job.topic, {}).values()
            if worker.member.slots and worker.back_off.over(now)
            and self._accepts(worker, job.name, now))
        return max(0, room - self._in_flight.waiting_in[job.topic])

    def _room(self, queue: in_flight.ClaimQueue, now: float) -> int:
        """Return the maximum number of runs in the next batch of a job.

        The number may be too high, because this scheduler does not know the
        runs of other schedulers. The worker then refuses the excess runs.
        """
        limit = self._batch_size
        for bound in queue.bounds.values():
            limit = min(limit, bound.room(self._in_flight.schedulers, now))
        return limit

    def _send_next(self, queue: in_flight.ClaimQueue,
                   free: list[in_flight.WorkerState],
                   shares: dict[str, int], me: str,
                   now: float) -> in_flight.WorkerState | None:
        """Send one batch of *queue* to the worker with the least work.

        :param shares: For each job, the maximum size of a batch: the number of
            claims in the oldest group of the job, divided by the number of
            workers that have room. Without this maximum, the first worker
            could receive all claims.
        :returns: The worker. None means that no worker can receive a batch of
            the queue now.
        """
        name = queue.job.name
        first = queue.line.first
        assert first is not None
        best, least, number, cost, able = None, (0.0, 0.0), 0, 0.0, 0
        for worker in free:
            if not self._accepts(worker, name, now):
                continue
            window = worker.window
            run_cost = window.cost(name)
            room = window.room(run_cost)
            if room:
                able += 1
                load = (window.seconds, window.held / window.slots)
                if best is None or load < least:
                    best, least, number, cost = worker, load, room, run_cost
        if best is None:
            return None
        limit = min(self._room(queue, now), len(first.claims))
        if not limit:
            return None
        if able > 1:
            share = shares.get(name, 0)
            if not share:
                share = shares[name] = -(-len(first.claims) // able)
            limit = min(limit, share)
        if number > limit:
            number = limit
        elif cost and number < limit and best.window.busy:
            # Each batch has a fixed cost, so avoid small batches. This worker
            # has enough work, so let the claims wait until it has room for
            # more of them.
            return None
        group = self._in_flight.take(queue, number)
        if queue.line.first is not first:
            shares.pop(name, None)
        if group is None:
            return None
        self._send(queue, group, best, cost, me, now)
        return best

    def _send(self, queue: in_flight.ClaimQueue, group: in_flight.ClaimGroup,
              worker: in_flight.WorkerState, cost: float, me: str,
              now: float) -> str:
        """Send *group* to *worker*, and return the batch id."""
        inflight, job, claims = self._in_flight, queue.job, group.claims
        inflight.waiting_in[job.topic] -= len(claims)
        batch = message.Batch(
            next(self._batch_ids), job.name, claims[0].tick,
            [c.object for c in claims], [c.fence for c in claims],
            [c.attempt for c in claims], me, worker.member.entry,
            group.lease.id, job.topic,
            job.priority - precedence_of(claims[0].place),
            waiting=inflight.waiting_in[job.topic],
            authority=queue.authority)
        sent = inflight.sent[batch.id] = in_flight.SentBatch(
            batch, claims, worker, queue, cost, now)
        worker.batches[batch.id] = None
        worker.share.turn = False
        worker.window.give(len(claims), cost)
        for bound in queue.bounds.values():
            bound.give(len(claims))
        inflight.outstanding += len(claims)
        if self._sink.open:
            self._sink.put(telemetry.BatchDispatched(
                job.name, batch.tick, batch.id, len(claims),
                worker.member.identity))
        if self._tracer is not None:
            sent.span = self._tracer.dispatched(
                batch, worker.member.identity)
            # An earlier release rejects a batch with a field that it does not
            # know.
            if sent.span is not None and worker.member.traces:
                batch.trace = sent.span.trace
        self._bus.send(batch)
        return batch.id

    # -- suspects

    @staticmethod
    def _is_reserved(worker: in_flight.WorkerState, now: float) -> bool:
        """Return whether *worker* is reserved for suspects now."""
        if worker.reserved_until is None:
            return False
        if now >= worker.reserved_until or not worker.batches:
            worker.reserved_until = None
            return False
        return True

    def _send_suspects(self, queue: in_flight.ClaimQueue,
                       workers: list[in_flight.WorkerState], me: str,
                       now: float) -> None:
        """Send the next suspects to a worker that has no other work.

        If no worker is idle, and there are several workers, reserve a worker
        for suspects. A single worker receives suspects even if it has other
        work.
        """
        able = [w for w in workers if w.back_off.over(now)
                and self._accepts(w, queue.job.name, now)]
        if not able:
            return
        idle = [w for w in able if not w.batches]
        if not idle:
            if len(workers) > 1 and not any(
                    self._is_reserved(w, now) for w in workers):
                least = min(able, key=lambda w: w.window.seconds)
                least.reserved_until = now + _RESERVED
                return
            if len(workers) > 1:
                return
            # Do not reserve the only worker of a partition, because all other
            # work would then stop. But send this worker only one batch of
            # suspects at a time.
            idle = [w for w in able
                    if not w.window.full and w.suspect_batch not in w.batches]
            if not idle:
                return
        room = self._room(queue, now)
        if not room:
            return
        worker = idle[0]
        group = queue.suspects.popleft()
        if room < len(group.claims):
            queue.suspects.appendleft(in_flight.ClaimGroup(
                group.lease, group.claims[room:]))
            group = in_flight.ClaimGroup(group.lease, group.claims[:room])
        worker.reserved_until = now + _RESERVED if len(workers) > 1 else None
        worker.suspect_batch = self._send(
            queue, group, worker, worker.window.cost(queue.job.name), me, now)
