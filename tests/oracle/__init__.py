# SPDX-License-Identifier: Apache-2.0
"""Judge whether every tick that was due was claimed, or skipped for a reason
that is true.

The oracle knows what the world knows, and reads nothing of the product's
own memory::

    facts   what the world knows: schedules, listings, who was able to act
    due     which ticks each object was due for        (core.due, brute force)
    able    until when each of them had to be claimed            (guarantee G4)
    fates   what became of them, and what is wrong with that

Nothing is excused because a fault was near. A tick is late only if somebody
was able to claim it for as long as that takes.
"""
