# SPDX-License-Identifier: Apache-2.0
"""The tests wait for conditions, and a pause of the machine does not count."""

import types

import pytest

from tests import waiting


@pytest.fixture
def pauses(monkeypatch):
    """Return the seconds by which the next sleeps are too long."""
    found = []
    now = 0.0

    def sleep(seconds):
        nonlocal now
        now += seconds + (found.pop(0) if found else 0)
    monkeypatch.setattr(waiting, 'time', types.SimpleNamespace(
        monotonic=lambda: now, process_time=lambda: 0.0, sleep=sleep))
    return found


def test_after_a_pause_there_is_as_much_time_as_before(pauses):
    pauses.append(60)
    answers = iter([False] * 5 + [True])

    assert waiting.wait_until(lambda: next(answers), 10, interval=1)


@pytest.mark.parametrize('each', [0, 0.3])
def test_a_condition_that_is_not_true_in_time_fails(pauses, each):
    pauses += [each] * 20
    asked = []

    with pytest.raises(pytest.fail.Exception, match='within 10 s'):
        waiting.wait_until(lambda: asked.append(1), 10, interval=1)
    assert len(asked) <= 11


def test_a_condition_that_takes_long_is_asked_less_often(pauses):
    asked = []

    def never():
        asked.append(1)
        waiting.time.sleep(0.1)

    with pytest.raises(pytest.fail.Exception, match='within 10 s'):
        waiting.wait_until(never, 10)
    assert 20 <= len(asked) <= 30


def test_patience_makes_the_timeout_longer_but_not_a_limit(
        pauses, monkeypatch):
    monkeypatch.setattr(waiting, 'patience', 3.0)

    with pytest.raises(pytest.fail.Exception, match='within 30 s'):
        waiting.wait_until(lambda: False, 10)
    assert waiting.time.monotonic() >= 30
    with pytest.raises(pytest.fail.Exception, match='within 10 s'):
        waiting.within(10, lambda: False)
    assert waiting.time.monotonic() < 42
