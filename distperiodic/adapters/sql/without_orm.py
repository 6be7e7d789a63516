# SPDX-License-Identifier: Apache-2.0
"""Import of oslo.db's engines without the ORM of SQLAlchemy.

The ORM takes a fifth of the CPU time of a command, and distperiodic does not
use it. ``oslo_db.sqlalchemy.utils``, which the engines need, imports the
module ``models``, which imports the ORM. So this module imports ``models``
when a program uses an attribute of it.
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


if _NAME not in sys.modules:
    sys.modules[_NAME] = _Deferred(_NAME)
from oslo_db.sqlalchemy import engines  # noqa: E402

__all__ = ['engines']
