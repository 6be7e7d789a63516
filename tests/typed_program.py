# SPDX-License-Identifier: Apache-2.0
"""A user's program, which mypy checks together with the product.

Nothing runs it. An error that mypy must report has a comment with the code of
this error: mypy reports each such comment on a line without the error.
"""

from collections.abc import Iterable
from typing import Protocol

from distperiodic import ConfigError
from distperiodic import Context
from distperiodic import DistperiodicError
from distperiodic import PeriodicTasks
from distperiodic import RunReplaced
from distperiodic import SchedulerService
from distperiodic import TaskDispenser
from distperiodic import WorkerService
from distperiodic import no_such_name  # type: ignore[attr-defined] # noqa: F401
from distperiodic import periodic_task


class Tasks(PeriodicTasks):

    def hosts(self, context: Context) -> Iterable[str]:
        return ['h1', 'h2']

    @periodic_task(spacing=5, objects='hosts', misfire='skip', retries=2)
    def ping(self, context: Context, host: str) -> None:
        if context.is_current():
            print(f'{context.tick:%H:%M:%S} {host}')

    @periodic_task
    def beat(self, context: Context) -> None:
        self.ping(context, 'h1')


class Ping(Protocol):
    """The type of the method, which the decorator preserves."""

    def __call__(self, context: Context, host: str) -> None: ...


def call(tasks: Tasks, context: Context) -> Ping:
    periodic_task(spaceing=5)  # type: ignore[call-overload]
    periodic_task(spacing='5')  # type: ignore[call-overload]
    context.tack  # type: ignore[attr-defined] # noqa: B018
    tasks.ping('h1')  # type: ignore[call-arg, arg-type]
    return tasks.ping


def serve(tasks: Tasks) -> SchedulerService | None:
    try:
        return SchedulerService(tasks.conf, tasks)
    except (ConfigError, RunReplaced, DistperiodicError):
        return None


def pull(tasks: Tasks, open_tasks: dict[str, int]) -> list[str | int]:
    pool = TaskDispenser(tasks.conf, 'pool')
    pool.recreate_task_pool(open_tasks)
    pool.recreate_task_pool({1: 0.5}, as_of=pool.now())
    if pool.tasks_done('ann', ['a']) or pool.stats().done:
        pool.give_back('ann', [1, 'b'])
    return pool.assign_tasks(10, 'ann')


def work(tasks: Tasks) -> WorkerService:
    return WorkerService(tasks.conf, tasks)
