# SPDX-License-Identifier: Apache-2.0
"""The system's clocks. No other file of the package reads the time."""

import time


class SystemClock:
    """The machine's own clocks; see :class:`distperiodic.ports.Clock`."""

    def now(self) -> int:
        return time.time_ns() // 1000

    if hasattr(time, 'CLOCK_BOOTTIME'):
        # CLOCK_BOOTTIME advances while the machine is suspended, but
        # CLOCK_MONOTONIC does not. After a suspension, a member must notice
        # that its session may have expired.
        def monotonic(self) -> float:
            return time.clock_gettime(time.CLOCK_BOOTTIME)
    else:
        def monotonic(self) -> float:
            return time.monotonic()
