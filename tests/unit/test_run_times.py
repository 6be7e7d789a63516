# SPDX-License-Identifier: Apache-2.0
"""How late runs begin and how long they last: from the executor to the store.
"""

import collections
import random
import threading

import pytest

from distperiodic.adapters.local.memory import MemoryClaimStore
from distperiodic.core.histogram import Histogram
from distperiodic.core.message import Report
from distperiodic.core.message import Timing
from distperiodic.core.refusal import Refusal
from distperiodic.core.ring import position_of
from distperiodic.core.schedule import phase_us
from distperiodic.flow import run_times
from distperiodic.flow.run_times import RunTimeBook
from distperiodic.ports import NO_TIMES
from distperiodic.ports import ClosedSink
from tests import claiming
from tests.unit import world as worlds
from tests.unit.test_run_leases import batch_of
from tests.unit.test_runs import LIMIT
from tests.unit.test_runs import Bench
from tests.unit.test_runs import objects_job

SECOND = 1_000_000
TICK = 600 * SECOND


def book(now=TICK, up=100.0, late_after=5.0):
    """The time of the ticks is *now* when the monotonic clock shows *up*."""
    return RunTimeBook(lambda: now, lambda: up, late_after, ClosedSink())


def histograms(times):
    return Histogram.parse(times.started), Histogram.parse(times.ran)


def test_a_start_is_late_from_the_instant_at_which_the_object_was_due():
    poll = worlds.job('poll', every=60.0, objects=True)
    times = book(now=TICK + 12 * SECOND).note(poll, TICK, ['a', 'b', 'c'], [
        # The monotonic clock was 88.0 at the tick.
        Timing(0, 1, 1, 88.5, 0.25), Timing(1, 1, 1, 94.0, 6.0)])

    started, ran = histograms(times)
    assert (started.count, started.max, started.sum) == (
        2, 6 * SECOND, 6_500_000)
    assert (ran.count, ran.max, ran.sum) == (2, 6 * SECOND, 6_250_000)
    assert times.late == 1


@pytest.mark.parametrize(('timings', 'slowest'), [
    ([Timing(0, 1, 1, 88.0, 2.0), Timing(1, 1, 1, 88.0, 3.0),
      Timing(2, 1, 1, 88.0, 1.0)], 'b'),
    # Short runs were timed together.
    ([Timing(0, 2, 2, 88.0, 0.002), Timing(2, 1, 1, 88.0, 0.0005)], ''),
    ([Timing(0, 2, 2, 88.0, 0.002), Timing(2, 1, 1, 88.0, 0.5)], 'c')])
def test_the_object_of_the_longest_run_is_known_if_it_was_timed_alone(
        timings, slowest):
    poll = worlds.job('poll', every=60.0, objects=True)
    one = book()

    assert one.note(poll, TICK, 'abc', timings).slowest == slowest
    # A shorter run of another batch changes nothing.
    assert one.note(poll, TICK, 'd', [
        Timing(0, 1, 1, 89.0, 0.0001)]).slowest == slowest


def test_an_object_with_a_phase_is_not_late_before_its_phase_has_passed():
    poll = worlds.job('poll', every=60.0, objects=True, spread=True)
    phase = phase_us(position_of('a'), 60 * SECOND)
    assert phase > 6 * SECOND
    started = 100.0 + phase / SECOND + 0.5
    timings = [Timing(0, 1, 1, started, 0.0)]

    times = book().note(poll, TICK, ['a'], timings)
    # A tick that is not on the job's grid is that of an own schedule.
    own = book().note(poll, TICK + 1, ['a'], timings)

    assert histograms(times)[0].max == pytest.approx(SECOND / 2, abs=2)
    assert times.late == 0
    assert histograms(own)[0].max == pytest.approx(
        phase + SECOND / 2, abs=2)


def test_a_step_of_a_task_is_late_from_the_instant_at_which_it_was_ready():
    times = book().note(
        worlds.job('poll', objects=True), TICK, ['x', 'y'],
        [Timing(0, 1, 1, 101.0, 0.0), Timing(1, 1, 1, 101.0, 0.0)],
        [TICK - 8 * SECOND, TICK])

    assert histograms(times)[0].max == 9 * SECOND
    assert histograms(times)[0].sum == 10 * SECOND
    assert times.late == 1


def test_the_objects_that_began_more_than_a_period_late_are_named():
    poll = worlds.job('poll', every=60.0, objects=True)
    # The monotonic clock was 100.0 at the tick.
    timings = [Timing(0, 1, 1, 159.0, 0.0), Timing(1, 2, 3, 161.0, 0.003),
               Timing(4, 0, 1, 170.0, 1.0), Timing(5, 1, 1, 160.0, 1.0)]
    objects, attempts = list('abcdef'), [1, 1, 2, 1, 2, 1]

    times = book().note(poll, TICK, objects, timings, attempts=attempts)
    # The period of a tick that is not on the job's grid is unknown.
    own = book().note(poll, TICK + 1, objects, timings, attempts=attempts)
    step = book().note(poll, TICK, objects, timings, [TICK] * 6, attempts)

    assert times.behind == ('b', 'd')
    assert (times.late, own.behind, step.behind) == (4, (), ())
    assert times.without_late() == times._replace(late=0, behind=())


def test_the_number_of_objects_that_are_named_for_a_tick_is_limited(
        monkeypatch):
    monkeypatch.setattr(run_times, 'MOST_NAMED', 2)
    poll = worlds.job('poll', every=60.0, objects=True)
    late = [Timing(0, 1, 1, 170.0, 0.0)]
    one = book()

    found = [one.note(poll, tick, [key], late, attempts=[1]).behind
             for tick, key in [(TICK, 'a'), (TICK, 'b'), (TICK, 'c'),
                               (TICK - 60 * SECOND, 'd')]]

    assert found == [('a',), ('b',), (), ('d',)]


def test_a_start_within_the_late_claim_delay_is_not_named():
    poll = worlds.job('poll', every=2.0, objects=True)

    assert book().note(poll, TICK, ['a', 'b'], [
        Timing(0, 1, 1, 104.0, 0.0), Timing(1, 1, 1, 106.0, 0.0)],
        attempts=[1, 1]).behind == ('b',)


def test_only_first_attempts_count_as_starts_and_all_as_runs():
    poll = worlds.job('poll', objects=True)
    times = book().note(poll, TICK, ['a'] * 9, [
        Timing(0, 2, 3, 107.0, 0.003), Timing(3, 0, 1, 109.0, 1.0)])

    started, ran = histograms(times)
    assert (started.count, ran.count, times.late) == (2, 4, 2)
    assert ran.sum == 1_003_000


def test_times_cover_all_runs_of_the_tick_and_late_starts_the_last():
    poll, other = (worlds.job(name, objects=True)
                   for name in ('poll', 'other'))
    kept = book()
    kept.note(poll, TICK, ['a'], [Timing(0, 1, 1, 107.0, 1.0)])
    kept.note(other, TICK, ['a'], [Timing(0, 1, 1, 107.0, 1.0)])
    kept.note(poll, TICK + 1, ['a'], [Timing(0, 1, 1, 107.0, 1.0)])

    times = kept.note(poll, TICK, ['a'], [Timing(0, 1, 1, 101.0, 2.0)])

    started, ran = histograms(times)
    assert (started.count, ran.count, ran.sum) == (2, 2, 3 * SECOND)
    assert times.late == 0
    assert kept.note(poll, TICK, ['a'], []) == NO_TIMES


def test_the_histograms_of_old_ticks_are_forgotten():
    poll = worlds.job('poll', objects=True)
    kept, timings = book(), [Timing(0, 1, 1, 100.0, 1.0)]
    for tick in range(TICK, TICK + 10_000):
        kept.note(poll, tick, ['a'], timings)

    kept.note(poll, TICK, ['a'], timings)
    kept.note(poll, TICK - 1, ['a'], timings)

    # The tick that was last used longest ago is the one that is forgotten.
    for tick, number in (TICK, 3), (TICK + 1, 1):
        assert histograms(kept.note(poll, tick, ['a'], timings)
                          )[1].count == number


# -- the executor

def timings(bench):
    return [one for report, _ in bench.reports for one in report.timings]


def test_each_long_run_is_measured_alone_and_short_runs_together():
    seconds = {'c': 0.5, 'f': 3.0}

    def handler(context, key):
        bench.clock.advance(seconds.get(key, 0.0001))
    bench = Bench((objects_job(), handler))
    # Chunks have several runs only if the runs are known to be short.
    bench.accept([f'warm-{n}' for n in range(64)])
    bench.pool.run_all()
    bench.reports.clear()
    began = bench.clock.monotonic()
    bench.accept(list('abcdefgh'), attempts=[1, 1, 1, 1, 2, 1, 1, 2])
    bench.pool.run_all()

    found = timings(bench)
    assert sum(one.runs for one in found) == 8
    assert sum(one.first for one in found) == 6
    alone = {one.at: one for one in found if one.seconds > 0.1}
    assert {at: (one.runs, round(one.seconds, 3))
            for at, one in alone.items()} == {2: (1, 0.5), 5: (1, 3.0)}
    assert alone[2].began == pytest.approx(began + 0.0002, abs=1e-5)
    assert found[0] == pytest.approx((0, 2, 2, began, 0.0002), abs=1e-5)


def test_short_runs_are_measured_together_up_to_an_object_that_did_not_run():
    """The objects of a measurement follow each other in the batch."""
    bench = Bench((objects_job(), lambda context, key: None))
    bench.accept([f'warm-{n}' for n in range(64)])
    bench.pool.run_all()
    bench.reports.clear()
    asked = []

    def may_start(batch):
        asked.append(batch)
        return Refusal.NOT_A_MEMBER if len(asked) == 3 else None
    bench.may_start = may_start
    bench.accept(list('abcdef'))
    bench.pool.run_all()

    refused = [index for report, _ in bench.reports
               for index, _ in report.refused]
    assert refused == [2]
    assert [(one.at, one.runs) for one in timings(bench)] == [(0, 2), (3, 3)]


def test_a_worker_without_a_store_passes_the_times_of_its_runs_on_once():
    """No component that grants the runs receives the reports there."""
    taken = []
    bench = Bench((objects_job(), lambda context, key: None),
                  timed=lambda job, batch, times: taken.append(
                      (job.name, batch.id, sum(one.runs for one in times))))
    batch = bench.accept(list('abc'))
    bench.pool.run_all()

    assert [one[:2] for one in taken] == [('poll', batch.id)] * len(taken)
    assert sum(number for *_, number in taken) == 3


def test_with_a_phase_each_run_is_measured_alone():
    bench = Bench((objects_job(spread=True), lambda context, key: None))
    for _ in range(2):
        bench.reports.clear()
        bench.accept(list('abcdefgh'))
        bench.pool.run_all()

    assert [(one.at, one.runs) for one in timings(bench)] == [
        (at, 1) for at in range(8)]


def test_a_run_that_timed_out_lasted_for_its_timeout():
    began, go = threading.Event(), threading.Event()

    def handler(context, key):
        if key == 'b':
            began.set()
            assert go.wait(LIMIT)
    bench = Bench((objects_job(timeout=2.0), handler))
    bench.accept([f'warm-{n}' for n in range(64)])
    bench.pool.run_all()
    bench.reports.clear()
    bench.accept(['a', 'b'])
    thread = bench.pool.run_aside()
    assert began.wait(LIMIT)

    bench.pass_time(2.5)

    # The run before it is reported, too, though the thread hangs.
    assert sorted((one.at, one.runs) for one in timings(bench)) == [
        (0, 1), (1, 1)]
    assert max(one.seconds for one in timings(bench)) == 2.0
    go.set()
    thread.join(LIMIT)
    assert len(timings(bench)) == 2


# -- the store

class Store(MemoryClaimStore):
    """A store that records the times that it is given."""

    def __init__(self, clock):
        super().__init__(clock)
        self.times = collections.defaultdict(list)

    def finish(self, lease, objects, times):
        self.times['finish'].append(times)
        return super().finish(lease, objects)

    def fail(self, lease, failures, into, times):
        self.times['fail'].append(times)
        return super().fail(lease, failures, into)


def test_the_store_gets_the_times_with_the_results_and_late_starts_once():
    clock = worlds.Clock()
    store, reports, runs = Store(clock), [], []
    grants = worlds.run_leases(
        {'poll': worlds.job('poll', objects=True, retries=1)},
        store=worlds.StoreQueue(store), clock=clock, lease=60.0,
        run=runs.append, report=lambda report, to: reports.append(report),
        new_lease=iter(map(str, range(99))).__next__,
        random=random.Random(1), late_after=5.0)
    tick = clock.now() - 10 * SECOND
    keys = list('abcd')
    won = claiming.claim(store, 'poll', tick, keys, lease='l', holder='api-1',
                         seconds=600, supersede=False).won
    batch = batch_of(won, 'l')
    grants.accept(batch)
    grants.reported(Report(
        batch.id, batch.worker, done=[0, 1], failed=[(2, 'no'), (3, 'no')],
        timings=[Timing(0, 4, 4, clock.monotonic() - 1.0, 1.0)]),
        batch.sender)

    [finish], [fail] = store.times['finish'], store.times['fail']
    assert (finish.late, fail.late) == (4, 0)
    assert finish[1:] == fail[1:]
    started, ran = histograms(finish)
    assert (started.count, ran.count) == (4, 4)
    assert started.max == pytest.approx(9 * SECOND, abs=2)
