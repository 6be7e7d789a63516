# SPDX-License-Identifier: Apache-2.0
"""The share of a limit that one scheduler uses."""

from distperiodic.core import adaptive_limit as bounds

BRIEF, LONG = 0.05, 20.0


class Bound:
    """A limit of 12 that three schedulers share: 4 runs each."""

    def __init__(self, shared=True):
        self.bound = bounds.AdaptiveLimit(12, shared=shared)
        self.now = 0.0
        self.held = 0

    def fill(self):
        """Send as many runs as the limit allows; return the number of runs
        that workers then hold.
        """
        room = self.bound.room(3, self.now)
        self.bound.give(room)
        self.held += room
        assert self.bound.room(3, self.now) == 0
        return self.held

    def end(self, seconds=LONG):
        self.bound.settle(1)
        self.held -= 1
        self.bound.ran(seconds, self.now)

    def refuse(self, runs=1):
        self.bound.settle(runs)
        self.held -= runs
        self.bound.refused(self.now, 0.5)


def grown():
    one = Bound()
    while one.fill() < 12:
        one.end()
    return one


def test_each_has_its_share_at_first():
    assert Bound().fill() == 4


def test_without_a_store_there_is_no_more_than_that():
    one = Bound(shared=False)
    for _ in range(30):
        assert one.fill() == 4
        one.end(BRIEF)


def test_a_scheduler_with_more_to_do_takes_the_share_that_others_leave():
    one = grown()

    for _ in range(30):
        one.end()
        assert one.fill() == 12


def test_a_scheduler_with_no_more_to_do_takes_no_more():
    one = Bound()
    one.bound.room(3, 0.0)
    one.bound.give(2)

    for _ in range(30):
        one.bound.give(1)
        one.end()

    assert one.bound.room(3, 0.0) == 2


def test_a_refusal_costs_only_the_refused_runs():
    one = grown()

    one.refuse()

    assert one.fill() == 11
    one.end()
    assert one.fill() == 11


def test_a_scheduler_that_was_refused_asks_for_more_later():
    one = grown()
    one.refuse()
    one.fill()

    one.now += bounds._ABOVE[1] * 1.5
    one.end()

    assert one.fill() == 12


def test_a_scheduler_with_less_than_its_share_asks_for_more_soon():
    one = Bound()
    one.fill()
    one.refuse(4)
    assert one.fill() == 0

    for _ in range(10):
        one.now += bounds._BELOW[1]
        one.fill()

    assert one.held == 4


def test_refusals_in_a_row_are_ever_rarer():
    one = Bound()
    one.fill()
    one.refuse(4)
    refused = 0
    while one.now < 10.0:
        one.now += 0.05
        if one.fill():
            one.refuse(one.held)
            refused += 1

    assert 5 <= refused <= 15


def test_brief_runs_are_sent_ahead_of_free_slots():
    one = grown()

    one.end(BRIEF)
    assert one.fill() == 24

    one.end(LONG)
    assert one.fill() == 23


def test_nothing_is_sent_ahead_of_nothing():
    """If a scheduler sent runs ahead while workers hold none of its runs, it
    would send them again after each refusal, without a pause.
    """
    one = Bound()
    one.fill()
    one.end(BRIEF)
    one.fill()

    one.refuse(one.held)

    assert one.fill() == 0


def test_other_schedulers_make_other_shares():
    one = Bound()
    one.fill()

    assert one.bound.room(1, 0.0) == 8
    assert one.bound.room(4, 0.0) == 0
