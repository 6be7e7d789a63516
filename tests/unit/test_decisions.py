# SPDX-License-Identifier: Apache-2.0
"""Decisions on an object whose runs take time and whose listing, schedule or
job changes, compared with a model that examines all ticks one by one.
"""

import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from tests.unit.scenes import scenes
from tests.unit.scenes import steps


def overlap(data):
    """An object whose runs take time, and a clock that steps."""
    scene = data.draw(scenes('objects', 'spread'))
    scene.begin()
    scene.list(data.draw(st.sampled_from([None, *scene.grids])))
    scene.play(data.draw(steps(least=4, back=[-1, -3])))
    return scene


def group(data):
    """A job of scope ``group``. All members of the group act on it."""
    scene = data.draw(scenes('group'))
    scene.begin()
    scene.play(data.draw(steps()))
    scene.list()
    scene.play(data.draw(steps('join', least=4, back=[-1])))
    return scene


def relisted(data):
    """An object that is delisted and listed again. Then it may have another
    schedule of its own.
    """
    scene = data.draw(scenes('objects', 'spread', number=2))
    own = st.sampled_from([None, *scene.grids])
    scene.begin()
    scene.list(data.draw(own))
    for _ in range(2):
        scene.play(data.draw(steps()))
        go_on(scene, data)
        scene.delist()
        scene.play(data.draw(steps()))
        go_on(scene, data)
        scene.list(data.draw(own))
    scene.play(data.draw(steps()))
    return scene


def own_put_back(data):
    """An object whose own schedule changes, and then changes back."""
    scene = data.draw(scenes('objects', 'spread', number=2))
    first, second = data.draw(st.permutations([None, *scene.grids]))[:2]
    scene.begin()
    for own in first, second, first:
        scene.list(own)
        scene.play(data.draw(steps()))
        go_on(scene, data)
    scene.list(first)
    return scene


def job_put_back(data):
    """A job whose schedule changes, and then changes back. The object may have
    a schedule of its own.
    """
    scene = data.draw(scenes('objects', 'spread', 'group', number=2))
    first, second = scene.grids
    own = data.draw(own_of(scene))
    for grid in first, second, first:
        scene.begin(grid)
        scene.list(own)
        scene.play(data.draw(steps()))
        wait(scene, data)
    return scene


def removed(data):
    """A job that is removed from the program, and added again later. Then the
    job or its object may have another schedule.
    """
    scene = data.draw(scenes('objects', 'spread', 'group', number=2))
    own = data.draw(own_of(scene))
    scene.begin()
    scene.list(own)
    scene.play(data.draw(steps()))
    scene.stop()
    scene.play(data.draw(steps()))
    scene.begin(data.draw(st.sampled_from(scene.grids)))
    scene.list(data.draw(st.just(own) | own_of(scene)))
    scene.play(data.draw(steps()))
    return scene


def own_of(scene):
    """Return a strategy for the own schedule of an object. It is always None
    in a job of scope ``group``.
    """
    return st.sampled_from([None] if scene.group else [None, *scene.grids])


def wait(scene, data):
    """Let time pass, mostly until a tick."""
    scene.play([(data.draw(st.sampled_from([0, 1, 2])),
                 data.draw(st.sampled_from([0, -1, 1])), 'wait')])


def go_on(scene, data):
    """Let time pass, and perhaps replace the process."""
    wait(scene, data)
    if data.draw(st.booleans()):
        scene.begin()


@given(st.data())
def test_a_tick_that_finds_an_earlier_run_is_decided_by_overlap(data):
    overlap(data).close()


@given(st.data())
def test_a_job_of_the_group_is_decided_as_if_one_member_acted(data):
    group(data).close()


@given(st.data())
def test_an_object_that_comes_back_owes_nothing_of_the_time_it_was_gone(data):
    relisted(data).close()


@given(st.data())
def test_an_own_schedule_that_is_put_back_holds_from_then_on(data):
    own_put_back(data).close()


@given(st.data())
def test_the_schedule_of_a_job_that_is_put_back_holds_from_then_on(data):
    job_put_back(data).close()


@given(st.data())
def test_a_job_that_is_put_back_goes_on_where_it_was(data):
    removed(data).close()


@pytest.mark.parametrize('story', [
    overlap, group, relisted, own_put_back, job_put_back, removed])
@settings(max_examples=15)
@given(st.data())
def test_no_tick_is_lost_or_decided_twice_or_before_it_came(story, data):
    scene = story(data)
    scene.close()
    scene.assert_accounted_for()
