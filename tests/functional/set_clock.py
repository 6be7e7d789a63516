# SPDX-License-Identifier: Apache-2.0
"""A service under test on a host whose wall clock somebody sets.

    python -m tests.functional.set_clock FILE scheduler CONFIG RECORD WORKERS

The wall clock of the product is ahead by the seconds that FILE holds. It is
read in one place, with time_ns. The records go by the clock of the host.
"""

import pathlib
import sys
import time

AHEAD = pathlib.Path(sys.argv[1])
_time_ns = time.time_ns


def _set_ns():
    return _time_ns() + int(AHEAD.read_text()) * 1_000_000_000


if __name__ == '__main__':
    time.time_ns = _set_ns
    from tests.functional import served
    sys.exit(served.main(*sys.argv[2:]))
