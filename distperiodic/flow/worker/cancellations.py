# SPDX-License-Identifier: Apache-2.0
"""Cancellation of tasks whose steps run in this process.

The store records the cancellation of a task. The handler of the current step
should return early, because the step is going to be rolled back. So the
process reads from the store which of its running tasks were cancelled.
"""

from collections.abc import Sequence

from distperiodic import ports
from distperiodic.flow.procedure import Procedure
from distperiodic.flow.procedure import call_steps
from distperiodic.flow.procedure import start
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
        if tasks:
            start(self._read(tasks))

    def _read(self, tasks: Sequence[str]) -> Procedure[None]:
        self._reading = True
        try:
            cancelled = yield from call_steps(
                self._store, ports.StepStore.cancelled, tasks)
        finally:
            self._reading = False
        self._executor.cancel_tasks(cancelled)
