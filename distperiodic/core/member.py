# SPDX-License-Identifier: Apache-2.0
"""Group membership: the entry of a member, and the view of all entries.

An entry is a name in the coordination service. It contains everything that
the other members need, so that one listing of the group is enough to build the
ring::

    api-1~9f2c41d07be3a655~3~f1.t2.r40
    |     |                | |
    |     |                | attributes: ring format 1, tenure 2, 40 points
    |     |                generation: the third entry of this process
    |     nonce: unique to this process
    identity: the name on the ring, the same after a restart

A *term* is the time under one entry. For example, a process gets a new entry
when its number of points changes. Terms without a gap between them form one
*tenure*. A tenure ends when the session is lost. Work claimed in one tenure is
not started in the next, because other members may have taken it over in
between.
"""

import dataclasses
import functools
import re
import zlib
from collections.abc import Iterable

from distperiodic import exceptions
from distperiodic.core.ring import RING_FORMAT
from distperiodic.core.ring import Ring

_IDENTITY = re.compile(r'[A-Za-z0-9][A-Za-z0-9._:@-]{0,199}\Z')
_ENTRY = re.compile(
    r'(?P<identity>[A-Za-z0-9][A-Za-z0-9._:@-]{0,199})'
    r'~(?P<nonce>[0-9a-f]{8,32})'
    r'~(?P<generation>[0-9]{1,9})'
    r'~(?P<attributes>(?:[a-z][0-9]{1,9})(?:\.[a-z][0-9]{1,9})*)\Z')

#: Maximum number of points of a member. More points would not improve the
#: balance, and would cost CPU time in every member.
MAX_POINTS = 10000


def check_identity(identity: str, what: str = 'member id') -> str:
    """Return *identity* if all coordination services can store it.

    With ZooKeeper, a '/' would be read as a path and cause an endless loop.
    One id that is not ASCII breaks the listing for all members of the group.

    :param what: Name of the value, for the error message.
    :raises InvalidMemberId: A coordination service cannot store it. The
        message states the rule.
    """
    if not isinstance(identity, str) or not _IDENTITY.match(identity):
        size = (f'{len(identity)} characters' if isinstance(identity, str)
                else type(identity).__name__)
        raise exceptions.InvalidMemberId(
            f'{what} {identity!r:.80} ({size}) cannot be used; '
            'use 1 to 200 of the characters A-Z a-z 0-9 . _ : @ - and begin '
            'with a letter or digit')
    return identity


# No slots, because cached_property needs __dict__: names are computed once and
# read with each batch.
@dataclasses.dataclass(frozen=True, order=True)
class Member:
    """Member of a group, as its entry describes it."""

    identity: str
    nonce: str
    generation: int
    #: Number of points on the ring. 0 means not on the ring (a worker).
    points: int = 0
    #: Number of runs that the member accepts at a time. 0 means none (a
    #: scheduler).
    slots: int = 0
    #: Number of the tenure. It grows with each gap in the membership of this
    #: process.
    tenure: int = 1
    ring_format: int = RING_FORMAT
    #: Hash of the jobs that the member schedules; see :func:`sign_of`. 0 means
    #: no jobs.
    jobs: int = 0

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


# After each change of a group all of its entries are listed again, and nearly
# all of them are unchanged.
@functools.lru_cache(maxsize=16384)
def parse_entry(entry: str) -> Member | None:
    """Return the member that *entry* describes.

    Unknown attributes are ignored, so that a later release can add some.

    :returns: None if *entry* is not in the format of this library.
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
                  attributes.get('j', 0))


def sign_of(jobs: Iterable[str]) -> int:
    """Return a hash of the names of jobs, from 1 to 99,999.

    Two different sets of names rarely have the same hash. The range is small,
    because an entry must be short.
    """
    return 1 + zlib.crc32('\0'.join(sorted(jobs)).encode()) % 99_999


def identity_of(process: str) -> str:
    """Return the identity of the member that a process is."""
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
    #: One per identity, in order of identity.
    members: tuple[Member, ...]
    ring: Ring
    #: Number of this view. It increases by one with each membership change.
    version: int
    #: Monotonic time at which these members were first seen, in seconds.
    since: float
    #: This process's own entry. None means that it is not in the group.
    me: Member | None
    #: Monotonic time until which this view can be trusted, in seconds. Until
    #: then no other member can take over the objects of this process.
    trusted_until: float

    def trusted(self, now: float) -> bool:
        """Return whether this process is certainly a member at *now*."""
        return self.me is not None and now < self.trusted_until

    @property
    def ring_format(self) -> int:
        """Ring format in use: the lowest format of all members."""
        return min((m.ring_format for m in self.members),
                   default=RING_FORMAT)


def resolve_entries(
        entries: Iterable[str], me: Member | None = None
) -> tuple[tuple[Member, ...], list[str]]:
    """Select one member per identity from all entries of a group.

    If a process has several entries, the entry of the latest term is selected.
    If two processes have the same identity, *me* is selected; the other
    process will be rejected soon. If neither is *me*, the process with the
    lower nonce is selected, so that all readers agree.

    :returns: Members in order of identity, and the entries that were left out
        because they are not in the format of this library.
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
            # One process never has two entries of one generation. If one is
            # forged, all readers still select the same one.
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
