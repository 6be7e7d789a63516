# SPDX-License-Identifier: Apache-2.0
"""Pauses of jobs and of objects, which operators request."""

from typing import NamedTuple

from distperiodic.core.schedule import Instant

#: Maximum number of objects of one job that are paused at the same time.
#: Schedulers read all of them at each sweep.
MOST_OBJECTS = 10_000


class Pause(NamedTuple):
    """A pause that is in force."""

    #: The operator's reason.
    why: str
    #: Instant at which the pause ends by itself. None means that it lasts
    #: until an operator ends it.
    until: Instant | None = None

    def covers(self, due: Instant) -> bool:
        """Return whether a tick that is due at *due* is skipped."""
        return self.until is None or due < self.until
