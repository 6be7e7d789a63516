# SPDX-License-Identifier: Apache-2.0
"""Import of oslo.db's engines without the ORM of SQLAlchemy.

The ORM takes a fifth of the CPU time of a command, and distperiodic does not
use it. ``oslo_db.sqlalchemy.utils``, which the engines need, imports the
module ``models``, which imports the ORM. :func:`defer_models` has ``models``
imported when a program uses an attribute of it. Only the program
``distperiodic`` calls it, because services that embed the library expect the
module itself in :data:`sys.modules`.
"""

import importlib
import sys
import types
from typing import Any

_NAME = 'oslo_db.sqlalchemy.models'


class _Deferred(types.ModuleType):
    """The module before its first use."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(_NAME) is self:
            del sys.modules[_NAME]
        return getattr(importlib.import_module(_NAME), name)


def defer_models() -> None:
    """Import oslo.db's models at their first use, unless they are imported."""
    if _NAME not in sys.modules:
        sys.modules[_NAME] = _Deferred(_NAME)
