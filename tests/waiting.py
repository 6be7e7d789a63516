# SPDX-License-Identifier: Apache-2.0
"""Waiting for something to become true, with a deadline."""

import time
from collections.abc import Callable
from typing import TypeVar

import pytest

T = TypeVar('T')


def wait_until(condition: Callable[[], T], timeout: float = 10.0,
               message: str = 'the condition did not become true', *,
               interval: float = 0.02) -> T:
    """Ask *condition* again and again; return its first true answer.

    It is asked once more after the deadline, so a machine that stood still
    meanwhile fails no test whose condition has become true.

    :param timeout: seconds until the test fails with *message*.
    :param interval: seconds between two questions.
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
