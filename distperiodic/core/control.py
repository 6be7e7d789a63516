# SPDX-License-Identifier: Apache-2.0
"""Control of members: commands of operators, and the answers of members.

With a store, each command and each answer is a row of the store. In addition,
a hint on the bus makes the member read the command at once::

    operator ──► store: desired state, action ──► member, at its next sweep
        │──────► bus: hint ─────────────────────► member, at once
        ◄─────── store: answer ──────────────────────┘

Without a store, commands and answers are messages:
:mod:`distperiodic.core.control_message`.
"""

import enum
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

#: Largest number of threads of a pool that operators may set.
MAX_POOL_SIZE = 1000


class Verb(enum.StrEnum):
    """Commands to a member."""

    DRAIN = 'member drain'
    UNDRAIN = 'member undrain'
    SET = 'member set'
    UNSET = 'member unset'
    #: This command is sent only over the bus. With a store, members record
    #: their state regularly, without a command.
    SHOW = 'member show'
    PAUSE = 'job pause'
    RESUME = 'job resume'
    TRIGGER = 'job trigger'


#: Commands on jobs. Only schedulers carry them out.
JOB_VERBS = frozenset((Verb.PAUSE, Verb.RESUME, Verb.TRIGGER))


class Me(NamedTuple):
    """Identity of a member in the store.

    A member has the same identity after a restart.
    """

    space: str
    #: Partition of a worker. Empty means a scheduler.
    part: str
    name: str


def host_of(name: str) -> str:
    """Return the host in the name of a member: HOST:NUMBER, or HOST alone."""
    host, _, number = name.rpartition(':')
    return host if host and number.isdecimal() else name


class MemberCommand(NamedTuple):
    """A command of an operator that a member has not answered yet."""

    #: Id of the record of the command.
    action: str
    #: The text of a :class:`Verb`, or of a command that this release does not
    #: know.
    verb: str
    arguments: Mapping[str, Any]
    #: Name of the job, for a command on a job.
    target: str = ''


class Desired(NamedTuple):
    """Member state requested by an operator."""

    drained: bool = False
    #: None means that the option ``pool_size`` applies.
    pool_size: int | None = None


class Found(NamedTuple):
    """Desired state and unanswered actions of a member, from the store."""

    #: None means that the member has no row yet.
    desired: Desired | None
    #: Unanswered actions, the oldest first.
    requests: Sequence[MemberCommand]
    #: True if operators have drained the host of a member without a row.
    host_drained: bool = False


class MemberOutcome(NamedTuple):
    """The answer of a member to a :class:`MemberCommand`."""

    done: bool
    text: str
