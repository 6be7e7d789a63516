# SPDX-License-Identifier: Apache-2.0
"""Claims of the steps of tasks that are ready.

    notice of tasks ────────┐
    step of a task ended ───┼─► take ─► won ─► offer to the dispatcher
    sweep ──────────────────┘

The store determines which steps are ready. This component only remembers when
it must query the store. A scheduler claims only as many steps as its workers
can start soon (:mod:`distperiodic.core.credit`). All other steps wait in the
store, where any scheduler can claim them in the order of their priorities.

When a run ends, its scheduler claims the next step at once if it knows that
steps are waiting. Another scheduler may have claimed the steps of a notice,
and may have no room for the rest. So after a notice, a scheduler with room
queries the store again, after pauses that double.
"""

import math
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping

from distperiodic import ports
from distperiodic.flow.leases import Book
from distperiodic.flow.procedure import Procedure
from distperiodic.flow.procedure import call_steps
from distperiodic.flow.procedure import start
from distperiodic.flow.scheduler.dispatcher import Dispatcher
from distperiodic.flow.wiring import SchedulerWiring

# Maximum number of steps of one command in one request to claim.
_AT_A_TIME = 500
# Seconds from a notice, or from a claim of steps, to the next query.
_FIRST_PAUSE = 0.25
# Number of tasks in notices above which a scan of all tasks is faster than a
# query of these tasks.
_MOST_NOTIFIED = 2000


class StepSource:
    """Component that claims ready steps for one scheduler.

    :param book: Jobs of the commands, and the store of their claims.
    :param pump: Sends waiting claims to workers.
    """

    def __init__(self, book: Book, wiring: SchedulerWiring,
                 dispatcher: Dispatcher, pump: Callable[[], None]):
        self._jobs = book.jobs
        self._clock = clock = wiring.clock
        self._store = book.store
        self._new_lease = dispatcher.new_lease
        #: Seconds between two scans of the steps of all tasks.
        self._sweep_interval = book.sweep_interval
        self._dispatcher = dispatcher
        self._pump = pump
        #: Monotonic time of the last scan of all steps, in seconds.
        self._swept = clock.monotonic() - book.sweep_interval
        self._pending = False
        #: Tasks in notices, in the order of arrival. The steps of these tasks
        #: may be ready.
        self._notified: dict[str, None] = {}
        #: Commands for which the steps of all tasks must be scanned.
        self._behind: set[str] = set()
        #: Monotonic time of the next query after a notice, in seconds, and the
        #: pause before that query.
        self._next_query = math.inf
        self._pause = _FIRST_PAUSE
        self._closed = self._drained = False

    def set_drained(self, drained: bool) -> None:
        """Set whether this member is drained.

        A drained member claims no steps. The sweeps of the other schedulers
        find all steps that are ready.
        """
        self._drained = drained
        self._notified.clear()

    def notified(self, tasks: Iterable[str]) -> None:
        """Claim the ready steps of *tasks*."""
        self._query_soon()
        self._notified.update(dict.fromkeys(tasks))
        if len(self._notified) > _MOST_NOTIFIED:
            self._notified.clear()
            self._behind.update(self._jobs)
        self.turn()

    def sweep(self) -> None:
        """Scan the steps of all tasks if a scan is due.

        Call this several times per second.
        """
        now = self._clock.monotonic()
        if self._store.away:
            return
        if now - self._swept >= self._sweep_interval:
            self._swept = now
            start(self._wake())
            self._behind.update(self._jobs)
        elif now >= self._next_query:
            self._pause *= 2.0
            self._next_query = (
                now + self._pause if self._pause < self._sweep_interval
                else math.inf)
            self._behind.update(self._jobs)
        self.turn()

    def _query_soon(self) -> None:
        """Query the store again soon, because more steps may be ready."""
        self._pause = _FIRST_PAUSE
        self._next_query = self._clock.monotonic() + _FIRST_PAUSE

    def _wake(self) -> Procedure[None]:
        more = True
        while more and not self._closed:
            more = yield from call_steps(self._store, ports.StepStore.wake)

    def turn(self) -> None:
        """Claim steps if some may be ready and this process has room."""
        if (self._pending or self._closed or self._drained
                or self._store.away):
            return
        if not (self._behind or self._notified):
            return
        rooms = {name: min(_AT_A_TIME, room) for name, job in
                 self._jobs.items()
                 if (room := self._dispatcher.room_for(job)) > 0}
        wanted = self._behind.intersection(rooms)
        if wanted:
            self._behind -= wanted
            start(self._take(
                {name: rooms[name] for name in sorted(wanted)}, None))
        elif self._notified:
            tasks = list(self._notified)
            self._notified.clear()
            # There is no room for steps of some commands. A later scan finds
            # these steps.
            self._behind.update(self._jobs.keys() - rooms.keys())
            if rooms:
                start(self._take(rooms, tasks))

    def _take(self, rooms: Mapping[str, int],
              tasks: list[str] | None) -> Procedure[None]:
        into = self._new_lease()
        self._pending = True
        # The commands of a partition share its slots.
        by_topic: dict[str, dict[str, int]] = {}
        for name, room in rooms.items():
            by_topic.setdefault(self._jobs[name].topic, {})[name] = room

        try:
            leases = yield from call_steps(
                self._store, ports.StepStore.take, [*by_topic.values()],
                tasks, into)
        finally:
            self._pending = False
        used = dict.fromkeys(by_topic, 0.0)
        for lease in leases:
            used[self._jobs[lease.job].topic] += (
                len(lease.claims) / rooms[lease.job])
            self._dispatcher.offer(
                self._jobs[lease.job], into._replace(id=lease.id),
                lease.claims)
        for topic, part in used.items():
            if part > 1.0 - 1e-6:
                self._behind.update(by_topic[topic])
        if leases:
            self._query_soon()
            self._pump()
        self.turn()

    @property
    def settled(self) -> bool:
        """True if no request to claim steps is pending."""
        return not self._pending

    def close(self) -> None:
        """Claim no more steps."""
        self._closed = True
