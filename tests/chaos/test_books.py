# SPDX-License-Identifier: Apache-2.0
"""The judges of the chaos suite read its records and find violations.

Most tests build the records of one object by hand, and violate one guarantee.
"""

import collections
import types

import pytest

from distperiodic.adapters.sql.column_types import SKIPPED_CODES
from distperiodic.adapters.sql.column_types import STATE_CODES
from distperiodic.core.claim import SkippedBy
from distperiodic.core.claim import State
from tests import checker
from tests.chaos import books
from tests.chaos import gauges
from tests.chaos import jobs
from tests.chaos import pace
from tests.chaos import promises
from tests.chaos import times

SECOND = pace.SECOND
TICK = 1_000_000 * SECOND


class Books:
    """Records of one object in the ledger, in the journal, and in the history
    of the store.
    """

    def __init__(self, job='poll', key='poll-001'):
        self.job = job
        self.key = key
        self.now = TICK
        #: Microseconds from the last record to the end of the observation.
        self.patience = 30 * SECOND
        self.told = []
        self.moves = []
        self.history = collections.Counter()
        self.windows = []
        self.stalls = []

    def move(self, state, fence, tick=TICK, worker=None, count=None,
             settled=0, by=None):
        self.now += SECOND // 10
        self.moves.append(types.SimpleNamespace(
            at=self.now, committed=self.now, job=self.job, object=self.key,
            tick=tick, settled=settled or tick,
            state=STATE_CODES[state], fence=fence, attempt=1, lease='',
            worker=worker,
            skipped_by=None if by is None else SKIPPED_CODES[by]))
        if count:
            self.history[count] += 1

    def tell(self, what, fence, pid=1, **about):
        self.now += SECOND // 10
        self.told.append({
            'what': what, 'pid': pid, 'host': f'w{pid}', 'job': self.job,
            'object': self.key, 'tick': TICK, 'fence': fence,
            'at': self.now, 'attempt': 1, **about})

    def run(self, fence, pid=1, outcome='done'):
        self.move(State.RUNNING, fence, worker=f'w{pid}~0')
        self.tell('start', fence, pid)
        self.tell('end', fence, pid, outcome=outcome)

    def life(self):
        """Record a tick that is claimed, run and done."""
        self.move(State.CLAIMED, 1, count='due')
        self.run(1)
        self.move(State.DONE, 1, count='done')

    @property
    def record(self):
        driver = types.SimpleNamespace(
            stalls=self.stalls, windows=self.windows)
        return books.record(
            self.told, self.moves, driver, TICK, self.now + self.patience)

    def judged(self):
        """Return the kinds of the oracle's findings for this object."""
        return {one.kind for one in promises.judge(
            self.record, self.moves, {7: 's1'}).findings
            if {self.key, f'{self.key}:'} & {*one.text.split()}}

    def found(self, booked=(), strangers=()):
        return {one.kind for one in books.check(
            self.record, booked, {(self.job, TICK): self.history},
            set(strangers))}


@pytest.fixture
def kept():
    return Books()


def test_a_life_without_fault_has_no_findings(kept):
    kept.life()

    assert kept.found() == set()


def test_a_claim_that_is_taken_over_is_granted_twice(kept):
    kept.move(State.CLAIMED, 1, count='due')
    kept.move(State.RUNNING, 1, worker='w1~0')
    kept.tell('start', 1)
    kept.tell('gone', 1)
    kept.move(State.CLAIMED, 2)
    kept.run(2, pid=2)
    kept.move(State.DONE, 2, count='done')

    claim, = kept.record.claims.values()
    assert (claim.grants, claim.counted) == ([1, 2], [2])
    assert [run.outcome for run in kept.record.runs] == ['killed', 'done']
    assert kept.found() == set()
    taken, = times.take_overs(
        kept.moves, [(kept.told[1]['at'], 'w1')], windows=[])
    assert taken.seconds == pytest.approx(0.2 * pace.PACE)
    assert taken.alone


def test_a_claim_whose_tick_is_passed_before_its_start_is_superseded(kept):
    kept.move(State.CLAIMED, 1, count='due')
    kept.history['superseded'] += 1
    kept.move(State.CLAIMED, 2, TICK + SECOND)

    first = kept.record.claims[kept.job, kept.key, TICK]
    assert [ending for _, ending in first.endings] == ['superseded']


def test_a_claim_that_is_done_and_never_ran_is_found(kept):
    kept.move(State.CLAIMED, 1, count='due')
    kept.move(State.RUNNING, 1, worker='w1~0')
    kept.move(State.DONE, 1, count='done')

    assert kept.found() == {'unfounded'}


def test_a_run_that_began_beside_another_is_found(kept):
    kept.move(State.CLAIMED, 1, count='due')
    kept.move(State.RUNNING, 1, worker='w1~0')
    kept.tell('start', 1)
    kept.move(State.CLAIMED, 2)
    kept.run(2, pid=2)
    kept.move(State.DONE, 2, count='done')
    kept.tell('end', 1, outcome='replaced')

    assert kept.found() == {'overlap'}
    kept.stalls.append(checker.Stall('1', TICK, kept.now, 'stopped'))
    assert kept.found() == set()


def test_a_run_that_begins_under_the_claim_of_another_member_is_found(kept):
    kept.move(State.CLAIMED, 1, count='due')
    kept.move(State.RUNNING, 1, worker='w1~0')
    kept.move(State.CLAIMED, 2)
    kept.run(2, pid=2)
    kept.move(State.DONE, 2, count='done')
    kept.tell('start', 1)
    kept.tell('end', 1, outcome='replaced')

    assert kept.found() == {'stale'}
    kept.stalls.append(checker.Stall('1', TICK, kept.now, 'stopped'))
    assert kept.found() == set()


def test_a_tick_that_runs_again_for_no_reason_is_found(kept):
    kept.life()
    kept.move(State.RUNNING, 2, worker='w1~0')
    kept.tell('start', 2)
    kept.tell('end', 2, outcome='done')

    assert 'doubled' in kept.found()


def test_a_tick_that_is_claimed_before_its_time_is_found(kept):
    kept.now -= 2 * SECOND
    kept.life()

    assert kept.found() == {'early'}


#: This period is longer than the limit for a claim. So each tick must be
#: claimed before the next tick is due.
PERIOD = jobs.POLICIES['own'].period
FIRST = TICK - TICK % PERIOD


@pytest.fixture
def steady():
    """Return the records of an object that ran for every tick except one."""
    return _steady('own', 'own-000')


def _steady(job, key):
    kept = Books(job, key)
    period = jobs.POLICIES[job].period
    first = TICK - TICK % period
    for n in range(1, 31):
        tick = first + n * period
        if n != 20:
            kept.now = tick
            kept.move(State.CLAIMED, n, tick)
            kept.move(State.RUNNING, n, tick)
            kept.move(State.DONE, n, tick)
    kept.missed = first + 20 * period
    kept.patience = 0
    return kept


def give_up(steady, by):
    """Record a skip of the missed tick, just before the next tick.

    :param by: reason of the skip.
    """
    _insert(steady, PERIOD - SECOND // 10, State.DONE, 19,
            steady.missed - PERIOD, settled=steady.missed, by=by)


def _insert(steady, after, *move, **about):
    """Record a move *after* microseconds after the missed tick."""
    at = next(i for i, row in enumerate(steady.moves)
              if row.tick > steady.missed)
    end = steady.now
    steady.now = steady.missed + after
    steady.move(*move, **about)
    steady.moves.insert(at, steady.moves.pop())
    steady.now = end


@pytest.mark.parametrize('listed, kinds', [
    (TICK - 1, set()), (TICK + 9 * SECOND, {'undue'})],
    ids=['earlier', 'later'])
def test_a_tick_is_due_if_the_reading_of_the_catalogue_is_earlier(
        listed, kinds):
    kept = Books('all', 'all-000')
    kept.now += 10 * SECOND
    kept.move(State.LISTED, 1, listed)

    kept.life()

    assert kept.judged() & {'undue'} == kinds


def test_a_tick_that_is_passed_over_in_silence_is_found(steady):
    assert steady.judged() & {'lost', 'unexplained'}
    assert books.due(steady.record, steady.moves, {
        (steady.job, TICK): steady.history}) == {steady.job: (30, 0)}


@pytest.mark.parametrize('job, key', [
    ('own', 'own-000'), ('rare', 'rare-007'), ('cron', 'cron-003'),
    ('group', 'group')])
def test_a_missed_tick_of_each_kind_of_job_is_found(job, key):
    steady = _steady(job, key)

    assert steady.judged() & {'lost', 'unexplained'}


def test_a_tick_that_is_given_up_by_an_overlap_that_was_not_is_found(steady):
    give_up(steady, SkippedBy.OVERLAP)

    assert 'untrue' in steady.judged()


@pytest.mark.parametrize('befell, findings', [
    ({'postgresql'}, False), ({'s1', 7, 's2', 's3'}, False),
    ({'broker', 'w1'}, True), ({'s1', 7}, True)])
def test_a_tick_may_be_given_up_if_no_member_was_able_to_claim(
        steady, befell, findings):
    give_up(steady, SkippedBy.MISFIRE)
    steady.windows.append(books.Window(
        FIRST + 5 * PERIOD, FIRST + 25 * PERIOD, 'a fault',
        frozenset(befell)))

    assert bool(steady.judged()) is findings


@pytest.mark.parametrize('kind, server, begin, end, findings', [
    ('scheduler killed', 'zookeeper', -20, -18, {'late'}),
    ('scheduler killed', 'zookeeper', -9, -2, set()),
    ('scheduler killed', 'zookeeper', -9, -5, {'late'}),
    ('scheduler killed', 'broker', -9, -2, set()),
    ('scheduler killed', 'broker', -9, -5, {'late'}),
    ('scheduler frozen shortly', 'zookeeper', -9, -2, set()),
    ('scheduler frozen shortly', 'broker', -9, -2, {'late'})])
def test_a_member_joins_when_the_servers_that_it_needs_are_back(
        steady, kind, server, begin, end, findings):
    """All schedulers die or freeze 11 s before the tick, which is claimed 4 s
    late. Meanwhile a server is away.
    """
    _insert(steady, 4 * SECOND, State.CLAIMED, 20, steady.missed)
    for name, befell, since, until in (
            (kind, {'s1', 's2', 's3'}, -11, -10),
            ('away', {server}, begin, end)):
        steady.windows.append(books.Window(
            steady.missed + since * SECOND, steady.missed + until * SECOND,
            name, frozenset(befell)))

    assert steady.judged() == findings


def test_ticks_that_are_counted_twice_are_found():
    assert books.beyond({'poll': (4, 2), 'each': (4, 4)}) == []

    finding, = books.beyond({'poll': (4, 5)})
    assert str(finding) == (
        'account: poll: 4 ticks by the grid, and 5 due by the history')


def test_an_account_that_does_not_add_up_is_found(kept):
    kept.life()
    kept.history['due'] += 1

    assert kept.found() == {'account'}


def test_an_effect_without_the_end_of_its_run_is_found():
    kept = Books('booked', 'booked-001')
    kept.life()

    effect = 'booked-001', TICK, 1
    assert kept.found(booked=[effect]) == set()
    assert kept.found(booked=[effect, effect]) == {'doubled'}
    assert kept.found(booked=[]) == {'lost'}
    assert kept.found(booked=[effect, ('booked-001', TICK, 2)]) == {
        'doubled'}


def test_a_process_that_was_not_let_in_and_runs_is_found(kept):
    kept.life()

    assert kept.found(strangers=[1]) == {'stranger'}


def test_a_number_that_has_grown_by_the_end_is_a_leak():
    before = {'threads of a worker': 20, 'rows of claim': 300}

    assert gauges.leaks(before, before) == []
    assert gauges.leaks(before, before | {'threads of a worker': 40}) == [
        'threads of a worker: 20, and 40 at the end']
    assert gauges.leaks(before, before | {'rows of claim': 301})
