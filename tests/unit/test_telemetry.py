# SPDX-License-Identifier: Apache-2.0
"""Events that a process reports: each fact once, for batches and not for
objects.
"""

import collections
import inspect

import pytest

from distperiodic import events
from distperiodic.core import telemetry
from distperiodic.core.claim import SkippedBy
from distperiodic.core.claim_request import NewLease
from distperiodic.core.claim_request import TakeOverRequest
from distperiodic.core.message import Timing
from distperiodic.core.outcomes import OUTCOMES
from distperiodic.flow.run_times import RunTimeBook
from tests.unit import world as worlds
from tests.unit.world import Sink
from tests.unit.world import World
from tests.unit.world import job


class Closed:
    open = False

    def put(self, event):
        raise AssertionError('an event was created without a subscriber')


@pytest.fixture
def world():
    return World()


@pytest.fixture
def sink():
    return Sink()


def member(world, sink, *jobs, **options):
    return world.scheduler(*jobs, catalogues={'poll': list('abcde')},
                           sink=sink, **options)


def test_the_public_module_has_each_event():
    assert {kind.__name__ for kind in events.KINDS} < set(events.__all__)
    assert [kind for kind in vars(telemetry).values()
            if inspect.isclass(kind) and kind.__module__ == telemetry.__name__
            and hasattr(kind, '_fields')] == list(events.KINDS)


def test_the_outcomes_of_runs_are_those_of_the_history():
    assert {one.value for one in telemetry.RunOutcome} <= OUTCOMES.keys()


# -- the life of a tick

def test_a_tick_reports_each_step_once_for_all_its_objects(world, sink):
    member(world, sink, job(objects=True))

    world.advance(61)

    listed = sink.of(telemetry.CatalogueListed)
    assert [(one.job, one.objects) for one in listed] == [('poll', 5)] * 2
    [due] = sink.of(telemetry.TickDue)
    assert worlds.seconds_of(due.tick) == 60
    claimed = sink.of(telemetry.ObjectsClaimed)[-1]
    assert (claimed.job, claimed.tick, claimed.objects, claimed.path) == (
        'poll', due.tick, 5, telemetry.ClaimPath.RING)
    assert 0 <= claimed.delay < 0.1
    assert sink.objects(telemetry.BatchDispatched) == 5
    assert sink.objects(telemetry.RunsStarted) == 5
    assert [(one.outcome, one.objects) for one in sink.of(
        telemetry.RunsEnded)] == [('done', 5)]


def test_without_a_subscriber_no_event_is_created(world):
    me = member(world, Closed(), job(objects=True, retries=1))

    world.advance(61)
    me.finishes = False
    world.advance(60)
    me.finish(failed=[0])
    world.advance(120)

    assert me.count('done') > 5
    assert me.count('skipped')


def test_events_and_counts_agree_about_a_life_with_faults(world, sink):
    """The objects of a batch fail, overlap with the next tick, are refused and
    miss ticks, and the catalogue fails.
    """
    me = member(world, sink, job(objects=True, retries=1, retry_backoff=1.0))
    me.finishes = False
    world.advance(61)
    me.finish(failed=[0, 1])
    world.advance(10)
    me.finish(failed=[0])
    world.advance(60)
    me.refuse(next(iter(me.bus.open.values())))
    world.advance(60)
    me.finish()
    me.reader.given['poll'] = OSError('no route')
    world.advance(60)
    me.reader.given['poll'] = list('abcde')
    world.stand_still(400)
    me.finishes = True
    world.advance(61)

    numbers = collections.Counter()
    for one in sink.of(telemetry.RunsEnded):
        numbers[one.outcome.value] += one.objects
    for one in sink.of(telemetry.TicksSkipped):
        numbers[one.cause] += one.ticks
    assert numbers['done'] == me.count('done')
    assert numbers['dead'] == me.count('dead') == 1
    assert sink.objects(telemetry.RunsRetried) == me.count('retried')
    assert sink.objects(telemetry.ObjectsClaimed) == me.count('claimed')
    assert sink.objects(telemetry.ClaimsTakenOver) == me.count('taken over')
    assert numbers[SkippedBy.OVERLAP] == me.count('skipped') > 0
    assert numbers[SkippedBy.MISFIRE] == me.count('missed') > 0
    assert sink.objects(telemetry.ClaimsReclaimed) == 5
    failed = sink.of(telemetry.CatalogueFailed)
    assert len(failed) == me.count('catalogue failed') > 0
    assert failed[0].error == 'OSError: no route'


def test_a_paused_job_reports_skips_with_their_cause(world, sink):
    me = member(world, sink, job(objects=True))
    world.advance(1)
    me.flow.order_jobs('job pause', {'jobs': ['poll']}, 'maintenance')

    world.advance(60)

    assert {one.cause for one in sink.of(telemetry.TicksSkipped)} == {
        SkippedBy.PAUSE}
    assert sum(one.ticks for one in sink.of(telemetry.TicksSkipped)) == (
        me.count('paused'))


def test_a_lease_that_another_process_has_taken_over_is_reported(world, sink):
    me = member(world, sink, job(objects=True), store=world.shared_store(),
                lease=10.0)
    me.finishes = False
    world.advance(61)
    [batch] = me.bus.open.values()
    world.stand_still(20)
    me.store.take_over_expired(
        TakeOverRequest(['poll'], (), 100, silence_timeout=0.0),
        NewLease('theirs', 'other', 10.0))

    world.advance(5)
    me.finish(batch)

    assert sink.objects(telemetry.LeaseLost) == 5
    assert sink.objects(telemetry.ResultsRejected) == 5
    assert not sink.of(telemetry.RunsEnded)


def test_times_of_runs_are_reported_with_their_numbers(sink):
    second = 1_000_000
    book = RunTimeBook(lambda: 600 * second, lambda: 100.0, 5.0, sink)

    book.note(job('poll', objects=True), 600 * second, list('abc'), [
        Timing(0, 2, 2, 100.5, 0.5), Timing(2, 0, 1, 101.0, 4.0)])

    [timed] = sink.events
    assert timed.lateness == [(0.5, 2)]
    assert timed.durations == [(0.25, 2), (4.0, 1)]
