# SPDX-License-Identifier: Apache-2.0
"""Histograms of durations: merging, quantiles and texts."""

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distperiodic.core.histogram import BOUNDS
from distperiodic.core.histogram import LONGEST_TEXT
from distperiodic.core.histogram import Histogram
from distperiodic.core.histogram import total

DURATIONS = st.lists(st.integers(0, 2 * BOUNDS[-1]), max_size=50)


def of(durations):
    found = Histogram()
    for one in durations:
        found.add(one)
    return found


@given(DURATIONS, DURATIONS)
def test_histograms_are_added_as_if_they_were_one(some, others):
    assert of(some) + of(others) == of(some + others) == total(
        [of(others), of(some)])


@given(DURATIONS)
def test_a_histogram_has_the_exact_number_mean_and_maximum(durations):
    found = of(durations)

    assert found.count == len(durations)
    assert found.max == max(durations, default=0)
    assert found.mean == (
        round(statistics.fmean(durations)) if durations else None)
    assert sum(number for _, number in found.buckets()) == len(durations)


@given(DURATIONS.filter(bool), st.floats(0.01, 1.0))
def test_a_quantile_is_off_by_one_bucket_at_most(durations, share):
    found = of(durations).quantile(share)

    # The exact value is the smallest one that the share does not exceed.
    ordered = sorted(durations)
    at = next(index for index in range(len(ordered))
              if index + 1 >= share * len(ordered))
    assert found <= max(1000, ordered[at] * 1.42)
    assert found >= min(ordered[at], BOUNDS[-1]) / 1.42 - 1000
    assert of(durations).quantile(1.0) == max(durations)


@pytest.mark.parametrize(('share', 'milliseconds'), [
    (0.5, 10), (0.95, 10), (0.999, 500)])
def test_quantiles_of_a_usual_case(share, milliseconds):
    found = of([10_000] * 98 + [500_000] * 2)

    assert found.quantile(share) / 1000 == pytest.approx(
        milliseconds, rel=0.42)
    assert found.above(20_000) == 2
    assert found.above(500_000) == 0


def test_an_empty_histogram_has_no_quantile():
    assert (Histogram().count, Histogram().mean, Histogram().quantile(0.5)
            ) == (0, None, None)


@given(DURATIONS)
def test_a_text_is_read_as_it_was_written(durations):
    text = of(durations).text()

    assert Histogram.parse(text) == of(durations)


def test_a_text_is_short():
    found = Histogram()
    for bound in (*BOUNDS, 2 * BOUNDS[-1]):
        found.add(bound, 10_000_000)

    assert len(found.text()) <= LONGEST_TEXT
    assert of([500] * 3 + [40_000]).text() == '41500 40000 0:3 11:1'


@pytest.mark.parametrize('text', [
    None, '', 'x', '1', '1 2 3', '1 2 3:x', '1 2 99:1', '1 2 3:-4', '1 2 3:0'])
def test_a_text_in_another_form_is_an_empty_histogram(text):
    assert Histogram.parse(text) == Histogram()


def test_a_duration_before_zero_counts_as_none():
    found = Histogram()
    found.add(-5, 2)

    assert (found.count, found.sum, found.buckets()) == (2, 0, [(1000, 2)])
