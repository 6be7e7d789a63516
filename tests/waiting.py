# SPDX-License-Identifier: Apache-2.0
"""Waiting, with a deadline, until a condition is true."""

import time
from collections.abc import Callable
from typing import TypeVar

import pytest

T = TypeVar('T')


def wait_until(condition: Callable[[], T], timeout: float = 10.0,
               message: str = 'the condition did not become true', *,
               interval: float = 0.02) -> T:
    """Call *condition* repeatedly; return its first true answer.

    There is one more call after the deadline. So a pause of the machine does
    not fail a test whose condition has become true.

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
        time.sleep(interval)
