# SPDX-License-Identifier: Apache-2.0
"""Which expired leases a scheduler takes over, and from which holders."""


import pytest

from distperiodic.core.claim import UNBOUNDED
from distperiodic.core.claim import Authority
from distperiodic.core.claim import Claim
from distperiodic.core.claim import Lease
from distperiodic.core.claim import State
from distperiodic.core.claim_request import NewLease
from distperiodic.flow.counters import Counters
from distperiodic.flow.events import Released
from distperiodic.flow.leases import Book
from distperiodic.flow.procedure import start
from distperiodic.flow.scheduler import in_flight
from distperiodic.flow.scheduler import recovery
from tests.unit import world as worlds

SILENT = 10.0


class Store:
    """A store that returns expired leases, at most *limit* in one call."""

    def __init__(self):
        self.ended = []
        #: The holders passed as gone, for each call.
        self.gone = []
        self.held = set()

    def holders(self, jobs):
        return self.held

    def take_over_expired(self, request, into):
        self.gone.append(set(request.gone))
        taken, self.ended = (
            self.ended[:request.limit], self.ended[request.limit:])
        return taken


@pytest.fixture
def store():
    return Store()


@pytest.fixture
def queue(store):
    return worlds.StoreQueue(store)


@pytest.fixture
def book(queue):
    return Book(
        Authority.STORE, {'poll': worlds.job(objects=True)}, queue,
        grants_here=False, silence_timeout=SILENT)


@pytest.fixture
def clock():
    return worlds.Clock()


@pytest.fixture
def hand(book):
    return in_flight.InFlight(book.jobs, {}, counters=Counters(),
                              authorities={'poll': Authority.STORE})


@pytest.fixture
def again(book, clock, hand):
    return recovering(hand, book, clock)


def recovering(hand, book, clock, **wired):
    return recovery.SharedRecovery(
        hand, book, worlds.scheduler_wiring(clock, **wired),
        holder=lambda: 'me',
        new_lease=lambda: NewLease('lease', 'me', 60.0))


def leases(number):
    return [Lease(f'old-{n}', 'poll', 60, [
        Claim(f'object-{n}', 1, 1, 60)], State.CLAIMED)
            for n in range(number)]


def test_all_that_ended_is_taken_over_in_one_sweep(again, store, hand):
    store.ended = leases(250)

    again.take_over()

    assert hand.waiting == 250


def test_a_search_that_an_operator_requests_ends_with_all_leases(
        again, store, hand):
    store.ended = leases(250)
    ends = []

    again.search(lambda: ends.append(hand.waiting))

    assert ends == [250]
    assert again.taken('poll', 60) == 250
    assert again.taken('poll', 61) == 0


def test_a_search_in_progress_does_not_answer_a_later_request(
        again, store, queue, hand):
    """The search may have read the store before the operator changed the
    store.
    """
    queue.slow = True
    ends = []
    again.take_over()

    again.search(lambda: ends.append(hand.waiting))
    [(_, then, _)] = queue.asked
    queue.asked.clear()
    then([])
    store.ended = leases(3)
    assert ends == []
    queue.answer()

    assert ends == [3]


def test_a_search_that_fails_is_ended_by_a_later_one(again, queue, store):
    queue.slow = True
    ends = []
    again.search(lambda: ends.append(1))
    [(_, _, failed)] = queue.asked
    queue.asked.clear()
    failed()
    assert ends == []
    queue.slow = False

    again.take_over()

    assert ends == [1]


def test_retries_are_no_triggered_claims(again, store):
    store.ended = [one._replace(was=State.RETRY) for one in leases(1)]

    again.take_over()

    assert again.taken('poll', 60) == 0


def test_a_member_that_left_counts_as_gone_until_its_silence_would_show(
        again, store, clock):
    """The holder may still run, and may be cut off only from its group."""
    again.holder_gone('left')
    again.take_over()
    clock.advance(16)
    again.take_over()

    assert store.gone == [{'left'}, set()]


def test_a_holder_that_is_seen_in_its_group_is_not_gone(again, store):
    """The holder joined after this scheduler's last view of the group."""
    start(again.find_gone(lambda: set()))
    store.held = {'new', 'left'}
    start(again.find_gone(lambda: set()))

    again.holders_present({'new', 'me'})
    again.take_over()

    assert store.gone == [{'left'}]


def test_the_gone_members_are_determined_when_the_store_can_be_reached(
        again, store, queue):
    """While the store is unreachable, no process can renew its leases, so even
    live holders seem silent.
    """
    again.holder_gone('new')
    queue.slow = True
    again.take_over()
    again.holders_present({'new'})

    queue.answer()

    assert store.gone == [set()]


def test_a_claim_that_is_lost_too_often_is_reported_as_released(
        book, store, clock, hand):
    """A claim that is lost too often ends. The scheduler then handles a
    Released event.
    """
    events = []
    store.discard = lambda lease, keys, ending, reason: len(keys)
    again = recovering(hand, book, clock, put=events.append)
    store.ended = [Lease(
        'l', 'poll', 1, [Claim('a', 1, UNBOUNDED, 1)],
        State.RUNNING)]

    again.take_over()

    assert events == [Released(hand.queues['poll'].job, ['a'])]
    assert hand.waiting == 0
