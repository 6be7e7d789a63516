# SPDX-License-Identifier: Apache-2.0
"""Due ticks, compared with a model that examines every tick."""

import bisect
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import hypothesis
import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from distperiodic.core import due
from distperiodic.core.attributes import Attributes
from distperiodic.core.cron import Cron
from distperiodic.core.due import ALWAYS
from distperiodic.core.due import CATCH_UP
from distperiodic.core.due import NOTHING
from distperiodic.core.due import Plan
from distperiodic.core.due import Row
from distperiodic.core.due import Verdict
from distperiodic.core.due import verdicts
from distperiodic.core.schedule import SECOND
from distperiodic.core.schedule import Every
from distperiodic.core.schedule import Misfire
from distperiodic.core.schedule import phase_us
from tests.unit import test_cron
from tests.unit import test_schedule

MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR
NOON = test_schedule.at('2026-06-01T12:00')
# The model costs a hundred times as much as the code under test.
LINES = ['*/15 * * * *', '0,30 1-3 * * *', '59 23 * * *', '20 */2 * * *']
POSITIONS = st.integers(-2 ** 63, 2 ** 63 - 1)


class Model(NamedTuple):
    """A plan, and all ticks of its schedule in an interval of time."""

    plan: Plan
    #: The last tick only ends the period of the tick before it.
    ticks: Sequence[int]

    def period(self, tick):
        return self.ticks[bisect.bisect_right(self.ticks, tick)] - tick

    def due_at(self, tick, row):
        """The instant at which an object is due for a tick of the grid."""
        if not self.plan.spread:
            return tick
        return tick + phase_us(row.position, self.period(tick))

    def occasions(self, row):
        """(tick, instant at which the object is due for this tick) of each
        tick after the object's watermark, oldest first.
        """
        found = [(tick, self.due_at(tick, row)) for tick in self.ticks[:-1]]
        found = [(tick, at) for tick, at in found
                 if at >= max(row.since, self.plan.since)]
        if self.plan.immediate:
            # With run_immediately, the instant of the listing is the first
            # tick.
            found = [(row.since, row.since),
                     *((tick, at) for tick, at in found if tick > row.since)]
        return [(tick, at) for tick, at in found if tick > row.settled]

    def grace(self, tick):
        if self.plan.grace is not None:
            return round(self.plan.grace * SECOND)
        if tick in self.ticks:
            return min(self.period(tick), MINUTE)
        # For the instant of the listing, use the grid's spacing at that time.
        return min(self.plan.schedule.period_us(tick), MINUTE)

    def verdict(self, row, now):
        """Return (ticks that run, ticks that are given up)."""
        missed = [(tick, at) for tick, at in self.occasions(row) if at <= now]
        if self.plan.misfire is Misfire.ALL:
            run = missed[-CATCH_UP:]
        elif self.plan.misfire is Misfire.LATEST:
            run = missed[-1:]
        else:
            run = [(tick, at) for tick, at in missed[-1:]
                   if now - at <= self.grace(tick)]
        return ([tick for tick, _ in run],
                [tick for tick, _ in missed[:len(missed) - len(run)]])


@st.composite
def grids(draw):
    """A schedule, and the list of its ticks."""
    if draw(st.booleans()):
        spacing = draw(st.sampled_from([0.001, 1 / 3, 1, 60, 3600, 86400]))
        offset = draw(st.sampled_from([0, 0.0005, 5, 1800]))
        every = Every(spacing, offset)
        begin = NOON // every.spacing_us * every.spacing_us
        return every, [begin + every.offset_us + n * every.spacing_us
                       for n in range(draw(st.sampled_from([8, 250])))]
    line = draw(st.sampled_from(LINES))
    zone, day = draw(st.sampled_from(test_cron.SPECIAL_DAYS))
    ticks = test_cron.expected_ticks(line, zone, day)
    return Cron(line, zone), ticks


@st.composite
def models(draw, **fixed):
    rule, ticks = draw(grids())
    options = {
        'misfire': draw(st.sampled_from(Misfire)),
        'grace': draw(st.sampled_from([None, None, 0, 0.5, 100, 10 ** 6])),
        'spread': draw(st.booleans()),
        'immediate': draw(st.booleans()),
        'since': draw(st.just(ALWAYS) | instants(ticks))}
    return Model(Plan(rule, **{**options, **fixed}), ticks)


def instants(ticks):
    """Instants among *ticks*, often one microsecond before or after a tick."""
    return st.one_of(
        st.builds(lambda tick, edge: min(max(tick + edge, ticks[0]),
                                         ticks[-1] - 1),
                  st.sampled_from(ticks), st.sampled_from([0, -1, 1])),
        st.integers(ticks[0], ticks[-1] - 1))


@st.composite
def rows_of(draw, model):
    return Row('object', draw(POSITIONS), draw(instants(model.ticks)),
               draw(st.just(ALWAYS) | instants(model.ticks))
               if not model.plan.immediate else draw(instants(model.ticks)))


@st.composite
def moments(draw, model, row):
    """Instants at which *row* is judged; the clock may step back."""
    own = [at + edge for _, at in model.occasions(row)[:20]
           for edge in (-1, 0, 1, MINUTE) if at + edge < model.ticks[-1]]
    times = instants(model.ticks)
    if own:
        times = st.sampled_from(own) | times
    return draw(st.lists(times, min_size=1, max_size=12))


@st.composite
def scenes(draw, **fixed):
    model = draw(models(**fixed))
    row = draw(rows_of(model))
    return model, row, draw(moments(model, row))


def look(plan, row, now):
    """Judge a row; return the updated row and the verdict."""
    verdict = plan.verdict(row, now)
    settled = [row.settled, *verdict.run]
    if verdict.until is not None:
        settled.append(verdict.until)
    return row._replace(settled=max(settled)), verdict


@given(scenes())
def test_a_verdict_is_that_of_the_model(scene):
    model, row, times = scene
    for now in times:
        run, given_up = model.verdict(row, now)
        verdict = model.plan.verdict(row, now)
        assert (list(verdict.run), verdict.given_up) == (run, len(given_up))
        assert verdict.until == (given_up[-1] if given_up else None)
        assert bool(verdict.reason) is bool(given_up)


@given(scenes())
def test_each_tick_that_came_is_run_or_given_up_once(scene):
    model, row, times = scene
    due_then = model.occasions(row)
    run, given_up = [], []
    for now in times:
        before, (row, verdict) = row, look(model.plan, row, now)
        run.extend(verdict.run)
        if verdict.until is not None:
            dropped = [tick for tick, _ in due_then
                       if before.settled < tick <= verdict.until]
            assert len(dropped) == verdict.given_up
            given_up.extend(dropped)
    came = [tick for tick, at in due_then if at <= max(times)]
    assert sorted([*run, *given_up]) == came


@given(scenes())
def test_nothing_of_the_future_is_settled(scene):
    model, row, times = scene
    due_at = dict(model.occasions(row))
    for now in times:
        before, (row, _) = row, look(model.plan, row, now)
        if row != before:
            assert due_at[row.settled] <= now


@given(scenes(misfire=Misfire.ALL))
def test_misfire_all_runs_each_tick_at_any_times_of_evaluation(scene):
    model, row, times = scene
    came = [tick for tick, at in model.occasions(row) if at <= max(times)]
    hypothesis.assume(len(came) <= CATCH_UP)
    run = []
    for now in times:
        row, verdict = look(model.plan, row, now)
        run.extend(verdict.run)
    assert run == came


@given(scenes(), st.data())
def test_a_tick_that_came_before_it_was_listed_again_never_runs(scene, data):
    model, row, times = scene
    back = data.draw(instants(model.ticks))
    row = row._replace(since=back)
    first = {back} if model.plan.immediate else set()
    for now in times:
        row, verdict = look(model.plan, row, now)
        assert all(model.due_at(tick, row) >= back
                   for tick in {*verdict.run} - first)


@given(scenes(), grids(), st.data())
def test_a_schedule_holds_from_its_change_on(scene, grid, data):
    model, row, times = scene
    for now in times[:4]:
        row, _ = look(model.plan, row, now)
    rule, ticks = grid
    changed = data.draw(instants(ticks))
    new = Model(model.plan.__class__(
        rule, model.plan.misfire, model.plan.grace, model.plan.spread,
        model.plan.immediate, changed), ticks)
    row = row._replace(settled=max(row.settled, ticks[0]))
    hypothesis.assume(row.since < ticks[0] or not model.plan.immediate)
    for now in data.draw(st.lists(instants(ticks), min_size=1, max_size=5)):
        run, given_up = new.verdict(row, now)
        assert all(new.due_at(tick, row) >= changed
                   for tick in (*run, *given_up))
        row, verdict = look(new.plan, row, now)
        assert (list(verdict.run), verdict.given_up) == (run, len(given_up))


@given(scenes(since=ALWAYS, immediate=True), st.data())
def test_a_change_of_a_schedule_is_no_tick_and_hides_none(scene, data):
    model, row, _ = scene
    plan = model.plan
    ticks = st.sampled_from(model.ticks[:-1])
    at, until = data.draw(ticks | instants(model.ticks)), data.draw(ticks)
    changed = row._replace(since=at, settled=plan.floor_of_change(
        row.settled, at, row.position))
    # With a phase, the tick of the current period counts as settled.
    begin = at + 1 if plan.spread else ALWAYS
    assert plan.count(changed, until) == sum(
        max(begin, row.settled + 1) <= tick <= until
        and model.due_at(tick, row) >= at for tick in model.ticks[:-1])


@given(st.sampled_from([True, True, False]).flatmap(
    lambda spread: scenes(spread=spread)))
def test_a_tick_may_be_claimed_from_when_it_is_due_for_as_long_as_it_runs(
        scene):
    model, row, times = scene
    plan, due_at = model.plan, dict(model.occasions(row))
    for now in times:
        for tick in plan.verdict(row, now).run[:1]:
            begin, end = plan.window(
                tick, row.position, plan.is_listing(row, tick))
            assert begin == due_at[tick] <= now
            if plan.misfire is Misfire.ALL:
                assert end is None
            else:
                assert plan.verdict(row, end).run == (tick,)
                assert plan.verdict(row, end + 1).run != (tick,)


@given(scenes(), st.data())
def test_it_counts_the_ticks_that_were_due(scene, data):
    model, row, _ = scene
    until = data.draw(st.sampled_from(model.ticks[:-1]))
    assert model.plan.count(row, until) == sum(
        tick <= until for tick, _ in model.occasions(row))


@settings(max_examples=20)
@given(st.data())
def test_many_are_judged_as_they_are_one_by_one(data):
    models_ = {'': data.draw(models()),
               'own': data.draw(models(spread=False, since=ALWAYS))}
    times = [instants(model.ticks) for model in models_.values()]
    now = data.draw(st.one_of(times))
    rows = [
        row._replace(object=f'{text}{n}', attributes=Attributes(text))
        for text, model in models_.items()
        for n, row in enumerate(data.draw(
            st.lists(rows_of(model), max_size=4)) * 2)]
    expected = {}
    for row in rows:
        verdict = models_[row.attributes.rule].plan.verdict(row, now)
        if verdict is not NOTHING:
            expected.setdefault((row.attributes.rule, verdict), []).append(row)
    plans = {text: model.plan for text, model in models_.items()}
    assert verdicts(rows, plans, now) == expected


def test_rows_of_an_unknown_schedule_are_left_out():
    row = Row('a', 0, NOON - HOUR, ALWAYS, Attributes('every 1'))
    assert verdicts([row], {'': Plan(Every(60))}, NOON) == {}
    assert verdicts([row], {'every 1': Plan(Every(60))}, NOON)


class TestEdges:
    """Cases that the property tests would find only by luck."""

    def test_an_object_that_is_listed_at_a_tick_runs_once_for_it(self):
        plan = Plan(Every(3600), Misfire.ALL, spread=True, immediate=True)
        row = Row('a', 2 ** 61, NOON - HOUR, since=NOON)
        assert plan.verdict(row, NOON).run == (NOON,)
        row = row._replace(settled=NOON)
        assert plan.verdict(row, NOON + HOUR - 1) is NOTHING

    def test_a_changed_schedule_keeps_the_phase_of_an_immediate_job(self):
        plan = Plan(Every(3600), spread=True, immediate=True,
                    since=NOON + 1)
        row = Row('a', 2 ** 61, NOON - DAY, since=NOON - DAY + 1)
        row = row._replace(settled=NOON - 1)
        assert plan.verdict(row, NOON + HOUR - 1).run == (NOON,)

    @pytest.mark.parametrize('spread', [False, True])
    def test_the_reason_names_the_most_that_all_runs(self, spread):
        plan = Plan(Every(60), Misfire.ALL, spread=spread, immediate=True)
        row = Row('a', 0, NOON - 2 * HOUR, since=NOON - 100 * MINUTE)
        verdict = plan.verdict(row, NOON)
        assert (len(verdict.run), verdict.given_up) == (CATCH_UP, 1)
        assert verdict.reason == 'misfire=all runs the newest 100 missed ticks'

    def test_all_runs_the_newest_of_more_than_it_may(self):
        plan = Plan(Every(60), Misfire.ALL)
        verdict = plan.verdict(Row('a', 0, NOON - 2 * HOUR, ALWAYS), NOON)
        assert verdict.run == tuple(
            range(NOON - 99 * MINUTE, NOON + 1, MINUTE))
        assert verdict.given_up == 20

    @pytest.mark.parametrize('spread', [False, True])
    def test_a_watermark_alone_is_enough(self, spread):
        plan = Plan(Cron('0 * * * *', 'Europe/Berlin'), spread=spread)
        row = Row('a', 0, NOON - HOUR, since=ALWAYS)
        assert plan.verdict(row, NOON).run == (NOON,)

    @pytest.mark.parametrize('misfire', Misfire)
    @pytest.mark.parametrize('spread', [False, True])
    def test_a_clock_set_back_finds_nothing_due(self, misfire, spread):
        plan = Plan(Every(60), misfire, spread=spread, immediate=True)
        row = Row('a', 0, settled=NOON, since=NOON - HOUR)
        for back in itertools.chain(range(0, HOUR, MINUTE), [DAY]):
            assert plan.verdict(row, NOON - back) is NOTHING

    def test_objects_of_a_spread_job_that_are_too_late_share_one_reason(self):
        plan = Plan(Every(3600), Misfire.SKIP, grace=1, spread=True)
        rows = [Row(str(n), n * 2 ** 55, NOON - HOUR, ALWAYS)
                for n in range(100)]
        (_, verdict), = verdicts(rows, {'': plan}, NOON + HOUR - 1)
        assert verdict.given_up
        assert verdict.reason == 'misfire=skip and later than its grace of 1 s'

    def test_the_reason_of_a_skip_contains_the_lateness(self):
        plan = Plan(Every(3600), Misfire.SKIP, 60)
        row = Row('a', 0, 0, ALWAYS)

        assert plan.verdict(row, HOUR + 60 * SECOND).run == (HOUR,)
        assert plan.verdict(row, HOUR + 120 * SECOND) == Verdict(
            (), 1, HOUR, 'misfire=skip and 120 s late, grace is 60 s')

    def test_a_daily_job_that_is_skipped_for_being_late_has_a_minute(self):
        plan = Plan(Every(86400), Misfire.SKIP)
        row = Row('a', 0, 0, ALWAYS)

        assert plan.verdict(row, DAY + MINUTE).run == (DAY,)
        assert not plan.verdict(row, DAY + MINUTE + SECOND).run

    @pytest.mark.parametrize('misfire', Misfire)
    def test_a_year_of_missed_milliseconds_costs_no_more_than_a_few(
            self, misfire):
        plan = Plan(Every(0.001), misfire, grace=0)
        row = Row('a', 0, NOON - 365 * DAY, ALWAYS)
        verdict = plan.verdict(row, NOON)
        assert len(verdict.run) + verdict.given_up == 365 * DAY // 1000

    def test_the_last_tick_of_a_night_may_be_claimed_until_the_next_night(
            self):
        """The period of the last tick is longer, so the object's phase in this
        period is longer, too.
        """
        plan = Plan(Cron('0,30 1-3 * * *'), spread=True)
        half = 2 ** 63
        assert phase_us(half, DAY) == DAY // 2
        last = NOON - 9 * HOUR + 30 * MINUTE
        row = Row('a', half, last - 1, ALWAYS)
        begin, end = plan.window(last, half)
        assert begin == last + (21 * HOUR + 30 * MINUTE) // 2
        assert plan.window(last - 30 * MINUTE, half) == (
            last - 15 * MINUTE, begin - 1)
        assert plan.verdict(row, begin).run == (last,)
        assert plan.verdict(row, end).run == (last,)

    @pytest.mark.parametrize('spread', [False, True])
    def test_a_listing_may_be_claimed_until_a_tick_of_a_later_schedule(
            self, spread):
        plan = Plan(Every(60), spread=spread, immediate=True,
                    since=NOON + 10 * MINUTE + 1)
        row = Row('a', 0, NOON, since=NOON + 1)
        end = NOON + 11 * MINUTE - 1
        assert plan.window(NOON + 1, 0, listing=True) == (NOON + 1, end)
        assert plan.verdict(row, end).run == (NOON + 1,)

    def test_a_schedule_without_ticks_so_far_owes_nothing(self):
        plan = Plan(Cron('0 0 29 2 *'), spread=True)
        row = Row('a', 0, -40 * 365 * DAY, -40 * 365 * DAY)
        assert plan.verdict(row, -39 * 365 * DAY + due.CATCH_UP) is NOTHING
