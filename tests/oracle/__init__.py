# SPDX-License-Identifier: Apache-2.0
"""Check that every due tick was claimed, or was skipped for a true reason.

The oracle does not read the state of the product. It uses only the record of
the world::

    facts   the record: schedules, listings, which members were able to act
    due     the ticks that each object was due for     (core.due, brute force)
    able    the deadline for the claim of each tick             (guarantee G4)
    fates   the outcome of each tick, and errors in this outcome

A fault near a tick does not excuse a missing claim. A tick is late only if
some member was able to claim for as long as a claim may take.
"""
