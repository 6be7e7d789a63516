# SPDX-License-Identifier: Apache-2.0
"""Turns of schedulers at a worker with fewer slots than schedulers."""

import pytest

from distperiodic.core import message
from distperiodic.flow.worker.held_runs import HeldRuns

WORKER = 'worker~0000000000000000~1~f1.t1.s1'


class Slots:
    """A worker with few slots, and the runs that schedulers send to it."""

    def __init__(self, slots=1):
        self.slots = slots
        self.held = HeldRuns(lambda: self.slots)
        self.now = 0.0

    def send(self, *senders, waiting=1):
        for sender in senders:
            self.held.accept(message.Batch(
                '1', 'poll', 0, ['a'], [1], [1], sender, WORKER, 'lease',
                waiting=waiting), self.now)

    def end(self, *senders):
        """End a run of each of *senders*, and return the numbers of slots
        that these may use, by the reports on the runs.
        """
        found = []
        for sender in senders:
            self.held.end(sender, 1, self.now)
            found.append(self.free(sender))
        return found

    def free(self, sender):
        others = self.held.announce(sender, self.now)
        return None if others is None else max(0, self.slots - others)

    def turns(self):
        told = self.held.turns(self.now)
        assert all(worker == WORKER for _, worker in told)
        return [sender for sender, _ in told]

    def later(self, seconds=1.0):
        self.now += seconds


@pytest.fixture
def crowd():
    """Three schedulers with more work, whose runs at the slot have ended."""
    slots = Slots()
    slots.send('a', 'b', 'c')
    for sender in 'abc':
        slots.later(2.0)
        assert slots.end(sender) == [0]
    return slots


def test_the_slot_goes_to_the_scheduler_that_has_asked_first(crowd):
    for sender in 'abcabc':
        assert crowd.turns() == [sender]
        assert crowd.free(sender) == 1
        assert crowd.turns() == []
        crowd.send(sender)
        assert crowd.free(sender) == 0
        crowd.later(2.0)
        crowd.end(sender)


def test_no_scheduler_gets_a_turn_while_runs_wait_for_the_slot():
    slots = Slots()
    slots.send('a', 'b', 'c')

    assert slots.end('a') == [0]
    assert slots.turns() == []
    assert slots.end('b') == [0]
    assert slots.turns() == []


def test_each_free_slot_goes_to_another_scheduler():
    slots = Slots(2)
    slots.send('a', 'b', 'c', 'd')
    assert slots.end('a', 'b', 'c', 'd') == [0, 0, 0, 0]

    assert slots.turns() == ['a', 'b']
    assert slots.held.asking() == [('c', WORKER), ('d', WORKER)]


def test_a_turn_that_is_not_used_goes_to_the_next_scheduler(crowd):
    assert crowd.turns() == ['a']
    crowd.later(0.2)
    assert crowd.turns() == []
    crowd.later(0.2)

    assert crowd.turns() == ['a', 'b']
    # The slot is still used as before. So it may send a run, like a scheduler
    # that begins.
    assert crowd.free('a') is None


def test_a_scheduler_without_more_work_takes_no_turns():
    slots = Slots()
    slots.send('a', 'b', 'c', waiting=0)

    assert slots.end('a', 'b', 'c') == [None, None, None]
    assert slots.turns() == slots.held.asking() == []


def test_a_scheduler_without_more_work_does_not_pass_those_that_have_asked():
    slots = Slots()
    slots.send('a')
    slots.send('b', waiting=0)
    assert slots.end('a', 'b') == [0, 0]

    assert slots.turns() == ['a']
    slots.send('a')
    slots.later()
    slots.end('a')
    # It may have no more work, so the slot does not wait for it.
    assert slots.turns() == ['b', 'a']
    assert slots.held.asking() == []


def test_the_slot_waits_for_a_scheduler_that_has_used_a_turn():
    """Otherwise its next run would wait until a run of another one ends."""
    slots = Slots()
    slots.send('a')
    slots.send('b', waiting=0)
    slots.end('a', 'b')
    assert slots.turns() == ['a']
    slots.send('a')
    slots.later()
    slots.end('a')
    assert slots.turns() == ['b', 'a']

    slots.send('b', 'a', waiting=0)
    for sender in 'ba':
        slots.later()
        slots.end(sender)

    assert slots.turns() == ['b']
    slots.later(0.4)
    assert slots.turns() == ['b', 'a']


def test_a_scheduler_does_not_learn_of_full_slots_and_then_stay_silent():
    """Nothing would tell it later that the slots are free."""
    slots = Slots(2)
    slots.send('a', 'a', 'b', waiting=0)
    slots.later()

    assert slots.end('b') == [None]
    slots.send('b')
    slots.later()
    assert slots.end('b') == [None]
    assert slots.held.asking() == []


def test_schedulers_that_all_have_a_slot_take_no_turns():
    slots = Slots(3)
    slots.send('a', 'b', 'c')
    slots.later()

    assert slots.end('a') == [1]
    assert slots.turns() == slots.held.asking() == []


def test_the_last_scheduler_with_work_uses_the_slot_again(crowd):
    assert crowd.turns() == ['a']
    crowd.send('a')
    crowd.later(2.0)
    crowd.end('a')
    for *_, sender in 'b', 'bc', 'ca':
        assert crowd.turns()[-1] == sender
        crowd.later()
    crowd.turns()
    crowd.held.outdated(crowd.now)

    crowd.send('a')
    crowd.later(2.0)
    assert crowd.end('a') == [1]
