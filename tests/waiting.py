# SPDX-License-Identifier: Apache-2.0
"""Waiting, with a deadline, until a condition is true."""

import time
from collections.abc import Callable
from typing import TypeVar

import pytest

T = TypeVar('T')

# If a sleep takes this many seconds longer than asked, the machine paused.
_PAUSE = 0.5
# The usual seconds between two calls: a multiple of the time that a call
# takes, so that a test which waits leaves the processors to what it waits for.
_LEAST, _MOST, _TIMES = 0.02, 0.5, 3


def wait_until(condition: Callable[[], T], timeout: float = 10.0,
               message: str = 'the condition did not become true', *,
               interval: float | None = None) -> T:
    """Call *condition* repeatedly; return its first true answer.

    There is one more call after the deadline. A pause of the machine does not
    count: after the pause, the servers and the other processes need their time
    as before.

    :param timeout: Seconds until the test fails with *message*.
    :param interval: Seconds between two calls. None: three times as long as
        the last call took, but at least 0.02 and at most 0.5.
    """
    deadline = time.monotonic() + timeout
    while True:
        began = time.monotonic()
        late = began >= deadline
        answer = condition()
        if answer:
            return answer
        if late:
            pytest.fail(f'{message} within {timeout:g} s; the last answer '
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
