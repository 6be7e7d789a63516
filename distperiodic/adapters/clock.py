# SPDX-License-Identifier: Apache-2.0
"""The only file that reads the time."""

import time


class SystemClock:
    """The machine's own clocks; see :class:`distperiodic.ports.Clock`."""

    def now(self) -> int:
        return time.time_ns() // 1000

    if hasattr(time, 'CLOCK_BOOTTIME'):
        # CLOCK_MONOTONIC stands still while the machine sleeps, and a member
        # that slept through its session must not believe in it on waking.
        def monotonic(self) -> float:
            return time.clock_gettime(time.CLOCK_BOOTTIME)
    else:
        def monotonic(self) -> float:
            return time.monotonic()
