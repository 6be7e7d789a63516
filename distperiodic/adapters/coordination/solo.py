# SPDX-License-Identifier: Apache-2.0
"""The membership of a process that has no group."""

import secrets

from distperiodic import ports
from distperiodic.core.member import Member
from distperiodic.core.member import View
from distperiodic.core.ring import Ring


class SoloMembership:
    """A membership with one member, which owns every object."""

    def __init__(self, identity: str, points: int, *, clock: ports.Clock):
        #: The random nonce distinguishes this process from any earlier process
        #: with the same identity.
        self.me = Member(identity, secrets.token_hex(8), 1, points)
        self._view = View(
            'alone', (self.me,), Ring({identity: points}), version=1,
            since=clock.monotonic(), me=self.me, trusted_until=float('inf'))

    def view(self, group: str) -> View:
        return self._view
