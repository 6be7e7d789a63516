# SPDX-License-Identifier: Apache-2.0
"""The checker knows which claims an operator requeued or triggered."""

import pytest

from tests import checker
from tests.simulation.journal import Journal

PAIR = 'job', 'object'
#: Attempts of each claim.
MOST = 7


def at(seconds):
    return seconds * checker.SECOND


def run(tick, attempt, start, fence):
    return checker.Run(*PAIR, at(tick), fence, attempt, 'w0~1', at(start),
                       at(start + 1), 'failed')


def check(claims, runs, **policy):
    """Return the kinds of the findings in a record of one object."""
    record = checker.Record(
        0, at(1000), {'job': checker.Policy('job', **policy)}, runs,
        {(*PAIR, claim.tick): claim for claim in claims}, [], [], at(1000))
    return [finding.kind for finding in checker.check(record)]


def given_up(requeued):
    """Return a claim that was given up at 80 s, and its last run."""
    claim = checker.Claim(
        *PAIR, at(10), at(10), grants=[6], requeued=list(map(at, requeued)))
    if not requeued:
        claim.endings.append((at(80), 'dead'))
    return claim, run(10, MOST, 70, 6)


@pytest.mark.parametrize(('requeued', 'found'), [
    ([], ['poison']), ([90], [])], ids=['not requeued', 'requeued'])
def test_a_tick_that_supersedes_a_requeued_claim_has_all_attempts(
        requeued, found):
    """The claim of the tick of 100 s supersedes the requeued one before this
    one runs again.
    """
    first, last_run = given_up(requeued)
    if requeued:
        first.endings.append((at(100), 'superseded'))
    second = checker.Claim(*PAIR, at(100), at(100), grants=[8, 9])
    runs = [last_run, run(100, 1, 101, 8), run(100, 2, 103, 9)]

    assert check([first, second], runs, most=MOST) == found


@pytest.mark.parametrize(('triggered', 'found'), [
    (False, ['poison']), (True, [])], ids=['due', 'triggered'])
@pytest.mark.parametrize('runs', [True, False])
def test_a_trigger_gives_all_attempts_again(triggered, found, runs):
    """The trigger at 100 s runs, or the tick of 110 s supersedes it."""
    first, last_run = given_up([])
    second = checker.Claim(
        *PAIR, at(100), at(100), grants=[7], triggered=triggered)
    third = checker.Claim(*PAIR, at(110), at(110), grants=[8, 9])
    again = [run(110, 1, 111, 8), run(110, 2, 113, 9)]
    if runs:
        again = [run(100, 1, 101, 7)]

    assert check([first, second, third], [last_run, *again],
                 most=MOST) == found


@pytest.mark.parametrize(('attempt', 'found'), [
    (MOST, []), (1, ['poison'])], ids=['last attempt', 'first attempt'])
def test_a_requeue_gives_no_attempts_to_the_runs_before_it(attempt, found):
    """The tick of 100 s runs once, is requeued at 120 s, and runs twice."""
    first, last_run = given_up([])
    second = checker.Claim(
        *PAIR, at(100), at(100), grants=[8, 9, 10], requeued=[at(120)])
    runs = [last_run, run(100, attempt, 110, 8), run(100, 1, 130, 9),
            run(100, 2, 140, 10)]

    assert check([first, second], runs, most=MOST) == found


@pytest.mark.parametrize(('requeued', 'found'), [
    ([], ['attempts']), ([80], []), ([60], ['attempts'])],
    ids=['not requeued', 'requeued', 'requeued before its first run'])
def test_each_requeue_allows_one_more_run_of_an_at_most_once_tick(
        requeued, found):
    claim = checker.Claim(
        *PAIR, at(10), at(10), grants=[1, 2], requeued=list(map(at, requeued)))

    assert check([claim], [run(10, 1, 70, 1), run(10, 1, 90, 2)],
                 at_most_once=True) == found


@pytest.mark.parametrize('ends', [True, False])
@pytest.mark.parametrize(('requeues', 'found'), [
    ([at(30)], []), ([at(29)], ['doubled'])], ids=['operator', 'no operator'])
def test_only_an_operator_may_open_an_ended_claim_again(
        requeues, found, ends):
    now = at(10)
    journal = Journal(lambda: now, requeues)
    journal.claim(*PAIR, at(10), 'l1')
    now = at(20)
    journal.end(*PAIR, at(10), 'dead')
    now = at(30)
    journal.reopen(*PAIR, at(10))
    if ends:
        now = at(40)
        journal.end(*PAIR, at(10), 'superseded')

    [claim] = journal.claims.values()
    assert check([claim], []) == found
    assert bool(claim.requeued) is not bool(found)
