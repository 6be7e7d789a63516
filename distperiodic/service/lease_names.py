# SPDX-License-Identifier: Apache-2.0
"""Names of new leases."""

import os

# Number of lease names that are generated together, and number of random bytes
# in each name.
_NAMES = 256
_BYTES = 10
# Lease names that were generated in advance. Each read of the system's random
# source releases the interpreter lock. Without this list, a burst of a
# thousand ticks would need two thousand such reads.
_names: list[str] = []
# A forked child must not use the names of its parent.
os.register_at_fork(after_in_child=_names.clear)


def new_lease() -> str:
    """Return a new lease name, which is unique and cannot be guessed."""
    try:
        return _names.pop()
    except IndexError:
        drawn = os.urandom(_NAMES * _BYTES).hex()
        name, *others = (drawn[at:at + 2 * _BYTES] for at in range(
            0, len(drawn), 2 * _BYTES))
        _names.extend(others)
        return name
