# SPDX-License-Identifier: Apache-2.0
"""Waiting, with a deadline, until a condition is true."""

import time
from collections.abc import Callable
from typing import TypeVar

import pytest

T = TypeVar('T')

#: How many times longer than its timeout a test waits for a condition. The
#: functional tests increase this value (``tests/functional/conftest.py``).
patience = 1.0

# If a sleep takes this many seconds longer than asked, the machine paused.
_PAUSE = 0.5
# The usual seconds between two calls: a multiple of the time that a call
# takes, so that a test which waits leaves the processors to what it waits for.
_LEAST, _MOST, _TIMES = 0.02, 0.5, 3


def wait_until(condition: Callable[[], T], timeout: float = 10.0,
               message: str = 'the condition did not become true', *,
               interval: float | None = None) -> T:
    """Call *condition* repeatedly; return its first true answer.

    The timeout only ends a test that has failed. A test of a duration uses
    :func:`within`.

    :param timeout: Seconds until the test fails with *message*, if
        :data:`patience` is 1.
    :param interval: Seconds between two calls. None: three times as long as
        the last call took, but at least 0.02 and at most 0.5.
    """
    return within(timeout * patience, condition, message, interval=interval)


def within(seconds: float, condition: Callable[[], T],
           message: str = 'the condition did not become true', *,
           interval: float | None = None) -> T:
    """Assert that *condition* becomes true in time; return its first true
    answer.

    There is one more call after the deadline. A pause of the machine does not
    count: after the pause, the servers and the other processes need their time
    as before.

    :param seconds: Seconds until the test fails with *message*.
    :param interval: See :func:`wait_until`.
    """
    deadline = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        late = began >= deadline
        answer = condition()
        if answer:
            return answer
        if late:
            pytest.fail(f'{message} within {seconds:g} s; the last answer '
                        f'was {answer!r}')
        asleep, used = time.monotonic(), time.process_time()
        pause = interval if interval is not None else min(
            max(_LEAST, _TIMES * (asleep - began)), _MOST)
        time.sleep(pause)
        # While this process was busy itself, the machine did not pause.
        overslept = (time.monotonic() - asleep - pause
                     - (time.process_time() - used))
        if overslept > _PAUSE:
            deadline += overslept
