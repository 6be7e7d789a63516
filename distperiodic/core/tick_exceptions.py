# SPDX-License-Identifier: Apache-2.0
"""Exceptions of ticks: the objects that did not run as planned, by outcome.

An object that was listed at a tick, and that is in no exception of the tick,
ran. So healthy objects need no record. The ids of the objects with one outcome
in one transaction are one compressed text, so an exception costs a few bytes.
"""

import bisect
import collections
import json
import zlib
from collections.abc import Iterable
from collections.abc import Sequence
from typing import NamedTuple

from distperiodic.core.outcomes import REQUEUED
from distperiodic.core.schedule import Instant

#: Number of objects of one tick of a job whose ids are kept. Once the ids of
#: this number of objects are recorded, only numbers of objects are recorded.
KEPT = 100_000
#: Maximum number of ids of one job that stay in the store, and the number of
#: ids that take as much space as the other columns of a row. Schedulers delete
#: the ids of the oldest ticks, and keep the numbers of objects.
KEPT_IN_ALL, ROW = 5_000_000, 20
#: Maximum length of an exception of each class, in microseconds. The class is
#: the index; see :func:`span_of`.
SPANS = tuple(min(16 ** number, 2 ** 63 - 1) for number in range(17))


class TickException(NamedTuple):
    """Objects whose tick had the same outcome, recorded together."""

    #: Name of the outcome in :data:`~distperiodic.core.outcomes.OUTCOMES`,
    #: REQUEUED or LATE.
    outcome: str
    #: The objects missed all of their ticks after the first instant, up to the
    #: second one, which is the tick that counts them.
    after: Instant
    tick: Instant
    #: The member that the history names. Empty means an operator.
    member: str
    #: When the outcome was recorded.
    at: Instant
    #: Reason why the objects did not run. Empty means that none is recorded.
    reason: str
    #: Number of objects.
    number: int
    #: Result of :func:`packed`. None means that the ids are not kept.
    objects: bytes | None

    def covers(self, tick: Instant) -> bool:
        """Return True if the outcome is that of *tick* as well."""
        return self.after < tick <= self.tick

    def has(self, key: str) -> bool:
        """Return True if the object *key* is one of the objects."""
        return self.objects is not None and (
            _line(key) in zlib.decompress(self.objects))

    def keys(self) -> list[str]:
        """Return the ids that are kept."""
        return [] if self.objects is None else [
            json.loads(line)
            for line in zlib.decompress(self.objects).splitlines() if line]


def span_of(after: Instant, tick: Instant) -> int:
    """Return the class of an exception by the length of its interval.

    An exception covers an earlier instant only if it is long enough. So the
    class and the tick together find the few exceptions that cover an instant.
    """
    return bisect.bisect_left(SPANS, tick - after)


def packed(keys: Iterable[str]) -> bytes:
    """Return the ids of objects as one compressed text.

    Each id is a line of JSON. JSON escapes the ends of lines, so an id is
    found without decoding the others.
    """
    return zlib.compress(b'\n' + b''.join(
        _line(key)[1:] for key in keys), 1)


def _line(key: str) -> bytes:
    return b'\n%s\n' % json.dumps(key).encode()


class ObjectPast(NamedTuple):
    """The exceptions of one tick that concern, or may concern, an object."""

    #: Exceptions of the object, the oldest first.
    own: Sequence[TickException] = ()
    #: Number of objects by outcome whose ids were not kept, or not read: each
    #: of them may be this object.
    unknown: 'collections.Counter[str]' = collections.Counter()

    def number(self, outcome: str) -> int:
        """Return the number of exceptions of the object with an outcome."""
        return sum(one.outcome == outcome for one in self.own)

    def last(self, outcome: str) -> TickException | None:
        """Return the last exception of the object with an outcome, or None."""
        return next((one for one in reversed(self.own)
                     if one.outcome == outcome), None)

    @property
    def requeued(self) -> TickException | None:
        """The last requeue of the object. None means that there was none."""
        return self.last(REQUEUED)


def past_of(found: Iterable[TickException], key: str,
            tick: Instant) -> ObjectPast:
    """Return the exceptions of *tick* as seen from the object *key*.

    :param found: Exceptions of ticks of the object's job, the oldest first.
    """
    own = []
    unknown: collections.Counter[str] = collections.Counter()
    for one in found:
        if not one.covers(tick):
            continue
        if one.objects is None:
            unknown[one.outcome] += one.number
        elif one.has(key):
            own.append(one)
    return ObjectPast(own, unknown)
