# SPDX-License-Identifier: Apache-2.0
"""Types of the columns of the store.

A type that differs between databases is an attribute of their dialects.
"""

from typing import Any

import sqlalchemy as sa

from distperiodic.adapters.sql.dialects.registry import class_of
from distperiodic.core.claim import STATE_CODES
from distperiodic.core.claim import SkippedBy
from distperiodic.core.claim import State
from distperiodic.core.standby import Role
from distperiodic.core.workflow import CODES
from distperiodic.core.workflow import Status

_STATES = {code: state for state, code in STATE_CODES.items()}
_STATUSES = {code: status for status, code in CODES.items()}
SKIPPED_CODES = {
    SkippedBy.MISFIRE: 1, SkippedBy.OVERLAP: 2, SkippedBy.PAUSE: 3,
    SkippedBy.LOST: 4,
}
_SKIPPED = {code: by for by, code in SKIPPED_CODES.items()}
ROLE_CODES = {
    Role.STARTING: 1, Role.STANDBY: 2, Role.ACTIVE: 3, Role.STOPPING: 4,
    Role.SHARED: 5, Role.GONE: 6,
}
_ROLES = {code: role for role, code in ROLE_CODES.items()}


class Exact(sa.TypeDecorator[str]):
    """Text that is compared byte for byte."""

    impl = sa.String
    cache_ok = True

    def __init__(self, length: int):
        super().__init__(length)
        self.length = length

    def load_dialect_impl(self, dialect: Any) -> Any:
        return dialect.type_descriptor(class_of(dialect).exact(self.length))

    def process_bind_param(self, value: str | None, dialect: Any) -> Any:
        encode, _ = class_of(dialect).converters()
        return encode(value) if encode else value

    def process_result_value(self, value: Any, dialect: Any) -> str | None:
        _, decode = class_of(dialect).converters()
        found: str | None = decode(value) if decode else value
        return found

    # Processors run for each value of hundreds of rows. So these bypass the
    # slower methods above. Most databases need no processors.

    def bind_processor(self, dialect: Any) -> Any:
        return class_of(dialect).converters()[0]

    def result_processor(self, dialect: Any, coltype: Any) -> Any:
        return class_of(dialect).converters()[1]


class StateColumn(sa.TypeDecorator[State]):
    """Column that stores a state as its code."""

    impl = sa.SmallInteger
    cache_ok = True

    def process_bind_param(self, value: State | None, dialect: Any) -> Any:
        return None if value is None else STATE_CODES[value]

    def process_result_value(self, value: Any, dialect: Any) -> State | None:
        return None if value is None else _STATES[value]


class StatusColumn(sa.TypeDecorator[Status]):
    """Column that stores the status of a task as its code."""

    impl = sa.SmallInteger
    cache_ok = True

    def process_bind_param(self, value: Status | None, dialect: Any) -> Any:
        return None if value is None else CODES[value]

    def process_result_value(self, value: Any, dialect: Any) -> Status | None:
        return None if value is None else _STATUSES[value]


class SkippedByColumn(sa.TypeDecorator[SkippedBy]):
    """Column that stores the cause of a skip as its code."""

    impl = sa.SmallInteger
    cache_ok = True

    def process_bind_param(self, value: SkippedBy | None, dialect: Any
                           ) -> Any:
        return None if value is None else SKIPPED_CODES[value]

    def process_result_value(self, value: Any, dialect: Any
                             ) -> SkippedBy | None:
        return None if value is None else _SKIPPED[value]


class RoleColumn(sa.TypeDecorator[Role]):
    """Column that stores the role of a worker as its code."""

    impl = sa.SmallInteger
    cache_ok = True

    def process_bind_param(self, value: Role | None, dialect: Any) -> Any:
        return None if value is None else ROLE_CODES[value]

    def process_result_value(self, value: Any, dialect: Any) -> Role | None:
        return None if value is None else _ROLES[value]


class LeaseName(sa.TypeDecorator[str]):
    """Name of a lease, or another short ASCII text.

    The process that creates a lease chooses its name.
    """

    impl = sa.String
    cache_ok = True

    def load_dialect_impl(self, dialect: Any) -> Any:
        return class_of(dialect).lease_name()


class LongText(sa.TypeDecorator[str]):
    """Text of up to 16 MB."""

    impl = sa.Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Any) -> Any:
        return class_of(dialect).long_text()


class LongBinary(sa.TypeDecorator[bytes]):
    """Up to 16 MB of bytes."""

    impl = sa.LargeBinary
    cache_ok = True

    def load_dialect_impl(self, dialect: Any) -> Any:
        return class_of(dialect).long_binary()


class Serial(sa.TypeDecorator[int]):
    """Number that the database gives to a new row."""

    impl = sa.BigInteger
    cache_ok = True

    def load_dialect_impl(self, dialect: Any) -> Any:
        return class_of(dialect).serial()
