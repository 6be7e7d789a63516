# SPDX-License-Identifier: Apache-2.0
"""Table of the numbers that the history keeps for each tick.

Each field of :class:`Counts` is one number, and its :class:`Outcome` says what
the number means to the other modules. The columns of the store, the history,
the audit and the reasons for an object are made from this table. So a new
number is a new field here, a migration, and the code that counts it.
"""

import enum
import typing
from collections.abc import Mapping
from typing import Annotated
from typing import NamedTuple

from distperiodic.core.claim import SkippedBy
from distperiodic.core.claim import State
from distperiodic.core.reason import Reason


class Fate(enum.StrEnum):
    """Class of an object and a tick; see :mod:`distperiodic.core.audit`."""

    ON_TIME = 'on time'
    LATE = 'late'
    DEAD = 'dead'
    SUPERSEDED = 'superseded'
    CANCELLED = 'cancelled'
    SKIPPED = 'skipped'
    PASSED_OVER = 'passed over'
    LOST = 'lost'
    PENDING = 'pending'
    NOT_LISTED = 'not listed'
    UNEXPLAINED = 'unexplained'


class Outcome(NamedTuple):
    """Meaning of a number of objects."""

    #: Heading of the number in the history. Empty means that the history does
    #: not show the number.
    title: str = ''
    #: Final state of the claims that the number counts. None means that the
    #: number is not the number of claims in a final state.
    state: State | None = None
    #: Cause of the skips that the number counts. They are also included in the
    #: number of skipped objects.
    skipped_by: SkippedBy | None = None
    #: Class of the objects in the audit.
    fate: Fate | None = None
    #: Reason that is given for one of these objects.
    reason: Reason | None = None
    #: False means that the history has no column for the number.
    stored: bool = True
    #: True means that the store also records the ids of the objects; see
    #: :mod:`distperiodic.core.tick_exceptions`.
    by_object: bool = False


class Counts(NamedTuple):
    """Numbers of objects for one tick of a job."""

    #: Objects that were claimed, or skipped without a claim.
    due: Annotated[int, Outcome('Due')] = 0
    done: Annotated[int, Outcome(
        'Done', State.DONE, fate=Fate.ON_TIME, reason=Reason.RAN)] = 0
    #: Dead objects, minus the objects that an operator has requeued. A
    #: requeued object does not count as due again.
    dead: Annotated[int, Outcome(
        'Dead', State.DEAD, fate=Fate.DEAD, reason=Reason.DEAD,
        by_object=True)] = 0
    #: Objects that were skipped, for any reason.
    skipped: Annotated[int, Outcome(
        'Skipped', State.SKIPPED, fate=Fate.SKIPPED)] = 0
    by_misfire: Annotated[int, Outcome(
        'Misfire', skipped_by=SkippedBy.MISFIRE, fate=Fate.PASSED_OVER,
        reason=Reason.PASSED_OVER, by_object=True)] = 0
    by_overlap: Annotated[int, Outcome(
        'Overlap', skipped_by=SkippedBy.OVERLAP, fate=Fate.SKIPPED,
        reason=Reason.SKIPPED_BY_OVERLAP, by_object=True)] = 0
    by_pause: Annotated[int, Outcome(
        'Paused', skipped_by=SkippedBy.PAUSE, fate=Fate.SKIPPED,
        reason=Reason.SKIPPED_BY_PAUSE, by_object=True)] = 0
    by_lost: Annotated[int, Outcome(
        'Lost', skipped_by=SkippedBy.LOST, fate=Fate.LOST,
        reason=Reason.LOST, by_object=True)] = 0
    #: Skips of ticks before this tick. *due* and *skipped* include them. If an
    #: object missed several ticks at once, all of them are counted for the
    #: newest of these ticks.
    missed: Annotated[int, Outcome()] = 0
    superseded: Annotated[int, Outcome(
        'Superseded', State.SUPERSEDED, fate=Fate.SUPERSEDED,
        reason=Reason.SUPERSEDED, by_object=True)] = 0
    cancelled: Annotated[int, Outcome(
        'Cancelled', State.CANCELLED, fate=Fate.CANCELLED,
        reason=Reason.CANCELLED, by_object=True)] = 0
    #: Objects whose claims have not ended. The store counts the rows of the
    #: claims.
    open: Annotated[int, Outcome('Open', fate=Fate.PENDING, stored=False)] = 0
    #: Failures after which a run is retried.
    retried: Annotated[int, Outcome('Retried')] = 0
    #: Take-overs of claims from a holder whose lease expired or that was gone.
    taken_over: Annotated[int, Outcome('Taken over')] = 0
    #: Objects whose first run was started more than ``late_claim_after``
    #: seconds after the object was due.
    late: Annotated[int, Outcome()] = 0

    @property
    def ended(self) -> int:
        """Number of objects whose claims have ended."""
        return sum(self[at] for at in _ENDED)


#: Meaning of each number, by the name of its field.
OUTCOMES: Mapping[str, Outcome] = {
    name: hint.__metadata__[0] for name, hint in typing.get_type_hints(
        Counts, include_extras=True).items()}
#: Numbers that the history has a column for, in the order of the columns.
COLUMNS = tuple(name for name, outcome in OUTCOMES.items() if outcome.stored)
#: Name of the number of claims in each final state, and of the number of skips
#: with each cause.
ENDED = {outcome.state: name for name, outcome in OUTCOMES.items()
         if outcome.state is not None}
SKIPPED = {outcome.skipped_by: name for name, outcome in OUTCOMES.items()
           if outcome.skipped_by is not None}
#: Names of the numbers whose objects are recorded by their ids, too.
BY_OBJECT = frozenset(
    name for name, outcome in OUTCOMES.items() if outcome.by_object)
#: Outcome of dead objects that an operator has requeued: they are dead no
#: more. No number counts them.
REQUEUED = 'requeued'
#: Outcome of objects whose first run was started more than a period after they
#: were due, and more than ``late_claim_after`` seconds. They may have another
#: outcome, too. The number *late* includes them.
LATE = 'late by a period'

_ENDED = [Counts._fields.index(name) for name in ENDED.values()]
