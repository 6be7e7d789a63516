# SPDX-License-Identifier: Apache-2.0
"""Group membership: the entry of a member, and the view of all entries.

An entry is a name in the coordination service. The name contains everything
that the other members need to know about a member. So a single listing of the
group is enough to build the ring::

    api-1~9f2c41d07be3a655~3~f1.t2.r40
    |     |                | |
    |     |                | attributes: ring format 1, tenure 2, 40 points
    |     |                generation: the third entry of this process
    |     nonce: unique to this process
    identity: the name on the ring, the same after a restart

A *term* is the time during which a process has one entry. The process gets a
new entry when its number of points changes, for example. Consecutive terms
without a gap form one *tenure*. A tenure ends when the session is lost. Work
that was claimed in one tenure is not started in the next tenure, because other
members may have taken the work over during the gap.
"""

import dataclasses
import functools
import re
import zlib
from collections.abc import Iterable

from distperiodic import exceptions
from distperiodic.core.job_set import JobRings
from distperiodic.core.ring import RING_FORMAT
from distperiodic.core.ring import Ring

_IDENTITY = re.compile(r'[A-Za-z0-9][A-Za-z0-9._:@-]{0,199}\Z')
_ENTRY = re.compile(
    r'(?P<identity>[A-Za-z0-9][A-Za-z0-9._:@-]{0,199})'
    r'~(?P<nonce>[0-9a-f]{8,32})'
    r'~(?P<generation>[0-9]{1,9})'
    r'~(?P<attributes>(?:[a-z][0-9]{1,9})(?:\.[a-z][0-9]{1,9})*)\Z')

#: Maximum number of points of a member. More points would not improve the
#: balance of the ring, and would cost CPU time in every member.
MAX_POINTS = 10000


def check_identity(identity: str, what: str = 'member id') -> str:
    """Return *identity* if all coordination services can store it.

    ZooKeeper would read a '/' as a path separator, and an endless loop would
    follow. An id that is not ASCII would break the listing of the group for
    all members.

    :param what: Name of the value, for the error message.
    :raises InvalidMemberId: A coordination service cannot store *identity*.
        The message states the allowed characters.
    """
    if not isinstance(identity, str) or not _IDENTITY.match(identity):
        size = (f'{len(identity)} characters' if isinstance(identity, str)
                else type(identity).__name__)
        raise exceptions.InvalidMemberId(
            f'{what} {identity!r:.80} ({size}) cannot be used; '
            'use 1 to 200 of the characters A-Z a-z 0-9 . _ : @ - and begin '
            'with a letter or digit')
    return identity


# The class has no slots, because cached_property needs a __dict__. The names
# are cached because each batch reads them.
@dataclasses.dataclass(frozen=True, order=True)
class Member:
    """Member of a group, with the values in its entry."""

    identity: str
    nonce: str
    generation: int
    #: Number of points on the ring. 0 means that the member is not on the
    #: ring: it is a worker, or a scheduler that is stopping or drained.
    points: int = 0
    #: Number of runs that the member accepts at a time. 0 means that it
    #: accepts none: it is a scheduler, or a worker that is stopping, drained
    #: or standing by.
    slots: int = 0
    #: Number of the tenure. Each gap in the membership of this process begins
    #: a tenure with a higher number.
    tenure: int = 1
    ring_format: int = RING_FORMAT
    #: Hash of the jobs that the member schedules; see :class:`.JobSet`. 0
    #: means that the member schedules no jobs.
    jobs: int = 0
    #: True if the member reads the trace context of a batch.
    traces: bool = False

    @functools.cached_property
    def entry(self) -> str:
        """Name of this member's entry in its group."""
        attributes = [f'f{self.ring_format}', f't{self.tenure}']
        if self.points:
            attributes.append(f'r{self.points}')
        if self.slots:
            attributes.append(f's{self.slots}')
        if self.jobs:
            attributes.append(f'j{self.jobs}')
        if self.traces:
            attributes.append('o1')
        return (f'{self.identity}~{self.nonce}~{self.generation}'
                f'~{".".join(attributes)}')

    def next_term(self, broken: bool) -> 'Member':
        """Return this member with its next entry.

        :param broken: True if other members may have seen a gap in the
            membership of this process. The next entry then begins a new
            tenure.
        """
        return dataclasses.replace(
            self, generation=self.generation + 1,
            tenure=self.tenure + broken)

    @functools.cached_property
    def holder(self) -> str:
        """Name under which this process holds work in this tenure."""
        return f'{self.process}~t{self.tenure}'

    @functools.cached_property
    def process(self) -> str:
        """Name of this process, the same in all of its terms."""
        return f'{self.identity}~{self.nonce}'

    def same_process(self, other: 'Member') -> bool:
        return (self.identity, self.nonce) == (other.identity, other.nonce)


# After each change of a group, all of its entries are listed and parsed again.
# Nearly all of them are unchanged, so the results are cached.
@functools.lru_cache(maxsize=16384)
def parse_entry(entry: str) -> Member | None:
    """Return the member that *entry* describes.

    Unknown attributes are ignored, so that a later release can add some.

    :returns: The member. None means that *entry* is not in the format of this
        library.
    """
    match = _ENTRY.match(entry)
    if match is None:
        return None
    attributes = {a[0]: int(a[1:])
                  for a in match['attributes'].split('.')}
    points, slots = attributes.get('r', 0), attributes.get('s', 0)
    if points > MAX_POINTS or not attributes.get('f'):
        return None
    return Member(match['identity'], match['nonce'],
                  int(match['generation']), points, slots,
                  attributes.get('t', 1), attributes['f'],
                  attributes.get('j', 0), bool(attributes.get('o')))


def worker_group(group: str, partition: str) -> str:
    """Return the name of the group that the workers of *partition* join.

    :param group: Option ``group`` of the service.
    :param partition: Topic of the jobs that the workers run.
    """
    return f'{group}.workers.{partition}'


def identity_of(process: str) -> str:
    """Return the identity in the name of a process."""
    return process.rpartition('~')[0]


@functools.lru_cache(maxsize=16384)
def process_of(entry: str) -> str:
    """Return the name of the process to which *entry* belongs."""
    member = parse_entry(entry)
    return entry if member is None else member.process


@functools.lru_cache(maxsize=16384)
def holder_of(entry: str) -> str:
    """Return the holder name for *entry*; see :attr:`Member.holder`."""
    member = parse_entry(entry)
    return entry if member is None else member.holder


@dataclasses.dataclass(frozen=True, slots=True)
class View:
    """Immutable snapshot of a group, as one process knows it."""

    group: str
    #: One member for each identity, in the order of the identities.
    members: tuple[Member, ...]
    ring: Ring
    #: Number of this view. Each membership change creates a view with the next
    #: number.
    version: int
    #: Monotonic time at which this set of members was first read, in seconds.
    since: float
    #: This process as a member. None means that it is not in the group.
    me: Member | None
    #: Monotonic time until which this view can be trusted, in seconds. Until
    #: that time no other member takes over the objects of this process.
    trusted_until: float
    #: The rings of single jobs. None means that this process has no jobs, or
    #: that the members of the group publish none.
    rings: JobRings | None = None

    def trusted(self, now: float) -> bool:
        """Return whether this process is certainly a member at *now*."""
        return self.me is not None and now < self.trusted_until

    def ring_of(self, job: str, schedule: str = '', *,
                unknown: bool = False) -> Ring:
        """Return the ring of a job: the members that have the job."""
        return self.ring if self.rings is None else self.rings.of(
            job, schedule, unknown=unknown)

    @property
    def ring_format(self) -> int:
        """Ring format in use: the lowest format of all members."""
        return min((m.ring_format for m in self.members),
                   default=RING_FORMAT)


def resolve_entries(
        entries: Iterable[str], me: Member | None = None
) -> tuple[tuple[Member, ...], list[str]]:
    """Select one member for each identity from all entries of a group.

    If a process has several entries, the entry of the latest term is selected.
    If two processes have the same identity, and one of them is *me*, then *me*
    is selected; the other process will be rejected soon. If neither of them is
    *me*, the process with the lower nonce is selected, so that all members
    select the same one.

    :returns: Members in the order of their identities, and the entries that
        were left out because they are not in the format of this library.
    """
    best: dict[str, Member] = {}
    unknown_entries = []
    for entry in entries:
        member = parse_entry(entry)
        if member is None:
            unknown_entries.append(entry)
            continue
        other = best.get(member.identity)
        if other is None:
            best[member.identity] = member
        elif other.nonce == member.nonce:
            # A process never has two entries of one generation, unless one of
            # them is forged. In that case, all members must still select the
            # same entry, so compare the entries, too.
            if (member.generation, member.entry) > (
                    other.generation, other.entry):
                best[member.identity] = member
        elif me is not None and me.same_process(member):
            best[member.identity] = member
        elif (not (me is not None and me.same_process(other))
              and member.nonce < other.nonce):
            best[member.identity] = member
    return tuple(best[i] for i in sorted(best)), unknown_entries


def ring_members(members: Iterable[Member]) -> dict[str, int]:
    """Return the number of points by identity, for members on the ring."""
    return {m.identity: m.points for m in members if m.points}


def ring_digest(members: Iterable[Member]) -> str:
    """Return a short hash of all that determines the ring of *members*.

    Members whose hashes are equal have the same ring.
    """
    points = ring_members(members)
    text = '\0'.join(f'{name}:{points[name]}' for name in sorted(points))
    return f'{zlib.crc32(text.encode()):08x}'
