# SPDX-License-Identifier: Apache-2.0
"""Everything that was due comes to one class, and what is missing of the
numbers is noticed.
"""

import collections

import hypothesis
import pytest
from hypothesis import strategies as st

from distperiodic.core import audit
from distperiodic.core import claim as claim_
from distperiodic.core.audit import Counts
from distperiodic.core.audit import Fate
from distperiodic.core.audit import Served
from distperiodic.core.claim import State
from distperiodic.core.schedule import SECOND
from distperiodic.core.schedule import Every

MINUTE = 60 * SECOND
RULE = Every(60)

#: What may become of one object that is claimed for a tick.
ENDS = [State.DONE, State.DEAD, State.SUPERSEDED, State.CANCELLED,
        State.SKIPPED]
FATES = {State.DONE: Fate.ON_TIME, State.DEAD: Fate.DEAD,
         State.SUPERSEDED: Fate.SUPERSEDED, State.CANCELLED: Fate.CANCELLED,
         State.SKIPPED: Fate.SKIPPED}
#: An end, or None: it stands open.
OBJECTS = st.lists(st.sampled_from([*ENDS, None]), max_size=20)


def counted(ends):
    """The numbers of a tick, from what became of each object."""
    made = [audit.counts_of([] if end is None else [end],
                            still_open=end is None) for end in ends]
    return Counts(*map(sum, zip(*made, strict=True))) if made else Counts()


@pytest.mark.parametrize('end', ENDS)
def test_each_end_is_a_class(end):
    assert audit.classify(audit.counts_of([end])) == {FATES[end]: 1}


def test_what_was_done_and_claimed_late_is_late():
    assert audit.classify(audit.counts_of([State.DONE], late=True)) == {
        Fate.LATE: 1}
    assert audit.classify(audit.counts_of([State.DEAD], late=True)) == {
        Fate.DEAD: 1}


@pytest.mark.parametrize(('counts', 'found'), [
    (audit.counts_of([]), {Fate.UNEXPLAINED: 1}),
    (audit.counts_of([State.DONE, State.DONE]),
     {Fate.ON_TIME: 2, Fate.UNEXPLAINED: 1}),
    (audit.counts_of([State.DONE], still_open=True),
     {Fate.ON_TIME: 1, Fate.PENDING: 1, Fate.UNEXPLAINED: 1}),
    (Counts(due=0, dead=-1), {Fate.UNEXPLAINED: 2})],
    ids=['no end', 'two ends', 'an end, and open', 'put back and never dead'])
def test_numbers_that_contradict_each_other_are_unexplained(counts, found):
    assert audit.classify(counts) == found


@hypothesis.given(OBJECTS)
def test_a_consistent_history_has_nothing_unexplained(ends):
    fates = audit.classify(counted(ends))

    assert fates[Fate.UNEXPLAINED] == 0
    assert fates.total() == len(ends)
    assert fates == collections.Counter(
        Fate.PENDING if end is None else FATES[end] for end in ends)


@hypothesis.given(OBJECTS.filter(any), st.data())
def test_an_end_that_is_missing_or_doubled_is_always_noticed(ends, data):
    end = data.draw(st.sampled_from([one for one in ends if one]))
    number = data.draw(st.sampled_from([-1, 1]))
    counts = counted(ends)
    wrong = counts._replace(
        **{end.value: getattr(counts, end.value) + number})

    assert audit.classify(wrong)[Fate.UNEXPLAINED] == 1


@st.composite
def histories(draw):
    """Objects that come, go on and go: for each its first and last tick."""
    lives = draw(st.lists(st.tuples(
        st.integers(0, 9), st.integers(0, 9)).map(sorted), max_size=12))
    return [(first * MINUTE, last * MINUTE) for first, last in lives]


def history_of(lives, missed=()):
    """The ticks of objects that were done at each.

    :param missed: for some of them a stretch of ticks that were skipped, and
        are counted in the last of them.
    """
    ticks = collections.defaultdict(Counts)
    for at, (first, last) in enumerate(lives):
        gap = dict(missed).get(at, ())
        for tick in range(first, last + 1, MINUTE):
            if tick not in gap:
                ticks[tick] = add(ticks[tick], Counts(due=1, done=1))
        if gap:
            ticks[gap[-1]] = add(ticks[gap[-1]], Counts(
                due=len(gap), skipped=len(gap), missed=len(gap) - 1))
    return dict(ticks)


def add(one, other):
    return Counts(*map(sum, zip(one, other, strict=True)))


def plan(objects=(), own=None, **options):
    return audit.Plan(RULE, objects, own or {}, 5 * SECOND, **options)


def judged(ticks, lives, now=None):
    fates = audit.judge(
        ticks, [Served(*life) for life in lives], [], plan(), 0,
        10 * MINUTE if now is None else now)
    return sum(fates.values(), collections.Counter())


@hypothesis.given(histories())
def test_objects_that_come_and_go_lose_nothing(lives):
    found = judged(history_of(lives), lives)

    assert set(found) <= {Fate.ON_TIME}
    assert found.total() == sum(
        (last - first) // MINUTE + 1 for first, last in lives)


@hypothesis.given(histories().filter(any), st.data())
def test_a_tick_that_nobody_claimed_is_always_lost(lives, data):
    first, last = data.draw(st.sampled_from(lives))
    tick = data.draw(st.sampled_from(range(first, last + 1, MINUTE)))
    ticks = history_of(lives)
    ticks[tick] = add(ticks[tick], Counts(due=-1, done=-1))

    found = judged(ticks, lives)

    assert found[Fate.LOST] == 1
    assert found[Fate.UNEXPLAINED] == 0


@hypothesis.given(histories(), st.data())
def test_what_was_missed_together_makes_up_for_the_ticks_before(lives, data):
    missed = []
    for at, (first, last) in enumerate(lives):
        inner = range(first + MINUTE, last, MINUTE)
        if inner and data.draw(st.booleans()):
            begin = data.draw(st.sampled_from(inner))
            end = data.draw(st.sampled_from(range(begin, last, MINUTE)))
            missed.append((at, range(begin, end + 1, MINUTE)))

    found = judged(history_of(lives, missed), lives)

    assert found[Fate.LOST] == found[Fate.UNEXPLAINED] == 0
    assert found[Fate.SKIPPED] == sum(len(gap) for _, gap in missed)


def test_what_was_triggered_stands_for_no_tick():
    ticks = history_of([(0, 3 * MINUTE)])
    ticks[MINUTE + SECOND] = ticks[MINUTE]
    assert judged(ticks, [(0, 3 * MINUTE)])[Fate.LOST] == 0

    del ticks[MINUTE]

    assert judged(ticks, [(0, 3 * MINUTE)])[Fate.LOST] == 1


def row(name, last, first=0, *, open_=False, previous=None):
    return audit.Row(name, Served(first, last, open_), last,
                     last - MINUTE if previous is None else previous)


def judge_listed(rows, listed, now, newest, own=None, since=0):
    """Objects that are behind others, whose newest tick is *newest*."""
    fates = audit.judge(
        {}, [Served(newest, newest), *(one.served for one in rows)], rows,
        plan(listed, own), since, now)
    return {tick: dict(found) for tick, found in fates.items()
            if tick > MINUTE and tick != newest}


def test_an_object_that_is_listed_and_passed_over_is_lost():
    now = 4 * MINUTE

    found = judge_listed([row('a', MINUTE)], ['a'], now, 4 * MINUTE)

    assert found == {2 * MINUTE: {Fate.LOST: 1}, 3 * MINUTE: {
        Fate.PENDING: 1}}


@pytest.mark.parametrize(('the_row', 'listed', 'newest'), [
    (row('a', MINUTE), ['b'], 4 * MINUTE),
    (row('a', MINUTE, open_=True), ['a'], 4 * MINUTE),
    (row('a', MINUTE), ['a'], MINUTE)],
    ids=['gone from the catalogue', 'a run goes on', 'nobody was there'])
def test_what_nobody_can_have_claimed_is_not_lost(the_row, listed, newest):
    found = judge_listed([the_row], listed, 4 * MINUTE + SECOND, newest)

    assert all(set(fates) <= {Fate.PENDING} for fates in found.values())


def test_an_object_is_judged_by_its_own_schedule():
    own = {'a': Every(120)}
    rows = [row('a', 4 * MINUTE, previous=2 * MINUTE)]
    ticks = {tick * MINUTE: Counts(due=1, done=1) for tick in (0, 2, 4)}

    fates = audit.judge(ticks, [Served(0, 4 * MINUTE)], rows,
                        plan(['a'], own), 0, 5 * MINUTE)
    without = audit.judge(ticks, [Served(0, 4 * MINUTE)], [],
                          plan(['a']), 0, 5 * MINUTE)

    assert sum(fates.values(), collections.Counter()) == {Fate.ON_TIME: 3}
    assert sum(without.values(), collections.Counter())[Fate.LOST] == 2


def test_an_object_that_is_gone_may_have_had_any_schedule():
    gone = row('a', 4 * MINUTE, previous=2 * MINUTE)
    ticks = {tick * MINUTE: Counts(due=1, done=1) for tick in (0, 2, 4)}

    fates = audit.judge(ticks, [Served(0, 4 * MINUTE)], [gone], plan(), 0,
                        9 * MINUTE)

    assert sum(fates.values(), collections.Counter()) == {Fate.ON_TIME: 3}


@hypothesis.given(st.integers(0, 2 ** 53), st.integers(0, 255))
def test_the_first_tick_is_in_the_fence(tick, grants):
    fence = claim_.first_fence(tick) + grants

    assert audit.first_tick(fence) == tick - tick % 1000
