# SPDX-License-Identifier: Apache-2.0
"""Periodic work for many objects, distributed over many processes.

Importing this package imports none of its dependencies. The first import of
oslo.messaging, or of a backend of oslo.service, affects the whole process, so
the program must choose the time of that import. Each name below is imported
when it is first used.
"""

from typing import TYPE_CHECKING
from typing import Any

if TYPE_CHECKING:
    from distperiodic.coordinator import Coordinator
    from distperiodic.coordinator import HashRing
    from distperiodic.core.context import Context
    from distperiodic.dispenser import TaskDispenser
    from distperiodic.exceptions import ConfigError
    from distperiodic.exceptions import CoordinationUnavailable
    from distperiodic.exceptions import DistperiodicError
    from distperiodic.exceptions import InvalidJob
    from distperiodic.exceptions import InvalidPoolRequest
    from distperiodic.exceptions import InvalidProgress
    from distperiodic.exceptions import InvalidSchedule
    from distperiodic.exceptions import PoolNotFound
    from distperiodic.exceptions import RunReplaced
    from distperiodic.exceptions import StoreUnavailable
    from distperiodic.exceptions import ViewUnknown
    from distperiodic.periodic import PeriodicTasks
    from distperiodic.periodic import periodic_task
    from distperiodic.service import SchedulerService
    from distperiodic.service import WorkerService

__all__ = [
    'ConfigError',
    'Context',
    'CoordinationUnavailable',
    'Coordinator',
    'DistperiodicError',
    'HashRing',
    'InvalidJob',
    'InvalidPoolRequest',
    'InvalidProgress',
    'InvalidSchedule',
    'PeriodicTasks',
    'PoolNotFound',
    'RunReplaced',
    'SchedulerService',
    'StoreUnavailable',
    'TaskDispenser',
    'ViewUnknown',
    'WorkerService',
    'periodic_task',
]

_HOMES = {
    'distperiodic.coordinator': ('Coordinator', 'HashRing'),
    'distperiodic.core.context': ('Context',),
    'distperiodic.dispenser': ('TaskDispenser',),
    'distperiodic.exceptions': (
        'ConfigError', 'CoordinationUnavailable', 'DistperiodicError',
        'InvalidJob', 'InvalidPoolRequest', 'InvalidProgress',
        'InvalidSchedule', 'PoolNotFound', 'RunReplaced',
        'StoreUnavailable', 'ViewUnknown'),
    'distperiodic.periodic': ('PeriodicTasks', 'periodic_task'),
    'distperiodic.service': ('SchedulerService', 'WorkerService'),
}


# Hide __getattr__ from type checkers. Otherwise they would accept every name
# in this package, with the type Any.
if not TYPE_CHECKING:
    def __getattr__(name: str) -> Any:
        for home, names in _HOMES.items():
            if name in names:
                import importlib
                return getattr(importlib.import_module(home), name)
        raise AttributeError(
            f'module {__name__!r} has no attribute {name!r}')


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
