# SPDX-License-Identifier: Apache-2.0
"""Table of the numbers in the history."""

from distperiodic.core import outcomes
from distperiodic.core.claim import ENDINGS
from distperiodic.core.claim import SkippedBy


def test_each_final_state_and_each_cause_of_a_skip_has_a_number():
    assert outcomes.ENDED.keys() == ENDINGS
    assert outcomes.SKIPPED.keys() == set(SkippedBy)


def test_an_object_whose_claim_ended_counts_once():
    for name in outcomes.ENDED.values():
        assert outcomes.Counts(due=1, **{name: 1}).ended == 1
    # The numbers of skips by cause count the same objects again.
    for name in outcomes.SKIPPED.values():
        assert outcomes.Counts(due=1, skipped=1, **{name: 1}).ended == 1
