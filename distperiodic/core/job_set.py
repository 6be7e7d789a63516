# SPDX-License-Identifier: Apache-2.0
"""The jobs that a member has, and the rings of single jobs.

In a rolling deployment, old and new members have different jobs. An object
must belong to a member that has its job. So the ring of a job consists of the
members that have the job::

    members      jobs              ring of poll     ring of sync
    a (old)      poll              a                -
    b (old)      poll              b                -
    c (new)      poll, sync        c                c

The name of a member's entry contains only a short hash of its jobs. The set
itself is stored with the entry, as 8 bytes for each job. One set is read for
each hash, not for each member, because most members have equal sets.
"""

import base64
import binascii
import struct
import zlib
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

from distperiodic.core.job import Job
from distperiodic.core.job import Scope
from distperiodic.core.ring import Ring

_PAIR = struct.Struct('>II')
_DIGESTS = 9_999_999
# Maximum number of earlier schedules of a job that the store records.
_MOST_DEFINITIONS = 16
# Minimum and maximum of :func:`attendance_gap`, in seconds.
_GAPS = 2.0, 30.0
#: Number of records, within :func:`attendance_gap`, that a job is attended.
RECORDS_PER_GAP = 3


def attendance_gap(period: float) -> float:
    """Return the time that may pass until schedulers attend a job again.

    A longer time is a gap, in which no scheduler has attended the job.

    :param period: Seconds between two ticks of the job.
    :returns: Seconds.
    """
    return min(max(period, _GAPS[0]), _GAPS[1])


def mark_of(schedule: str) -> int:
    """Return a short hash of the text of a schedule."""
    return zlib.crc32(schedule.encode())


def adopted(definitions: Sequence[int], mark: int,
            others: Collection[int] | None) -> list[int] | None:
    """Return the definitions of a job's schedule, with a schedule in force.

    The newest definition that a member has is in force. A definition is new
    when it is first in force, so a process that is restarted with an earlier
    release does not replace the schedule of a later one. The earlier schedule
    is in force again when no member has the later one any more.

    :param definitions: Hashes of the schedules that have been in force, the
        newest definition first.
    :param mark: Hash of the schedule that a process has.
    :param others: Hashes of the schedules that all members have. None means
        that they are unknown.
    :returns: The new definitions. None means that the process must not put its
        schedule in force.
    """
    if others is None:
        return None
    if mark not in definitions:
        return [mark, *definitions][:_MOST_DEFINITIONS]
    newer = definitions[:list(definitions).index(mark)]
    if any(one in newer for one in others):
        return None
    return list(definitions)


class JobSet:
    """Names and schedules of the jobs of a member, as hashes.

    Two names with the same hash would count as the same job, but for 1,000
    jobs the probability of this is 1 to 8,600.
    """

    __slots__ = ('_marks', 'digest', 'text')

    def __init__(self, marks: Mapping[int, int]):
        #: Hash of the schedule by the hash of the job's name.
        self._marks = dict(marks)
        data = b''.join(_PAIR.pack(*pair) for pair in sorted(marks.items()))
        #: The set as text, for :meth:`parse`.
        self.text = base64.b64encode(data).decode()
        #: Hash of the set, from 1 to 9,999,999. It is short, because it is
        #: part of the name of an entry.
        self.digest = 1 + zlib.crc32(data) % _DIGESTS

    @classmethod
    def of(cls, jobs: Iterable[Job]) -> 'JobSet':
        """Return the set of the enabled jobs among *jobs*.

        Commands are left out, because they have no schedule, and the ring does
        not divide their steps.
        """
        return cls({zlib.crc32(job.name.encode()):
                    mark_of(job.schedule_text())
                    for job in jobs
                    if job.enabled and job.scope is not Scope.TASK})

    @classmethod
    def parse(cls, text: object) -> 'JobSet | None':
        """Return the set with this :attr:`text`.

        None means that *text* is invalid.
        """
        if not isinstance(text, str):
            return None
        try:
            data = base64.b64decode(text, validate=True)
            return cls({name: mark
                        for name, mark in _PAIR.iter_unpack(data)})
        except (binascii.Error, ValueError, struct.error):
            return None

    def mark(self, job: str) -> int | None:
        """Return the hash of the schedule that *job* has in this set.

        None means that the set does not contain the job.
        """
        return self._marks.get(zlib.crc32(job.encode()))


class JobRings:
    """The rings of the jobs in one view of a group.

    Jobs that all members have share the ring of the group. Other jobs share a
    ring if the same members have them. If the members of a ring are unchanged
    in the next view, that view has the same ring object.

    :param ring: Ring of all members of the group.
    :param digests: :attr:`JobSet.digest` by identity, for the members on the
        ring. 0 means that the member has no jobs.
    :param sets: The known sets, by their digests.
    :param before: Rings of the previous view.
    """

    __slots__ = ('_before', '_digests', '_rings', '_sets', '_shared', 'ring')

    def __init__(self, ring: Ring, digests: Mapping[str, int],
                 sets: Mapping[int, JobSet],
                 before: 'JobRings | None' = None):
        self.ring = ring
        self._digests = dict(digests)
        self._sets = {digest: sets[digest] for digest in set(digests.values())
                      if digest in sets}
        #: Rings of the previous view, without those of the views before it.
        self._before = ([] if before is None
                        else [before.ring, *before._shared.values()])
        #: Rings by their members. Several threads may add an equal ring at
        #: the same time; setdefault() keeps one of them.
        self._shared: dict[frozenset[str], Ring] = {}
        self._rings: dict[tuple[str, str, bool], Ring] = {}

    def changed_to(self, ring: Ring, digests: Mapping[str, int],
                   sets: Mapping[int, JobSet]) -> 'JobRings':
        """Return the rings of the next view, which may be this object."""
        rings = JobRings(ring, digests, sets, self)
        if (ring is self.ring and rings._digests == self._digests
                and rings._sets == self._sets):
            return self
        return rings

    def of(self, job: str, schedule: str = '', *,
           unknown: bool = False) -> Ring:
        """Return the ring of *job*, which may have no members.

        :param schedule: Text of the schedule in force. The members with this
            schedule form the ring. If it is empty, or if no member has this
            schedule, all members with the job form the ring.
        :param unknown: True if members whose jobs are unknown are on the ring.
        """
        key = job, schedule, unknown
        ring = self._rings.get(key)
        if ring is None:
            ring = self._rings[key] = self._ring(
                self._members(job, schedule, unknown))
        return ring

    def marks(self, job: str) -> set[int]:
        """Return the hashes of the schedules that members have for *job*."""
        marks = {one.mark(job) for one in self._sets.values()}
        return {mark for mark in marks if mark is not None}

    def _members(self, job: str, schedule: str,
                 unknown: bool) -> Collection[str]:
        marks = {digest: one.mark(job) for digest, one in self._sets.items()}
        having = {digest for digest, mark in marks.items()
                  if mark is not None}
        in_force = {digest for digest in having
                    if marks[digest] == mark_of(schedule)}
        if schedule and in_force:
            having = in_force
        if unknown:
            having |= {digest for digest in self._digests.values()
                       if digest and digest not in marks}
        return [one for one in self.ring.members
                if self._digests.get(one) in having]

    def _ring(self, members: Collection[str]) -> Ring:
        if len(members) == len(self.ring.members):
            return self.ring
        key = frozenset(members)
        ring = self._shared.get(key)
        if ring is not None:
            return ring
        points = {one: self.ring.members[one] for one in members}
        ring = next((one for one in self._before if one.members == points),
                    None)
        return self._shared.setdefault(
            key, self.ring.changed_to(points) if ring is None else ring)
