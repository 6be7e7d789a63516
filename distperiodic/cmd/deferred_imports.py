# SPDX-License-Identifier: Apache-2.0
"""Imports of libraries that other libraries request, and no command uses.

They take a quarter of the CPU time of a command. After :func:`defer_imports`,
such a module is imported when a program uses an attribute of it. Only the
program ``distperiodic`` calls it, for short commands without the code of a
service: services expect the modules themselves in :data:`sys.modules`.
"""

import importlib
import importlib.util
import sys
import threading
import types
from typing import Any

_DEFERRED = (
    # oslo.config needs them for types of options that this library does not
    # use.
    'netaddr',
    'rfc3986',
    # oslo.utils needs it for a decorator that repeats calls.
    'oslo_utils.timeutils',
    # This module imports the ORM of SQLAlchemy. oslo.db's engines need a
    # module that imports it.
    'oslo_db.sqlalchemy.models',
)
_lock = threading.Lock()


class _Deferred(types.ModuleType):
    """The module before its first use."""

    def __getattr__(self, name: str) -> Any:
        # Another thread may be importing the module at the same time.
        with _lock:
            if sys.modules.get(self.__name__) is self:
                del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


def defer_imports() -> None:
    """Import some modules at their first use, unless they are imported."""
    for name in _DEFERRED:
        if name in sys.modules:
            continue
        deferred = _Deferred(name)
        deferred.__spec__ = importlib.util.find_spec(name)
        sys.modules[name] = deferred
        package, _, own_name = name.rpartition('.')
        if package:
            setattr(sys.modules[package], own_name, deferred)
