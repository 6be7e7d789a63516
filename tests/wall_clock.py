# SPDX-License-Identifier: Apache-2.0
"""The wall clock of a program, which a test sets through a file.

libfaketime could set it, too, but version 0.9.10 breaks Python's
time.sleep(). The monotonic clocks do not change.
"""

import time

# Seconds after which a program notices that its clock was set.
_NEXT_LOOK = 0.1


def set_ahead(path, seconds):
    """Set the clock of the program that follows *path* ahead by *seconds*."""
    new = path.with_suffix('.new')
    new.write_text(f'{seconds:+.3f}\n')
    new.rename(path)


def follow(path):
    """Replace ``time.time_ns`` by a function that adds the seconds in the file
    *path*. Return this function.
    """
    true_time, monotonic = time.time_ns, time.monotonic
    looked, ahead = -_NEXT_LOOK, 0

    def time_ns():
        nonlocal looked, ahead
        now = monotonic()
        if now - looked >= _NEXT_LOOK:
            looked, ahead = now, round(float(path.read_text()) * 1e9)
        return true_time() + ahead
    time.time_ns = time_ns
    return time_ns
