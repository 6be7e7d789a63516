# SPDX-License-Identifier: Apache-2.0
"""The jobs of a member, and the rings of jobs that not all members have."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distperiodic.core.job import command_job
from distperiodic.core.job_set import JobRings
from distperiodic.core.job_set import JobSet
from distperiodic.core.ring import Ring
from tests.unit.world import job

OBJECTS = [f'o-{n}' for n in range(300)]


def set_of(*names, **every):
    return JobSet.of([job(name) for name in names] + [
        job(name, every=seconds) for name, seconds in every.items()])


def rings_of(members, *, unknown=(), before=None):
    """Return rings of members with 40 points, each with its set of jobs.

    :param unknown: Members whose set is unknown.
    """
    ring = Ring(dict.fromkeys(members, 40))
    digests = {name: one.digest if one else 0
               for name, one in members.items()}
    sets = {one.digest: one for name, one in members.items()
            if one and name not in unknown}
    if before is not None:
        return before.changed_to(before.ring.changed_to(ring.members),
                                 digests, sets)
    return JobRings(ring, digests, sets)


OLD, NEW = set_of('poll', 'gone'), set_of('poll', 'sync')


def test_a_set_is_the_same_in_any_order_of_its_jobs():
    one = set_of('poll', 'sync')

    assert one.digest == set_of('sync', 'poll').digest
    assert len({one.digest, set_of('poll').digest, set_of('pollsync').digest,
                set_of('sync', poll=7.0).digest,
                JobSet.of([]).digest}) == 5
    assert 0 < one.digest < 10_000_000


@given(st.sets(st.text(min_size=1), max_size=20))
def test_a_set_is_read_as_it_was_published(names):
    one = JobSet({hash(name) % 2 ** 32: len(name) for name in names})

    assert JobSet.parse(one.text).text == one.text
    assert JobSet.parse(one.text).digest == one.digest


@pytest.mark.parametrize('text', [
    None, 7, b'', {}, 'a', 'Ä', 'AAAA', 'AAAAAAAAAAA', '====', '\0'],
    ids=repr)
def test_an_invalid_text_is_not_read_as_a_set(text):
    assert JobSet.parse(text) is None


def test_a_disabled_job_is_not_in_the_set():
    assert JobSet.of([job('poll'), job('sync', enabled=False)]).digest == (
        set_of('poll').digest)


def test_a_command_is_not_in_the_set():
    jobs = [job('a'), command_job('module', 'run', 'here')]

    assert JobSet.of(jobs).text == JobSet.of(jobs[:1]).text


def test_a_job_that_all_have_has_the_ring_of_the_group():
    rings = rings_of({'a': OLD, 'b': OLD, 'c': NEW})

    assert rings.of('poll') is rings.ring


def test_a_ring_consists_of_those_that_have_the_job():
    rings = rings_of({'a': OLD, 'b': OLD, 'c': NEW, 'd': None})

    assert rings.of('poll').members == dict.fromkeys('abc', 40)
    assert rings.of('gone').members == dict.fromkeys('ab', 40)
    assert rings.of('sync').members == {'c': 40}
    assert len(rings.of('other')) == 0


def test_jobs_that_the_same_members_have_share_one_ring():
    rings = rings_of({'a': set_of('poll'), 'b': set_of('poll', 'x', 'y')})

    assert rings.of('x') is rings.of('y') is rings.of('x', unknown=True)


def test_a_ring_whose_members_stay_is_the_same_in_the_next_view():
    """So nothing is read again for the job."""
    before = rings_of({'a': OLD, 'b': NEW, 'c': NEW})
    ring = before.of('sync')

    after = rings_of({'a': OLD, 'b': NEW, 'c': NEW, 'd': OLD}, before=before)

    assert after.of('sync') is ring
    assert after.of('poll') is after.ring is not before.ring
    assert rings_of({'a': OLD, 'b': NEW, 'c': NEW, 'd': OLD},
                    before=after) is after


def test_only_the_objects_of_a_member_that_joins_or_leaves_move():
    before = rings_of({'a': OLD, 'b': NEW, 'c': NEW})
    after = rings_of({'a': OLD, 'b': NEW, 'c': NEW, 'd': NEW}, before=before)

    moved = {(before.of('sync').owner_of(key), after.of('sync').owner_of(key))
             for key in OBJECTS} - {('b', 'b'), ('c', 'c')}

    assert moved == {('b', 'd'), ('c', 'd')}


def test_a_restart_with_other_jobs_changes_rings_of_the_same_members():
    before = rings_of({'a': OLD, 'b': OLD})
    after = rings_of({'a': OLD, 'b': NEW}, before=before)

    assert after.ring is before.ring
    assert after.of('sync').members == {'b': 40}
    assert after.of('gone').members == {'a': 40}


def test_the_members_with_the_schedule_in_force_are_on_the_ring():
    rings = rings_of({'a': set_of(poll=60.0), 'b': set_of(poll=30.0)})

    def members(every):
        text = job(every=every).schedule_text()
        return set(rings.of('poll', text).members)
    assert members(60.0) == {'a'}
    assert members(30.0) == {'b'}
    # Nobody has the schedule any more.
    assert members(10.0) == {'a', 'b'}
    assert rings.marks('poll') == {
        set_of(poll=60.0).mark('poll'), set_of(poll=30.0).mark('poll')}


def test_a_member_whose_jobs_are_unknown_is_on_the_ring_if_one_asks_for_it():
    rings = rings_of({'a': OLD, 'b': NEW, 'c': None}, unknown='b')

    assert set(rings.of('gone').members) == {'a'}
    assert set(rings.of('gone', unknown=True).members) == {'a', 'b'}
