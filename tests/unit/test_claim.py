# SPDX-License-Identifier: Apache-2.0
"""The table of moves: which moves each state of a claim allows.

tests/conformance/test_claim_store.py tests that every store obeys the table.
"""

import itertools

import pytest

from distperiodic.core import claim
from distperiodic.core.claim import Move
from distperiodic.core.claim import State

#: The moves that each state allows; all others are rejected. This copy of the
#: table is the specification, and the product's table must agree with it.
ALLOWED = {
    State.LISTED: {Move.CLAIM},
    State.CLAIMED: {Move.START, Move.BURY, Move.RECLAIM, Move.SKIP,
                    Move.SUPERSEDE, Move.CANCEL},
    State.RUNNING: {Move.FINISH, Move.RETRY, Move.BURY, Move.RECLAIM,
                    Move.COMMIT, Move.CANCEL},
    State.COMMITTED: {Move.COUNT},
    State.RETRY: {Move.TAKE_OVER, Move.CANCEL},
    State.DONE: {Move.CLAIM},
    State.DEAD: {Move.CLAIM, Move.REQUEUE},
    State.SKIPPED: {Move.CLAIM},
    State.SUPERSEDED: {Move.CLAIM},
    State.CANCELLED: {Move.CLAIM},
}


@pytest.mark.parametrize('state,move', list(itertools.product(State, Move)),
                         ids=lambda value: value.value)
def test_a_move_is_allowed_from_these_states_and_no_others(state, move):
    assert claim.allowed(move, state) is (move in ALLOWED[state])


def test_every_state_is_entered_by_a_move_and_no_ending_is_a_dead_end():
    entered = {into for _, into in claim.MOVES.values()}

    # A row begins as LISTED, and no move leads back to this state.
    assert entered == set(State) - {State.LISTED}
    for state in State:
        assert any(claim.allowed(move, state) for move in Move), state


def test_only_a_later_tick_or_an_operator_leaves_an_ending():
    assert {state: moves - {Move.REQUEUE} for state, moves in ALLOWED.items()
            if state in claim.ENDINGS} == {
        state: {Move.CLAIM} for state in (
            State.DONE, State.DEAD, State.SKIPPED, State.SUPERSEDED,
            State.CANCELLED)}


def test_only_a_dead_claim_is_requeued():
    """A claim that ended in another state has no reason to run again."""
    assert [state for state in State
            if claim.allowed(Move.REQUEUE, state)] == [State.DEAD]


def test_a_claim_that_ran_is_never_left_for_a_later_tick():
    """If a newer tick were claimed meanwhile, the object's runs would overlap.
    """
    for state in (State.RUNNING, State.RETRY):
        assert not claim.allowed(Move.SUPERSEDE, state)
        assert not claim.allowed(Move.CLAIM, state)


def test_each_ending_has_the_move_that_leads_to_it():
    assert {state: claim.MOVES[move][1]
            for state, move in claim.ENDING_MOVES.items()} == {
        state: state for state in claim.ENDINGS}


def test_no_two_grants_have_one_lease():
    names = {claim.granted_lease(lease, batch)
             for lease in ('1', '2', '12') for batch in ('1', '2', '21')}

    assert len(names) == 9
