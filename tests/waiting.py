# SPDX-License-Identifier: Apache-2.0
"""Waiting, with a deadline, until a condition is true."""

import time
from collections.abc import Callable
from typing import TypeVar

import pytest

T = TypeVar('T')

# If a sleep takes this many seconds longer than asked, the machine paused.
_PAUSE = 0.5


def wait_until(condition: Callable[[], T], timeout: float = 10.0,
               message: str = 'the condition did not become true', *,
               interval: float = 0.02) -> T:
    """Call *condition* repeatedly; return its first true answer.

    There is one more call after the deadline. A pause of the machine does not
    count: after the pause, the servers and the other processes need their time
    as before.

    :param timeout: Seconds until the test fails with *message*.
    :param interval: Seconds between two calls.
    """
    deadline = time.monotonic() + timeout
    while True:
        late = time.monotonic() >= deadline
        answer = condition()
        if answer:
            return answer
        if late:
            pytest.fail(f'{message} within {timeout:g} s; the last answer '
                        f'was {answer!r}')
        asleep, used = time.monotonic(), time.process_time()
        time.sleep(interval)
        # While this process was busy itself, the machine did not pause.
        overslept = (time.monotonic() - asleep - interval
                     - (time.process_time() - used))
        if overslept > _PAUSE:
            deadline += overslept
