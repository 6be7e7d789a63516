# SPDX-License-Identifier: Apache-2.0
"""Judging many objects at once gives the same verdicts as judging each."""

import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from distperiodic.core import due
from distperiodic.core.attributes import PLAIN
from distperiodic.core.cron import Cron
from distperiodic.core.schedule import SECOND
from distperiodic.core.schedule import Every
from distperiodic.core.schedule import Misfire

NOW = 1_790_000_000 * SECOND
HOUR = 3600 * SECOND
INSTANTS = st.integers(NOW - 3 * HOUR, NOW + HOUR)
ROWS = st.lists(
    st.builds(
        due.Row,
        object=st.uuids().map(str),
        position=st.integers(-(2**63), 2**63 - 1),
        settled=INSTANTS,
        since=INSTANTS,
        attributes=st.just(PLAIN),
        free=st.just(True),
        ended=st.none(),
    ),
    max_size=8,
)


@settings(max_examples=60)
@given(
    ROWS,
    st.sampled_from([Every(60), Every(2000), Cron('*/7 * * * *')]),
    st.sampled_from(Misfire),
    st.booleans(),
    st.booleans(),
)
def test_many_are_judged_as_each_is(rows, schedule, misfire, spread, at_once):
    plan = due.Plan(
        schedule, misfire, spread=spread, immediate=at_once,
        since=NOW - 2 * HOUR)
    found = due.verdicts(rows, {'': plan}, NOW)
    expected = {}
    for row in rows:
        verdict = plan.verdict(row, NOW)
        if verdict != due.NOTHING:
            expected.setdefault(('', verdict), []).append(row)
    assert found == expected


@pytest.mark.parametrize('spread', [False, True])
def test_the_schedule_is_asked_for_each_period_and_not_for_each_object(
    spread
):
    calls = []

    class Asked(Every):
        def count(self, after, until):
            calls.append(after)
            return super().count(after, until)

        def at_or_before(self, t):
            calls.append(t)
            return super().at_or_before(t)

    rows = [
        due.Row(str(number), number << 53, NOW - HOUR + number * SECOND,
                NOW - 2 * HOUR)
        for number in range(600)
    ]
    due.verdicts(rows, {'': due.Plan(Asked(60), spread=spread)}, NOW)
    assert len(calls) < 60
