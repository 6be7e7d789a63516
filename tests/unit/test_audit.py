# SPDX-License-Identifier: Apache-2.0
"""Audit: each due tick is in exactly one class. Ticks that are missing in the
history are reported.
"""

import collections

import hypothesis
import pytest
from hypothesis import strategies as st

from distperiodic.core import audit
from distperiodic.core import schedule
from distperiodic.core.attributes import Attributes
from distperiodic.core.audit import AttendedInterval
from distperiodic.core.claim import State
from distperiodic.core.due import ALWAYS
from distperiodic.core.due import Plan
from distperiodic.core.due import Row
from distperiodic.core.outcomes import ENDED
from distperiodic.core.outcomes import OUTCOMES
from distperiodic.core.outcomes import Counts
from distperiodic.core.outcomes import Fate
from distperiodic.core.schedule import SECOND
from distperiodic.core.schedule import Every
from distperiodic.core.schedule import Misfire
from distperiodic.core.schedule import phase_us
from tests.checker import counts_of

MINUTE = 60 * SECOND
RULE = Every(60)

#: misfire='latest'; a due tick is claimed within 61 s.
JOB = audit.AuditedJob(Plan(RULE), known=True, patience=MINUTE + SECOND)
#: Possible endings of the claim of one object for a tick.
ENDS = [State.DONE, State.DEAD, State.SUPERSEDED, State.CANCELLED,
        State.SKIPPED]
FATES = {state: OUTCOMES[ENDED[state]].fate for state in ENDS}
#: An ending, or None for a claim that is still open.
OBJECTS = st.lists(st.sampled_from([*ENDS, None]), max_size=20)


def counted(ends):
    """The counts of a tick, computed from the ending of each object."""
    made = [counts_of([] if end is None else [end],
                            still_open=end is None) for end in ends]
    return Counts(*map(sum, zip(*made, strict=True))) if made else Counts()


@pytest.mark.parametrize('end', ENDS)
def test_each_end_is_a_class(end):
    assert audit.classify(counts_of([end])) == {FATES[end]: 1}


def test_an_object_done_and_claimed_late_is_late():
    assert audit.classify(counts_of([State.DONE], late=True)) == {
        Fate.LATE: 1}
    assert audit.classify(counts_of([State.DEAD], late=True)) == {
        Fate.DEAD: 1}


@pytest.mark.parametrize(('counts', 'found'), [
    (counts_of([]), {Fate.UNEXPLAINED: 1}),
    (counts_of([State.DONE, State.DONE]),
     {Fate.ON_TIME: 2, Fate.UNEXPLAINED: 1}),
    (counts_of([State.DONE], still_open=True),
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


@pytest.mark.parametrize(('by', 'fate'), [
    ({}, Fate.SKIPPED), ({'by_misfire': 1}, Fate.PASSED_OVER),
    ({'by_overlap': 1}, Fate.SKIPPED), ({'by_pause': 1}, Fate.SKIPPED),
    ({'by_lost': 1}, Fate.LOST)],
    ids=['no cause', 'misfire', 'overlap', 'pause', 'lost'])
def test_a_skip_is_classified_by_its_cause(by, fate):
    assert audit.classify(Counts(due=1, skipped=1, **by)) == {fate: 1}


@st.composite
def histories(draw):
    """The lifetimes of some objects: for each, its first and its last tick."""
    lives = draw(st.lists(st.tuples(
        st.integers(0, 9), st.integers(0, 9)).map(sorted), max_size=12))
    return [(first * MINUTE, last * MINUTE) for first, last in lives]


def history_of(lives, missed=()):
    """The counts of each tick, for objects that ended as done at each tick.

    :param missed: (index, ticks) pairs: the ticks that the object with this
        index skipped. All of them are counted at the last one.
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


def row(settled, since=ALWAYS, position=0, rule='', free=True):
    return Row('', position, settled, since, Attributes(rule), free)


def account_of(ticks, alike, job=JOB, rows=(), now=0, since=0):
    """The number of objects in each class, summed over all ticks."""
    fates = audit.judge(ticks, alike, [
        (one, [one.position]) for one in rows], job, since, now)
    return sum(fates.values(), collections.Counter())


def judged(ticks, lives):
    """The sums of ``account_of`` for objects that are listed from their first
    to their last tick.
    """
    return account_of(
        ticks, [(row(last, first), 1) for first, last in lives])


@hypothesis.given(histories())
def test_objects_that_come_and_go_on_lose_nothing(lives):
    found = judged(history_of(lives), lives)

    assert set(found) <= {Fate.ON_TIME}
    assert found.total() == sum(
        (last - first) // MINUTE + 1 for first, last in lives)


@hypothesis.given(histories().filter(any), st.data())
def test_a_watermark_that_moved_without_a_record_is_lost(lives, data):
    first, last = data.draw(st.sampled_from(lives))
    tick = data.draw(st.sampled_from(range(first, last + 1, MINUTE)))
    ticks = history_of(lives)
    ticks[tick] = add(ticks[tick], Counts(due=-1, done=-1))

    fates = audit.judge(ticks, [(row(last, first), 1)
                                for first, last in lives], [], JOB, 0,
                        10 * MINUTE - 1)

    lost = {tick: found[Fate.LOST] for tick, found in fates.items()
            if found[Fate.LOST]}
    assert lost == {tick: 1}
    assert not any(found[Fate.UNEXPLAINED] for found in fates.values())


@hypothesis.given(histories(), st.data())
def test_ticks_missed_together_make_up_for_the_ticks_before(lives, data):
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


def test_a_triggered_run_stands_for_no_tick():
    ticks = history_of([(0, 3 * MINUTE)])
    ticks[MINUTE + SECOND] = ticks[MINUTE]
    assert judged(ticks, [(0, 3 * MINUTE)])[Fate.LOST] == 0

    del ticks[MINUTE]

    assert judged(ticks, [(0, 3 * MINUTE)])[Fate.LOST] == 1


def waiting(job=JOB, now=5 * MINUTE, settled=0, **options):
    """The classes of the ticks of three objects whose watermarks are behind.
    """
    return account_of({}, [(row(settled, settled + 1, **options), 3)], job,
                      now=now)


class TestAfterTheWatermark:

    def test_unattended_ticks_are_passed_over_except_those_still_open(self):
        assert waiting() == {Fate.PASSED_OVER: 12, Fate.PENDING: 3}

    def test_without_the_policy_no_tick_is_classified_as_given_up(self):
        assert waiting(JOB._replace(known=False)) == {Fate.PENDING: 15}

    def test_an_attended_tick_not_claimed_in_time_is_lost(self):
        attended = JOB._replace(attended=AttendedInterval(
            2 * MINUTE, 5 * MINUTE))
        # The ticks of minutes 2 and 3 count, but not yet the tick of minute 4.
        assert waiting(attended) == {
            Fate.PASSED_OVER: 6, Fate.LOST: 6, Fate.PENDING: 3}

    def test_a_tick_due_at_the_end_of_an_attendance_is_not_lost(self):
        attended = JOB._replace(attended=AttendedInterval(
            ALWAYS, 2 * MINUTE + SECOND))
        assert waiting(attended) == {
            Fate.LOST: 3, Fate.PASSED_OVER: 9, Fate.PENDING: 3}

    def test_an_object_with_an_open_claim_waits_for_its_end(self):
        attended = JOB._replace(attended=AttendedInterval(ALWAYS, 5 * MINUTE))
        assert waiting(attended, free=False) == {Fate.PENDING: 15}

    def test_a_tick_due_in_a_pause_waits(self):
        paused = JOB._replace(attended=AttendedInterval(ALWAYS, 5 * MINUTE),
                              paused=2 * MINUTE)
        assert waiting(paused) == {Fate.LOST: 3, Fate.PENDING: 12}

    def test_an_object_is_judged_by_its_own_schedule(self):
        assert waiting(rule='every 120000000') == {
            Fate.PASSED_OVER: 3, Fate.PENDING: 3}

    def test_a_tick_before_the_listing_of_its_object_was_not_due(self):
        found = account_of({}, [(row(0, 4 * MINUTE + 1), 1)],
                           now=5 * MINUTE)
        assert found == {Fate.PENDING: 1}

    def test_a_tick_before_its_schedule_was_in_force_was_not_due(self):
        job = JOB._replace(plan=Plan(RULE, since=4 * MINUTE))
        assert waiting(job) == {Fate.PASSED_OVER: 3, Fate.PENDING: 3}

    def test_a_time_before_the_account_is_left_out(self):
        fates = audit.judge({}, [(row(0), 1)], [], JOB, 4 * MINUTE,
                            5 * MINUTE)
        assert fates == {4 * MINUTE: {Fate.PASSED_OVER: 1},
                         5 * MINUTE: {Fate.PENDING: 1}}


class TestSpread:
    """Objects with phases: each is due at its own instant in the period."""

    HALF = next(n for n in range(2 ** 20)
                if phase_us(n, MINUTE) // SECOND == 30)
    JOB = audit.AuditedJob(Plan(RULE, spread=True), known=True)

    @pytest.mark.parametrize(('second', 'found'), [
        (29, {}), (31, {Fate.PENDING: 1})])
    def test_it_is_due_at_its_phase_and_not_before(self, second, found):
        rows = [row(0, 31 * SECOND, self.HALF)]
        assert account_of({}, [], self.JOB, rows,
                          MINUTE + second * SECOND) == found

    @pytest.mark.parametrize(('second', 'lost'), [(29, 1), (31, 0)])
    def test_one_that_was_listed_in_a_period_counts_from_its_phase(
            self, second, lost):
        rows = [row(MINUTE, second * SECOND, self.HALF)]
        ticks = {MINUTE: Counts(due=1, done=1)}
        found = account_of(ticks, [], self.JOB, rows, 2 * MINUTE)
        assert found[Fate.LOST] == lost

    def test_it_is_lost_by_the_time_at_which_it_was_due(self):
        rows = [row(0, 31 * SECOND, self.HALF)]
        job = self.JOB._replace(attended=AttendedInterval(
            MINUTE + 20 * SECOND, 3 * MINUTE), patience=MINUTE)
        assert account_of({}, [], job, rows, 2 * MINUTE + 29 * SECOND) == {
            Fate.LOST: 1}


def test_an_object_that_runs_as_soon_as_it_is_listed_is_due_then():
    job = JOB._replace(plan=Plan(RULE, immediate=True))
    ticks = {MINUTE: Counts(due=1, done=1)}
    found = account_of(ticks, [(row(MINUTE, 5 * SECOND), 1)], job,
                       now=MINUTE)
    assert found == {Fate.ON_TIME: 1, Fate.LOST: 1}

    found = account_of({}, [(row(0, 5 * SECOND), 1)], job, now=2 * MINUTE)

    assert found == {Fate.PASSED_OVER: 2, Fate.PENDING: 1}


def test_all_that_the_policy_still_runs_is_pending():
    job = JOB._replace(plan=Plan(RULE, Misfire.ALL))
    assert waiting(job) == {Fate.PENDING: 15}


@pytest.mark.parametrize('text', ['every 60000000', 'cron UTC 0 * * * *'])
def test_the_text_of_a_schedule_contains_whether_its_ticks_spread(text):
    rule, spread = audit.named(text)
    assert audit.named(f'{text} spread') == (rule, True)
    assert spread is False


_PLACES = st.lists(st.integers(-2 ** 63, 2 ** 63 - 1), min_size=1,
                   max_size=20)
_TIMES = st.integers(0, 12 * MINUTE)


@hypothesis.settings(max_examples=400)
@hypothesis.given(
    positions=_PLACES, settled=_TIMES, since=_TIMES, now=_TIMES,
    in_force=_TIMES, free=st.booleans(), attended=st.none() | st.tuples(
        _TIMES, _TIMES).map(sorted), paused=st.none() | _TIMES,
    misfire=st.sampled_from(schedule.Misfire),
    grace=st.none() | st.integers(0, 90), immediate=st.booleans(),
    patience=st.integers(0, 3 * MINUTE))
def test_objects_with_a_phase_are_judged_alike_together_and_one_by_one(
        positions, settled, since, now, in_force, free, attended, paused,
        misfire, grace, immediate, patience):
    job = audit.AuditedJob(
        Plan(RULE, misfire, grace, spread=True, immediate=immediate,
             since=in_force), True,
        attended and audit.AttendedInterval(*attended), paused, patience)
    rows = [row(settled, since, position, free=free)
            for position in positions]

    together = audit.judge({}, [], [(rows[0], positions)], job, 0, now)

    assert together == audit.judge(
        {}, [(one, 1) for one in rows], [], job, 0, now)


@hypothesis.given(_PLACES, st.integers(0, 10 ** 12), st.integers(1, 10 ** 12))
def test_the_last_place_of_a_delay_divides_the_ring_as_phases_do(
        positions, delay, period):
    last = schedule.last_scattered(delay, period)

    for position in positions:
        assert (schedule.phase_us(position, period) <= delay) is (
            schedule.scattered(position) <= last)
