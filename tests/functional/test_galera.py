# SPDX-License-Identifier: Apache-2.0
"""Claims on a Galera cluster, with writes to all nodes.

A commit on one node becomes visible on another node a moment later. If two
transactions change the same rows, one of them gets a deadlock error at its
commit. A node that has lost the other nodes rejects all statements.
"""

import collections
import contextlib
import itertools
import random
import threading
import time
import uuid

import pytest
import sqlalchemy as sa

from distperiodic import exceptions
from distperiodic.adapters.sql import database
from distperiodic.adapters.sql import schema
from distperiodic.adapters.sql import tables
from distperiodic.adapters.sql.store import SqlClaimStore
from distperiodic.core.claim import HeldLease
from distperiodic.core.claim import State
from distperiodic.core.claim_request import NewLease
from distperiodic.core.claim_request import TakeOverRequest
from tests import claiming
from tests import services
from tests import waiting
from tests.functional import commands
from tests.functional import judged
from tests.functional.cluster import Cluster
from tests.functional.cluster import Program
from tests.proxy import Proxy
from tests.services import ports
from tests.services.mariadb import DATABASE
from tests.services.mariadb import USER

# The tests share a server, which one process starts.
pytestmark = pytest.mark.xdist_group('galera')

SECOND = 1_000_000
TICKS = itertools.count(1_700_000_000 * SECOND, 60 * SECOND)
LONG = 600.0
SCHEDULER, WORKER = 'api-1~1~1~f1.t1.r40', 'worker-1~1~1~f1.t1.s10'
MANY = [f'object-{number:03}' for number in range(200)]


@pytest.fixture(scope='module')
def cluster():
    with services.galera(3) as found:
        schema.sync(found.nodes[0].url)
        yield found


@pytest.fixture
def job():
    return f'job-{uuid.uuid4().hex[:8]}'


@pytest.fixture
def tick():
    return next(TICKS)


@pytest.fixture
def stores(cluster):
    """Return a store for each node."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(opened(node.url))
               for node in cluster.nodes]


@contextlib.contextmanager
def opened(url):
    with contextlib.closing(SqlClaimStore(
            url, namespace='tests')) as store:
        yield store


def name():
    """Return a name for a new lease."""
    return uuid.uuid4().hex


def claim(store, job, tick, objects, lease, seconds=LONG):
    return [one.object for one in claiming.claim(
        store, job, tick, objects, lease=lease, holder=SCHEDULER,
        seconds=seconds, supersede=False).won]


def start(store, job, tick, objects, lease, into, holder=WORKER):
    return [one.object for one in store.start(
        HeldLease(lease, job, tick), objects, NewLease(into, holder, LONG))]


def run(stores, job, tick, objects):
    """Claim, start and finish objects, each step on another node."""
    lease, into = name(), name()
    claimed, started, finished = stores
    assert claim(claimed, job, tick, objects, lease) == objects
    assert start(started, job, tick, objects, lease, into) == objects
    assert finished.finish(HeldLease(into, job, tick), objects) == set(objects)


def at_once(*calls):
    """Make each call in its own thread. Return the results."""
    barrier = threading.Barrier(len(calls))
    returned, raised = [None] * len(calls), []

    def body(number, call):
        try:
            barrier.wait(20)
            returned[number] = call()
        except BaseException as exc:
            # Also pass on the failure of an assertion.
            raised.append(exc)
    threads = [threading.Thread(target=body, args=one)
               for one in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if raised:
        raise raised[0]
    return returned


def read(url, select):
    engine = database.make_engine(url)
    try:
        with engine.connect() as connection:
            return connection.execute(select).all()
    finally:
        engine.dispose()


def counted(cluster, job):
    """Return how many objects were due and how many are done, over all ticks.
    """
    of = tables.history.c
    (due, done), = read(cluster.nodes[1].url, sa.select(
        sa.func.sum(of.due), sa.func.sum(of.done)).join(
            tables.job, tables.job.c.id == of.job).where(
                tables.job.c.name == job))
    return int(due), int(done)


def rows(node):
    """Return all claims and leases of one node."""
    return [read(node.url, sa.select(table).order_by(*table.primary_key))
            for table in (tables.claim, tables.lease)]


# -- commits on one node and reads on another

def test_a_claim_of_one_node_is_started_by_another_and_finished_by_a_third(
        stores, job):
    for turn in range(12):
        run(stores[turn % 3:] + stores[:turn % 3], job, next(TICKS), MANY)


@pytest.fixture
def much(cluster):
    """Return a function that writes many rows on the first node, so that the
    other nodes fall behind.
    """
    root = cluster.nodes[0].root
    root(f'CREATE TABLE {DATABASE}.much (number INT PRIMARY KEY)')
    engine = database.make_engine(cluster.nodes[0].url)

    def write():
        with engine.begin() as connection:
            connection.execute(sa.text(
                'INSERT INTO much SELECT seq FROM seq_1_to_100000'))
    yield write
    engine.dispose()
    root(f'DROP TABLE {DATABASE}.much')


def test_a_node_that_has_much_to_catch_up_with_is_waited_for(
        stores, job, tick, much):
    """If a worker learned too early that nothing was granted, it would abandon
    its runs until their lease expires.
    """
    first, second, third = stores
    lease, into = name(), name()
    for store in stores:
        # Make each store read the job now. A later first read would wait for
        # the job, and then also see the claims.
        store.running([job])
    much()
    claim(first, job, tick, MANY, lease)

    assert start(second, job, tick, MANY, lease, into) == MANY
    assert third.renew([into], holder=WORKER, seconds=LONG) == {into}
    assert first.finish(HeldLease(into, job, tick), MANY) == set(MANY)


def test_a_call_that_no_node_answered_is_answered_by_another(
        stores, job, tick):
    """A node dies before it answers. The call is repeated on another node,
    which gives the answer.
    """
    lease, into = name(), name()
    first, second, third = stores

    for store in (first, second):
        assert claim(store, job, tick, MANY, lease) == MANY
    for store in (second, third):
        assert start(store, job, tick, MANY, lease, into) == MANY
    for store in (third, first):
        assert store.finish(HeldLease(into, job, tick), MANY) == set(MANY)


# -- calls on several nodes at the same time

def test_one_of_the_claimers_on_all_nodes_wins_each_object(cluster, job):
    """A transaction that loses at certification is repeated."""
    ticks = [next(TICKS) for _ in range(8)]
    objects = MANY[:60]

    def work(number):
        won = []
        order = random.Random(number)
        with opened(cluster.nodes[number % 3].url) as store:
            for tick in ticks:
                mine = order.sample(objects, len(objects))
                for some in (mine[:30], mine[30:]):
                    lease, into = name(), name()
                    of = claiming.claim(store, job, tick, some, lease=lease,
                                        holder=f'api-{number}~1~1~f1.t1.r40',
                                        seconds=LONG, supersede=True).won
                    won += of
                    keys = [one.object for one in of]
                    begun = start(store, job, tick, keys, lease, into)
                    ended = store.finish(HeldLease(into, job, tick), begun)
                    assert ended == set(begun)
        return won
    won = [one for of_one in at_once(*(
        lambda number=number: work(number) for number in range(6)))
        for one in of_one]

    times = collections.Counter((one.object, one.tick) for one in won)
    assert set(times.values()) == {1}
    for key in objects:
        fences = [one.fence for one in sorted(
            (one for one in won if one.object == key),
            key=lambda one: one.tick)]
        assert fences == sorted(set(fences))
    assert {one.object for one in won if one.tick == ticks[-1]} == set(
        objects)


def test_a_lease_is_renewed_on_one_node_or_taken_over_on_another(
        stores, job):
    """The two calls never both succeed, even at the same time."""
    first, second, _ = stores
    first.renew([name()], holder=WORKER, seconds=LONG)
    second.take_over_expired(
        TakeOverRequest([job], [], 1), NewLease(name(), '', LONG))
    outcomes = set()
    for _ in range(30):
        tick, lease = next(TICKS), name()
        assert claim(first, job, tick, ['a'], lease, seconds=-1.0) == ['a']

        held, taken = at_once(
            lambda lease=lease: first.renew(
                [lease], holder=SCHEDULER, seconds=LONG),
            lambda: second.take_over_expired(
                TakeOverRequest([job], [], 1),
                NewLease(name(), 'api-2', LONG)))

        assert (held == {lease}) != bool(taken)
        outcomes.add(bool(taken))
        end = taken[0].id if taken else lease
        assert first.discard(
            HeldLease(end, job, tick), ['a'], State.CANCELLED) == 1
    assert outcomes


def test_one_of_two_concurrent_starts_at_least_sees_them_both(stores, job):
    """A limit on concurrent runs applies across all nodes only if, of two
    simultaneous starts, at least one sees both.
    """
    for _ in range(20):
        tick, leases = next(TICKS), [name(), name()]
        for key, lease in zip('ab', leases, strict=True):
            claim(stores[2], job, tick, [key], lease)

        def grant(store, key, lease, tick=tick):
            into = name()
            assert start(store, job, tick, [key], lease, into) == [key]
            return store.running([job])[job], into
        granted = at_once(
            lambda leases=leases, grant=grant: grant(
                stores[0], 'a', leases[0]),
            lambda leases=leases, grant=grant: grant(
                stores[1], 'b', leases[1]))

        assert max(running for running, _ in granted) == 2
        for key, (_, into) in zip('ab', granted, strict=True):
            assert stores[2].finish(HeldLease(into, job, tick), [key]) == {key}


def test_tables_made_on_all_nodes_at_once_are_whole(cluster, tmp_path):
    """A lock of one node has no effect on another node."""
    made = f'made_{uuid.uuid4().hex[:8]}'
    root = cluster.nodes[0].root
    root(f'CREATE DATABASE {made}')
    root(f"GRANT ALL ON {made}.* TO {USER}@'%'")
    waiting.wait_until(lambda: all(
        node.root(f"SHOW DATABASES LIKE '{made}'")
        for node in cluster.nodes), 10)
    urls = [sa.make_url(node.url).set(database=made).render_as_string(
        hide_password=False) for node in cluster.nodes]

    def make(number):
        config = tmp_path / f'{number}.conf'
        config.write_text(f'[distperiodic]\nconnection = {urls[number]}\n')
        return commands.run('db', 'sync', '--config-file', config)
    try:
        told = at_once(lambda: make(0), lambda: make(1))

        assert [one.stderr for one in told if one.returncode] == []
        for url in urls:
            schema.check(url)
    finally:
        root(f'DROP DATABASE {made}')


# -- nodes that become unavailable

def until_done(call):
    """Repeat a call until the store is available, as services do. Return its
    result.
    """
    return waiting.wait_until(
        lambda: _tried(call), 60, 'the store did not come back',
        interval=0.2)[0]


def _tried(call):
    try:
        return [call()]
    except exceptions.StoreUnavailable:
        return None


def test_a_node_that_lost_the_others_is_waited_for(
        cluster, stores, job, tick):
    node, store = cluster.nodes[2], stores[2]
    lease, into = name(), name()
    claim(store, job, tick, MANY, lease)
    node.cut_off()
    try:
        with opened(node.url) as new:
            for one in (store, new):
                with pytest.raises(exceptions.StoreUnavailable,
                                   match='WSREP has not yet prepared'):
                    start(one, job, tick, MANY, lease, into)
        assert start(stores[0], job, tick, MANY, lease, into) == MANY
    finally:
        node.join_again()

    assert store.finish(HeldLease(into, job, tick), MANY) == set(MANY)


def test_a_killed_node_loses_and_doubles_nothing(cluster, job):
    """The clients repeat unanswered calls on another node.

    The clients of the killed node keep its address, which leads to the other
    node after the kill, as behind a load balancer.
    """
    first, second, _ = cluster.nodes
    objects = MANY[:40]
    over, turns = threading.Event(), collections.Counter()
    begin = next(TICKS)

    def turn(store, mine, tick):
        lease, into = name(), name()
        assert until_done(lambda: claim(
            store, job, tick, mine, lease)) == mine
        assert until_done(lambda: start(
            store, job, tick, mine, lease, into)) == mine
        assert until_done(lambda: store.finish(
            HeldLease(into, job, tick), mine)) == set(mine)

    def work(number):
        with opened(way_url) as store:
            while not over.is_set():
                turn(store, objects[number::3],
                     begin + turns[number] * SECOND)
                turns[number] += 1

    with Proxy((ports.HOST, first.port)) as way:
        way_url = sa.make_url(first.url).set(
            port=way.port).render_as_string(hide_password=False)

        def kill():
            try:
                waiting.wait_until(lambda: all(
                    turns[n] > 5 for n in range(3)), 20)
                first.kill()
                way.lead_to((ports.HOST, second.port))
                before = turns.copy()
                waiting.wait_until(lambda: all(
                    turns[n] > before[n] + 5 for n in range(3)), 60,
                    'no run continues without the node')
            finally:
                over.set()
        at_once(kill, *(lambda number=number: work(number)
                        for number in range(3)))
    done = sum(turns[n] * len(objects[n::3]) for n in range(3))
    assert counted(cluster, job) == (done, done)
    first.start()
    cluster.wait_whole()
    assert rows(first) == rows(second)


# -- whole services

# In the default run, the clients of a killed node are threads of one process,
# see above; and test_outages.py contains the outages of whole services.
@pytest.mark.full
def test_services_on_all_nodes_lose_and_double_nothing_when_one_is_killed(
        tmp_path, cluster, zookeeper, rabbitmq):
    """Each process connects to one node, and to another one if this node dies.
    """
    nodes = cluster.nodes
    with contextlib.ExitStack() as stack:
        ways = [stack.enter_context(Proxy((ports.HOST, node.port)))
                for node in nodes]
        urls = [sa.make_url(nodes[0].url).set(
            port=way.port).render_as_string(hide_password=False)
            for way in ways]
        group = Cluster(
            tmp_path, zookeeper.url, rabbitmq.url, connection=urls[0],
            # A pause of the whole machine of a few seconds ends no session.
            session_timeout=6, lease=10, send_timeout=2, spacing=2, objects=40,
            takes=0.05, misfire='all', overlap='wait')
        stack.callback(group.close)
        for number, kind in enumerate(['scheduler', 'worker'] * 2):
            config = tmp_path / f'{number}.conf'
            config.write_text(group.config.read_text().replace(
                urls[0], urls[(number + 1) // 2]))
            group.programs.append(Program(
                kind, config, group.record, 1, tmp_path / f'{number}.log'))
        first = group.wait_complete(2)[0]

        killed = time.time()
        nodes[1].kill()
        ways[1].lead_to((ports.HOST, nodes[2].port))
        last = group.wait_complete(3, after=killed, timeout=60)[-1]

        judged.assert_kept(group, first, last)
    nodes[1].start()
    cluster.wait_whole()
