# SPDX-License-Identifier: Apache-2.0
"""The runs of a batch that a worker may start, and the results that count."""

import random

import pytest

from distperiodic.adapters.local.memory import MemoryClaimStore
from distperiodic.core import message
from distperiodic.core import partition
from distperiodic.core import schedule
from distperiodic.core.claim import HeldLease
from distperiodic.core.claim import State
from distperiodic.core.claim import granted_lease
from distperiodic.core.claim_request import NewLease
from distperiodic.core.claim_request import TakeOverRequest
from distperiodic.core.job import Delivery
from distperiodic.core.member import holder_of
from distperiodic.core.refusal import Refusal
from distperiodic.flow.run_leases import RETRY_CAP
from distperiodic.flow.run_leases import RunOutcomes
from distperiodic.flow.worker import admission
from tests import claiming
from tests.logged import lines
from tests.unit import world as worlds

SENDER = 'api-1~9f2c41d07be3a655~1~f1.t1.r40'
OTHER = 'api-2~00c0ffee00c0ffee~1~f1.t1.r40'
WORKER = 'w~00c0ffee00c0ffee~1~f1.t1.s10'
TICK = worlds.BEGIN * schedule.SECOND
LEASE = 60.0
#: A holder stops trusting its lease before the lease expires.
TRUST = LEASE * 0.9


class Jobs(dict):
    """Jobs by name, and the number of times that all jobs were examined."""

    examined = 0

    def items(self):
        self.examined += 1
        return super().items()


class Desk:
    """The grants of one worker, with a store in which a scheduler claims."""

    def __init__(self, *jobs, **options):
        self.clock = worlds.Clock()
        self.store = MemoryClaimStore(self.clock)
        self.line = worlds.StoreQueue(self.store)
        self.runs, self.reports = [], []
        self.numbers = 0
        self.jobs = Jobs(
            (job.name, job) for job in jobs or [worlds.job('poll')])
        self.grants = worlds.run_leases(
            self.jobs, store=self.line, clock=self.clock, lease=LEASE,
            run=self.runs.append,
            report=lambda report, to: self.reports.append((report, to)),
            new_lease=lambda: f'retry-{self.number()}',
            random=random.Random(1), **options)

    def number(self):
        self.numbers += 1
        return self.numbers

    def batch(self, *objects, name='poll', tick=TICK, worker=WORKER):
        """Claim *objects* as a scheduler does; return the batch."""
        lease = f'lease-{self.number()}'
        won = claiming.claim(self.store, name, tick, objects, lease=lease,
                             holder='api-1', seconds=600, supersede=False).won
        assert [one.object for one in won] == list(objects)
        return batch_of(won, lease, f'b{self.number()}', name, worker)

    def accept(self, *objects, **options):
        batch = self.batch(*objects, **options)
        self.grants.accept(batch)
        return batch

    def has(self, batch):
        return self.grants.has(batch.id, batch.sender)

    def report(self, batch, **fields):
        """Report as the pool does; return the report to the scheduler."""
        self.reports.clear()
        self.grants.reported(
            message.Report(batch.id, batch.worker, **fields), batch.sender)
        [(told, to)] = self.reports
        assert to == batch.sender
        return told

    def lose(self, batch, *objects):
        """Let another process reclaim granted runs of *batch*, into the lease
        'taken'.
        """
        anew = self.store.reclaim(
            [HeldLease(lease, batch.job, batch.tick)
             for lease in (batch.lease, granted(batch))],
            objects or batch.objects, NewLease('taken', 'api-2', 600))
        assert anew
        return anew

    def retry_of(self, name='poll'):
        """Return the claims that wait for their next attempt. Call this once
        the attempt is due.
        """
        return self.overdue(name)[0].claims

    def overdue(self, name='poll'):
        return self.store.take_over_expired(
            TakeOverRequest([name], [], 100),
            NewLease(f'again-{self.clock.now()}', 'api-1', 600))

    def live(self, seconds, *alive):
        """Let time pass. Every quarter of a lease, the worker sends heartbeats
        for the batches *alive*, and leases are renewed.
        """
        end = self.clock.monotonic() + seconds
        while self.clock.monotonic() < end:
            self.clock.advance(min(
                LEASE / 4, end - self.clock.monotonic()))
            for batch in alive:
                self.report(batch)
            self.grants.renew()


def batch_of(claims, lease, batch_id='b', name='poll', worker=WORKER):
    return message.Batch(
        batch_id, name, claims[0].tick, [one.object for one in claims],
        [one.fence for one in claims], [one.attempt for one in claims],
        SENDER, worker, lease)


def granted(batch):
    return granted_lease(batch.lease, batch.id)


@pytest.fixture
def desk():
    return Desk()


# -- grants

def test_a_batch_that_is_granted_runs_as_it_came(desk):
    batch = desk.accept('a', 'b')

    assert desk.runs == [batch]
    assert desk.reports == []
    assert desk.has(batch)


def test_nothing_runs_before_the_store_has_granted_it(desk):
    desk.line.slow = True
    batch = desk.accept('a')
    assert desk.runs == []
    assert desk.grants.may_start(batch) == Refusal.LEASE_ENDED

    desk.line.answer()

    assert desk.runs == [batch]
    assert desk.grants.may_start(batch) is None


def test_an_object_that_was_not_granted_is_reported_lost_and_does_not_run(
        desk):
    batch = desk.batch('a', 'b', 'c', 'd')
    desk.lose(batch, 'a', 'c')

    desk.grants.accept(batch)

    [run] = desk.runs
    assert (run.objects, run.fences, run.attempts) == (
        ['b', 'd'], batch.fences[1::2], [1, 1])
    assert (run.id, run.lease, run.sender) == (
        batch.id, batch.lease, batch.sender)
    assert desk.reports == [
        (message.Report(batch.id, WORKER, lost=[0, 2]), SENDER)]


def test_results_of_a_part_are_reported_by_their_places_in_the_batch(desk):
    batch = desk.batch('a', 'b', 'c', 'd', 'e')
    desk.lose(batch, 'a', 'c')
    desk.grants.accept(batch)

    told = desk.report(batch, done=[2], failed=[(0, 'Boom')],
                       refused=[(1, Refusal.DRAINING)], seconds=1.5)

    # The worker runs b, d and e, the objects 1, 3 and 4 of the batch.
    assert told == message.Report(
        batch.id, WORKER, done=[4], failed=[(1, 'Boom')],
        refused=[(3, Refusal.DRAINING)], seconds=1.5)
    assert not desk.has(batch)


def test_a_batch_of_which_nothing_is_granted_does_not_run(desk):
    batch = desk.batch('a', 'b')
    desk.lose(batch)

    desk.grants.accept(batch)

    assert desk.runs == []
    assert [told.lost for told, _ in desk.reports] == [[0, 1]]
    assert not desk.has(batch)
    assert desk.grants.may_start(batch) == Refusal.LEASE_ENDED


def test_a_granted_run_has_the_fence_and_the_attempt_of_the_store(desk):
    """The values in a message may be forged."""
    batch = desk.batch('a', 'b')
    batch = message.Batch(
        batch.id, batch.job, batch.tick, batch.objects, [0, 0], [9, 9],
        batch.sender, batch.worker, batch.lease)
    desk.lose(batch, 'b')

    desk.grants.accept(batch)

    [run] = desk.runs
    assert run.fences[0] > 0
    assert run.attempts == [1]


def test_a_batch_that_comes_twice_runs_once(desk):
    batch = desk.accept('a')

    desk.grants.accept(batch)

    assert desk.runs == [batch]
    assert desk.reports == []


def test_a_batch_that_comes_again_after_its_end_is_lost(desk):
    batch = desk.accept('a')
    desk.report(batch, done=[0])
    desk.reports.clear()

    desk.grants.accept(batch)

    assert desk.runs == [batch]
    assert [told.lost for told, _ in desk.reports] == [[0]]


def test_batches_of_two_senders_may_have_one_name(desk):
    first, second = desk.batch('a'), desk.batch('b')
    second.id, second.sender = first.id, OTHER

    desk.grants.accept(first)
    desk.grants.accept(second)

    assert desk.runs == [first, second]
    assert desk.report(first, done=[0]).done == [0]
    assert desk.grants.may_start(second) is None


def test_an_unknown_job_is_left_to_the_runs_to_refuse(desk):
    batch = desk.batch('a')
    batch.job = 'strange'

    desk.grants.accept(batch)

    assert desk.runs == [batch]
    assert not desk.has(batch)
    assert desk.report(batch, refused=[(0, Refusal.UNKNOWN_JOB)]).refused == [
        (0, Refusal.UNKNOWN_JOB)]


# -- results that count

def test_a_done_run_is_reported_once_its_end_is_written(desk):
    batch = desk.accept('a', 'b')
    desk.line.slow = True
    desk.grants.reported(message.Report(batch.id, WORKER, [1]), SENDER)
    assert desk.reports == []

    desk.line.answer()

    [(told, _)] = desk.reports
    assert told.done == [1]
    assert desk.has(batch)
    # The claim has ended, so the object can be claimed for the next tick.
    later = claiming.claim(desk.store, 'poll', TICK + 1000, ['a', 'b'],
                           lease='l', holder='h', seconds=60, supersede=True)
    assert [one.object for one in later.won] == ['b']
    assert later.busy == ['a']


def test_a_report_of_a_periodic_job_examines_no_other_jobs():
    """A service may have thousands of jobs with the same tick."""
    desk = Desk(proceeds=True)
    batch = desk.accept('a')
    examined = desk.jobs.examined

    assert desk.report(batch, done=[0]).done == [0]
    assert desk.jobs.examined == examined


def test_several_reports_settle_a_batch(desk):
    batch = desk.accept('a', 'b', 'c')

    assert desk.report(batch, done=[2]).done == [2]
    assert desk.report(batch, done=[0]).done == [0]
    assert desk.has(batch)
    assert desk.report(batch, done=[1]).done == [1]
    assert not desk.has(batch)


def test_a_sign_of_life_is_passed_on_and_asks_the_store_nothing(desk):
    batch = desk.accept('a')
    desk.line.slow = True

    assert desk.report(batch) == message.Report(batch.id, WORKER)
    assert desk.line.asked == []


def test_a_run_that_failed_for_the_last_time_is_dead(desk):
    batch = desk.accept('a')

    told = desk.report(batch, failed=[(0, 'Boom: no')])

    assert told.failed == [(0, 'Boom: no')]
    assert told.retried == []
    desk.clock.advance(1000)
    assert desk.overdue() == []


def test_a_run_that_failed_is_retried_as_often_as_its_job_allows():
    desk = Desk(worlds.job('poll', retries=2, retry_backoff=1.0))
    batch = desk.accept('a')

    for attempt in (2, 3):
        told = desk.report(batch, failed=[(0, 'Boom: no')])
        assert told.retried == [(0, 'Boom: no')]
        assert told.failed == []
        assert desk.overdue() == []
        desk.clock.advance(RETRY_CAP)
        [lease] = desk.overdue()
        assert [one.attempt for one in lease.claims] == [attempt]
        assert lease.was is State.RETRY
        batch = batch_of(lease.claims, lease.id)
        desk.grants.accept(batch)

    assert desk.report(batch, failed=[(0, 'Boom: no')]).failed
    desk.clock.advance(1000)
    assert desk.overdue() == []


def test_done_retried_and_dead_of_one_report_are_reported_together():
    """Each kind of outcome is a separate write. The report waits for all three
    writes.
    """
    desk = Desk(worlds.job('poll', retries=1))
    lost, fresh = desk.accept('b'), desk.batch('a', 'c')
    desk.lose(lost)
    both = desk.store.reclaim(
        [HeldLease(lease, 'poll', TICK) for lease in (fresh.lease, 'taken')],
        ['a', 'b', 'c'], NewLease('both', 'api-1', 600))
    assert [one.attempt for one in both] == [1, 2, 1]
    batch = batch_of(both, 'both')
    desk.grants.accept(batch)

    told = desk.report(batch, done=[2], failed=[(0, 'x'), (1, 'y')])

    assert (told.done, told.retried, told.failed, told.lost) == (
        [2], [(0, 'x')], [(1, 'y')], [])


def test_an_at_most_once_run_is_not_retried():
    desk = Desk(worlds.job('poll', retries=5,
                           delivery=Delivery.AT_MOST_ONCE))
    batch = desk.accept('a')

    told = desk.report(batch, failed=[(0, 'Boom')])

    assert (told.failed, told.retried) == ([(0, 'Boom')], [])
    desk.clock.advance(1000)
    assert desk.overdue() == []


@pytest.mark.parametrize(('attempt', 'most'), [
    (1, 2.0), (2, 4.0), (3, 8.0), (5, 32.0), (6, 60.0), (7, 60.0),
    (100, 60.0), (10 ** 6, 60.0)])
def test_pauses_double_up_to_a_cap_and_are_not_all_alike(attempt, most):
    outcomes = RunOutcomes({}, None, new_lease=str,
                           random_=random.Random(1), throttle=None, sink=None)
    job = worlds.job('poll', retries=100, retry_backoff=2.0)
    pauses = [outcomes.pause(job, attempt) for _ in range(200)]

    assert most / 2 <= min(pauses) < 0.55 * most
    assert 0.95 * most < max(pauses) <= most


def test_a_retry_is_due_after_its_pause_and_not_before():
    desk = Desk(worlds.job('poll', retries=1, retry_backoff=8.0))
    batch = desk.accept('a')
    desk.report(batch, failed=[(0, 'Boom')])

    desk.clock.advance(3.99)
    assert desk.overdue() == []
    desk.clock.advance(4.02)

    assert [one.object for one in desk.retry_of()] == ['a']


def test_objects_that_failed_together_are_retried_together():
    """All failed objects get one common lease."""
    desk = Desk(worlds.job('poll', retries=1, retry_backoff=8.0))
    batch = desk.accept(*(f'object-{n}' for n in range(100)))

    desk.report(batch, failed=[(n, 'Boom') for n in range(100)])

    desk.clock.advance(60)
    assert len(desk.retry_of()) == 100


# -- results that do not count

def test_results_after_the_lease_was_lost_do_not_count(desk, caplog):
    batch = desk.accept('a', 'b')
    anew = desk.lose(batch)

    told = desk.report(batch, done=[0], failed=[(1, 'Boom')])

    assert (told.done, told.failed, told.retried) == ([], [], [])
    assert sorted(told.lost) == [0, 1]
    [line] = lines(caplog, 'results dropped')
    assert line.has(job='poll', batch=batch.id)
    # The result of the next run counts.
    assert {one.attempt for one in anew} == {2}
    assert desk.store.start(
        HeldLease('taken', 'poll', TICK), ['a', 'b'],
        NewLease('next', 'w2', 60)) == anew


def test_results_that_were_lost_in_part_count_for_the_others():
    """The store returns the objects whose results count, and not only their
    number.
    """
    desk = Desk(worlds.job('poll', retries=1, retry_backoff=8.0),
                worlds.job('tidy'))
    lost = ['a', 'c', 'e']
    for name, kept in ('poll', 'retried'), ('tidy', 'failed'):
        batch = desk.accept('a', 'b', 'c', 'd', 'e', 'f', name=name)
        desk.store.reclaim(
            [HeldLease(f'{batch.lease}.{batch.id}', name, TICK)], lost,
            NewLease(f'{name} taken', 'api-2', LEASE))

        told = desk.report(batch, done=[0, 1], failed=[
            (n, f'error {n}') for n in (2, 3, 4, 5)])

        assert told.done == [1]
        assert getattr(told, kept) == [(3, 'error 3'), (5, 'error 5')]
        assert sorted(told.lost) == [0, 2, 4]


def test_results_of_runs_that_others_have_done_do_not_count(desk):
    batch = desk.accept('a')
    [anew] = desk.lose(batch)
    second = batch_of([anew], 'taken', 'second')
    desk.grants.accept(second)

    assert desk.report(second, done=[0]).done == [0]
    assert desk.report(batch, done=[0]).lost == [0]


def test_the_retry_of_a_lost_run_is_not_ordered_here():
    desk = Desk(worlds.job('poll', retries=3, retry_backoff=1.0))
    batch = desk.accept('a')
    desk.lose(batch)

    told = desk.report(batch, failed=[(0, 'Boom')])

    assert (told.retried, told.lost) == ([], [0])
    desk.clock.advance(100)
    assert desk.overdue() == []


def test_results_of_a_batch_that_was_not_granted_count_for_nothing(desk):
    batch = desk.batch('a', 'b', 'c')

    told = desk.report(batch, done=[2], failed=[(0, 'Boom')],
                       refused=[(1, Refusal.DRAINING)])

    assert told == message.Report(
        batch.id, WORKER, lost=[2, 0], refused=[(1, Refusal.DRAINING)])
    # The claim still waits in its scheduler's lease.
    assert len(desk.store.start(
        HeldLease(batch.lease, 'poll', TICK), batch.objects,
        NewLease('into', 'w', 60))) == 3


def test_results_of_the_run_of_another_worker_count_for_nothing(desk):
    batch = desk.accept('a')

    desk.grants.reported(
        message.Report(batch.id, 'w2~00c0ffee00c0ffee~1~f1', [0]), SENDER)

    assert desk.reports[0][0].lost == [0]
    assert desk.has(batch)
    assert desk.report(batch, done=[0]).done == [0]


def test_a_result_that_is_reported_twice_counts_once(desk):
    batch = desk.accept('a', 'b')

    assert desk.report(batch, done=[0]).done == [0]
    assert desk.report(batch, done=[0], failed=[(0, 'x')]) == (
        message.Report(batch.id, WORKER))
    assert desk.has(batch)
    assert desk.report(batch, done=[1]).done == [1]
    assert not desk.has(batch)


def test_an_index_that_is_not_in_the_batch_ends_nothing(desk):
    batch = desk.accept('a')

    told = desk.report(batch, done=[7], failed=[(8, 'x')],
                       refused=[(9, Refusal.DRAINING)])

    assert told == message.Report(batch.id, WORKER)


# -- leases

def test_a_lease_is_renewed_for_as_long_as_its_work_gives_signs(desk):
    batch = desk.accept('a')

    desk.live(10 * LEASE, batch)

    assert desk.grants.may_start(batch) is None
    assert desk.overdue() == []
    assert desk.report(batch, done=[0]).done == [0]


def test_a_lease_without_signs_ends(desk):
    """A handler that hangs must not hold its object forever."""
    silent, alive = desk.accept('a'), desk.accept('b')

    desk.live(2.5 * LEASE, alive)

    assert desk.grants.may_start(silent) == Refusal.LEASE_ENDED
    assert desk.grants.may_start(alive) is None
    [lease] = desk.overdue()
    assert [one.object for one in lease.claims] == ['a']
    assert lease.was is State.RUNNING


def test_a_batch_without_a_sign_of_life_for_very_long_is_forgotten(desk):
    silent = desk.accept('a')

    desk.live(3 * LEASE)
    assert desk.has(silent)
    desk.live(LEASE)

    assert not desk.has(silent)
    assert desk.report(silent, done=[0]).lost == [0]


def test_leases_are_renewed_under_the_name_of_their_holder(desk):
    """A scheduler keeps the leases of all its workers in one RunLeases."""
    mine = desk.accept('a')
    theirs = desk.accept('b', worker='w2~00c0ffee00c0ffee~1~f1.t1.s10')

    desk.live(2 * LEASE, mine, theirs)

    assert desk.grants.may_start(mine) is None
    assert desk.grants.may_start(theirs) is None
    assert desk.store.renew(
        [granted(mine), granted(theirs)], seconds=60,
        holder=holder_of(WORKER)) == {granted(mine)}


@pytest.mark.parametrize(('term', 'holds'), [
    ('~7~f1.t1', True), ('~7~f1.t3', False)])
def test_a_worker_holds_its_leases_through_the_terms_of_a_tenure(
        desk, term, holds):
    """After a gap in its membership, other members may have taken the worker's
    leases over. So the worker then has a new tenure and a new name as a
    holder.
    """
    batch = desk.accept('a')

    later = WORKER.replace('~1~f1.t1', term)
    assert desk.store.renew(
        [granted(batch)], holder=holder_of(later),
        seconds=60) == ({granted(batch)} if holds else set())


def test_a_batch_that_was_taken_over_may_not_start_any_more(desk):
    batch = desk.accept('a')
    desk.lose(batch)
    assert desk.grants.may_start(batch) is None

    desk.grants.renew()

    assert desk.grants.may_start(batch) == Refusal.LEASE_ENDED


def test_a_batch_that_was_taken_over_is_not_requested_again(desk):
    batch = desk.accept('a')
    desk.lose(batch)
    desk.grants.renew()
    desk.line.slow = True

    desk.live(LEASE / 2, batch)

    assert desk.line.asked == []


def test_trust_ends_before_the_lease_does(desk):
    """The clock of the store may differ from that of the worker, and a run
    takes some time to start.
    """
    batch = desk.accept('a')

    desk.clock.advance(TRUST - 0.01)
    assert desk.grants.may_start(batch) is None
    desk.clock.advance(0.02)
    assert desk.grants.may_start(batch) == Refusal.LEASE_ENDED
    assert desk.overdue() == []


def test_trust_counts_from_the_question_and_not_from_the_answer(desk):
    desk.line.slow = True
    batch = desk.accept('a')
    desk.clock.advance(TRUST - 1)
    desk.line.answer()
    assert desk.grants.may_start(batch) is None

    desk.clock.advance(1.01)

    assert desk.grants.may_start(batch) == Refusal.LEASE_ENDED


def test_a_renewal_counts_from_the_question_and_not_from_the_answer(desk):
    batch = desk.accept('a')
    desk.line.slow = True
    desk.clock.advance(LEASE / 4)
    desk.grants.renew()
    desk.clock.advance(LEASE / 2)
    desk.line.answer()
    assert desk.grants.may_start(batch) is None

    desk.clock.advance(TRUST - LEASE / 2 + 0.01)

    assert desk.grants.may_start(batch) == Refusal.LEASE_ENDED


def test_while_the_store_is_away_nothing_starts_that_was_not_renewed(desk):
    batch = desk.accept('a')
    desk.line.slow = True

    desk.live(LEASE, batch)

    assert desk.grants.may_start(batch) == Refusal.LEASE_ENDED


def test_a_store_that_is_back_in_time_renews_and_work_goes_on(desk):
    batch = desk.accept('a')
    desk.line.slow = True
    desk.live(LEASE, batch)

    desk.line.answer()
    desk.line.slow = False
    desk.live(LEASE / 4, batch)

    assert desk.grants.may_start(batch) is None


def test_standing_still_does_not_count_as_silence(desk):
    """The worker's heartbeats may have arrived without having been read yet.
    No other process has taken the lease over, so the run continues.
    """
    batch = desk.accept('a')
    desk.live(LEASE / 2, batch)

    desk.clock.advance(5 * LEASE)
    assert desk.grants.may_start(batch) == Refusal.LEASE_ENDED
    desk.grants.renew()

    assert desk.has(batch)
    assert desk.grants.may_start(batch) is None
    assert desk.report(batch, done=[0]).done == [0]


def test_a_batch_that_was_taken_over_during_a_freeze_is_lost(desk):
    batch = desk.accept('a')
    desk.clock.advance(5 * LEASE)
    assert desk.overdue()

    desk.grants.renew()

    assert desk.grants.may_start(batch) == Refusal.LEASE_ENDED
    assert desk.report(batch, done=[0]).lost == [0]


def test_an_ended_batch_is_not_renewed(desk):
    batch = desk.accept('a')
    desk.report(batch, done=[0])
    desk.line.slow = True

    desk.live(LEASE / 2)

    assert desk.line.asked == []


# -- max_in_flight

def crowd(*running):
    """A worker with a limit of 4; *running* objects run at another worker."""
    desk = Desk(worlds.job('poll', max_in_flight=4))
    if running:
        other = desk.batch(*running)
        desk.store.start(
            HeldLease(other.lease, 'poll', TICK), running,
            NewLease('other', 'w2', LEASE))
    return desk


def test_no_more_run_than_may_over_all_workers():
    desk = crowd('x', 'y', 'z')

    batch = desk.accept('a', 'b', 'c')

    [run] = desk.runs
    assert run.objects == ['a']
    [(told, _)] = desk.reports
    assert told.refused == [(1, Refusal.JOB_LIMIT), (2, Refusal.JOB_LIMIT)]
    assert desk.report(run, done=[0]).done == [0]
    assert desk.grants.lease_of(batch) is None


def test_none_run_where_as_many_run_as_may():
    desk = crowd('w', 'x', 'y', 'z')

    desk.accept('a', 'b')

    assert desk.runs == []
    [(told, _)] = desk.reports
    assert [index for index, _ in told.refused] == [0, 1]


def test_the_first_of_two_batches_that_come_at_once_gets_the_last_place():
    desk = crowd('x', 'y', 'z')
    desk.line.slow = True
    one, other = desk.batch('a'), desk.batch('b')
    desk.grants.accept(one)
    desk.grants.accept(other)

    desk.line.answer()

    assert [run.objects for run in desk.runs] == [['a']]
    [(told, _)] = desk.reports
    assert (told.batch, told.refused) == (other.id, [(0, Refusal.JOB_LIMIT)])


def test_a_batch_that_waits_gets_the_place_of_a_run_that_ends():
    desk = Desk(worlds.job('poll', max_in_flight=2), shared=True)
    first = desk.accept('a', 'b')
    waits = desk.accept('c')
    assert len(desk.runs) == 1

    desk.grants.reported(message.Report(
        first.id, first.worker, done=[0]), first.sender)

    assert [run.id for run in desk.runs] == [first.id, waits.id]


def test_a_batch_that_waits_too_long_is_refused_and_was_not_started():
    desk = Desk(worlds.job('poll', max_in_flight=2), shared=True)
    desk.accept('a', 'b')
    waits = desk.accept('c')

    desk.clock.advance(admission.PATIENCE + 0.1)
    desk.grants.sweep()

    [(told, _)] = desk.reports
    assert (told.batch, told.refused) == (waits.id, [(0, Refusal.JOB_LIMIT)])
    # The claim is still in its scheduler's lease.
    assert desk.store.start(
        HeldLease(waits.lease, 'poll', TICK), ['c'],
        NewLease('later', 'w2', LEASE))


@pytest.mark.parametrize('fails', [False, True])
def test_a_batch_that_waits_finds_a_place_that_others_left(fails):
    desk = Desk(worlds.job('poll', max_in_flight=2), shared=True)
    other = desk.batch('x', 'y')
    desk.store.start(
        HeldLease(other.lease, 'poll', TICK), ['x', 'y'],
        NewLease('other', 'w2', LEASE))
    desk.accept('a')
    waits = desk.accept('b')
    desk.store.finish(HeldLease('other', 'poll', TICK), ['x', 'y'])

    if fails:
        desk.line.slow = True
        desk.grants.sweep()
        [(_, _, failed)] = desk.line.asked
        desk.line.asked.clear()
        desk.line.slow = False
        failed()
    desk.clock.advance(0.9)
    desk.grants.sweep()

    assert [run.id for run in desk.runs] == [waits.id]


def test_the_jobs_of_a_partition_are_counted_together():
    desk = Desk(worlds.job('poll'), worlds.job('other', objects=True),
                worlds.job('third', objects=True),
                partitions={'default': partition.Partition('default', 3)})
    running = desk.batch('x', 'y', name='other')
    desk.store.start(
        HeldLease(running.lease, 'other', TICK), ['x', 'y'],
        NewLease('other', 'w2', LEASE))

    desk.accept('a', 'b', name='third')

    [run] = desk.runs
    assert run.objects == ['a']
    [(told, _)] = desk.reports
    assert told.refused == [(1, Refusal.PARTITION_LIMIT)]


# -- a scheduler whose entry has changed since it sent a batch

@pytest.mark.parametrize('term', ['~2~f1.t1.r80', '~2~f1.t2.r40'],
                         ids=['other points', 'a new tenure'])
def test_results_count_under_any_entry_of_their_scheduler(term):
    desk = Desk()
    batch = desk.accept('a', 'b')
    now = SENDER.replace('~1~f1.t1.r40', term)
    desk.reports.clear()

    desk.grants.reported(
        message.Report(batch.id, batch.worker, done=[0, 1]), now)

    [(told, to)] = desk.reports
    assert (told.done, told.lost, to) == ([0, 1], [], now)


def test_at_a_worker_that_may_be_out_of_its_group_nothing_begins():
    """After ``silence_timeout`` others may take the worker's leases over."""
    sure = [True]
    desk = Desk(sure=lambda entry: sure[0], silence_timeout=10.0)
    batch = desk.accept('a')
    desk.clock.advance(9.5)
    assert desk.grants.may_start(batch) is None

    sure[0] = False

    assert desk.grants.may_start(batch) == Refusal.LEASE_ENDED


def test_a_worker_that_joins_after_it_asked_is_not_sure_of_its_lease():
    """The other members may not have seen the worker in its group yet."""
    sure = [False]
    desk = Desk(sure=lambda entry: sure[0], silence_timeout=10.0)
    batch = desk.accept('a')
    desk.clock.advance(9.5)

    sure[0] = True

    assert desk.grants.may_start(batch) == Refusal.LEASE_ENDED
    desk.grants.renew()
    desk.clock.advance(9.5)
    assert desk.grants.may_start(batch) is None


def test_under_a_lease_that_was_lost_no_handler_ends_its_run(desk):
    batch = desk.accept('a')
    assert desk.grants.lease_of(batch) == granted(batch)
    desk.lose(batch)

    desk.grants.renew()

    assert desk.grants.lease_of(batch) is None


def test_a_run_that_the_pool_refuses_is_free_for_others_at_its_old_attempt():
    desk = Desk(shared=True)
    batch = desk.accept('a', 'b')

    told = desk.report(batch, refused=[(0, Refusal.DRAINING)])

    assert told.refused == [(0, Refusal.DRAINING)]
    desk.clock.advance(1)
    [anew] = desk.retry_of()
    assert (anew.object, anew.attempt) == ('a', 1)
    assert anew.fence > batch.fences[0]


# -- the stop of the process

def test_after_the_close_no_batch_is_granted(desk):
    desk.grants.close()

    batch = desk.accept('a', 'b')

    [(told, to)] = desk.reports
    assert to == batch.sender
    assert told.refused == [(0, Refusal.DRAINING), (1, Refusal.DRAINING)]
    assert desk.grants.settled
    assert desk.store.holders(['poll']) == {'api-1'}


def test_a_batch_that_waits_for_a_place_is_refused_at_the_close():
    desk = Desk(worlds.job('poll', max_in_flight=1), shared=True)
    runs = desk.accept('a')
    waits = desk.accept('b')
    assert len(desk.runs) == 1

    desk.grants.close()

    [(told, _)] = desk.reports
    assert (told.batch, told.refused) == (
        waits.id, [(0, Refusal.DRAINING)])
    assert desk.has(runs) and not desk.has(waits)
    assert not desk.grants.settled
    desk.report(runs, done=[0])
    assert desk.grants.settled


@pytest.mark.parametrize('delivery', Delivery)
def test_a_grant_that_arrives_after_the_close_is_returned(delivery):
    desk = Desk(worlds.job('poll', delivery=delivery), shared=True)
    desk.line.slow = True
    batch = desk.accept('a', 'b')
    desk.grants.close()
    assert not desk.grants.settled

    desk.line.answer()
    [granted_batch] = desk.runs
    # The executor of a process that stops refuses each batch.
    desk.report(granted_batch, refused=[
        (0, Refusal.DRAINING), (1, Refusal.DRAINING)])
    assert not desk.grants.settled
    desk.line.answer()

    assert desk.grants.settled
    assert [(one.object, one.attempt) for one in desk.retry_of()] == [
        ('a', 1), ('b', 1)]
    assert not desk.has(batch)


@pytest.mark.parametrize('granted_before', [False, True])
def test_runs_that_the_store_grants_very_late_are_returned(granted_before):
    """Otherwise a run that never began would end as lost with its lease.

    An attempt after the first one has a second request, for its progress.
    """
    desk = Desk(worlds.job('poll', retries=2), shared=True)
    desk.report(desk.accept('a'), failed=[(0, 'Boom')])
    desk.clock.advance(RETRY_CAP)
    [lease] = desk.overdue()
    batch = batch_of(lease.claims, lease.id, 'late')
    desk.runs.clear()
    desk.line.slow = True
    desk.grants.accept(batch)
    if granted_before:
        call, then, _ = desk.line.asked.pop(0)
        then(call(desk.store))
    desk.live(4 * LEASE)
    assert not desk.runs

    desk.line.answer()
    [late] = desk.runs
    refusal = desk.grants.may_start(late)
    desk.line.slow = False
    desk.report(late, refused=[(0, refusal)])

    assert refusal == Refusal.LEASE_ENDED
    assert desk.grants.settled
    assert [one.object for one in desk.retry_of()] == ['a']


def test_a_result_counts_before_the_process_is_settled(desk):
    batch = desk.accept('a')
    desk.grants.close()
    desk.line.slow = True
    desk.grants.reported(message.Report(batch.id, batch.worker, done=[0]),
                         batch.sender)
    assert not desk.grants.settled

    desk.line.answer()

    assert desk.grants.settled
    assert [told.done for told, _ in desk.reports] == [[0]]


def test_a_copy_of_a_running_batch_is_not_refused_after_the_close(desk):
    """A refusal would end the run for its scheduler."""
    batch = desk.accept('a')
    desk.grants.close()

    desk.grants.accept(batch)

    assert desk.reports == []
    assert desk.has(batch)
