# SPDX-License-Identifier: Apache-2.0
"""Who is in a group: the membership entry, and the view of all entries.

An entry is one name in the coordination service and carries all that others
need, so that listing the group once builds the ring::

    api-1~9f2c41d07be3a655~3~f1.t2.r40
    |     |                | |
    |     |                | attributes: ring format 1, tenure 2, 40 points
    |     |                generation: the third entry of this process
    |     nonce: this process, and no other one ever
    identity: the name on the ring, the same after a restart

A *term* is the time under one entry. Terms that follow each other without a
gap (the points were changed) are one *tenure*; a tenure ends when the
session is lost. Belief is tied to it: work taken in one tenure is not started
in the next, since others may have taken it over in between.
"""

import dataclasses
import functools
import re
import zlib
from collections.abc import Iterable

from distperiodic import exceptions
from distperiodic.core import ring as ring_

_IDENTITY = re.compile(r'[A-Za-z0-9][A-Za-z0-9._:@-]{0,199}\Z')
_ENTRY = re.compile(
    r'(?P<identity>[A-Za-z0-9][A-Za-z0-9._:@-]{0,199})'
    r'~(?P<nonce>[0-9a-f]{8,32})'
    r'~(?P<generation>[0-9]{1,9})'
    r'~(?P<attributes>(?:[a-z][0-9]{1,9})(?:\.[a-z][0-9]{1,9})*)\Z')

#: More points than this give no better balance and cost every member's CPU.
MAX_POINTS = 10000


def check_identity(identity: str, what: str = 'member id') -> str:
    """*identity*, if a coordination service can carry it.

    ZooKeeper would take a '/' for a path and loop for ever; one id that is
    not ASCII breaks the listing for every member of the group.

    :param what: it is, for the message.
    :raises InvalidMemberId: it cannot; the message says why.
    """
    if not isinstance(identity, str) or not _IDENTITY.match(identity):
        size = (f'{len(identity)} characters' if isinstance(identity, str)
                else type(identity).__name__)
        raise exceptions.InvalidMemberId(
            f'{what} {identity!r:.80} ({size}) cannot be used; '
            'use 1 to 200 of the characters A-Z a-z 0-9 . _ : @ - and begin '
            'with a letter or digit')
    return identity


# Without slots: names are made once, and asked for with each batch.
@dataclasses.dataclass(frozen=True, order=True)
class Member:
    """One entry of a group."""

    identity: str
    nonce: str
    generation: int
    #: Points on the ring; 0: not on the ring (a worker).
    points: int = 0
    #: Runs that it takes at a time; 0: none (a scheduler).
    slots: int = 0
    #: Rises with each gap in this process's membership.
    tenure: int = 1
    ring_format: int = ring_.RING_FORMAT
    #: Says which jobs it schedules; see :func:`sign_of`. 0: none.
    jobs: int = 0

    @functools.cached_property
    def entry(self) -> str:
        """The name under which this member stands in its group."""
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
        """The same process under its next entry.

        :param broken: the others may have seen it gone in between.
        """
        return dataclasses.replace(
            self, generation=self.generation + 1,
            tenure=self.tenure + broken)

    @functools.cached_property
    def holder(self) -> str:
        """Who may hold work: this process, in this tenure."""
        return f'{self.process}~t{self.tenure}'

    @functools.cached_property
    def process(self) -> str:
        """This process, in all of its terms."""
        return f'{self.identity}~{self.nonce}'

    def same_process(self, other: 'Member') -> bool:
        return (self.identity, self.nonce) == (other.identity, other.nonce)


# Each change of a group lists all of its entries, and nearly all of them were
# there before.
@functools.lru_cache(maxsize=16384)
def parse_entry(entry: str) -> Member | None:
    """The member that *entry* names; None: it is not an entry of ours.

    Unknown attributes are left out, so that a later release may add some.
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
    """A number that is the same for the same names of jobs, and hardly ever
    for others; 1 to 99,999, as an entry has to be short.
    """
    return 1 + zlib.crc32('\0'.join(sorted(jobs)).encode()) % 99_999


@functools.lru_cache(maxsize=16384)
def process_of(entry: str) -> str:
    """The process that stands under *entry* in its group."""
    member = parse_entry(entry)
    return entry if member is None else member.process


@functools.lru_cache(maxsize=16384)
def holder_of(entry: str) -> str:
    """Who holds work under *entry*; see :attr:`Member.holder`."""
    member = parse_entry(entry)
    return entry if member is None else member.holder


@dataclasses.dataclass(frozen=True, slots=True)
class View:
    """What one member knows of its group; replaced whole, never changed."""

    group: str
    #: One per identity, in order of identity.
    members: tuple[Member, ...]
    ring: ring_.Ring
    #: Rises by one with each change of members, in this process.
    version: int
    #: Monotonic seconds at which these members were first seen.
    since: float
    #: This process's own entry; None: it is not in the group.
    me: Member | None
    #: Monotonic seconds until which nobody else can hold our place.
    trusted_until: float

    def trusted(self, now: float) -> bool:
        """Whether this process is surely still a member at *now*."""
        return self.me is not None and now < self.trusted_until

    @property
    def ring_format(self) -> int:
        """The placement in use: the lowest that any member offers."""
        return min((m.ring_format for m in self.members),
                   default=ring_.RING_FORMAT)


def settle(entries: Iterable[str],
           me: Member | None = None) -> tuple[tuple[Member, ...], list[str]]:
    """One member per identity out of all entries of a group.

    Of several terms of one process the latest counts. Of two processes with
    one identity (the second is about to be refused) the one that is *me*,
    else that with the lesser nonce, so that all readers agree.

    :returns: the members in order of identity, and the entries that are not
        ours and were left out.
    """
    best: dict[str, Member] = {}
    strangers = []
    for entry in entries:
        member = parse_entry(entry)
        if member is None:
            strangers.append(entry)
            continue
        other = best.get(member.identity)
        if other is None:
            best[member.identity] = member
        elif other.nonce == member.nonce:
            # One process never has two entries of one generation; should
            # somebody forge one, all readers still take the same.
            if (member.generation, member.entry) > (
                    other.generation, other.entry):
                best[member.identity] = member
        elif me is not None and me.same_process(member):
            best[member.identity] = member
        elif (not (me is not None and me.same_process(other))
              and member.nonce < other.nonce):
            best[member.identity] = member
    return tuple(best[i] for i in sorted(best)), strangers


def ring_members(members: Iterable[Member]) -> dict[str, int]:
    """Identity to points, for those that are on the ring."""
    return {m.identity: m.points for m in members if m.points}
