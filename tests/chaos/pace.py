# SPDX-License-Identifier: Apache-2.0
"""The pace of a cluster's life: it is slower on a slower machine.

The durations of a life are multiples of :data:`PACE`: the periods and the
runs of the jobs, the faults, the sessions and leases, and the limits that
depend on them. Only the minute of the cron job and the steps of the clocks do
not depend on it. So the processes of a cluster need the same share of each
machine's processors, and the limits are equally strict on each machine. The
processes of a cluster inherit the pace of the test.
"""

import os
import time

from tests import checker

# Name of the environment variable that contains the pace.
_VARIABLE = 'DISTPERIODIC_TEST_PACE'
# Number of steps of a measurement, and the processor time of a machine with
# pace 1 for them, in seconds.
_STEPS, _USUAL = 1_000_000, 0.012
# Number of measurements. The slowest one counts, because the processors of a
# virtual machine may be fast for a moment.
_TIMES = 7
# Maximum pace. ZooKeeper grants no sessions that last longer than 10 s.
_MOST = 3.0


def _measured():
    found = []
    for _ in range(_TIMES):
        begin = time.process_time()
        for _ in range(_STEPS):
            pass
        found.append(time.process_time() - begin)
    # A multiple of 1/4, so that the times in reports are easy to read.
    return min(
        max(1.0, round(4 * max(found) / _USUAL) / 4), _MOST)


#: Seconds that one second of the life takes on this machine, from 1 to 3.
PACE = float(os.environ.setdefault(_VARIABLE, str(_measured())))
#: Microseconds that one second of the life takes.
SECOND = round(PACE * checker.SECOND)
