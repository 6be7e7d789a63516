# SPDX-License-Identifier: Apache-2.0
"""Names of the numbers that a scheduler counts since its start.

A new number is a new member of :class:`Counted`, and the line that counts it.
``doc/source/reference/log-lines.rst`` describes each number for operators.
"""

import collections
import enum


class Counted(enum.StrEnum):
    """Names of the numbers, as operators see them.

    Each counts objects, unless its comment says otherwise.
    """

    CLAIMED = 'claimed'
    CLAIMS_FAILED = 'claims failed'
    #: Includes retries that are due.
    TAKEN_OVER = 'taken over'
    DONE = 'done'
    RETRIED = 'retried'
    #: Started, lost with their worker, and started again.
    REPEATED = 'repeated'
    DEAD = 'dead'
    #: Later ticks superseded the claims, or other members took them over.
    SUPERSEDED = 'superseded'
    LEFT_TO_OTHERS = 'left to others'
    #: Ticks of each object.
    SKIPPED = 'skipped'
    PAUSED = 'paused'
    #: Ticks that came due while this member could not act.
    HELD = 'held'
    #: Requested before the store's clock had reached their tick.
    TOO_EARLY = 'too early'
    #: Ticks of each object that ``misfire`` gave up.
    MISSED = 'missed'
    #: Ticks, at each failure of their catalogue.
    CATALOGUE_FAILED = 'catalogue failed'


#: Numbers by job and name.
Counters = collections.Counter[tuple[str, Counted]]
