# SPDX-License-Identifier: Apache-2.0
"""Decisions about due objects: claims, skips, and the reasons of skips."""

import collections

import pytest

from distperiodic import exceptions
from distperiodic import ports
from distperiodic.core import ring
from distperiodic.core import schedule
from distperiodic.core.attributes import PLAIN
from distperiodic.core.claim import Authority
from distperiodic.core.claim import Claim
from distperiodic.core.claim import Claimed
from distperiodic.core.claim import SkippedBy
from distperiodic.core.claim_request import NewLease
from distperiodic.core.due import ALWAYS
from distperiodic.core.due import Row
from distperiodic.core.pause import Pause
from distperiodic.core.schedule import SECOND
from distperiodic.core.telemetry import TicksLost
from distperiodic.core.telemetry import TicksSkipped
from distperiodic.flow import events
from distperiodic.flow.leases import Book
from distperiodic.flow.scheduler.attendance import Attendance
from distperiodic.flow.scheduler.claimer import Claimer
from tests.logged import lines
from tests.unit import world as worlds

MINUTE = 60 * SECOND
NOW = worlds.BEGIN * SECOND + 5 * SECOND
#: Seconds within which schedulers that serve a job claim its ticks.
PROMISE = 20.0


class Store:
    """A store that records its calls, and grants no claims."""

    def __init__(self, job, clock):
        self.clock = clock
        self.status = ports.JobStatus(
            None, job.schedule_text(), ALWAYS, None, ALWAYS)
        self.claimed, self.skipped = [], []
        self.looked = 0
        self.read = collections.Counter()
        #: Objects with an open claim.
        self.open = set()
        #: The watermark of the objects that are skipped.
        self.settled = ALWAYS
        #: Microseconds by which the clock of the store is behind that of the
        #: member.
        self.behind = 0

    def adopt(self, schedules, others):
        pass

    def attend(self, jobs, checked):
        return dict.fromkeys(jobs, self.status)

    def rows_of(self, job, objects):
        """Rows of objects that missed the tick before the newest one."""
        self.looked += 1
        self.read.update(objects)
        return [Row(key, 0, tick(2), tick(9), free=key not in self.open,
                    began=tick(2) if key in self.open else None)
                for key in objects]

    def in_force(self, schedule, since):
        return (schedule, since) == (self.status.schedule, self.status.since)

    def claim(self, request, lease):
        tick, until = request.tick, request.until
        if not self.in_force(*request.schedule):
            return Claimed([], [], 0, [], [], outdated=True)
        now = self.clock.now() - self.behind
        if now < tick:
            return Claimed([], [], 0, [], [], early=tick - now)
        if until is not None and now > until:
            return Claimed([], [], 0, [], [], over=True)
        self.claimed.append((tick, list(request.objects)))
        return Claimed([], [], 0, [], [])

    def skip(self, request):
        tick = request.tick
        if not self.in_force(*request.schedule):
            return []
        before, self.settled = self.settled, max(tick, self.settled)
        if before >= tick:
            return []
        self.skipped.append((tick, request.by, 1 + request.missed(before)))
        return [before] * len(request.objects)


class Dispatcher:
    def __init__(self):
        self.in_flight = set()

    def objects(self, job):
        return self.in_flight

    def holder(self):
        return 'me'

    def new_lease(self):
        return NewLease('lease', 'me', 60.0)


class Desk:
    """A claimer of one job, with a store that has reported the job's status.
    """

    def __init__(self, piece=100, status=None, **options):
        self.job = worlds.job('poll', objects=True, **options)
        self.events = []
        self.clock = clock = worlds.Clock()
        self.store = Store(self.job, clock)
        self.store.status = self.store.status._replace(**status or {})
        clock.advance(5)
        assert clock.now() == NOW
        jobs = {'poll': self.job}
        self.queue = worlds.StoreQueue(self.store)
        attendance = Attendance(clock, self.queue, jobs, 1.0)
        attendance.refresh()
        self.dispatcher = Dispatcher()
        #: Objects that other members own.
        self.others = set()
        #: Events for the subscribers of the process.
        self.sink = worlds.Sink()
        wiring = worlds.scheduler_wiring(
            clock, put=self.events.append, sink=self.sink)
        self.counters = wiring.counters
        self.claimer = Claimer(
            Book(Authority.STORE, jobs, self.queue, grants_here=False,
                 sweep_interval=1.0),
            wiring,
            owns=lambda job, row: row.object not in self.others,
            piece=piece, promise=PROMISE, attendance=attendance,
            dispatcher=self.dispatcher)

    def judge(self, missed):
        """Judge an object that has missed *missed* ticks."""
        tick = self.job.schedule.at_or_before(NOW)
        self.claimer.judge(self.job, [
            Row('a', 0, tick - missed * MINUTE, tick - 100 * MINUTE)])


def tick(before=0):
    """Return the tick that is *before* ticks older than the newest one."""
    return NOW // MINUTE * MINUTE - before * MINUTE


def test_all_pieces_of_a_large_tick_are_claimed():
    desk = Desk(piece=2)

    desk.claimer.start_tick(desk.job, tick(), list('abcde'))
    while desk.claimer.has_rest('poll'):
        desk.claimer.claim_rest('poll')

    assert [some for _, some in desk.store.claimed] == [
        ['a', 'b'], ['c', 'd'], ['e']]


def test_objects_left_to_others_are_claimed_no_more():
    desk = Desk(piece=2)
    desk.claimer.start_tick(desk.job, tick(), list('abcde'))

    desk.claimer.forget('poll')

    assert not desk.claimer.has_rest('poll')


def test_a_tick_that_came_too_early_is_claimed_when_it_comes():
    desk = Desk()
    desk.store.behind = 70 * SECOND
    desk.claimer.start_tick(desk.job, tick(), ['a'])

    desk.clock.advance(64)
    desk.claimer.retry_delayed()
    assert desk.store.claimed == []
    desk.clock.advance(1)
    desk.claimer.retry_delayed()

    assert desk.store.claimed == [(tick(), ['a'])]


def test_a_clock_that_is_behind_the_stores_is_set_before_more_is_judged():
    """With the wrong clock, the member would claim the same tick repeatedly.
    """
    desk = Desk()
    desk.store.behind = -70 * SECOND

    desk.claimer.start_tick(desk.job, tick(), ['a'])
    assert desk.store.looked == 0
    assert desk.events == [events.ClockDiffers('poll')]
    desk.clock.advance(70)
    desk.store.behind = 0
    desk.claimer.retry_delayed()

    assert desk.store.looked == 1
    assert desk.store.claimed == [(tick(-1), ['a'])]


def test_a_tick_that_came_too_early_and_then_too_late_gives_way_to_a_newer():
    """The store's clock is set back, and then set right. So the repeated claim
    comes too late, and the rows show which tick is due.
    """
    desk = Desk()
    desk.store.behind = 70 * SECOND
    desk.claimer.start_tick(desk.job, tick(), ['a'])

    desk.store.behind = 0
    desk.clock.advance(65)
    desk.claimer.retry_delayed()

    assert desk.store.looked == 1
    assert desk.store.claimed == [(tick(-1), ['a'])]


def test_the_objects_of_a_paused_job_are_skipped():
    """Earlier ticks that the objects missed are skipped as misfires."""
    desk = Desk(status={'paused': Pause('night')})

    desk.claimer.start_tick(desk.job, tick(), ['a'])

    assert desk.store.claimed == []
    assert [(at, by) for at, by, _ in desk.store.skipped] == [
        (tick(1), SkippedBy.MISFIRE), (tick(), SkippedBy.PAUSE)]


def test_a_tick_during_a_run_and_a_pause_is_claimed_when_both_have_ended():
    desk = Desk(status={'paused': Pause('maintenance')})
    desk.store.open = {'a'}
    desk.claimer.start_tick(desk.job, tick(), ['a', 'b'])
    desk.store.status = desk.store.status._replace(paused=None)
    desk.claimer.attendance.refresh()
    desk.store.open.clear()

    desk.claimer.released(desk.job, ['a', 'b'])
    desk.claimer.judge_released()

    assert desk.store.claimed == [(tick(), ['a'])]


def test_a_process_with_an_outdated_schedule_claims_nothing():
    desk = Desk(status={'schedule': 'every 1000000'})

    desk.claimer.start_tick(desk.job, tick(), ['a'])
    desk.judge(missed=3)
    desk.claimer.give_up_delisted(
        desk.job, [Row('a', 0, tick(3), tick(9))], tick())

    assert desk.store.claimed == desk.store.skipped == []


def test_an_object_found_before_its_schedule_was_put_back_is_not_decided():
    """This process was suspended while the schedule of the job was replaced
    and put back, and has not noticed it yet.
    """
    desk = Desk()
    desk.store.status = desk.store.status._replace(since=tick(1))

    desk.claimer.start_tick(desk.job, tick(2), ['a'])
    desk.claimer.give_up_delisted(
        desk.job, [Row('a', 0, tick(4), tick(9))], tick(3))

    assert desk.store.claimed == desk.store.skipped == []


def test_a_tick_after_an_object_left_the_catalogue_is_not_given_up():
    """A delisting may be recorded late, and the object may have been listed
    again after it.
    """
    desk = Desk()

    desk.claimer.give_up_delisted(
        desk.job, [Row('a', 0, tick(3), tick(9))], tick(1))

    assert [at for at, *_ in desk.store.skipped] == [tick(1)]


def test_a_member_whose_schedule_was_replaced_reads_the_status():
    """The claimer reads the status at once, not at the next interval."""
    desk = Desk()
    desk.store.status = desk.store.status._replace(schedule='every 1000000')

    desk.claimer.start_tick(desk.job, tick(), ['a'])

    assert desk.claimer.attendance.outdated('poll')


def test_the_newest_tick_runs_and_the_others_are_given_up():
    desk = Desk()

    desk.judge(missed=4)

    assert desk.store.claimed == [(tick(), ['a'])]
    assert desk.store.skipped == [(tick(1), SkippedBy.MISFIRE, 3)]


def test_ticks_that_schedulers_could_have_claimed_are_lost():
    desk = Desk(status={'attended': tick(9)})

    desk.judge(missed=4)

    assert desk.store.skipped == [(tick(1), SkippedBy.LOST, 3)]


def test_ticks_from_before_anybody_attended_are_not_lost():
    desk = Desk(status={'attended': tick(2)})

    desk.judge(missed=6)

    assert desk.store.skipped == [
        (tick(3), SkippedBy.MISFIRE, 3), (tick(1), SkippedBy.LOST, 2)]


def given_up(settled, ended, **options):
    """Return the skips of an object with the watermark *settled*, whose last
    run ended at *ended*.
    """
    desk = Desk(status={'attended': tick(150)}, **options)
    desk.claimer.judge(desk.job, [
        Row('a', 0, settled, tick(120), ended=ended)])
    return desk.store.skipped


@pytest.mark.parametrize('ended, by', [
    # The last run succeeded before all, some or none of the ticks.
    (tick(4) + 1, [(tick(1), SkippedBy.LOST, 3)]),
    (tick(3), [(tick(3), SkippedBy.OVERLAP, 1), (tick(1), SkippedBy.LOST, 2)]),
    (tick(2) + 1, [(tick(2), SkippedBy.OVERLAP, 2),
                   (tick(1), SkippedBy.LOST, 1)]),
    (tick(1) + 1, [(tick(1), SkippedBy.OVERLAP, 3)]),
    # The last run failed at an unknown time.
    (None, [(tick(1), SkippedBy.MISFIRE, 3)])])
def test_an_object_that_would_have_waited_loses_ticks_while_it_is_idle(
        ended, by):
    assert given_up(tick(4), ended, overlap='wait') == by


@pytest.mark.parametrize('ended, by', [
    # The last run succeeded before all, or some, of the ticks that are given
    # up.
    (tick(110) + 1, [(tick(100), SkippedBy.LOST, 10)]),
    (tick(103), [(tick(103), SkippedBy.OVERLAP, 7),
                 (tick(100), SkippedBy.LOST, 3)])])
def test_a_tick_unclaimed_for_longer_than_misfire_all_makes_up_is_lost(
        ended, by):
    assert given_up(tick(110), ended, misfire='all') == by


def test_an_object_that_would_have_waited_and_never_ran_loses_its_ticks():
    desk = Desk(status={'attended': tick(9)}, overlap='wait')

    desk.claimer.judge(desk.job, [Row('a', 0, tick(5), tick(4))])

    assert desk.store.skipped == [(tick(1), SkippedBy.LOST, 4)]


@pytest.mark.parametrize('phase', [100, 1000, 2000, 3500])
@pytest.mark.parametrize('late, by', [
    (300, SkippedBy.LOST), (15, SkippedBy.MISFIRE)])
def test_a_tick_is_lost_by_the_time_at_which_its_object_was_due(
        phase, late, by):
    """Each object of the job has a phase, and the period is one hour. The
    claim of the tick is late by more, or by less, than the promised limit.
    """
    desk = Desk(every=3600.0, spread=True, misfire='skip', grace=10,
                status={'attended': NOW - 10 * 3600 * SECOND})
    key = next(key for key in map(str, range(99999)) if phase <= (
        schedule.phase_us(ring.position_of(key), 3600 * SECOND)
        / SECOND) < phase + 5)
    at = ring.position_of(key)
    due_at = NOW - late * SECOND
    moment = due_at - schedule.phase_us(at, 3600 * SECOND)
    # Set the clock to *late* seconds after the object is due for the tick
    # *last*.
    desk.clock.advance((3600 * SECOND - moment % (3600 * SECOND)) / SECOND)
    last = moment // (3600 * SECOND) * 3600 * SECOND + 3600 * SECOND

    desk.claimer.judge(desk.job, [
        Row(key, at, last - 3600 * SECOND, last - 50 * 3600 * SECOND)])

    assert desk.store.claimed == []
    assert desk.store.skipped == [(last, by, 1)]


@pytest.mark.parametrize('seconds', [0, 13])
@pytest.mark.parametrize('missed', [1, 3])
@pytest.mark.parametrize('by', [SkippedBy.MISFIRE, SkippedBy.LOST])
def test_a_listing_that_was_to_run_immediately_is_given_up_like_a_tick(
        by, missed, seconds):
    """The object is listed at a tick or between ticks, and misses other ticks
    or none.
    """
    attended = tick(9) if by is SkippedBy.LOST else None
    desk = Desk(status={'attended': attended}, run_immediately=True)
    listed = tick(missed) + seconds * SECOND

    desk.claimer.judge(desk.job, [Row('a', 0, listed - 1, listed)])

    assert desk.store.claimed == [(tick(), ['a'])]
    last = max(tick(1), listed)
    assert desk.store.skipped == [(last, by, missed)]


def test_a_listing_that_came_during_a_run_is_skipped_by_overlap():
    """An object that runs at its listing is due at this instant, without a
    phase.
    """
    desk = Desk(spread=True, run_immediately=True)
    half, listed = -2 ** 63, tick(2) + 13 * SECOND
    assert schedule.phase_us(half, MINUTE) == MINUTE // 2

    desk.claimer.judge(desk.job, [
        Row('a', half, listed - 1, listed, ended=listed + SECOND)])

    assert desk.store.skipped == [(listed, SkippedBy.OVERLAP, 1)]


@pytest.mark.parametrize('ended', [None, tick(0)])
@pytest.mark.parametrize('began, by', [
    # The run began before all, some or none of the ticks.
    (tick(4), [(tick(1), SkippedBy.OVERLAP, 3)]),
    (tick(2), [(tick(3), SkippedBy.MISFIRE, 1),
               (tick(1), SkippedBy.OVERLAP, 2)]),
    (tick(2) + 1, [(tick(2), SkippedBy.MISFIRE, 2),
                   (tick(1), SkippedBy.OVERLAP, 1)]),
    (tick(1) + 1, [(tick(1), SkippedBy.MISFIRE, 3)])])
def test_a_run_overlaps_only_the_ticks_that_came_after_its_start(
        began, by, ended):
    """The run is in progress, or has ended."""
    desk = Desk()

    desk.claimer.judge(desk.job, [Row(
        'a', 0, tick(4), tick(9), PLAIN, ended is not None, ended, began,
        NOW)])

    assert desk.store.skipped == by
    counts = collections.Counter()
    for _, reason, number in by:
        counts['skipped' if reason is SkippedBy.OVERLAP else 'missed'
               ] += number
    assert counts == {name: desk.counters['poll', name]
                      for name in counts}


@pytest.mark.parametrize('options', [
    {}, {'overlap': 'wait'}, {'misfire': 'skip'}], ids=str)
def test_a_claim_that_waits_for_its_start_overlaps_no_tick(options):
    desk = Desk(**options)

    desk.claimer.judge(desk.job, [
        Row('a', 0, tick(4), tick(9), free=False)])

    assert desk.store.skipped == [(tick(1), SkippedBy.MISFIRE, 3)]


def test_an_object_whose_run_began_late_and_that_would_have_waited():
    desk = Desk(status={'attended': tick(150)}, overlap='wait')

    desk.claimer.judge(desk.job, [Row(
        'a', 0, tick(5), tick(120), ended=tick(2), began=tick(3))])

    assert desk.store.skipped == [
        (tick(4), SkippedBy.MISFIRE, 1), (tick(2), SkippedBy.OVERLAP, 2),
        (tick(1), SkippedBy.LOST, 1)]


def test_a_row_that_is_locked_is_not_asked_for_without_a_pause():
    desk = Desk()
    desk.store.claim = lambda *_, **__: Claimed(
        [], [], 0, [Row('a', 0, tick(1), tick(9))], [])
    desk.judge(missed=1)

    assert 0.0 < desk.claimer.retry_delayed() <= 0.5
    assert desk.store.looked == 0

    desk.clock.advance(0.5)
    desk.claimer.retry_delayed()
    assert desk.store.looked == 1


@pytest.mark.parametrize(('misfire', 'runs'), [
    ('latest', [0]), ('all', [3])])
def test_runs_of_missed_ticks_follow_the_policy(misfire, runs):
    desk = Desk(misfire=misfire)

    desk.judge(missed=4)

    assert [at for at, _ in desk.store.claimed] == [tick(n) for n in runs]


@pytest.mark.parametrize('phases, claimed', [
    ([30.0], True), ([2.0], False), ([30.0, 2.0], False)])
def test_with_a_phase_a_tick_is_claimed_until_the_next_one_is_due(
        phases, claimed):
    """The store was unavailable from this tick until now. The next tick came
    five seconds ago.
    """
    keys = [next(key for key in map(str, range(9999))
                 if phase <= schedule.phase_us(
                     ring.position_of(key), MINUTE) / SECOND < phase + 1)
            for phase in phases]
    desk = Desk(every=60.0, spread=True)

    desk.claimer.start_tick(desk.job, tick(1), keys)

    assert ((tick(1), keys) in desk.store.claimed) is claimed


def test_a_job_is_ready_again_as_soon_as_the_store_has_answered():
    """A caller that only polls could find another request pending at each
    poll.
    """
    desk = Desk()
    desk.queue.slow = True
    desk.claimer.start_tick(desk.job, tick(), ['a'])

    assert not desk.claimer.ready('poll')
    assert desk.claimer.ready_again() == []

    desk.queue.answer()
    assert desk.claimer.ready_again() == ['poll']
    assert desk.claimer.ready_again() == []


def test_waiting_objects_are_judged_though_the_store_was_busy_at_the_sweep():
    """The store may be busy at the next sweep, too."""
    desk = Desk()
    desk.claimer.wait_for('poll', ['a'])
    desk.queue.slow = True
    desk.claimer.start_tick(desk.job, tick(), ['b'])
    desk.clock.advance(1)
    desk.claimer.sweep()
    assert len(desk.queue.asked) == 1

    desk.queue.answer()
    desk.claimer.judge_released()
    desk.queue.answer()

    assert desk.store.looked == 1


def sweep(desk):
    """Do one sweep, and judge all objects that it released."""
    desk.clock.advance(1)
    desk.claimer.sweep()
    while desk.claimer.judge_released():
        pass


def test_all_that_wait_for_runs_of_others_are_judged_at_each_sweep():
    desk = Desk(piece=2)
    desk.claimer.wait_for('poll', 'abcde')
    # The objects are still running, so each sweep must judge all of them
    # again.
    desk.store.rows_of = lambda job, objects: (
        desk.store.read.update(objects),
        [Row(key, 0, tick(2), tick(9), free=False, began=tick(2))
         for key in objects])[1]

    for times in 1, 2:
        sweep(desk)
        assert desk.store.read == dict.fromkeys('abcde', times)


@pytest.mark.parametrize(('misfire', 'claimed'), [
    ('latest', True), ('skip', True), ('all', False)])
def test_a_tick_that_came_during_a_retry_supersedes_it_once_it_waits(
        misfire, claimed):
    desk = Desk(overlap='wait', misfire=misfire)
    desk.claimer.wait_for('poll', 'a')
    desk.store.rows_of = lambda job, objects: [
        missed(key, free=False) for key in objects]

    sweep(desk)

    assert bool(desk.store.claimed) is claimed


def missed(key, **values):
    """Return the row of an object that has missed the newest tick."""
    return Row(key, 0, tick(1), tick(9), **values)


@pytest.mark.parametrize(('values', 'claimed'), [
    ({'ended': NOW - 4 * SECOND}, True),
    ({'ended': NOW - 2 * SECOND, 'began': NOW - 9 * SECOND}, False),
    ({'ended': NOW + SECOND // 2}, False), ({'ended': NOW + MINUTE}, True),
    ({}, True)],
    ids=['before', 'after', 'clocks differ', 'clock set back', 'never'])
def test_a_scan_leaves_an_object_that_has_run_to_its_owner(values, claimed):
    """The object has missed many ticks, so it is late though its owner serves
    it in turn.
    """
    desk = Desk(misfire='all')
    desk.others = {'a'}

    found = desk.claimer.judge(
        desk.job, [missed('a', **values), missed('mine', **values)],
        NOW - 3 * SECOND)

    assert found == 2
    [(_, objects)] = desk.store.claimed
    assert objects == (['a', 'mine'] if claimed else ['mine'])


@pytest.mark.parametrize(('options', 'began', 'claimed'), [
    ({'misfire': 'all'}, None, False),
    ({'overlap': 'wait'}, NOW - 9 * SECOND, False),
    # A newer claim supersedes one that was not started.
    ({'overlap': 'wait'}, None, True),
    # The store answers that the object runs, and then the tick is skipped.
    ({}, NOW - 9 * SECOND, True)])
def test_a_scan_leaves_an_object_that_runs_to_its_owner(
        options, began, claimed):
    desk = Desk(**options)
    desk.others = {'a'}

    assert desk.claimer.judge(
        desk.job, [missed('a', free=False, began=began)],
        NOW - 3 * SECOND) == 1

    assert bool(desk.store.claimed) == claimed


@pytest.mark.parametrize('here', [True, False])
def test_a_scheduler_that_ran_an_object_claims_it_if_the_owner_does_not(
        here):
    """The owner may be cut off from the store. It sweeps, too, so it has
    claimed the object after two sweeps if it is able to.
    """
    desk = Desk(misfire='all')
    desk.others, row = {'a'}, missed('a', free=False, began=NOW)
    if here:
        desk.dispatcher.in_flight = {'a'}
    desk.store.rows_of = lambda job, objects: [row]
    desk.claimer.judge(desk.job, [row], NOW - 3 * SECOND)
    sweep(desk)
    row = missed('a', ended=desk.clock.now())
    desk.dispatcher.in_flight = set()

    sweep(desk)
    assert desk.store.claimed == []
    sweep(desk)

    assert desk.store.claimed == ([(tick(), ['a'])] if here else [])


def test_one_piece_of_a_long_backlog_of_own_runs_is_read_at_each_sweep():
    """The reports of the ends of the runs may be lost, so the sweeps read all
    objects, one piece after the other.
    """
    desk = Desk(piece=2)
    desk.claimer.wait_for('poll', 'abcdefg')
    desk.dispatcher.in_flight = set('abdfg')
    desk.store.rows_of = lambda job, objects: (
        desk.store.read.update(objects),
        [Row(key, 0, tick(2), tick(9), free=False, began=tick(2))
         for key in objects])[1]

    for own, others in ('ab', 1), ('abdf', 2), ('abdfga', 3):
        sweep(desk)
        assert desk.store.read == collections.Counter(own + 'ce' * others)


def test_a_claim_has_the_time_when_its_last_object_is_due():
    desk, told = Desk(every=60.0, spread=True), []
    desk.store.claim = lambda request, lease: (
        told.append(request.due_at), Claimed([], [], 0, [], []))[1]

    desk.claimer.start_tick(desk.job, tick(1), ['a', 'b', 'c'])
    desk.claimer.judge(desk.job, [
        Row(key, ring.position_of(key), tick(2), tick(9)) for key in 'abc'])

    phases = [schedule.phase_us(ring.position_of(key), MINUTE)
              for key in 'abc']
    assert tick(1) + max(phases) in told


def test_nothing_more_is_judged_until_the_status_of_the_job_is_known():
    """While the status is unknown, each check would submit the same claims
    again.
    """
    desk = Desk()
    desk.clock.advance(10)
    desk.queue.slow = True
    desk.judge(missed=1)
    desk.claimer.wait_for('poll', ['a'])
    desk.claimer.released(desk.job, ['a'])

    assert not desk.claimer.ready('poll')
    assert not desk.claimer.judge_released()

    while desk.queue.asked:
        desk.queue.answer()
    assert desk.claimer.ready('poll')
    assert desk.claimer.judge_released()


def test_rows_that_waited_for_the_status_are_judged_once_and_now():
    """The store may answer late. A claim of the tick that was the newest one
    when the row was read would come too late.
    """
    desk = Desk()
    desk.clock.advance(10)
    desk.queue.slow = True
    desk.judge(missed=2)
    desk.claimer.judge(desk.job, [Row('b', 0, tick(2), tick(100))])
    desk.judge(missed=2)
    desk.clock.advance(60)

    desk.queue.answer()

    assert desk.store.claimed == [(tick(-1), ['a', 'b'])]
    assert [(at, by) for at, by, _ in desk.store.skipped] == [
        (tick(), SkippedBy.MISFIRE)]
    assert desk.store.looked == 0
    assert desk.claimer.ready('poll')


def test_a_row_that_waited_for_the_status_is_not_judged_after_its_claim():
    """The answer of the claim shows that the ticks of the row are decided."""
    desk = Desk()
    desk.dispatcher.offer = lambda *args: None
    won = Claimed([Claim('a', 1, 1, tick())], [], 0, [], [])
    desk.store.claim = lambda request, lease: (
        desk.store.claimed.append(
            (request.tick, list(request.objects))), won)[1]
    desk.queue.slow = True
    desk.claimer.start_tick(desk.job, tick(), ['a'])
    desk.clock.advance(10)
    desk.judge(missed=2)

    desk.queue.answer()

    assert desk.store.claimed == [(tick(), ['a'])]
    assert desk.store.skipped == []
    assert desk.claimer.ready('poll')


def test_a_skip_that_leaves_out_locked_rows_is_decided_again():
    desk = Desk()
    busy = Claimed([], ['a', 'b'], 0, [], [])
    desk.store.claim = lambda request, lease: (
        desk.store.claimed.append(
            (request.tick, list(request.objects))), busy)[1]
    skips = iter([[tick(1)], [tick(1), tick(1)]])
    desk.store.skip = lambda *args, **options: next(skips)
    desk.claimer.start_tick(desk.job, tick(), ['a', 'b', 'c'])
    assert desk.claimer.retry_delayed() > 0

    desk.clock.advance(0.1)
    desk.claimer.retry_delayed()

    assert [some for _, some in desk.store.claimed] == [
        ['a', 'b', 'c'], ['a', 'b']]
    assert desk.claimer.retry_delayed() == float('inf')


def test_the_count_of_a_skip_begins_at_the_watermark_of_the_row():
    """An earlier skip may have left out the row, because the row was locked.
    """
    desk, counted = Desk(), []
    desk.store.claim = lambda request, lease: Claimed(
        [], ['a'], 0, [], [])
    desk.store.skip = lambda request: counted.append(
        1 + request.missed(tick(3))) or [tick(3)]

    desk.claimer.start_tick(desk.job, tick(), ['a'])

    assert counted == [3]


@pytest.mark.parametrize('late, by', [
    (0, SkippedBy.OVERLAP), (2 * MINUTE, SkippedBy.MISFIRE)])
def test_a_run_that_may_have_ended_before_a_tick_does_not_overlap_the_tick(
        late, by):
    """The store reports an object in progress, but its answer is late."""
    desk = Desk()
    desk.queue.slow = True
    desk.claimer.start_tick(desk.job, tick(), ['a'])
    desk.clock.advance(late / SECOND)
    [(_, then, _)] = desk.queue.asked
    desk.queue.asked.clear()
    desk.queue.slow = False

    then(Claimed([], [], 0, [
        Row('a', 0, tick(3), tick(9), free=False,
            began=tick(3) + SECOND)], []))

    assert {by for _, by, _ in desk.store.skipped} == {by}


def test_the_limit_of_missed_ticks_is_not_an_overlap():
    """Each tick waits for the runs of its object."""
    desk = Desk(misfire='all', overlap='wait')

    desk.claimer.judge(desk.job, [
        Row('a', 0, tick(120), tick(200), free=False,
            began=tick(120) + SECOND, requested=NOW)])

    assert [by for _, by, _ in desk.store.skipped] == [SkippedBy.MISFIRE]


@pytest.mark.parametrize('by', [SkippedBy.MISFIRE, SkippedBy.LOST])
def test_ticks_that_two_scans_give_up_are_counted_and_logged_once(by, caplog):
    """After a restart, the walk of the listing and a late scan read the same
    rows.
    """
    attended = tick(9) if by is SkippedBy.LOST else None
    desk = Desk(status={'attended': attended})

    for _ in range(2):
        desk.judge(missed=4)
    desk.claimer.sweep()

    assert desk.counters['poll', 'missed'] == 3
    [line] = lines(caplog, 'ticks dropped')
    assert line.has(ticks=3)
    assert [line['objects'] for line in lines(caplog, 'ticks lost')] == (
        ['1'] if by is SkippedBy.LOST else [])
    assert desk.sink.of(TicksLost) == (
        [TicksLost('poll', tick(1), 1, 3)] if by is SkippedBy.LOST else [])
    assert desk.sink.of(TicksSkipped) == (
        [TicksSkipped('poll', tick(1), by, 1, 3)]
        if by is SkippedBy.MISFIRE else [])


def test_a_skip_that_another_member_has_recorded_is_not_counted(caplog):
    desk = Desk()
    desk.store.claim = lambda request, lease: Claimed(
        [], ['a'], 0, [], [])
    desk.store.settled = tick()

    desk.claimer.start_tick(desk.job, tick(), ['a'])
    desk.claimer.sweep()

    assert not desk.counters['poll', 'skipped']
    assert not lines(caplog, 'skipped')
    assert not desk.sink.events


def test_reads_of_one_object_are_combined_while_the_store_is_slow():
    """Requests would become more and more if each tick of an object caused
    some, and a tick came before they were answered.
    """
    desk = Desk()
    desk.queue.slow = True

    for _ in range(5):
        desk.claimer.judge_objects(desk.job, ['a', 'a'])
    assert len(desk.queue.asked) == 1
    desk.queue.answer()

    # The row may have changed after it was read for the first request.
    assert desk.store.read == {'a': 2}
    assert desk.claimer.ready('poll')


def test_an_object_is_read_again_after_a_read_that_failed():
    desk = Desk()
    rows_of = desk.store.rows_of

    def fail(job, objects):
        raise exceptions.StoreUnavailable('it is away')
    desk.store.rows_of = fail
    desk.claimer.judge_objects(desk.job, ['a'])
    desk.store.rows_of = rows_of

    desk.claimer.judge_objects(desk.job, ['a'])

    assert desk.store.read == {'a': 1}


def test_an_object_that_two_walks_find_due_is_claimed_once():
    desk = Desk()
    desk.queue.slow = True
    desk.judge(missed=1)
    desk.judge(missed=1)

    desk.queue.answer()
    assert desk.store.claimed == [(tick(), ['a'])]

    desk.judge(missed=1)
    desk.queue.answer()
    assert desk.store.claimed == 2 * [(tick(), ['a'])]


def test_a_claim_without_an_answer_does_not_prevent_that_of_the_next_tick():
    desk = Desk()
    desk.clock.advance(54)
    desk.claimer.attendance.refresh()
    desk.queue.slow = True
    desk.judge(missed=1)
    desk.clock.advance(2)

    desk.judge(missed=1)
    # The first claim comes too late. Without rows, it is not repeated.
    desk.store.rows_of = lambda job, objects: []
    desk.queue.answer()

    assert desk.store.claimed == [(tick(-1), ['a'])]
