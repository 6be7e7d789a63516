# SPDX-License-Identifier: Apache-2.0
"""Membership: guarantees of every coordination service.

The first tests cover the port. A process without a coordination service must
pass these tests, too. The other tests cover guarantees for groups of
processes. tests/functional/test_coordinator.py has tests for ZooKeeper alone.
"""

import contextlib
import signal
import threading
import time
import uuid

import pytest

from distperiodic import coordinator
from distperiodic import exceptions
from distperiodic.adapters.coordination.membership import Announced
from distperiodic.adapters.coordination.membership import ToozMembership
from distperiodic.adapters.coordination.solo import SoloMembership
from distperiodic.adapters.coordination.term import TermLost
from distperiodic.adapters.local.clock import SystemClock
from distperiodic.core import ring
from distperiodic.core.job_set import JobSet
from tests import members
from tests.services import ports
from tests.unit.world import job
from tests.waiting import wait_until

CLOCK = SystemClock()
#: Session timeout in seconds, above the minimum of each server.
SESSION = 2
#: Session timeout in seconds of members that must never doubt their view. They
#: doubt it if a confirmation is late by a third of the session.
CALM = 6
SOON = 20.0
OBJECTS = members.OBJECTS


@pytest.fixture(params=['file', 'zookeeper', 'redis', 'etcd'])
def url(request, tmp_path):
    if request.param == 'file':
        return f'file://{tmp_path}/state'
    return request.getfixturevalue(request.param).url


@pytest.fixture
def group():
    return f'test-{uuid.uuid4().hex[:8]}'


@pytest.fixture
def closing():
    with contextlib.ExitStack() as closing:
        yield closing


@pytest.fixture
def enter(url, group, closing):
    """Return a function that puts a member of this process into the group."""
    def enter(identity, start=True, points=40, **options):
        one = Noted(url, group, identity, points, **options)
        closing.callback(one.stop, 1.0)
        if start:
            one.start()
            one.wait_joined(SOON)
        return one
    return enter


@pytest.fixture
def spawn(url, group, closing):
    """Return a function that starts a process with a member of the group."""
    def spawn(identity):
        one = closing.enter_context(members.Process(
            url, group, identity, session_timeout=SESSION,
            heartbeat_interval=0.2))
        one.do('start')
        return one
    return spawn


class Noted(ToozMembership):
    """A membership that records the views which it passes to callbacks."""

    def __init__(self, url, group, identity, points, join=True, *,
                 slots=0, jobs=None, **options):
        options = {'session_timeout': SESSION, 'heartbeat_interval': 0.2,
                   **options}
        super().__init__(url, identity, clock=CLOCK,
                         announced=Announced(points, slots, jobs), **options)
        self.group = group
        self.told = []
        (self.join if join else self.watch)(group, self.told.append)

    @property
    def now(self):
        return self.view(self.group)

    @property
    def sure(self):
        try:
            return self.now.trusted(CLOCK.monotonic())
        except exceptions.ViewUnknown:
            return False

    def knows(self, *identities):
        return self.sure and names(self.now) == list(identities)

    def wait(self, *identities, timeout=SOON):
        wait_until(lambda: self.knows(*identities), timeout,
                   f'{self.identity} did not see {identities}')


def names(view):
    return [one.identity for one in view.members]


def covered(one):
    """Return True if the members' arcs cover the whole ring."""
    arcs = sorted(arc for name in one.members for arc in one.arcs(name))
    return (arcs[0].low == ring.MIN_POSITION
            and arcs[-1].high == ring.MAX_POSITION
            and all(left.high + 1 == right.low for left, right in zip(
                arcs, arcs[1:], strict=False)))


# The port.

@pytest.fixture(params=['alone', 'file', 'zookeeper', 'redis', 'etcd'])
def anyhow(request, tmp_path, group, closing):
    """A membership of one process, with any service or without one."""
    if request.param == 'alone':
        return SoloMembership('a', 40, clock=CLOCK)
    url = (f'file://{tmp_path}/state' if request.param == 'file'
           else request.getfixturevalue(request.param).url)
    one = Noted(url, group, 'a', 40)
    closing.callback(one.stop, 1.0)
    one.start()
    one.wait_joined(SOON)
    return one


def test_a_single_member_owns_everything_and_trusts_its_view(anyhow, group):
    view = anyhow.view(group)

    assert names(view) == ['a']
    assert view.me == view.members[0]
    assert view.me.points == 40
    assert view.version == 1
    assert view.since <= CLOCK.monotonic()
    assert view.trusted(CLOCK.monotonic())
    assert view.ring.members == {'a': 40}
    assert view.ring.arcs('a') == (
        ring.Arc(ring.MIN_POSITION, ring.MAX_POSITION),)


def test_a_request_for_the_view_uses_no_network(anyhow, group):
    began = time.monotonic()
    for _ in range(20_000):
        anyhow.view(group)

    # A request over the network would take at least 0.2 ms.
    assert time.monotonic() - began < 2.0


# Groups.

def test_a_view_is_not_known_before_there_was_an_answer(enter, group):
    one = enter('a', start=False)

    with pytest.raises(exceptions.ViewUnknown, match=group):
        one.view(group)


def test_members_see_each_other_and_agree(enter):
    crowd = [enter(name, points=points) for name, points in (
        ('a', 40), ('b', 80), ('c', 1))]

    for one in crowd:
        one.wait('a', 'b', 'c')

    rings = [one.now.ring for one in crowd]
    assert all(one.members == {'a': 40, 'b': 80, 'c': 1} for one in rings)
    assert covered(rings[0])
    for o in OBJECTS:
        assert len({one.owner_of(o) for one in rings}) == 1
    for one in crowd:
        assert one.now.me.identity == one.identity
        assert one.now.me.entry == one.me.entry


def test_the_ring_of_a_job_consists_of_the_members_with_that_job(enter):
    """The members learn the jobs of another release from one of its members.
    """
    old, new = (JobSet.of([job(name) for name in names])
                for names in (['poll', 'gone'], ['poll', 'sync']))
    crowd = [enter(name, jobs=jobs) for name, jobs in (
        ('a', old), ('b', old), ('c', new), ('d', None))]

    for one in crowd[:3]:
        one.wait(*'abcd')
        assert one.now.ring_of('poll').members == dict.fromkeys('abc', 40)
        assert one.now.ring_of('gone').members == dict.fromkeys('ab', 40)
        assert one.now.ring_of('sync').members == {'c': 40}
    rings = [one.now.ring_of('sync') for one in crowd[:3]]
    new_too = enter('e', jobs=new)
    for one in (*crowd[:3], new_too):
        one.wait(*'abcde')
    crowd[0].publish(points=7)
    for one in (*crowd[:3], new_too):
        wait_until(lambda one=one: one.now.ring.members['a'] == 7, SOON)
        assert one.now.ring_of('sync').members == {'c': 40, 'e': 40}
        assert one.now.ring_of('gone').members == {'a': 7, 'b': 40}

    new_too.stop()

    for one, ring_before in zip(crowd[:3], rings, strict=True):
        one.wait(*'abcd')
        assert one.now.ring_of('sync').members == ring_before.members


def test_a_member_that_leaves_is_removed_and_the_others_take_over(enter):
    a, b, c = (enter(name) for name in 'abc')
    for one in (a, b, c):
        one.wait('a', 'b', 'c')
    before = a.now.ring

    c.stop()

    for one in (a, b):
        one.wait('a', 'b', timeout=SESSION / 2 + 1.0)
        for o in OBJECTS:
            if before.owner_of(o) != 'c':
                assert one.now.ring.owner_of(o) == before.owner_of(o)
    with pytest.raises(exceptions.CoordinationUnavailable):
        c.wait_joined(0.1)
    assert not c.sure


def test_a_killed_member_is_removed_within_the_session(
        enter, spawn, record_property):
    a = enter('a')
    b = spawn('b')
    a.wait('a', 'b')

    killed = b.kill()
    a.wait('a')

    seconds = time.monotonic() - killed
    record_property('seconds', round(seconds, 2))
    assert seconds < SESSION + 1.0 + 4.0


def test_a_frozen_member_trusts_no_view_until_it_is_back(enter, spawn):
    a = enter('a')
    b = spawn('b')
    a.wait('a', 'b')
    before = b.do('entry')
    wait_until(lambda: any(one.known for one in b.asked()))

    b.freeze()
    a.wait('a')
    taken_over = time.monotonic()
    thawed = b.signal(signal.SIGCONT)
    a.wait('a', 'b')

    asked = b.asked_until_sure(taken_over)
    good = [one for one in asked if one.known and one.at > taken_over]
    assert [one for one in good if one.entry == before] == []
    assert any(not one.known for one in asked if one.at > thawed)
    assert any(not one.known for one in asked if one.at < good[0].at)
    wait_until(lambda: sorted(b.do('subset') + [
        o for o in OBJECTS if a.now.ring.owner_of(o) == 'a'
    ]) == sorted(OBJECTS))


@pytest.mark.parametrize('url', ['file', 'redis', 'etcd'], indirect=True)
def test_a_heartbeat_after_a_long_silence_ends_the_term(enter, closing):
    """A process may be suspended just before it sends a heartbeat. When it
    goes on, the service would accept the heartbeat.
    """
    one = enter('a', start=False)
    term = one._open()
    closing.callback(term.close)
    term.connect()
    term.confirm()
    term.heard -= SESSION

    with pytest.raises(TermLost, match='no heartbeat for too long'):
        term.confirm()


def test_an_idle_member_stays_in_its_group(enter):
    a, b = (enter(name, session_timeout=CALM) for name in 'ab')
    for one in (a, b):
        one.wait('a', 'b')
    told = [len(one.told) for one in (a, b)]
    entries = [one.me.entry for one in (a, b)]

    until = time.monotonic() + 1.5 * CALM
    while time.monotonic() < until:
        assert a.knows('a', 'b')
        assert b.knows('a', 'b')
        time.sleep(0.01)

    assert [len(one.told) for one in (a, b)] == told, 'no change'
    assert [one.me.entry for one in (a, b)] == entries


def test_a_listener_is_called_for_each_change(enter):
    # The views of a member whose session expired would be further changes.
    a, b = (enter(name, session_timeout=CALM) for name in 'ab')
    a.wait('a', 'b')
    b.stop()

    wait_until(lambda: [names(view) for view in a.told] == [
        ['a'], ['a', 'b'], ['a']])
    assert [view.version for view in a.told] == [1, 2, 3]
    assert a.told[0].since < a.told[1].since < a.told[2].since


def test_a_listener_that_fails_harms_no_other(enter, group):
    a = enter('a', start=False)
    a.join(group, lambda view: 1 / 0)
    a.start()
    a.wait_joined(SOON)

    enter('b').wait('a', 'b')

    a.wait('a', 'b')


def test_a_member_that_leaves_one_group_goes_on_watching(enter, group):
    a, b = enter('a'), enter('b')
    a.wait('a', 'b')
    b.wait('a', 'b')

    b.leave(group, SOON)

    assert not b.sure
    a.wait('a', timeout=SESSION / 2 + 1.0)
    wait_until(lambda: names(b.now) == ['a'])
    c = enter('c')
    wait_until(lambda: names(b.now) == ['a', 'c'])
    assert b.now.me is None
    c.stop()
    wait_until(lambda: names(b.now) == ['a'])


def test_to_watch_a_group_is_not_to_be_in_it(enter):
    a = enter('a')
    watcher = enter('watcher', join=False)

    wait_until(lambda: names(watcher.now) == ['a'])
    b = enter('b')
    wait_until(lambda: names(watcher.now) == ['a', 'b'])
    b.wait('a', 'b')
    a.wait('a', 'b')
    assert watcher.now.me is None
    assert not watcher.sure


def test_a_member_without_points_is_in_the_group_and_not_on_the_ring(enter):
    a = enter('a')
    worker = enter('w', points=0, slots=7)

    a.wait('a', 'w')

    assert a.now.ring.members == {'a': 40}
    assert [one.slots for one in a.now.members] == [0, 7]
    worker.publish(slots=9)
    wait_until(lambda: [one.slots for one in a.now.members] == [0, 9])
    assert a.now.ring.members == {'a': 40}


def test_changed_points_are_no_gap(enter):
    a, b = (enter(name, session_timeout=CALM) for name in 'ab')
    for one in (a, b):
        one.wait('a', 'b')
    told = len(b.told)
    over = threading.Event()
    doubts = []

    def doubt():
        while not over.wait(0.001):
            if not a.sure:
                doubts.append(time.monotonic())
    doubter = threading.Thread(target=doubt)
    doubter.start()

    a.publish(points=80)
    for one in (a, b):
        wait_until(lambda one=one: one.now.ring.members
                   == {'a': 80, 'b': 40})
    over.set()
    doubter.join()

    assert doubts == []
    assert a.me.tenure == 1
    for view in b.told[told:]:
        assert names(view) == ['a', 'b']
        assert view.ring.members['a'] in (40, 80)


def test_a_second_member_of_the_same_name_is_refused(enter):
    first = enter('a')
    second = enter('a', start=False)
    second.start()

    with pytest.raises(exceptions.DuplicateMember, match="'a' is in use"):
        second.wait_joined(SOON)

    assert first.knows('a')
    assert first.me.tenure == 1
    first.stop()
    second.wait('a')


def test_a_member_that_waits_for_its_name_can_leave_at_once(enter, group):
    first = enter('a')
    second = enter('a', start=False)
    second.start()
    wait_until(lambda: isinstance(
        second.problem, exceptions.DuplicateMember), SOON)

    second.leave(group, SOON)

    wait_until(second.joined, SESSION)
    assert names(second.now) == ['a']
    assert second.now.me is None
    assert first.knows('a')


def test_a_member_that_is_started_again_finds_its_old_place(enter):
    a, b = enter('a'), enter('b')
    a.wait('a', 'b')
    mine = a.now.ring.arcs('b')
    b.stop()
    a.wait('a')

    enter('b').wait('a', 'b')
    a.wait('a', 'b')

    assert a.now.ring.arcs('b') == mine


def test_a_ring_gives_each_object_to_one_member(url, group, closing):
    rings = []
    for name in 'abc':
        one = coordinator.HashRing(
            url, group, member_id=name, session_timeout=SESSION,
            heartbeat_interval=0.2)
        closing.callback(one.stop, 1.0)
        one.start()
        rings.append(one)
    for one in rings:
        wait_until(lambda one=one: one.get_members(group) == ['a', 'b', 'c'])

    parts = [one.get_subset(OBJECTS) for one in rings]

    assert all(parts)
    assert sorted(o for part in parts for o in part) == sorted(OBJECTS)


def test_stopping_is_quick_and_can_be_repeated(enter):
    one = enter('a')

    began = time.monotonic()
    one.stop()
    one.stop()

    assert time.monotonic() - began < 3.0


# Unreachable services.

NOWHERE = f'{ports.HOST}:{ports.free_port()}'


@pytest.mark.parametrize('url', [
    f'zookeeper://{NOWHERE}', f'redis://{NOWHERE}', f'etcd3+http://{NOWHERE}',
    'file:///proc/no-such-place/state', 'file:///dev/null/state'],
    ids=['zookeeper', 'redis', 'etcd3', 'no place', 'no directory'])
def test_an_unreachable_server_is_reported_in_one_line_within_a_bound(
        url, caplog):
    one = coordinator.HashRing(url, 'g', session_timeout=1,
                               heartbeat_interval=0.2)
    began = time.monotonic()

    with pytest.raises(exceptions.CoordinationUnavailable) as told:
        one.start(timeout=1.5)

    assert time.monotonic() - began < 1.5 + 1.0 + 2.0
    assert len(str(told.value).splitlines()) == 1
    assert url in str(told.value)
    assert not one.is_started()
    assert [r for r in caplog.records if r.exc_info] == []
