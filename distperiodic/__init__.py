# SPDX-License-Identifier: Apache-2.0
"""Periodic work over very many objects, on many processes.

Importing this package loads nothing else: oslo.messaging and the backend of
oslo.service fix the whole process on first import, and that choice is the
program's. The names below are loaded when they are first used.
"""

from typing import Any

__all__ = ['HashRing', 'PeriodicTasks', 'periodic_task']

_HOMES = {
    'HashRing': 'distperiodic.coordinator',
    'PeriodicTasks': 'distperiodic.periodic',
    'periodic_task': 'distperiodic.periodic',
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    import importlib
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
