# SPDX-License-Identifier: Apache-2.0
"""An action of the page: what it would do, and how it is done.

An action does what the command of the same name does, with the same functions
of :mod:`distperiodic.operator`, and is recorded as that command is.
"""

import abc
import argparse
import dataclasses
import re
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

from distperiodic.operator.action_sources import ActionSources
from distperiodic.operator.auditing import Actor
from distperiodic.operator.bulk import BulkResult
from distperiodic.operator.member_rows import MemberRow
from distperiodic.web.page import Addresses
from distperiodic.web.page import PageRequest
from distperiodic.web.page import PageTable
from distperiodic.web.query_filters import Field
from distperiodic.web.verbs import PageVerb

#: Number of rows that a confirmation shows.
FIRST = 10
_NOT_PRINTED = re.compile('[\\x00-\\x1f\\x7f\\ud800-\\udfff]')


def one_line(text: str) -> str:
    """Return a text of an operator, without what a database cannot store."""
    return ' '.join(_NOT_PRINTED.sub(' ', text).split())


class Preview(NamedTuple):
    """The effect that an action would have now."""

    #: Question, such as "Pause job ping?".
    question: str
    #: Sentences about the consequences.
    effect: Sequence[str]
    #: Number of rows that would change. None means unknown.
    number: int | None = 1
    #: First rows, if there are several. None means that there is no list.
    table: PageTable | None = None
    #: Clauses about consequences that the operator may not want.
    warnings: Sequence[str] = ()


@dataclasses.dataclass
class Order:
    """An action that an operator has confirmed."""

    #: Names of the target.
    names: Mapping[str, str]
    #: Values of the fields of the action.
    fields: Mapping[str, str]
    #: Number of rows that the operator has seen and confirmed. None means
    #: that the operator has confirmed no number.
    number: int | None


class PageActionSources(ActionSources):
    """The sources of one action of the page.

    :param actor: The operator, the reason and the id of the action.
    """

    def __init__(self, conf: Any, actor: Actor):
        super().__init__(argparse.Namespace(), lambda: conf)
        self.actor = actor


class PageAction(abc.ABC):
    """Base class of the actions."""

    verb: PageVerb
    #: True if the operator must give a reason.
    reason_required = False
    #: Names that may identify the target, and those that must.
    names: Sequence[str]
    needed: Sequence[str] = ()
    #: Names that identify the target without any other name.
    alone: Sequence[str] = ()
    #: Fields of the confirmation, beside the reason.
    fields: Sequence[Field] = ()

    @abc.abstractmethod
    def plan(self, request: PageRequest, names: Mapping[str, str]) -> Preview:
        """Return the effect that the action would have now.

        :raises NotFound: there is no such target.
        """

    @abc.abstractmethod
    def back(self, to: Addresses, names: Mapping[str, str]) -> str:
        """Return the address of the page that shows the target."""

    @abc.abstractmethod
    def act(self, sources: ActionSources, order: Order) -> None:
        """Carry out the action, and record it.

        :raises AlreadyRecorded: the action was carried out before.
        :raises ConfigError: the action is not possible now.
        """


def running_schedulers(sources: ActionSources) -> list[MemberRow]:
    """Return the schedulers whose processes have not stopped."""
    return [one for one in sources.members.members()
            if not (one.part or one.stopped)]


def ignore(note: str) -> None:
    """Ignore that a hint was not sent: members read the store anyway."""


def conclude(sources: ActionSources, order: Order,
             result: BulkResult) -> None:
    """Add to the record the number of rows that the operator confirmed, if it
    was another one.
    """
    if order.number not in (None, result.matched):
        sources.members.conclude(sources.actor.action, (
            f'{result.text}; {order.number:,} when it was confirmed'))
