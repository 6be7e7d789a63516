# SPDX-License-Identifier: Apache-2.0
"""Slots that the recent work of each partition needs, and those that exist.

The page howto/capacity.rst explains the formula.
"""

import collections
from collections.abc import Iterable
from collections.abc import Sequence
from typing import TYPE_CHECKING
from typing import NamedTuple

from distperiodic.core.wording import percent
from distperiodic.operator.member_rows import MemberRow
from distperiodic.operator.member_rows import slots
from distperiodic.operator.member_rows import topics

if TYPE_CHECKING:
    # This module loads SQLAlchemy, which a group without a store lacks.
    from distperiodic.operator.activity import Load


class Capacity(NamedTuple):
    """The use of the slots of one partition in a recent interval."""

    partition: str
    #: Average number of slots that would run all that was due: due runs per
    #: second, times the mean duration of a run.
    needed: float
    #: Average number of slots that ran handlers.
    busy: float
    #: Slots of the live members that are not drained.
    slots: int

    @property
    def text(self) -> str:
        """The needed slots and their share, for people."""
        return (f'partition {self.partition} needs {self.needed:.1f} of '
                f'{self.slots:,} slots ({percent(self.needed, self.slots)})')


def of_loads(loads: 'Iterable[Load]', members: Sequence[MemberRow],
             session_timeout: float) -> list[Capacity]:
    """Return the use of the slots of each partition that had work.

    :param session_timeout: Maximum age of a member's report, in seconds.
    """
    by_job, found = topics(members), slots(members, session_timeout)
    needed: dict[str, float] = collections.defaultdict(float)
    busy: dict[str, float] = collections.defaultdict(float)
    for load in loads:
        topic = by_job.get(load.job)
        if topic is not None and topic in found:
            needed[topic] += load.needed
            busy[topic] += load.busy
    return [Capacity(topic, needed[topic], busy[topic], found[topic])
            for topic in sorted(found) if needed[topic] or busy[topic]]
