# SPDX-License-Identifier: Apache-2.0
"""The coordinator and the hash ring, on top of a membership whose views the
test sets.
"""

import dataclasses
import os
import threading
import uuid

import pytest
from oslo_config import cfg

from distperiodic import coordinator
from distperiodic import exceptions
from distperiodic import opts
from distperiodic.adapters.local.clock import SystemClock
from distperiodic.core import catalogue
from distperiodic.core import member
from distperiodic.core import ring
from tests import waiting
from tests.logged import lines

URL = 'zookeeper://user:hunter2@127.0.0.1:1'  # no test connects to it
GROUP = 'things'
OTHERS = {'api-2': 40, 'api-3': 40}
ME = 'api-1'
MEMBERS = {ME: 40, **OTHERS}


class Node:
    """An object with an id, like the objects of a service."""

    def __init__(self, id_):
        self.id = id_


class Told:
    """A membership whose views the test sets."""

    made = None

    def __init__(self, url, identity, *, announced, **options):
        self.made.append(self)
        self.url = url
        self.options = options
        self.me = member.Member(identity, uuid.uuid4().hex[:16], 1,
                                announced.points)
        self.groups = {}
        self.published = []
        self.views = {}
        self.running = False
        self.failure = None
        #: A start does not return until this event is set.
        self.answers = threading.Event()
        self.answers.set()

    def join(self, group):
        self.groups[group] = True
        self.tell(group)

    def watch(self, group):
        self.groups.setdefault(group, False)
        self.tell(group)

    def knows(self, group):
        return group in self.groups

    def tell(self, group, others=OTHERS, me=True, trusted_for=60.0):
        members = {**({self.me.identity: self.me.points} if me else {}),
                   **others}
        self.views[group] = member.View(
            group, tuple(member.Member(name, '0' * 16, 1, n)
                         for name, n in sorted(members.items())),
            ring.Ring(members), 1, 0.0, self.me if me else None,
            SystemClock().monotonic() + trusted_for)

    def forget(self, group):
        del self.views[group]

    def publish(self, *, points):
        self.published.append(points)

    def start(self):
        self.running = True

    def wait_joined(self, timeout):
        self.waited = timeout
        assert self.answers.wait(10)
        if self.failure is not None:
            raise self.failure

    def view(self, group):
        try:
            return self.views[group]
        except KeyError:
            raise exceptions.ViewUnknown('no answer so far') from None

    def stop(self, timeout):
        self.running = False


@pytest.fixture
def made(monkeypatch):
    """The memberships that were created, in order."""
    monkeypatch.setattr(Told, 'made', [])
    monkeypatch.setattr(coordinator, 'ToozMembership', Told)
    return Told.made


@pytest.fixture
def hash_ring(made):
    return coordinator.HashRing(URL, GROUP, member_id=ME)


def mine(objects, members=MEMBERS, name=ME):
    one = ring.Ring(members)
    return [o for o in objects if one.owner_of(catalogue.id_of(o)) == name]


# Arguments: which are valid, and which are rejected before a connection.

def test_nothing_connects_before_it_is_needed(made, hash_ring):
    assert made == []
    assert not hash_ring.is_started()

    hash_ring.get_subset(['a'])

    assert [one.running for one in made] == [True]
    assert hash_ring.is_started()


@pytest.mark.parametrize(('url', 'why'), [
    ('zookeper://host', "there is no driver 'zookeper'"),
    ('http://host', "there is no driver 'http'"),
    ('host:2181', 'is not a URL'),
    ('zookeeper:/host', 'is not a URL'),
    ('redis://', 'is not a URL'),
    ('rediss://h', 'write redis://HOST\\?ssl=true'),
    ('://', 'is not a URL'),
    ('file://relative', 'names no directory'),
    ('mysql://u@host/db', "'mysql' has no reliable group membership"),
    ('postgresql://host/db', "'postgresql' has no reliable group"),
    ('memcached://host', "'memcached' has no reliable group membership"),
    ('ipc://', 'is not a URL'),
    ('ipc://x', "'ipc' has no reliable group membership"),
    ('kubernetes://x', "'kubernetes' has no reliable group membership"),
])
def test_a_url_that_cannot_work_is_refused_with_the_reason(made, url, why):
    with pytest.raises(exceptions.ConfigError, match=why) as told:
        coordinator.HashRing(url, GROUP)

    assert len(str(told.value).splitlines()) == 1
    assert 'zookeeper' in str(told.value) or 'file:///' in str(told.value)
    assert made == []


@pytest.mark.parametrize('url', [
    'zookeper://user:hunter2@host', 'mysql://user:hunter2@host/db',
    'file://user:hunter2@x'])
def test_an_error_does_not_contain_the_password(url):
    with pytest.raises(exceptions.ConfigError) as told:
        coordinator.HashRing(url, GROUP)

    assert 'hunter2' not in str(told.value)
    assert 'user:***@' in str(told.value)


@pytest.mark.parametrize('url', [
    'zookeeper://a:2181,b:2181,c:2181', 'zookeeper://', 'kazoo://host',
    'file:///var/lib/x', 'redis://host:6379',
    'etcd3+http://host', 'etcd3+https://host', 'zookeeper://h?timeout=4'])
def test_a_driver_with_groups_is_taken(url):
    assert coordinator.HashRing(url, GROUP).backend_url == url


@pytest.mark.parametrize('replicas', [0, -1, 10_001])
def test_a_number_of_points_that_makes_no_ring_is_refused(replicas):
    with pytest.raises(exceptions.ConfigError,
                       match=f'replicas {replicas} cannot be used'):
        coordinator.HashRing(URL, GROUP, replicas=replicas)


BAD_IDS = ['', 'a/b', 'h\xf4te', 'x' * 300, 'two words', b'bytes', 7]


@pytest.mark.parametrize('bad', BAD_IDS, ids=repr)
def test_an_id_that_cannot_be_carried_is_refused_at_once(made, bad):
    for make in (
            lambda: coordinator.HashRing(URL, GROUP, member_id=bad),
            lambda: coordinator.HashRing(URL, bad),
            lambda: coordinator.Coordinator(URL).join_group(bad)):
        with pytest.raises(exceptions.InvalidMemberId, match='cannot be'):
            make()
    assert made == []


def test_an_id_without_others_is_held_to_the_same_rule():
    """The operator may add a backend_url later."""
    with pytest.raises(exceptions.InvalidMemberId):
        coordinator.HashRing('', GROUP, member_id='a/b')


def test_the_rest_comes_from_the_options(made):
    conf = cfg.ConfigOpts()
    opts.settings(conf)
    conf([])
    for name, value in {'hash_ring_replicas_count': 77, 'session_timeout': 4,
                        'coordinator_heartbeat_interval': 0.5}.items():
        conf.set_override(name, value, opts.GROUP)

    coordinator.HashRing(URL, GROUP, conf=conf).start()

    assert made[0].me.points == 77
    assert made[0].options['session_timeout'] == 4
    assert made[0].options['heartbeat_interval'] == 0.5
    assert made[0].waited == 8


def test_options_are_read_when_it_connects(made, tmp_path):
    """A ring may be a class attribute, created before options are read."""
    path = tmp_path / 'service.conf'
    path.write_text('[distperiodic]\nhash_ring_replicas_count = 77\n')
    conf = cfg.ConfigOpts()
    one = coordinator.HashRing(URL, GROUP, conf=conf)
    conf(['--config-file', str(path)])

    one.start()
    assert made[0].me.points == 77

    path.write_text('[distperiodic]\nhash_ring_replicas_count = 88\n')
    conf.mutate_config_files()
    assert made[0].published == [88]


def test_a_value_that_cannot_be_leaves_the_one_that_it_had(
        made, tmp_path, caplog):
    """The service reads its file again, and the callback of the ring must not
    raise an error.
    """
    path = tmp_path / 'service.conf'
    path.write_text('[distperiodic]\nhash_ring_replicas_count = 77\n')
    conf = cfg.ConfigOpts()
    conf(['--config-file', str(path)])
    coordinator.HashRing(URL, GROUP, conf=conf).start()

    path.write_text('[distperiodic]\nhash_ring_replicas_count = many\n')
    conf.mutate_config_files()

    assert made[0].published == []
    [line] = lines(caplog, 'option refused')
    assert line.has(option='hash_ring_replicas_count')


def test_options_of_the_services_are_no_concern_of_a_ring(made, tmp_path):
    path = tmp_path / 'service.conf'
    path.write_text('[distperiodic]\nsession_timeout = 90\nlease = 1\n'
                    '[database]\nconnection = sqlite:///x\n')
    conf = cfg.ConfigOpts()
    conf(['--config-file', str(path)])

    coordinator.HashRing(URL, GROUP, conf=conf).start()

    assert made[0].options['session_timeout'] == 90


def test_an_option_that_cannot_be_used_is_named(made, tmp_path):
    path = tmp_path / 'service.conf'
    path.write_text('[distperiodic]\nhash_ring_replicas_count = many\n')
    conf = cfg.ConfigOpts()
    conf(['--config-file', str(path)])

    with pytest.raises(exceptions.ConfigError,
                       match='hash_ring_replicas_count'):
        coordinator.HashRing(URL, GROUP, conf=conf).start()


# A process alone.

@pytest.mark.parametrize('url', ['', None])
def test_without_a_backend_everything_is_ours(made, url):
    alone = coordinator.HashRing(url, GROUP)
    objects = [Node(n) for n in range(100)]

    alone.start()
    alone.heartbeat()
    alone.join_group('another')

    assert alone.get_subset(objects) == objects
    assert alone.get_subset(iter('abc')) == ['a', 'b', 'c']
    assert alone.get_subset(catalogue.Catalogue(objects)) == objects
    assert alone.get_members(GROUP) == [alone.member_id]
    assert alone.get_owner('a') == alone.member_id
    assert alone.owns(Node(7))
    assert alone.get_arcs() == (
        ring.Arc(ring.MIN_POSITION, ring.MAX_POSITION),)
    assert not alone.is_started()
    alone.stop()
    assert made == []


def test_a_returned_list_is_a_copy():
    objects = ['a', 'b']

    coordinator.HashRing('', GROUP).get_subset(objects).clear()

    assert objects == ['a', 'b']


# A group of several members.

KINDS = {
    'texts': [f'node-{n}' for n in range(300)],
    'ints': list(range(300)),
    'objects': [Node(f'node-{n}') for n in range(300)],
    'objects with int ids': [Node(n) for n in range(300)],
    'objects with uuids': [Node(uuid.UUID(int=n)) for n in range(300)],
    'mixed': ['a', 1, Node('b'), Node(2), *map(str, range(100))],
    'twice the same': ['a', 'b', 'a', *map(str, range(100)), 'b'],
    'nothing': [],
}


@pytest.mark.parametrize('objects', KINDS.values(), ids=KINDS)
@pytest.mark.parametrize('given', [list, tuple, iter, catalogue.Catalogue])
def test_a_subset_is_ours_and_in_the_order_given(hash_ring, objects, given):
    found = hash_ring.get_subset(given(objects))

    assert list(map(id, found)) == list(map(id, mine(objects)))


def test_the_members_subsets_make_up_the_whole(made):
    objects = [Node(n) for n in range(300)]
    found = []
    for name in MEMBERS:
        one = coordinator.HashRing(URL, GROUP, member_id=name)
        one.start()
        made[-1].tell(GROUP, {n: p for n, p in MEMBERS.items() if n != name})
        found += one.get_subset(objects)

    assert sorted(o.id for o in found) == list(range(300))
    assert len(set(map(id, found))) == 300


def test_all_questions_have_one_answer(hash_ring):
    objects = KINDS['objects']

    subset = hash_ring.get_subset(objects)

    assert [o for o in objects if hash_ring.owns(o)] == subset
    assert [o for o in objects if hash_ring.get_owner(o) == ME] == subset
    arcs = hash_ring.get_arcs()
    assert [o for o in objects if any(
        low <= ring.position_of(o.id) <= high for low, high in arcs)
    ] == subset
    assert hash_ring.get_members(GROUP) == sorted(MEMBERS)


def test_a_change_of_members_changes_the_subset(made, hash_ring):
    objects = KINDS['objects']
    before = hash_ring.get_subset(objects)

    made[0].tell(GROUP, {'api-2': 40})

    after = hash_ring.get_subset(objects)
    assert after == mine(objects, {ME: 40, 'api-2': 40})
    assert set(before) < set(after)


def test_a_list_changed_in_place_is_not_taken_for_the_old_one(hash_ring):
    objects = list(KINDS['objects'])
    hash_ring.get_subset(objects)

    objects.reverse()
    assert hash_ring.get_subset(objects) == mine(objects)
    objects[7] = Node('new')
    assert hash_ring.get_subset(objects) == mine(objects)
    del objects[::2]
    assert hash_ring.get_subset(objects) == mine(objects)
    objects.clear()
    assert hash_ring.get_subset(objects) == []


def test_an_object_that_got_another_id_is_judged_by_it(hash_ring):
    one = Node(next(n for n in range(99) if mine([n])))
    other = next(n for n in range(99) if not mine([n]))
    objects = [one, Node('x')]
    assert one in hash_ring.get_subset(objects)

    one.id = other

    assert one not in hash_ring.get_subset(objects)


def test_objects_that_are_read_again_are_returned_themselves(hash_ring):
    hash_ring.get_subset([Node(n) for n in range(300)])
    anew = [Node(n) for n in range(300)]

    found = hash_ring.get_subset(anew)

    assert found == mine(anew)
    assert set(map(id, found)) <= set(map(id, anew))


def test_an_object_without_an_id_is_named(hash_ring):
    for ask in (lambda o: hash_ring.get_subset(['a', o]),
                hash_ring.get_owner, hash_ring.owns):
        with pytest.raises(exceptions.InvalidObject, match='has no id'):
            ask(object())


# An unknown view.

ASK = {
    'get_subset': lambda one: one.get_subset(['a']),
    'get_subset of nothing': lambda one: one.get_subset([]),
    'get_subset of a catalogue': lambda one: one.get_subset(
        catalogue.Catalogue(['a'])),
    'get_owner': lambda one: one.get_owner('a'),
    'owns': lambda one: one.owns('a'),
    'get_arcs': lambda one: one.get_arcs(),
}


@pytest.mark.parametrize('ask', ASK.values(), ids=ASK)
def test_a_view_that_is_not_known_raises(made, hash_ring, ask):
    hash_ring.start()
    made[0].forget(GROUP)

    with pytest.raises(exceptions.ViewUnknown):
        ask(hash_ring)
    with pytest.raises(exceptions.ViewUnknown):
        hash_ring.get_members(GROUP)


@pytest.mark.parametrize('ask', ASK.values(), ids=ASK)
@pytest.mark.parametrize('doubt', [{'trusted_for': 0.0}, {'me': False}],
                         ids=['no recent view', 'not in it'])
def test_a_view_that_is_not_trusted_raises_until_it_is_again(
        made, hash_ring, ask, doubt):
    hash_ring.start()
    made[0].tell(GROUP, **doubt)

    with pytest.raises(exceptions.ViewUnknown, match='by itself') as told:
        ask(hash_ring)

    assert 'hunter2' not in str(told.value)
    made[0].tell(GROUP)
    ask(hash_ring)


def test_a_group_without_members_is_not_ours_alone(made, hash_ring):
    """Sahara's module, which this one replaces, treated a failed read as a
    group without members.
    """
    hash_ring.start()
    made[0].tell(GROUP, others={}, me=False)

    with pytest.raises(exceptions.ViewUnknown):
        hash_ring.get_subset(['a'])


# Groups.

def test_a_read_of_a_group_does_not_join_the_group(made):
    one = coordinator.Coordinator(URL, member_id=ME)

    one.get_members('others')

    assert made[0].groups == {'others': False}


def test_one_process_may_be_in_several_groups(made):
    one = coordinator.Coordinator(URL, 'first', member_id=ME)
    one.join_group('second')
    one.join_group('second')
    one.join_group('third')

    assert len(made) == 1
    assert made[0].groups == dict.fromkeys(['first', 'second', 'third'], True)


def test_the_groups_are_joined_again_after_a_stop(made):
    one = coordinator.Coordinator(URL, 'first', member_id=ME)
    one.join_group('second')
    one.stop()
    assert not one.is_started()

    one.start()

    assert one.is_started()
    assert not made[0].running
    assert made[1].groups == {'first': True, 'second': True}
    assert made[1].me.nonce != made[0].me.nonce


@pytest.mark.parametrize('ask', [
    lambda one: one.get_subset(['a']), lambda one: one.heartbeat()])
def test_a_request_after_a_stop_does_not_join_again(made, hash_ring, ask):
    hash_ring.start()
    hash_ring.stop()

    with pytest.raises(exceptions.ViewUnknown, match='was stopped'):
        ask(hash_ring)

    assert not hash_ring.is_started()
    assert len(made) == 1


def test_an_observer_owns_nothing_and_returns_the_owners(made):
    observer = coordinator.HashRing(URL, GROUP, member_id=ME, observe=True)
    observer.start()
    made[0].tell(GROUP, me=False)

    assert made[0].groups == {GROUP: False}
    assert made[0].me.points == 0
    objects = [f'object-{n}' for n in range(50)]
    assert observer.get_subset(objects) == []
    others = ring.Ring(OTHERS)
    assert [observer.get_owner(key) for key in objects] == [
        others.owner_of(key) for key in objects]
    assert not observer.owns('object-1')


def test_an_observer_of_a_group_without_members_raises_an_error(made):
    observer = coordinator.HashRing(URL, GROUP, observe=True)
    observer.start()
    made[0].tell(GROUP, {}, me=False)

    with pytest.raises(exceptions.ViewUnknown, match='has no members'):
        observer.get_owner('a')


def test_an_observer_of_a_group_of_drained_members_raises_an_error(made):
    observer = coordinator.HashRing(URL, GROUP, observe=True)
    observer.start()
    made[0].tell(GROUP, dict.fromkeys(OTHERS, 0), me=False)

    with pytest.raises(exceptions.ViewUnknown, match='on the ring'):
        observer.get_owner('a')
    assert observer.get_subset(['a', 'b']) == []


def test_an_observer_without_a_recent_view_raises_an_error(made):
    observer = coordinator.HashRing(URL, GROUP, observe=True)
    observer.start()
    made[0].tell(GROUP, me=False, trusted_for=-1.0)

    with pytest.raises(exceptions.ViewUnknown, match='has not heard'):
        observer.get_owner('a')


def test_there_is_nothing_to_observe_without_a_backend():
    with pytest.raises(exceptions.ConfigError, match='no group to observe'):
        coordinator.HashRing('', GROUP, observe=True)


def test_options_in_place_of_the_url_are_refused_with_the_remedy():
    with pytest.raises(exceptions.ConfigError, match='conf=conf'):
        coordinator.HashRing(cfg.ConfigOpts(), GROUP)


# Starting.

@pytest.mark.parametrize('failure', [
    exceptions.CoordinationUnavailable('no answer'),
    exceptions.DuplicateMember('in use')], ids=lambda e: type(e).__name__)
def test_a_start_that_fails_leaves_nothing_behind(
        made, hash_ring, monkeypatch, failure):
    monkeypatch.setattr(Told, 'wait_joined', lambda self, timeout: (
        _ for _ in ()).throw(failure))
    for _ in range(2):
        with pytest.raises(type(failure)):
            hash_ring.get_subset(['a'])

    assert [one.running for one in made] == [False, False]
    assert not hash_ring.is_started()


def test_starting_twice_and_stopping_twice_is_harmless(made, hash_ring):
    hash_ring.start()
    hash_ring.start()
    hash_ring.heartbeat()
    hash_ring.stop()
    hash_ring.stop()

    assert len(made) == 1


def test_threads_that_wait_for_a_start_that_fails_do_not_start_again(
        made, hash_ring):
    """If each thread tried again, the tenth thread would wait ten times as
    long as the first.
    """
    def ask():
        with pytest.raises(exceptions.CoordinationUnavailable):
            hash_ring.start()

    held = threading.Event()
    wait_joined = Told.wait_joined

    def fail(self, timeout):
        held.wait(10)
        raise exceptions.CoordinationUnavailable('no answer')
    Told.wait_joined = fail
    try:
        threads = [threading.Thread(target=ask) for _ in range(5)]
        for thread in threads:
            thread.start()
        waiting.wait_until(lambda: made)
        held.set()
        for thread in threads:
            thread.join(10)
    finally:
        Told.wait_joined = wait_joined

    assert len(made) < 5
    hash_ring.start()
    assert hash_ring.is_started()


def test_threads_that_come_at_once_are_one_member(
        made, hash_ring, monkeypatch):
    """Two memberships in one process would have the same identity."""
    held = threading.Event()
    monkeypatch.setattr(Told, 'wait_joined',
                        lambda self, timeout: held.wait(10))
    answers = []
    threads = [threading.Thread(
        target=lambda: answers.append(hash_ring.get_subset(['a', 'b'])))
        for _ in range(8)]
    for thread in threads:
        thread.start()
    held.set()
    for thread in threads:
        thread.join(10)

    assert len(made) == 1
    assert answers == [mine(['a', 'b'])] * 8


def test_an_unnamed_member_has_a_name_that_can_be_carried(made):
    one, other = (coordinator.HashRing(URL, GROUP) for _ in range(2))

    assert member.check_identity(one.member_id) == one.member_id
    assert one.member_id == one.member_id != other.member_id
    assert str(os.getpid()) in one.member_id


# Simulated forks; tests/functional/test_coordinator.py has real ones.

@pytest.fixture
def fork(monkeypatch):
    """Return a function that makes os.getpid() return another pid."""
    def fork():
        pid = os.getpid() + 1
        monkeypatch.setattr(os, 'getpid', lambda: pid)
    return fork


def test_a_forked_child_reconnects_and_leaves_the_client_of_its_parent_alone(
        made, fork):
    one = coordinator.HashRing(URL, GROUP)
    one.start()
    parent = one.member_id

    fork()

    assert not one.is_started()
    assert one.member_id != parent
    one.get_subset(['a'])
    assert [m.me.identity for m in made] == [parent, one.member_id]
    one.stop()
    assert [m.running for m in made] == [True, False]


def test_a_forked_child_that_stops_at_once_does_not_stop_its_parent(
        made, hash_ring, fork):
    hash_ring.start()

    fork()
    hash_ring.stop()

    assert made[0].running


def test_a_fork_keeps_the_name_that_was_given(made, hash_ring, fork):
    hash_ring.start()

    fork()

    assert hash_ring.member_id == ME


def test_a_lock_held_at_a_fork_does_not_hold_up_the_child(
        made, hash_ring, fork, monkeypatch):
    """The thread that holds the lock does not exist in the child, so the lock
    would never be released.
    """
    held, began = threading.Event(), threading.Event()

    def slow(self, timeout):
        began.set()
        held.wait(10)

    monkeypatch.setattr(Told, 'wait_joined', slow)
    parent = threading.Thread(target=hash_ring.start)
    parent.start()
    assert began.wait(10)
    try:
        fork()
        monkeypatch.setattr(Told, 'wait_joined', lambda self, timeout: None)
        child = threading.Thread(target=hash_ring.start, daemon=True)
        child.start()
        child.join(5)
        assert not child.is_alive()
    finally:
        held.set()
        parent.join()


def test_a_view_is_a_value(made, hash_ring):
    before = hash_ring.ring_view()

    made[0].tell(GROUP, {})

    assert before.members != hash_ring.ring_view().members
    with pytest.raises(dataclasses.FrozenInstanceError):
        before.members = ()


def test_a_start_that_ends_too_early_names_the_other_process(tmp_path):
    """The other process may be alive, or may have died a moment ago."""
    url = f'file://{tmp_path}'
    first, second = (coordinator.Coordinator(
        url, 'group', member_id='api-1', session_timeout=20)
        for _ in range(2))
    first.start()
    try:
        with pytest.raises(exceptions.DuplicateMember) as told:
            second.start(timeout=1)
    finally:
        first.stop()

    assert "'api-1' has an entry in group 'group' already" in str(told.value)
    assert '\n' not in str(told.value)
