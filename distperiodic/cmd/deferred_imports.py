# SPDX-License-Identifier: Apache-2.0
"""Imports of libraries that other libraries request, and no command uses.

They take a quarter of the CPU time of a command. :func:`defer_imports` has
such a module imported when a program uses an attribute of it. Only the program
``distperiodic`` calls it, because services that embed the library expect the
modules themselves in :data:`sys.modules`.
"""

import importlib
import sys
import types
from typing import Any

_DEFERRED = (
    # oslo.config needs them for types of options that this library has not.
    'netaddr',
    'rfc3986',
    # This module imports the ORM of SQLAlchemy. oslo.db's engines need a
    # module that imports it.
    'oslo_db.sqlalchemy.models',
)


class _Deferred(types.ModuleType):
    """The module before its first use."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


def defer_imports() -> None:
    """Import some modules at their first use, unless they are imported."""
    for name in _DEFERRED:
        if name not in sys.modules:
            sys.modules[name] = _Deferred(name)
