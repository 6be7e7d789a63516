# SPDX-License-Identifier: Apache-2.0
"""Behaviour that is specific to the store in memory. The tests that all stores
must pass are in tests/conformance/.
"""

import random

import pytest

from distperiodic.adapters.local.inline_queue import InlineStoreQueue
from distperiodic.adapters.local.memory import MemoryClaimStore
from distperiodic.core.claim import ENDINGS
from distperiodic.core.claim import Failure
from distperiodic.core.claim import HeldLease
from distperiodic.core.claim import State
from distperiodic.core.claim_request import NewLease
from distperiodic.core.claim_request import TakeOverRequest
from tests import claiming
from tests.kept import kept
from tests.unit.world import Clock

MINUTE = 60_000_000
TICK = 28_333_333 * MINUTE
LONG = 600.0


class Owner:
    """A process that claims and runs objects in a store of its own."""

    def __init__(self):
        self.clock = Clock()
        self.store = MemoryClaimStore(self.clock)
        self.names = 0

    def name(self):
        self.names += 1
        return f'lease-{self.names}'

    def claim(self, tick, *objects):
        """Claim objects; return the lease, and the claims that were acquired.
        """
        lease = self.name()
        return lease, claiming.claim(self.store, 'poll', tick, objects,
                                     lease=lease, holder='me', seconds=LONG,
                                     supersede=True).won

    def claim_one(self, tick, key='a'):
        """Claim one object; return the claim, or None if it was not acquired.
        """
        _, won = self.claim(tick, key)
        return won[0] if won else None

    def start(self, tick, lease, objects):
        into = self.name()
        granted = self.store.start(
            HeldLease(lease, 'poll', tick), objects, NewLease(into, 'w', LONG))
        assert [one.object for one in granted] == list(objects)
        return into

    def run(self, tick, *objects):
        """Claim objects for *tick* and run them successfully; return the
        claims.
        """
        lease, won = self.claim(tick, *objects)
        keys = [one.object for one in won]
        into = self.start(tick, lease, keys)
        assert self.store.finish(
            HeldLease(into, 'poll', tick), keys) == {*keys}
        return won

    def end(self, tick, key, state):
        """Claim an object and bring the claim to *state*."""
        lease, [one] = self.claim(tick, key)
        if state in (State.SKIPPED, State.SUPERSEDED, State.CANCELLED):
            assert self.store.discard(
                HeldLease(lease, 'poll', tick), [key], state) == 1
        elif state is not State.CLAIMED:
            into = self.start(tick, lease, [key])
            if state is State.DONE:
                assert self.store.finish(HeldLease(into, 'poll', tick), [key])
            elif state in (State.DEAD, State.RETRY):
                assert self.store.fail(
                    HeldLease(into, 'poll', tick), [Failure(key, 'no')],
                    None if state is State.DEAD
                    else NewLease(self.name(), '', 0.0))
        return one

    def reclaim(self, tick, key, lease):
        into = self.name()
        [anew] = self.store.reclaim(
            [HeldLease(lease, 'poll', tick)], [key],
            NewLease(into, 'me', LONG))
        return into, anew


@pytest.fixture
def owner():
    return Owner()


# -- fences are derived from ticks

def test_stores_of_two_members_give_fences_that_grow_by_time():
    """When an object moves, its new owner has no record of the object's
    earlier claims.
    """
    first = Owner().claim_one(TICK)
    second = Owner().claim_one(TICK + 1_000_000)

    assert second.fence > first.fence
    assert second.fence < 1 << 63


def test_a_fence_grows_where_an_object_was_given_out_for_ever(owner):
    lease, [one] = owner.claim(TICK, 'a')
    for _ in range(1000):
        lease, one = owner.reclaim(
            TICK, 'a', owner.start(TICK, lease, ['a']))
    owner.store.finish(
        HeldLease(owner.start(TICK, lease, ['a']), 'poll', TICK), ['a'])

    later = owner.claim_one(TICK + 1000)

    assert later.fence > one.fence
    assert one.attempt == 1001


@pytest.mark.parametrize('seed', range(30))
def test_the_fence_of_an_object_only_grows(seed):
    """The object has retries, lost runs and later ticks, and the clock steps
    back.
    """
    chance = random.Random(seed)
    owner = Owner()
    tick, newest, lease, state = TICK, -1, None, 'ended'
    for _ in range(2000):
        one = None
        if state in ('ended', 'claimed'):
            tick += chance.choice([1, 999, 1000, 1001, MINUTE, MINUTE])
            if chance.random() < 0.02:
                tick -= chance.randint(2, 500) * MINUTE
            lease, won = owner.claim(tick, 'a')
            if not won:
                state = 'ended'
                continue
            one, state = won[0], 'claimed'
        else:
            what = chance.random()
            if what < 0.4:
                lease, one = owner.reclaim(tick, 'a', lease)
                state = 'claimed'
            elif what < 0.7:
                assert owner.store.fail(
                    HeldLease(lease, 'poll', tick), [Failure('a', 'no')],
                    NewLease(owner.name(), '', 1.0))
                owner.clock.advance(60)
                [again] = owner.store.take_over_expired(
                    TakeOverRequest(['poll'], [], 9),
                    NewLease(owner.name(), 'me', LONG))
                lease, [one] = again.id, again.claims
                state = 'claimed'
            else:
                assert owner.store.finish(
                    HeldLease(lease, 'poll', tick), ['a'])
                state = 'ended'
                continue
        if chance.random() < 0.8:
            lease = owner.start(tick, lease, ['a'])
            state = 'running'
        assert one.fence > newest
        newest = one.fence
    assert newest > 0


# -- a clock that is set back

@pytest.mark.parametrize('state', sorted(
    {State.CLAIMED, *ENDINGS}, key=lambda state: state.value))
def test_after_the_clock_was_set_back_an_object_goes_on_and_its_fence_grows(
        owner, state):
    """If the claim were rejected, the object would not run until the clock had
    caught up.
    """
    before = owner.end(TICK, 'a', state)

    [after] = owner.run(TICK - 60 * MINUTE, 'a')
    [again] = owner.run(TICK - 59 * MINUTE, 'a')

    assert before.fence < after.fence < again.fence
    assert owner.claim_one(TICK - 59 * MINUTE) is None


@pytest.mark.parametrize('state', [State.RUNNING, State.RETRY])
def test_an_object_that_runs_while_the_clock_is_set_back_does_not_run_twice(
        owner, state):
    owner.end(TICK, 'a', state)

    claimed = claiming.claim(owner.store, 'poll', TICK - 60 * MINUTE, ['a'],
                             lease='l', holder='me', seconds=LONG,
                             supersede=True)

    assert (claimed.won, claimed.busy) == ([], ['a'])


@pytest.mark.parametrize('hours', [-24, -1, 1, 24])
def test_a_clock_that_is_set_ends_no_lease_and_holds_none(owner, hours):
    """Leases expire by the monotonic clock."""
    lease, _ = owner.claim(TICK, 'a')
    owner.clock.set_back(hours * 3600)

    owner.clock.advance(LONG - 1)
    assert owner.store.take_over_expired(
        TakeOverRequest(['poll'], [], 9),
        NewLease(owner.name(), 'me', LONG)) == []
    owner.clock.advance(2)

    [taken] = owner.store.take_over_expired(
        TakeOverRequest(['poll'], [], 9), NewLease(owner.name(), 'me', LONG))
    assert [one.object for one in taken.claims] == ['a']


# -- use of memory

@pytest.mark.parametrize('ticks', [
    40, pytest.param(100, marks=pytest.mark.full)])
def test_objects_that_are_gone_are_forgotten_and_fences_still_grow(
        owner, ticks):
    """A thousand objects come and go at each tick, and one stays."""
    fences = {}
    for number in range(ticks):
        tick = TICK + number * MINUTE
        gone = [f'{number}-{n}' for n in range(1000)]
        for one in owner.run(tick, 'stays', *gone):
            assert one.fence > fences.get(one.object, 0)
            fences[one.object] = one.fence
        owner.store.sync('poll', [], gone, readings=[tick])

    assert kept(owner.store, str) < 15_000
    # The fence also grows for an earlier tick, as after a step back of the
    # clock.
    assert owner.claim_one(TICK - MINUTE, '0-0').fence > fences['0-0']


def test_an_open_claim_is_not_forgotten(owner):
    lease, [claimed] = owner.claim(TICK, 'kept')
    owner.store.sync('poll', [], ['kept'], readings=[TICK])
    for number in range(1, 30):
        tick = TICK + number * MINUTE
        gone = [f'{number}-{n}' for n in range(1000)]
        owner.run(tick, *gone)
        owner.store.sync('poll', [], gone, readings=[tick])

    assert kept(owner.store, str) < 25_000
    assert owner.store.start(
        HeldLease(lease, 'poll', TICK), ['kept'],
        NewLease('into', 'w', LONG))[0][:4] == claimed[:4]


def test_no_lease_is_kept_of_claims_that_have_ended(owner):
    for number, state in enumerate([
            State.DONE, State.DEAD, *ENDINGS]):
        owner.end(TICK + number * MINUTE, 'a', state)
    owner.run(TICK + 1000 * MINUTE, *(f'object-{n}' for n in range(100)))
    owner.claim(TICK + 2000 * MINUTE, 'a')
    owner.claim(TICK + 3000 * MINUTE, 'a')

    # Only the lease of the newest claim is left, which no worker has started.
    every = [f'lease-{n}' for n in range(1, owner.names + 1)]
    assert [owner.store.renew(every, holder=holder, seconds=LONG)
            for holder in ('me', 'w')] == [{every[-1]}, set()]


# -- calls in the flow's own thread

def test_a_store_in_the_flow_s_own_thread_answers_at_once(owner):
    direct = InlineStoreQueue(owner.store)
    answers = []

    direct.submit(lambda store: claiming.claim(
        store, 'poll', TICK, ['a'], lease='l', holder='me', seconds=LONG,
        supersede=True), answers.append)

    assert [one.object for one in answers[0].won] == ['a']
    assert not direct.away


def test_an_answer_may_ask_again(owner):
    direct = InlineStoreQueue(owner.store)
    asked = []

    direct.submit(lambda store: asked.append(1),
                  lambda _: direct.submit(lambda store: asked.append(2),
                                          lambda _: asked.append(3)))

    assert asked == [1, 2, 3]
