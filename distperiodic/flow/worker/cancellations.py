# SPDX-License-Identifier: Apache-2.0
"""Cancellation of tasks whose steps run in this process.

The store records the cancellation of a task. The handler of the current step
should return early, because the step is going to be rolled back. So the
process reads from the store which of its running tasks were cancelled.
"""

from collections.abc import Collection

from distperiodic import ports
from distperiodic.flow.worker.runs import Executor

#: Seconds between two reads.
EVERY = 2.0


class Cancellations:
    """Reader of the cancelled tasks among those whose steps run here.

    :param executor: Executor of the runs.
    :param store: Store with the tasks.
    """

    def __init__(self, executor: Executor, store: ports.StoreQueue,
                 clock: ports.Clock):
        self._executor = executor
        self._store = store
        self._clock = clock
        self._next = clock.monotonic() + EVERY
        #: True while a read is pending.
        self._reading = False

    def sweep(self) -> None:
        """Read from the store if a read is due.

        Call this several times per second.
        """
        now = self._clock.monotonic()
        if now < self._next or self._reading:
            return
        self._next = now + EVERY
        tasks = self._executor.running_tasks()
        if not tasks:
            return
        self._reading = True

        def read(store: ports.ClaimStore) -> Collection[str]:
            return store.steps.cancelled(tasks) if store.steps else ()

        def answered(cancelled: Collection[str]) -> None:
            self._reading = False
            self._executor.cancel_tasks(cancelled)

        def failed() -> None:
            self._reading = False
        self._store.submit(read, answered, failed)
