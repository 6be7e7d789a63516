# SPDX-License-Identifier: Apache-2.0
"""The membership of a process that has no group."""

import secrets

from distperiodic import ports
from distperiodic.core import member as member_
from distperiodic.core import ring as ring_


class Alone:
    """A membership with one member, which owns every object."""

    def __init__(self, identity: str, points: int, *, clock: ports.Clock):
        #: The random nonce distinguishes this process from earlier ones with
        #: the same identity.
        self.me = member_.Member(identity, secrets.token_hex(8), 1, points)
        self._view = member_.View(
            'alone', (self.me,), ring_.Ring({identity: points}), version=1,
            since=clock.monotonic(), me=self.me, trusted_until=float('inf'))

    def view(self, group: str) -> member_.View:
        return self._view
