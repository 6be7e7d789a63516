# SPDX-License-Identifier: Apache-2.0
"""Control of members: what an operator may ask of them, and their answers.

With a store, a command is a row of the store, and so is each answer. A message
makes the member read it at once::

    operator ──► store: desired state, action ──► member, at its next sweep
        │──────► bus: hint ─────────────────────► member, at once
        ◄─────── store: answer ──────────────────────┘

Without a store, both are messages: :mod:`distperiodic.core.control_message`.
"""

import enum
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

#: Largest number of threads of a pool that operators may set.
MAX_POOL_SIZE = 1000


class Verb(enum.StrEnum):
    """Commands that a member can be given."""

    DRAIN = 'member drain'
    UNDRAIN = 'member undrain'
    SET = 'member set'
    UNSET = 'member unset'
    #: Only over the bus: with a store, members report by themselves.
    SHOW = 'member show'


class Me(NamedTuple):
    """A member, as the store knows it over all of its restarts."""

    space: str
    #: Partition of a worker. Empty means a scheduler.
    part: str
    name: str


class Request(NamedTuple):
    """An action that a member has not answered."""

    action: str
    #: The text of a :class:`Verb`, or one that this release does not know.
    verb: str
    arguments: Mapping[str, Any]


class Desired(NamedTuple):
    """State of a member that operators want."""

    drained: bool = False
    #: None means the option ``pool_size``.
    pool_size: int | None = None


class Outcome(NamedTuple):
    """The answer of a member to one action."""

    done: bool
    text: str
