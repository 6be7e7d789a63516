# SPDX-License-Identifier: Apache-2.0
"""Membership and ring on a real ZooKeeper, also during faults.

Measured durations, such as the time until all members see a join, are printed
and recorded as properties of the test. Most deadlines of the tests only ensure
that an event happens at all, under any load of the machine. The printed
figures show how fast it happens.
"""

import contextlib
import itertools
import logging
import re
import threading
import time
import uuid

import kazoo.client
import pytest
from oslo_config import cfg

from distperiodic import coordinator
from distperiodic import exceptions
from distperiodic.adapters.coordination.membership import Announced
from distperiodic.adapters.coordination.membership import ToozMembership
from distperiodic.adapters.local.clock import SystemClock
from distperiodic.core import member
from tests import members
from tests import proxy
from tests import services
from tests.logged import events
from tests.logged import lines
from tests.pauses import Pauses
from tests.services import ports
from tests.waiting import wait_until
from tests.waiting import within

# The tests share a server, which one process starts.
pytestmark = pytest.mark.xdist_group('coordinator')

#: Session timeout in seconds. The servers here grant any timeout from 1 s to
#: 40 s, so they grant this one as requested.
SESSION = 2
#: Seconds within which a group must recover after the last fault.
SOON = 20.0
OBJECTS = members.OBJECTS
#: Difference between the wall clock and the monotonic clock of this host, for
#: the conversion of the server's times.
EPOCH = time.time() - time.monotonic()


@pytest.fixture
def group():
    return f'test-{uuid.uuid4().hex[:8]}'


@pytest.fixture(scope='module')
def mortal():
    """Return a ZooKeeper that the tests of this file may break and repair."""
    with services.zookeeper(its_own=True) as server:
        yield server


@pytest.fixture
def fragile(mortal):
    yield mortal
    mortal.thaw()
    if not mortal.running:
        mortal.start()


@pytest.fixture
def way(mortal):
    """Return a proxy in front of a healthy server. The test can disturb the
    connections through it.
    """
    with proxy.Proxy.before(mortal.url) as way:
        yield way


@pytest.fixture
def closing():
    with contextlib.ExitStack() as closing:
        yield closing


@pytest.fixture
def join(group, closing):
    """Return a function that makes a member in this process and lets it join.
    """
    def join(url, identity, start=True, **options):
        options.setdefault('session_timeout', SESSION)
        one = coordinator.HashRing(url, group, member_id=identity, **options)
        closing.callback(one.stop, 1.0)
        if start:
            one.start(SOON)
        return one
    return join


@pytest.fixture
def spawn(group, closing):
    """Return a function that makes a member in another process and lets it
    join.
    """
    def spawn(url, identity, start=True, **options):
        options.setdefault('session_timeout', SESSION)
        one = closing.enter_context(
            members.Process(url, group, identity, **options))
        if start:
            one.do('start')
        return one
    return spawn


@pytest.fixture
def observe(group, closing):
    """Return a function that makes an observer or a member, which records each
    view.
    """
    def observe(url, identity='observer', **options):
        one = Noted(url, group, identity, **options)
        closing.callback(one.stop, 1.0)
        one.start()
        one.wait_joined(SOON)
        return one
    return observe


@pytest.fixture
def raw(closing):
    """Return a function that makes a client, with which the test changes the
    group directly.
    """
    def raw(server):
        client = kazoo.client.KazooClient(
            server.url.removeprefix('zookeeper://'))
        client.start(20)
        closing.callback(client.close)
        closing.callback(client.stop)
        return client
    return raw


@pytest.fixture
def figure(record_property, capsys):
    """Return a function that prints and records a measured duration."""
    def figure(name, seconds):
        record_property(name, round(seconds, 4))
        with capsys.disabled():
            print(f'\n    {name}: {seconds * 1000:.0f} ms', end='')
    return figure


class Noted(ToozMembership):
    """A membership that records the time of each of its views."""

    def __init__(self, url, group, identity, points=0, **options):
        options.setdefault('session_timeout', SESSION)
        super().__init__(url, identity, clock=SystemClock(),
                         announced=Announced(points), **options)
        self.group = group
        #: (monotonic seconds, view), oldest first.
        self.seen = []
        (self.join if points else self.watch)(group, self._note)

    def _note(self, view):
        self.seen.append((time.monotonic(), view))

    @property
    def now(self):
        return names(self.view(self.group))

    def when(self, *identities, after=0.0):
        """Return when this membership, after an instant, first saw exactly
        these members. None means that it has not seen them yet.
        """
        return next((at for at, view in list(self.seen)
                     if at >= after and names(view) == list(identities)),
                    None)

    def wait(self, *identities, after=0.0, timeout=SOON):
        return wait_until(
            lambda: self.when(*identities, after=after), timeout,
            f'{self.identity} did not see just {identities}; it sees '
            f'{self.now}')

    def sure(self):
        return self.view(self.group).trusted(SystemClock().monotonic())


def names(view):
    return [one.identity for one in view.members]


def knows(one, *identities):
    """Return whether a HashRing is certain that exactly these members are in
    the group.
    """
    try:
        return names(one.ring_view()) == list(identities)
    except exceptions.DistperiodicError:
        return False


def all_know(rings, timeout=SOON):
    """Wait until all of *rings* are certain of each other."""
    everybody = sorted(one.member_id for one in rings)
    for one in rings:
        wait_until(lambda one=one: knows(one, *everybody), timeout,
                   f'{one.member_id} did not see {everybody}')


def me(one):
    """Return the entry of a HashRing in its own view. None means that the
    HashRing has lost its term.
    """
    return one.view(one.group_id).me


def tenures(rings):
    """Return the tenure of each HashRing. 0 means that it has lost its term.
    """
    return [mine.tenure if mine else 0 for mine in map(me, rings)]


def shared(rings):
    """Return whether each object belongs to exactly one member."""
    found = [o for one in rings for o in one.get_subset(OBJECTS)]
    return sorted(found) == sorted(OBJECTS)


def holds(condition, seconds, message):
    """Assert that a condition is true, and stays true for this time."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert condition(), message
        time.sleep(0.02)


def path_of(client, group, identity):
    [entry] = [e for e in client.get_children(f'/distperiodic/{group}')
               if e.startswith(f'{identity}~')]
    return f'/distperiodic/{group}/{entry}'


def created(client, path):
    """Return when an entry was created, on this host's monotonic clock."""
    return client.exists(path).ctime / 1000 - EPOCH


# -- changes are pushed

def test_a_join_and_a_clean_leave_are_pushed_to_every_member(
        zookeeper, group, observe, raw, figure):
    client = raw(zookeeper)
    crowd = [observe(zookeeper.url, f'm{n}', points=40, session_timeout=20)
             for n in range(5)]
    everybody = [f'm{n}' for n in range(5)]
    for one in crowd:
        one.wait(*everybody)
    joins, leaves = [], []
    for turn in range(5):
        late = Noted(zookeeper.url, group, f'n{turn}', points=40,
                     session_timeout=20)
        late.start()
        late.wait_joined(SOON)
        joined = created(client, path_of(client, group, f'n{turn}'))
        seen = [one.wait(*everybody, f'n{turn}') for one in crowd]
        joins.append(max(seen) - joined)

        left = time.monotonic()
        late.stop()
        seen = [one.wait(*everybody, after=left) for one in crowd]
        leaves.append(max(seen) - left)

    figure('a join is in every view after', sorted(joins)[2])
    figure('a leave is in every view after', sorted(leaves)[2])
    # By polling, a member would detect a change only after up to a quarter of
    # the session: 5 s.
    assert min(joins) < 1.0
    assert min(leaves) < 1.0


def test_a_killed_member_is_gone_within_its_session(
        zookeeper, spawn, observe, figure):
    watcher = observe(zookeeper.url)
    one = spawn(zookeeper.url, 'a')
    watcher.wait('a')

    with Pauses() as pauses:
        killed = one.kill()
        gone = watcher.wait(after=killed)

    figure(f'a member killed (session {SESSION} s) is gone after',
           gone - killed)
    assert gone - killed - pauses.total < SESSION + 1.0 + 3.0


def test_members_that_join_at_once_all_see_each_other(zookeeper, join, figure):
    number = 30
    rings = [join(zookeeper.url, f'm{n:02}', start=False, session_timeout=20)
             for n in range(number)]
    began = time.monotonic()
    threads = [threading.Thread(target=one.start) for one in rings]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    all_know(rings)

    figure(f'{number} that join at once all know each other after',
           time.monotonic() - began)
    assert shared(rings)


def test_a_crowd_that_joins_is_seen_in_a_few_views(
        zookeeper, group, observe, raw, figure):
    client = raw(zookeeper)
    watcher = observe(zookeeper.url)
    crowd = [member.Member(f'm{n:03}', f'{n:016x}', 1, 40)
             for n in range(300)]
    before = watcher.view(group).version
    began = time.monotonic()

    for one in crowd:
        client.create(f'/distperiodic/{group}/{one.entry}', ephemeral=True)
    seen = watcher.wait(*(one.identity for one in crowd))

    figure('300 entries made in a row are all seen after', seen - began)
    rebuilt = watcher.view(group).version - before
    # The member reads the group at most once every 25 ms.
    assert rebuilt <= (seen - began) / 0.025 + 2


def test_members_of_different_points_agree(zookeeper, join):
    rings = [join(zookeeper.url, f'm{n}', replicas=40 * (1 + n % 2))
             for n in range(4)]
    all_know(rings)

    assert shared(rings)
    assert {one.ring_view().ring.members['m1'] for one in rings} == {80}
    for o in OBJECTS[:50]:
        assert len({one.get_owner(o) for one in rings}) == 1


# -- frozen processes

def test_a_frozen_member_comes_back_by_itself_and_starts_nothing_before(
        zookeeper, group, join, spawn, observe, raw, figure):
    client = raw(zookeeper)
    other = join(zookeeper.url, 'b')
    frozen = spawn(zookeeper.url, 'a')
    watcher = observe(zookeeper.url)
    watcher.wait('a', 'b')
    path = path_of(client, group, 'a')
    session = client.exists(path).ephemeralOwner
    before = frozen.do('entry')

    frozen.freeze()
    taken_over = watcher.wait('b')
    wait_until(lambda: knows(other, 'b'))
    assert other.get_subset(OBJECTS) == OBJECTS
    with Pauses() as pauses:
        thawed = frozen.thaw()
        watcher.wait('a', 'b', after=thawed)

    path = path_of(client, group, 'a')
    assert client.exists(path).ephemeralOwner != session
    rejoined = created(client, path)
    figure('a thawed member is back after', rejoined - thawed)
    assert rejoined - thawed - pauses.total < 5.0
    wait_until(lambda: knows(other, 'a', 'b'))
    asked = frozen.asked_until_sure(taken_over)
    good = [one for one in asked if one.known and one.at > taken_over]
    assert good[0].told >= rejoined - 0.002
    assert any(not one.known for one in asked if one.at >= thawed)
    then = member.parse_entry(before)
    now = member.parse_entry(frozen.do('entry'))
    assert now.same_process(then)
    assert now.tenure == then.tenure + 1
    assert sorted(frozen.do('subset') + other.get_subset(OBJECTS)) == sorted(
        OBJECTS)


# -- half-open connections

@pytest.mark.parametrize('fault', ['drop', 'drop_s2c', 'reset'])
def test_a_member_cut_off_stops_before_the_others_take_over(
        mortal, way, join, spawn, observe, figure, fault):
    other = join(mortal.url, 'b')
    cut = spawn(way.url, 'a')
    watcher = observe(mortal.url)
    watcher.wait('a', 'b')
    wait_until(lambda: any(one.known for one in cut.asked()))

    way.set(fault)
    began = time.monotonic()
    taken_over = watcher.wait('b', after=began)
    wait_until(lambda: knows(other, 'b'))

    asked = cut.asked()
    last = max(one.told for one in asked if one.known)
    figure('cut off, it stops before the others begin by', taken_over - last)
    assert [one for one in asked if one.known and one.at > taken_over] == []
    # This bound holds for any behaviour of the other members, and for any load
    # of this machine.
    sure = max(one.at for one in asked if one.known) - began
    assert sure < SESSION * 2 / 3 + 0.1
    # The member stays certain for a short time after the cut, because it was
    # certain shortly before the cut.
    assert last > began

    way.set('pass')
    healed = time.monotonic()
    back = watcher.wait('a', 'b', after=taken_over)
    figure('the network mended, it is back after', back - healed)
    wait_until(lambda: knows(other, 'a', 'b'))
    wait_until(lambda: any(one.known for one in cut.asked()))
    assert sorted(cut.do('subset') + other.get_subset(OBJECTS)) == sorted(
        OBJECTS)


@pytest.mark.parametrize('session', [
    4, pytest.param(10, marks=pytest.mark.full)])
def test_a_member_whose_server_is_cut_off_stops_before_the_others_take_over(
        join, spawn, observe, figure, session):
    """The member's server answers until it detects that it is cut off from the
    other servers.
    """
    with services.zookeeper_divided(
            leads=False, notices_after=2 * session) as ensemble:
        near, _, far = ensemble.servers
        assert far.mode() == 'follower'
        other = join(near.url, 'b', session_timeout=session)
        cut = spawn(far.url, 'a', session_timeout=session)
        watcher = observe(near.url, session_timeout=session)
        watcher.wait('a', 'b')
        wait_until(lambda: any(one.known for one in cut.asked()))

        ensemble.set('drop')
        began = time.monotonic()
        taken_over = watcher.wait('b', after=began)
        wait_until(lambda: knows(other, 'b'))
        served = far.mode() is not None

        asked = cut.asked()
        last = max(one.told for one in asked if one.known)
        figure('its server cut off, it stops before the others begin by',
               taken_over - last)
        assert served, 'its server noticed first'
        assert [one for one in asked
                if one.known and one.at > taken_over] == []

        ensemble.set('pass')
        healed = time.monotonic()
        back = watcher.wait('a', 'b', after=taken_over)
        figure('the network mended, it is back after', back - healed)
        wait_until(lambda: knows(other, 'a', 'b'))


def test_a_member_that_may_go_to_another_server_is_never_one_of_two_owners(
        join, spawn, observe, figure):
    """The member's own server is cut off, but the URL also names the other
    servers.
    """
    with services.zookeeper_divided(leads=False) as ensemble:
        near, _, far = ensemble.servers
        other = join(near.url, 'b', session_timeout=4)
        before = far.connections()
        cut = spawn('zookeeper://' + ','.join(
            f'{ports.HOST}:{one.port}' for one in ensemble.servers), 'a',
            session_timeout=4)
        # The member chooses one of the servers at random.
        while far.connections() == before:
            cut.do('stop', 5)
            cut.do('start')
        watcher = observe(near.url, session_timeout=4)
        watcher.wait('a', 'b')
        cut.asked_until_sure(time.monotonic())

        ensemble.set('drop')
        began = time.monotonic()
        wait_until(lambda: time.monotonic() > began + 12, 15)
        wait_until(lambda: knows(other, 'a', 'b'))

        asked = cut.asked_until_sure(time.monotonic())
        alone = [at for at, view in watcher.seen
                 if at > began and names(view) == ['b']]
        both = [at for at, view in watcher.seen
                if at > began and names(view) == ['a', 'b']]
        for left in alone:
            back = min((at for at in both if at > left), default=left)
            assert [one for one in asked
                    if one.known and left < one.at < back] == []
        unsure = [one.at for one in asked if not one.known]
        figure('its server cut off, with others to go to, it was not sure '
               'for', max(unsure, default=0) - min(unsure, default=0))


def test_a_member_whose_server_leads_no_quorum_any_more_distrusts_its_view(
        spawn, figure):
    """The server answers as the leader until it detects that it has no quorum.
    """
    with services.zookeeper_divided(leads=True) as ensemble:
        far = ensemble.servers[2]
        assert far.mode() == 'leader'
        cut = spawn(far.url, 'a')
        wait_until(lambda: any(one.known for one in cut.asked()))

        ensemble.set('drop')
        began = time.monotonic()
        wait_until(lambda: time.monotonic() > began + SESSION)
        asked = cut.asked()
        assert far.mode() == 'leader', 'it noticed first'

        sure = max(one.at for one in asked if one.known) - began
        figure('its leader cut off, it was sure for', sure)
        assert sure < SESSION * 2 / 3 + 0.1


@pytest.mark.parametrize('fault', ['reset', 'drop'])
def test_a_short_cut_is_no_leave(mortal, way, join, observe, fault):
    one = join(way.url, 'a', session_timeout=10)
    other = join(mortal.url, 'b', session_timeout=10)
    watcher = observe(mortal.url, session_timeout=20)
    all_know([one, other])
    watcher.wait('a', 'b')
    entry = me(one).entry
    began = time.monotonic()

    with way.being(fault):
        holds(lambda: knows(one, 'a', 'b'), 0.5, 'it became uncertain at once')
    accepted = way.accepted
    wait_until(lambda: way.accepted > accepted or way.connections, 10)
    heard = one.ring_view().trusted_until
    wait_until(lambda: one.view(one.group_id).trusted_until > heard, SOON,
               'no answer arrived again')

    assert me(one).entry == entry
    assert [names(v) for at, v in watcher.seen if at > began] == []
    assert shared([one, other])


def test_a_slow_connection_is_no_leave(mortal, way, join, observe):
    one = join(way.url, 'a', session_timeout=8)
    watcher = observe(mortal.url, session_timeout=20)
    watcher.wait('a')
    entry = me(one).entry

    way.set('delay', 0.5)

    holds(lambda: knows(one, 'a'), 8.5, 'it was no longer certain')
    assert me(one).entry == entry
    assert len(watcher.seen) == 1


# -- faults of servers

def test_a_server_restarted_within_the_session_is_no_leave(
        fragile, join, observe):
    rings = [join(fragile.url, name, session_timeout=12) for name in 'ab']
    watcher = observe(fragile.url, session_timeout=12)
    all_know(rings)
    watcher.wait('a', 'b')
    entries = [me(one).entry for one in rings]
    heard = [one.ring_view().trusted_until for one in rings]

    fragile.kill()
    fragile.start()

    for one, until in zip(rings, heard, strict=True):
        wait_until(lambda one=one, until=until: one.view(
            one.group_id).trusted_until > until, SOON)
    assert [me(one).entry for one in rings] == entries
    assert {tuple(names(v)) for _, v in watcher.seen[1:]} <= {('a', 'b')}
    assert shared(rings)


def test_a_server_away_for_longer_than_the_session(fragile, join, figure):
    rings = [join(fragile.url, name) for name in 'abc']
    all_know(rings)

    fragile.kill()
    with Pauses() as pauses:
        killed = time.monotonic()
        for one in rings:
            wait_until(lambda one=one: not knows(one, 'a', 'b', 'c'), SOON)
            with pytest.raises(exceptions.ViewUnknown, match=(
                    f'{one.member_id!r} .* zookeeper://.*; ')):
                one.get_subset(OBJECTS)
        unsure = time.monotonic() - killed
    assert unsure - pauses.total < SESSION + 3
    holds(lambda: not any(knows(one, 'a', 'b', 'c') for one in rings),
          2 * SESSION, 'it believed in its view without a server')

    fragile.start()
    back = time.monotonic()
    all_know(rings)
    figure('the server is back, all are sure again after',
           time.monotonic() - back)
    wait_until(lambda: shared(rings))


def test_a_server_away_for_a_while_is_found_soon_after_it_is_back(
        fragile, way, join, figure):
    """kazoo alone would double its pauses, up to a minute."""
    one = join(way.url, 'a', session_timeout=16)
    fragile.kill()
    heard = one.ring_view().trusted_until
    tried = way.accepted
    # With pauses that double, the twelve attempts would take minutes.
    wait_until(lambda: way.accepted >= tried + 12, 18,
               'it makes longer and longer pauses')

    fragile.start()
    back = time.monotonic()
    # A handshake that gets no answer costs a quarter of the session.
    within(5.5, lambda: one.view(one.group_id).trusted_until > heard,
           'it was not found')

    figure('the server is back after ten seconds, it is found after',
           time.monotonic() - back)
    assert me(one).tenure == 1


def test_a_handshake_that_is_lost_is_tried_again_before_the_session_ends(
        mortal, way, join):
    """A server that has just begun to listen sometimes loses a handshake."""
    join(way.url, 'a', session_timeout=9)
    way.set('reset')
    way.set('drop')
    accepted = way.accepted

    within(8.0, lambda: way.accepted >= accepted + 2,
           'it waited for the answer for as long as the session')


def test_a_server_that_lost_its_data(fragile, join, figure):
    """A server that lost its data rejects its old clients forever, so the
    members replace their clients.
    """
    rings = [join(fragile.url, name) for name in 'abc']
    all_know(rings)

    fragile.kill()
    fragile.wipe()
    fragile.start()
    back = time.monotonic()

    wait_until(lambda: min(tenures(rings)) > 1, SOON,
               'the clients were not replaced')
    all_know(rings)
    figure('the server is back without its data, all are sure again after',
           time.monotonic() - back)
    assert shared(rings)


def test_members_trust_no_view_while_their_server_is_frozen(fragile, join):
    rings = [join(fragile.url, name) for name in 'ab']
    all_know(rings)

    fragile.freeze()
    for one in rings:
        wait_until(lambda one=one: not knows(one, 'a', 'b'), SESSION + 5)
    holds(lambda: not any(knows(one, 'a', 'b') for one in rings), SESSION,
          'it believed in its view without a server')
    fragile.thaw()

    all_know(rings)
    wait_until(lambda: shared(rings))


def test_an_ensemble_that_loses_one_and_then_its_quorum(
        zookeeper_ensemble, join, figure):
    servers = zookeeper_ensemble
    rings = [join(servers.url, name, session_timeout=4) for name in 'abc']
    all_know(rings)

    leader = servers.leader()
    leader.kill()
    killed = time.monotonic()
    wait_until(lambda: all(
        one.view(one.group_id).trusted_until > killed + 4 for one in rings),
        SOON, 'no answer came from the rest of the ensemble')
    all_know(rings)
    figure('the leader was lost, all are sure again after',
           time.monotonic() - killed)
    wait_until(lambda: shared(rings))

    second = next(one for one in servers.servers if one.running)
    second.kill()
    for one in rings:
        wait_until(lambda one=one: not knows(one, 'a', 'b', 'c'), SOON)
        with pytest.raises(exceptions.ViewUnknown):
            one.get_subset(OBJECTS)

    second.start(wait=False)
    leader.start(wait=False)
    second.wait()
    back = time.monotonic()
    all_know(rings)
    figure('the quorum is back, all are sure again after',
           time.monotonic() - back)
    wait_until(lambda: shared(rings))


# The default run has a restart of a single server, and the loss of a leader.
@pytest.mark.full
def test_a_rolling_restart_of_the_ensemble_is_no_leave(
        zookeeper_ensemble, spawn, observe, figure):
    """The servers restart one after another, the leader last."""
    servers = zookeeper_ensemble
    members_ = [spawn(servers.url, name, session_timeout=10) for name in 'ab']
    watcher = observe(servers.url, session_timeout=10)
    watcher.wait('a', 'b')
    entries = [one.do('entry') for one in members_]
    for one in members_:
        one.asked_until_sure(time.monotonic())

    for server in [*servers.followers(), servers.leader()]:
        server.stop()
        server.start()
    back = time.monotonic()
    asked = [one.asked_until_sure(back) for one in members_]

    assert [one.do('entry') for one in members_] == entries
    assert {tuple(names(view)) for _, view in watcher.seen} == {('a', 'b')}
    for one in asked:
        longest = unsure = 0.0
        for call, following in itertools.pairwise(one):
            unsure = 0.0 if call.known else (
                unsure + following.at - call.at)
            longest = max(longest, unsure)
        figure('restarted one by one, a member was not sure for', longest)


# -- forks

def test_a_fork_before_the_first_use_gives_two_members(
        zookeeper, spawn, observe):
    watcher = observe(zookeeper.url)
    parent = spawn(zookeeper.url, None, start=False)

    told = parent.do('fork', False)
    parent.do('start')

    mine = parent.do('identity')
    assert not told['was started']
    assert told['members'] == [told['identity']]
    assert told['subset'] == OBJECTS
    assert told['identity'] != mine
    wait_until(lambda: parent.do('members') == [mine])
    wait_until(lambda: watcher.now == [mine])


def test_a_fork_of_a_started_member_reconnects_and_disturbs_no_other(
        zookeeper, spawn):
    parent = spawn(zookeeper.url, None, session_timeout=20)
    mine, entry = parent.do('identity'), parent.do('entry')

    told = parent.do('fork', False)

    assert not told['was started']
    both = sorted([mine, told['identity']])
    assert told['members'] == both
    assert 0 < len(told['subset']) < len(OBJECTS)
    # The child has left at once, so the other members may not even have seen
    # the child.
    wait_until(lambda: parent.do('members') == [mine])
    assert parent.do('entry') == entry
    assert [one for one in parent.asked() if not one.known] == []
    assert parent.do('subset') == OBJECTS


def test_a_forked_member_that_just_ends_leaves_its_parent_in_the_group(
        zookeeper, spawn):
    # The session of the child must expire, and that of the parent must not.
    parent = spawn(zookeeper.url, None, session_timeout=6)
    mine, entry = parent.do('identity'), parent.do('entry')

    told = parent.do('fork', True)

    wait_until(lambda: parent.do('members') == [mine], SOON,
               f'{told["identity"]} did not leave with its session')
    assert parent.do('entry') == entry
    assert [one for one in parent.asked() if not one.known] == []


def test_a_fork_under_a_given_name_is_refused_while_its_parent_lives(
        zookeeper, spawn):
    # The child is refused one session later.
    parent = spawn(zookeeper.url, 'named', session_timeout=5)
    entry = parent.do('entry')

    with pytest.raises(members.ChildError, match='DuplicateMember'):
        parent.do('fork', False)

    assert parent.do('entry') == entry
    assert parent.do('subset') == OBJECTS


# -- two processes with one identity

def test_a_second_member_of_the_same_name_is_refused(
        zookeeper, join, observe):
    watcher = observe(zookeeper.url, session_timeout=20)
    first = join(zookeeper.url, 'a', session_timeout=20)
    watcher.wait('a')
    entry = me(first).entry

    with pytest.raises(exceptions.DuplicateMember) as told:
        join(zookeeper.url, 'a', session_timeout=1)

    assert re.search(rf"'a' .*\b{re.escape(entry)}\b.*; .*\bmember_id\b",
                     str(told.value))
    assert first.get_subset(OBJECTS) == OBJECTS
    assert me(first).entry == entry
    assert len(watcher.seen) == 2, 'nobody, then a: and nothing of a second'


def test_one_of_two_members_that_start_at_once_with_one_name_is_refused(
        zookeeper, join, group, raw):
    client = raw(zookeeper)
    for turn in range(2):
        rings = [join(zookeeper.url, f'm{turn}', start=False,
                      session_timeout=1) for _ in range(2)]
        outcomes = {}

        def start(one, outcomes=outcomes):
            try:
                one.start()
                outcomes[one] = None
            except exceptions.DistperiodicError as exc:
                outcomes[one] = exc
        threads = [threading.Thread(target=start, args=(one,))
                   for one in rings]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        refused = [e for e in outcomes.values() if e is not None]
        assert list(map(type, refused)) == [exceptions.DuplicateMember]
        [winner] = [one for one in rings if one.is_started()]
        assert path_of(client, group, f'm{turn}').endswith(
            me(winner).entry)


def test_a_name_is_free_again_when_its_member_has_left_or_died(
        zookeeper, join, spawn, figure):
    first = join(zookeeper.url, 'a')
    first.stop()
    began = time.monotonic()
    spawn(zookeeper.url, 'a').kill()
    third = join(zookeeper.url, 'a')

    figure('a killed member is started anew, in the group after',
           time.monotonic() - began)
    assert third.get_subset(OBJECTS) == OBJECTS


# -- names

@pytest.mark.parametrize('bad', ['a/b', 'h\xf4te', 'x' * 300],
                         ids=['slash', 'not ascii', '300 characters'])
def test_a_bad_name_is_refused_before_anything_reaches_the_server(way, bad):
    good = coordinator.Coordinator(way.url, session_timeout=SESSION)
    for make in (
            lambda: coordinator.HashRing(way.url, 'g', member_id=bad).start(),
            lambda: coordinator.HashRing(way.url, bad).start(),
            lambda: good.join_group(bad)):
        with pytest.raises(exceptions.InvalidMemberId):
            make()

    assert way.accepted == 0


# -- changes of the group by others

STRANGE = ['h\xf4te', 'leader', 'api-9~00c0ffee00c0ffee~1~f1.r999999',
           'api-9~00c0ffee00c0ffee~1~nonsense', 'name with blanks']


def test_a_strangers_entries_own_nothing_and_are_each_named_once(
        zookeeper, group, join, raw, caplog):
    client = raw(zookeeper)
    one = join(zookeeper.url, 'a')
    for name in STRANGE:
        client.create(f'/distperiodic/{group}/{name}', b'\xff not msgpack')
    other = join(zookeeper.url, 'b')
    all_know([one, other])
    client.create(f'/distperiodic/{group}/another')
    client.delete(f'/distperiodic/{group}/another')
    third = join(zookeeper.url, 'c')
    all_know([one, other, third])

    assert shared([one, other, third])
    ignored = [line['entry'] for line in lines(caplog, 'entry ignored')
               if 'another' not in line['entry']]
    assert len(ignored) == 3 * len(STRANGE)
    for name in STRANGE:
        assert sum(f'{name!r}' in entry for entry in ignored) == 3


def test_a_member_whose_entry_was_deleted_comes_back(
        zookeeper, group, join, raw, observe, figure):
    client = raw(zookeeper)
    rings = [join(zookeeper.url, name) for name in 'ab']
    watcher = observe(zookeeper.url)
    all_know(rings)
    tenure = me(rings[0]).tenure

    client.delete(path_of(client, group, 'a'))
    deleted = time.monotonic()

    wait_until(lambda: me(rings[0]) and me(rings[0]).tenure == tenure + 1)
    back = watcher.wait('a', 'b', after=deleted)
    figure('its entry deleted, a member is back after', back - deleted)
    all_know(rings)
    wait_until(lambda: shared(rings))


def test_a_group_that_was_deleted_comes_back(
        zookeeper, group, join, raw, figure):
    client = raw(zookeeper)
    rings = [join(zookeeper.url, name) for name in 'abc']
    all_know(rings)

    client.delete(f'/distperiodic/{group}', recursive=True)
    deleted = time.monotonic()

    wait_until(lambda: tenures(rings) == [2, 2, 2])
    all_know(rings)
    figure('the group deleted, all are sure again after',
           time.monotonic() - deleted)
    wait_until(lambda: shared(rings))


# -- changes of points

def test_changed_points_move_few_objects_and_leave_no_gap(zookeeper, observe):
    a, b, c = (observe(zookeeper.url, name, points=40, session_timeout=20)
               for name in 'abc')
    for one in (a, b, c):
        one.wait('a', 'b', 'c')
    before = b.view(b.group).ring
    entry = a.me.entry
    began = time.monotonic()
    doubts = []
    over = threading.Event()

    def doubt():
        while not over.wait(0.001):
            if not a.sure():
                doubts.append(time.monotonic())
    doubter = threading.Thread(target=doubt)
    doubter.start()

    a.publish(points=80)
    for one in (a, b, c):
        wait_until(lambda one=one: one.view(one.group).ring.members
                   == {'a': 80, 'b': 40, 'c': 40})
    over.set()
    doubter.join()

    assert doubts == []
    assert a.me.tenure == 1
    assert a.me.entry != entry
    for one in (a, b, c):
        for _, view in [s for s in one.seen if s[0] > began]:
            assert names(view) == ['a', 'b', 'c']
            assert view.ring.members['a'] in (40, 80)
    after = b.view(b.group).ring
    moved = [o for o in OBJECTS if before.owner_of(o) != after.owner_of(o)]
    assert moved
    assert {after.owner_of(o) for o in moved} == {'a'}


def test_a_change_of_points_is_not_logged_as_a_join(
        zookeeper, join, caplog, tmp_path):
    caplog.set_level(logging.INFO, 'distperiodic')
    file = tmp_path / 'service.conf'
    file.write_text('[distperiodic]\nhash_ring_replicas_count = 44\n')
    conf = cfg.ConfigOpts()
    conf(['--config-file', str(file)])
    one = join(zookeeper.url, 'a', conf=conf)

    file.write_text('[distperiodic]\nhash_ring_replicas_count = 77\n')
    conf.mutate_config_files()
    wait_until(lambda: 'r77' in one.view(one.group_id).me.entry)

    said = events(caplog)
    assert said.count('joined') == said.count('entry changed') == 1


def test_points_changed_while_the_group_is_read_are_no_gap(
        zookeeper, observe, monkeypatch, caplog):
    """The points change just after the thread has read the old entry."""
    a = observe(zookeeper.url, 'a', points=40, session_timeout=20)
    # Use a private method: no public method is called after a read of the
    # group and before its result is used. Term.read is replaced only within
    # this method, because a process also calls it when it joins. A change of
    # points at that moment would only make the process join again.
    keep = a._read
    points = iter(range(42, 52))

    def read_and_publish(term, group):
        read = term.read

        def slow(name):
            entries = read(name)
            a.publish(points=next(points, None))
            return entries
        with monkeypatch.context() as patch:
            patch.setattr(term, 'read', slow)
            keep(term, group)
    monkeypatch.setattr(a, '_read', read_and_publish)

    a.publish(points=41)

    wait_until(lambda: a.view(a.group).ring.members == {'a': 51})
    assert a.me.tenure == 1
    assert lines(caplog, 'term lost') == []


def test_many_changes_of_points_end_in_the_last(zookeeper, observe):
    a = observe(zookeeper.url, 'a', points=40)
    b = observe(zookeeper.url, 'b', points=40)

    for points in (50, 60, 70, 60, 50, 45):
        a.publish(points=points)

    wait_until(lambda: b.view(b.group).ring.members == {'a': 45, 'b': 40})
    wait_until(lambda: a.view(a.group).ring.members == {'a': 45, 'b': 40})
    assert a.me.tenure == 1


# -- several groups

def test_a_group_that_is_only_watched_is_pushed_as_well_after_a_new_term(
        zookeeper, group, observe):
    a = observe(zookeeper.url, 'a', points=40, session_timeout=40)
    seen = []
    a.watch(f'{group}.workers', lambda view: seen.append(names(view)))
    a.wait_joined(SOON)
    a.publish(points=80)
    wait_until(lambda: a.view(group).ring.members == {'a': 80})
    worker = Noted(zookeeper.url, f'{group}.workers', 'w', points=1)
    try:
        worker.start()

        # By polling, a member would notice the worker only after a quarter of
        # the session, for each group.
        within(5.0, lambda: ['w'] in seen, f'it saw {seen}')
        # The observer may see the worker before the worker sees itself.
        worker.wait_joined(SOON)
    finally:
        worker.stop()
    assert f'a~{a.me.nonce}' not in str(worker.view(f'{group}.workers'))


def test_a_read_of_a_group_is_no_membership(zookeeper, group, join):
    one = join(zookeeper.url, 'a')
    looker = coordinator.Coordinator(
        zookeeper.url, member_id='looker', session_timeout=SESSION)
    try:
        assert looker.get_members(group) == ['a']
        assert looker.get_members(f'{group}.nobody') == []
        assert one.get_members(group) == ['a']
    finally:
        looker.stop()


def test_a_coordinator_may_join_more_groups_as_it_goes(
        zookeeper, group, caplog):
    one, other = (coordinator.Coordinator(
        zookeeper.url, member_id=name, session_timeout=SESSION)
        for name in 'ab')
    try:
        one.start()
        assert not {'membership failed', 'not in the group'}.intersection(
            events(caplog))
        for number in range(3):
            for each in (one, other):
                each.join_group(f'{group}.{number}')
        for number in range(3):
            for each in (one, other):
                wait_until(lambda each=each, number=number: each.get_members(
                    f'{group}.{number}') == ['a', 'b'])
        for each in one, other:
            assert {each.view(f'{group}.{number}').me.tenure
                    for number in range(3)} == {1}
    finally:
        one.stop()
        other.stop()


# -- stops and failed starts

@pytest.mark.parametrize('fault', ['killed', 'frozen'])
def test_stopping_while_the_server_is_away_is_bounded(fragile, join, fault):
    rings = [join(fragile.url, name) for name in 'ab']
    all_know(rings)

    fragile.kill() if fault == 'killed' else fragile.freeze()

    for one in rings:
        with Pauses() as pauses:
            began = time.monotonic()
            one.stop(timeout=2.0)
            took = time.monotonic() - began
        assert took - pauses.total < 4.0
        assert not one.is_started()


def test_stopping_long_after_the_server_went_is_bounded(
        fragile, join, caplog):
    one = join(fragile.url, 'a')
    fragile.kill()
    wait_until(lambda: lines(caplog, 'not in the group'), SOON,
               'it did not notice')

    with Pauses() as pauses:
        began = time.monotonic()
        one.stop(timeout=2.0)
        took = time.monotonic() - began

    assert took - pauses.total < 4.0


def test_an_unreachable_server_is_reported_within_a_bound():
    url = f'zookeeper://user:hunter2@{ports.HOST}:{ports.free_port()}'
    for one, timeout in (
            (coordinator.HashRing(url, 'g', session_timeout=1), None),
            (coordinator.Coordinator(url, session_timeout=1), 0.5)):
        began = time.monotonic()
        with pytest.raises(exceptions.CoordinationUnavailable) as told:
            one.start(timeout)
        bound = 1.5 * 1 + 2.0 if timeout is None else timeout
        assert time.monotonic() - began < bound + 1.0 + 2.0
        assert not one.is_started()
        assert f'{ports.HOST}:' in str(told.value)
        assert re.search(r'; .*\bbackend_url\b', str(told.value))
        assert 'hunter2' not in str(told.value)
        assert len(str(told.value).splitlines()) == 1


def test_a_server_that_never_answers_is_reported_within_a_bound(way, join):
    way.set('drop')
    one = join(way.url, 'a', start=False, session_timeout=1)
    began = time.monotonic()

    with pytest.raises(exceptions.CoordinationUnavailable):
        one.start()

    assert time.monotonic() - began < 1.5 + 2.0 + 1.0 + 2.0


def test_a_start_that_failed_can_be_tried_again(way, join):
    one = join(way.url, 'a', start=False, session_timeout=1)
    way.set('reset')
    with pytest.raises(exceptions.CoordinationUnavailable):
        one.heartbeat()

    way.set('pass')
    one.heartbeat()

    assert one.get_subset(OBJECTS) == OBJECTS


def test_a_missing_right_to_the_tree_is_reported_without_a_retry_storm(
        zookeeper, group, raw, way, join):
    """ZooKeeper rejects the client at once. So retries without a pause would
    overload ZooKeeper.
    """
    secret = kazoo.client.KazooClient(
        way.url.removeprefix('zookeeper://'))
    secret.start(20)
    try:
        secret.create(f'/distperiodic/{group}', makepath=True)
        secret.set_acls(f'/distperiodic/{group}', [
            kazoo.security.make_digest_acl('somebody', 'else', all=True)])
    finally:
        secret.stop()
        secret.close()
    accepted = way.accepted
    one = join(way.url, 'a', start=False, session_timeout=10)

    with pytest.raises(exceptions.CoordinationUnavailable,
                       match=r' /distperiodic\b.*; .*\bcdrw\b'):
        one.start(timeout=2.5)

    assert way.accepted - accepted < 10


def test_no_thread_and_no_connection_is_left_after_a_stop(mortal, way, join):
    def ours():
        return [t.name for t in threading.enumerate()
                if t.ident not in before]
    before = {t.ident for t in threading.enumerate()}
    for _ in range(3):
        one = join(way.url, 'a')
        one.get_subset(OBJECTS)
        one.stop()

    wait_until(lambda: not ours(), 10, 'threads are left')
    wait_until(lambda: way.connections == 0, 10, 'connections are left')


def test_a_member_at_rest_asks_little(mortal, way, join, record_property):
    join(way.url, 'a', session_timeout=4)
    began, before = time.monotonic(), way.received['client']
    wait_until(lambda: time.monotonic() > began + 4.0)
    sent = way.received['client'] - before
    seconds = time.monotonic() - began
    record_property('bytes a second', round(sent / seconds))

    # A read of the group is less than 100 bytes, and a ping is 12 bytes.
    assert sent / seconds < 200


def test_joins_and_departures_are_logged_and_nothing_else(
        zookeeper, group, join, caplog):
    caplog.set_level(logging.INFO, 'distperiodic')
    one = join(zookeeper.url, 'a')
    other = join(zookeeper.url, 'b')
    all_know([one, other])
    other.stop()
    wait_until(lambda: knows(one, 'a'))
    assert any(line.has(group=group, member='a')
               for line in lines(caplog, 'joined'))
    views = lines(caplog, 'view')
    assert any(line.has(group=group, joined='b', left='-') for line in views)
    assert any(line.has(group=group, joined='-', left='b') for line in views)
    assert not [r for r in caplog.records
                if r.levelno >= logging.WARNING
                and r.name.startswith('distperiodic')]
    caplog.clear()
    holds(lambda: not [r for r in caplog.records
                       if r.name.startswith('distperiodic')],
          SESSION, 'it logs at rest')
