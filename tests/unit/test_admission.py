# SPDX-License-Identifier: Apache-2.0
"""Admission under ``max_in_flight``: which batches run, and which wait."""

import pytest

from distperiodic.core import partition
from distperiodic.core.refusal import Refusal
from distperiodic.flow.worker import admission
from tests.unit.world import job


@pytest.fixture
def places():
    """Jobs ``a`` and ``b`` share a partition that may run 4 objects, at most 2
    of them of ``b``. Job ``c`` is in another partition.
    """
    jobs = [job('a', objects=True), job('b', objects=True, max_in_flight=2),
            job('c', objects=True, topic='other')]
    return admission.AdmissionGate(partition.limits_of(
        {one.name: one for one in jobs},
        {'default': partition.Partition('default', 4),
         'other': partition.Partition('other')}))


def test_a_job_has_its_own_limit_and_that_of_its_partition(places):
    places.acquire('b', 2)
    assert places.full('b').refusal is Refusal.JOB_LIMIT
    assert places.full('a') is None

    places.acquire('a', 2)
    assert places.full('a').refusal is Refusal.PARTITION_LIMIT
    assert places.full('c') is None


def test_all_jobs_of_a_partition_are_counted(places):
    assert sorted(places.jobs(['a'])) == ['a', 'b']
    assert places.jobs(['c']) == []


def test_a_job_that_runs_on_every_member_is_limited_by_no_partition():
    limits = partition.limits_of(
        {'m': job('m')}, {'default': partition.Partition('default', 1)})

    assert limits == {'m': ()}


def test_the_first_that_waits_and_has_a_place_is_next(places):
    places.acquire('b', 2)
    places.acquire('a', 2)
    places.enqueue('first b', 'b', 0.0)
    places.enqueue('first a', 'a', 0.0)
    assert places.next() is None

    places.release('a', 1)
    assert places.next() == 'first a'
    places.acquire('a', 1)
    assert places.next() is None
    places.release('b', 1)
    assert places.next() == 'first b'


def test_the_first_of_two_that_wait_for_one_place_gets_the_place(places):
    places.enqueue('first', 'c', 0.0)
    places.enqueue('second', 'c', 0.1)

    assert [places.next(), places.next()] == ['first', 'second']


def test_a_count_returns_how_many_are_too_many_and_by_which_limit(places):
    mark = places.snapshot()

    assert places.record_count('b', {'a': 1, 'b': 3}, mark, 0.0) == (
        1, Refusal.JOB_LIMIT)
    assert places.record_count('b', {'a': 5, 'b': 3}, mark, 0.0) == (
        4, Refusal.PARTITION_LIMIT)
    assert places.record_count('b', {'b': 2}, mark, 0.0) == (0, None)


def test_a_run_that_ended_since_a_count_was_requested_is_not_in_the_count(
        places):
    places.acquire('a', 4)
    mark = places.snapshot()
    places.release('a', 1)

    places.record_count('a', {'a': 4}, mark, 0.0)

    assert places.full('a') is None


def test_a_place_between_two_runs_of_another_is_not_taken(places):
    mark = places.snapshot()
    places.record_count('a', {'a': 4}, mark, 0.0)

    places.record_count('a', {'a': 3}, mark, 0.1)
    assert places.full('a')

    for at in 0.3, 0.6:
        places.record_count('a', {'a': 3}, mark, at)
    assert places.full('a') is None


def test_a_wait_that_expires_has_the_limit_as_its_reason(places):
    places.acquire('a', 4)
    places.enqueue('old', 'a', 0.0)
    places.enqueue('new', 'a', 0.9)

    assert places.expired(0.9) == []
    assert places.expired(1.1) == [('old', Refusal.PARTITION_LIMIT)]
    assert places.waiting == ['a']
