# SPDX-License-Identifier: Apache-2.0
"""Each state of an object has one reason why the object did not run."""

import collections
import itertools

import pytest

from distperiodic.core import explanation
from distperiodic.core.claim import EARLIEST
from distperiodic.core.claim import ENDINGS
from distperiodic.core.claim import SkippedBy
from distperiodic.core.claim import State
from distperiodic.core.outcomes import LATE
from distperiodic.core.outcomes import REQUEUED
from distperiodic.core.reason import FINE
from distperiodic.core.reason import Reason
from distperiodic.core.tick_exceptions import ObjectPast
from distperiodic.core.tick_exceptions import TickException
from distperiodic.operator import object_answers

NOW, DUE, BEFORE = 1000, 900, 800


def facts(**known):
    return explanation.ObjectFacts(**{
        'now': NOW, 'stored': True, 'due': DUE, 'undecided': DUE,
        'newest': DUE, 'late_after': 50, **known})


def standing(tick=DUE, settled=None, by=None, state=State.DONE,
             holder='api~1', until=NOW + 50):
    return explanation.ClaimStanding(
        tick, tick if settled is None else settled, by, state, holder, until)


def waiting(state, **known):
    return standing(state=state, **known)


REASONS = [
    (Reason.JOB_UNKNOWN, facts(stored=False, defined=False)),
    (Reason.JOB_UNKNOWN, facts(stored=False)),
    (Reason.MEMBER_JOB, facts(stored=False, defined=True, of_members=True)),
    (Reason.NEVER_SCHEDULED, facts(stored=False, defined=True)),
    (Reason.DISABLED, facts(enabled=False)),
    (Reason.DISABLED, facts(enabled=False, claim=standing(BEFORE))),
    (Reason.OBJECT_UNKNOWN, facts()),
    (Reason.NOT_DUE_YET, facts(listed=True)),
    (Reason.NOT_LISTED, facts(listed=False)),
    (Reason.NOT_LISTED, facts(listed=False, claim=standing(BEFORE))),
    (Reason.PAUSED, facts(paused=True)),
    (Reason.PAUSED, facts(paused=True, claim=standing(BEFORE))),
    (Reason.PAUSED, facts(paused=True, object_paused=True)),
    (Reason.OBJECT_PAUSED, facts(object_paused=True)),
    (Reason.OBJECT_PAUSED, facts(
        object_paused=True, claim=standing(BEFORE))),
    (Reason.RAN, facts(claim=standing())),
    (Reason.RAN, facts(due=None, newest=None, claim=standing(BEFORE))),
    # The object ran for a trigger, not for a due tick.
    (Reason.RAN, facts(due=None, newest=NOW, claim=standing(NOW, BEFORE))),
    (Reason.NOBODY_CLAIMS, facts(newest=BEFORE,
                                 claim=standing(NOW, BEFORE))),
    # The outcome of a due tick is shown even if the object is delisted.
    (Reason.RAN, facts(listed=False, paused=True, claim=standing())),
    (Reason.DEAD, facts(claim=standing(state=State.DEAD))),
    (Reason.CANCELLED, facts(claim=standing(state=State.CANCELLED))),
    *((by, facts(claim=standing(BEFORE, DUE, why, state)))
      for (by, why), state in itertools.product(
          [(Reason.PASSED_OVER, SkippedBy.MISFIRE),
           (Reason.LOST, SkippedBy.LOST),
           (Reason.SKIPPED_BY_OVERLAP, SkippedBy.OVERLAP),
           (Reason.SKIPPED_BY_PAUSE, SkippedBy.PAUSE)],
          [State.DONE, State.DEAD, State.RUNNING])),
    # A skip that is older than the claimed tick is not the reason.
    (Reason.RAN, facts(claim=standing(DUE, DUE, SkippedBy.PAUSE))),
    *((Reason.RUNNING, facts(claim=waiting(State.RUNNING, tick=tick),
                             alive=alive))
      for tick in (BEFORE, DUE) for alive in (None, {'api~1'})),
    (Reason.WAITS_FOR_WORKER, facts(claim=waiting(State.CLAIMED))),
    *((Reason.LEASE_ENDED, facts(claim=waiting(state, until=NOW)))
      for state in (State.CLAIMED, State.RUNNING)),
    *((Reason.HOLDER_GONE, facts(claim=waiting(state), alive={'other~1'}))
      for state in (State.CLAIMED, State.RUNNING)),
    (Reason.WAITS_FOR_RETRY, facts(claim=waiting(State.RETRY, holder=''))),
    *((Reason.WAITS_FOR_SWEEP, facts(claim=claim)) for claim in (
        waiting(State.RETRY, holder='', until=NOW),
        waiting(State.CLAIMED, holder=''),
        waiting(State.RUNNING, holder='', until=None))),
    (Reason.NOT_LATE_YET, facts(now=DUE + 50, claim=standing(BEFORE))),
    # The object is late. Its lateness counts from its oldest undecided tick.
    (Reason.NOBODY_CLAIMS, facts(
        now=DUE + 50, claim=standing(BEFORE), undecided=DUE - 20,
        newest=BEFORE)),
    (Reason.NO_SCHEDULER, facts(schedulers=0, claim=standing(BEFORE))),
    (Reason.NOBODY_CLAIMS, facts(newest=BEFORE, claim=standing(BEFORE))),
    (Reason.LEFT_BEHIND, facts(claim=standing(BEFORE), schedulers=2)),
    # The object is listed, and was never claimed.
    (Reason.NOT_DUE_YET, facts(claim=standing(state=State.LISTED))),
    (Reason.LEFT_BEHIND, facts(claim=standing(BEFORE, state=State.LISTED))),
]


@pytest.mark.parametrize(('why', 'known'), REASONS)
def test_a_reason_follows_from_the_facts(why, known):
    assert explanation.reason_of(known) is why


def past(tick=600, counts=None, since=100, delisted=None, own=(), **known):
    return explanation.Past(**{
        'tick': tick,
        'claim': explanation.ClaimStanding(
            DUE, DUE, None, State.DONE, since=since, delisted=delisted),
        'previous': BEFORE, 'served': NOW, 'failed': 0,
        'counts': {Reason.RAN: 3} if counts is None else counts,
        'exceptions': ObjectPast(own, collections.Counter(
            known.pop('unknown', {}))), **known})


def exception(outcome, tick=600, after=599):
    return TickException(outcome, after, tick, 'api-1', NOW, '', 1, b'')


DIED, REQUEUE = exception('dead'), exception(REQUEUED)
PAST = [
    (past(), [Reason.RAN]),
    (past(counts={}), [Reason.NOBODY_CLAIMS]),
    (past(failed=1), [Reason.DEAD]),
    (past(begins=700), [Reason.PRUNED]),
    (past(tick=50), [Reason.NOT_LISTED]),
    (past(schedule_since=700), [Reason.OTHER_SCHEDULE]),
    # Other objects had other outcomes, and all of their ids are kept.
    (past(counts={Reason.RAN: 1, Reason.LOST: 2}), [Reason.RAN]),
    (past(own=[exception('by_pause')]), [Reason.SKIPPED_BY_PAUSE]),
    (past(own=[exception('by_lost', 700, 500)]), [Reason.LOST]),
    # The instant was no tick when the exception was recorded.
    (past(own=[exception('by_lost', 700, 500)], schedule_since=650),
     [Reason.OTHER_SCHEDULE]),
    (past(own=[exception('superseded')], schedule_since=650),
     [Reason.SUPERSEDED]),
    # Its first run began too late, and succeeded.
    (past(own=[exception(LATE)]), [Reason.RAN_LATE]),
    (past(own=[exception(LATE), DIED]), [Reason.DEAD]),
    (past(own=[exception(LATE)], counts={Reason.RAN: 1, Reason.LOST: 2},
          unknown={'by_lost': 2}), [Reason.RAN_LATE]),
    (past(own=[exception(LATE)], counts={Reason.RAN: 1, Reason.DEAD: 2},
          unknown={'dead': 2}), [Reason.DEAD, Reason.RAN]),
    # An operator requeued the dead object.
    (past(own=[DIED]), [Reason.DEAD]),
    (past(own=[DIED, REQUEUE]), [Reason.RAN]),
    (past(own=[DIED, REQUEUE], failed=1), [Reason.RAN]),
    (past(own=[DIED, REQUEUE, DIED]), [Reason.DEAD]),
    (past(own=[DIED, REQUEUE], failed=2), [Reason.DEAD]),
    (past(own=[DIED, REQUEUE, exception('cancelled')]), [Reason.CANCELLED]),
    (past(failed=1, unknown={REQUEUED: 1}), [Reason.DEAD, Reason.RAN]),
    (past(own=[DIED], unknown={REQUEUED: 1}), [Reason.DEAD, Reason.RAN]),
    # The ids of some objects are not kept.
    (past(counts={Reason.RAN: 1, Reason.LOST: 2}, unknown={'by_lost': 2}),
     [Reason.LOST, Reason.RAN]),
    (past(unknown={LATE: 2}), [Reason.RAN]),
    (past(own=[exception('by_pause')], unknown={'by_lost': 2}),
     [Reason.SKIPPED_BY_PAUSE]),
    # The last successful run came before that tick, or there was no successful
    # run.
    (past(unknown={'by_overlap': 1}, served=500 - EARLIEST),
     [Reason.SKIPPED_BY_OVERLAP]),
    (past(served=None), [Reason.NOBODY_CLAIMS]),
    # The object was claimed for that tick, so the tick was not skipped.
    (past(tick=BEFORE, unknown={'by_lost': 7}), [Reason.RAN]),
    (past(tick=BEFORE, counts={}, unknown={'superseded': 1, 'by_lost': 7}),
     [Reason.SUPERSEDED]),
    # The object was claimed for no tick between its last two claims.
    (past(tick=850, unknown={'by_lost': 1}), [Reason.LOST]),
    (past(tick=850), [Reason.NOBODY_CLAIMS]),
    # The listing of the object at that tick is not kept.
    (past(since=700, delisted=650), [Reason.NOT_RECORDED]),
    (past(since=700, previous=500), [Reason.NOT_RECORDED]),
    (past(since=700), [Reason.NOT_LISTED]),
    # An earlier row of the object may have been pruned.
    (past(since=700, rows_begin=601), [Reason.NOT_RECORDED]),
    (past(since=700, rows_begin=600), [Reason.NOT_LISTED]),
    (past(since=None, delisted=650), [Reason.NOT_RECORDED]),
    (past(since=None, delisted=550), [Reason.NOT_LISTED]),
    # It was claimed for the tick, and so it was listed.
    (past(tick=BEFORE, since=None, delisted=850), [Reason.RAN]),
    (past(since=None, delisted=650, own=[exception('by_pause')]),
     [Reason.SKIPPED_BY_PAUSE])]


@pytest.mark.parametrize(('known', 'expected'), PAST)
def test_the_outcome_of_an_earlier_tick_is_one_of_the_reasons_that_remain(
        known, expected):
    assert list(explanation.reasons_of(known)) == expected


def test_each_reason_is_returned_for_some_facts():
    earlier = {found[0] for _, found in PAST if len(found) == 1}
    assert set(Reason) - {why for why, _ in REASONS} - earlier == {
        Reason.ONE_OF_SEVERAL}, 'add a case with each new reason to REASONS'


def test_each_reason_has_a_sentence():
    assert set(Reason) - set(object_answers.SENTENCES) == set(), (
        'add a sentence to SENTENCES in operator/object_answers.py')


@pytest.mark.parametrize('state', list(State))
@pytest.mark.parametrize('due', [None, BEFORE, DUE, NOW + 100])
@pytest.mark.parametrize('until', [None, NOW - 1, NOW + 1])
def test_any_content_of_a_row_has_a_reason(state, due, until):
    for by, holder, listed in itertools.product(
            [None, *SkippedBy], ['', 'api~1'], [None, True, False]):
        for settled in BEFORE, DUE:
            told = explanation.reason_of(facts(
                due=due, undecided=None, listed=listed, claim=standing(
                    BEFORE, settled, by, state, holder, until)))
            assert told in Reason
            if state in ENDINGS:
                assert told is not Reason.RUNNING


@pytest.mark.parametrize('one', sorted(FINE))
def test_a_healthy_state_needs_no_operator(one):
    assert one not in (Reason.DEAD, Reason.LOST, Reason.PAUSED,
                       Reason.OBJECT_PAUSED, Reason.NOBODY_CLAIMS,
                       Reason.HOLDER_GONE)
