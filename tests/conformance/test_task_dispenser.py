# SPDX-License-Identifier: Apache-2.0
"""The task dispenser: guarantees in every database.

Several tests may share the database of a world, and earlier tests may have
left rows in it. So each test uses a pool of its own.
"""

import concurrent.futures
import datetime
import decimal
import fractions
import math
import random
import threading
import uuid

import hypothesis
import pytest
import sqlalchemy as sa
from hypothesis import stateful
from hypothesis import strategies as st

import distperiodic
from distperiodic import exceptions
from distperiodic.adapters.sql import schema
from distperiodic.adapters.sql import tables
from distperiodic.adapters.sql.database import Database
from distperiodic.adapters.sql.engine import make_engine
from distperiodic.adapters.sql.task_pools import SqlTaskPool
from tests import dispensed
from tests.conformance.cases import each
from tests.waiting import wait_until


class World:
    """A database, with direct access to its rows for tests."""

    def __init__(self, url):
        self.url = url
        self._made = []
        self.database = Database(url, schema.check_connection)

    def dispenser(self, pool, **options):
        self._made.append(dispensed.dispenser(self.url, pool, **options))
        return self._made[-1]

    def expire(self, dispenser, worker):
        """Make the bucket of a worker expire."""
        number = sa.select(tables.pool.c.id).where(
            tables.pool.c.name == dispenser.pool).scalar_subquery()
        self.database.write(lambda connection: connection.execute(
            sa.update(tables.bucket).where(
                tables.bucket.c.pool == number,
                tables.bucket.c.worker == worker).values(until=0)))

    def close(self):
        for one in self._made:
            one.close()
        self.database.close()


@pytest.fixture
def world(database_url):
    made = World(database_url)
    yield made
    made.close()


@pytest.fixture
def pool():
    return f'pool-{uuid.uuid4().hex[:12]}'


@pytest.fixture
def one(world, pool):
    return world.dispenser(pool)


# -- assignment


def test_the_highest_scores_are_assigned_first_and_ties_by_task(one):
    one.recreate_task_pool({'a': 1, 'b': 3, 'c': 3, 'd': 2.5, 'e': -1})

    assert one.assign_tasks(3, 'ann') == ['b', 'c', 'd']
    assert one.assign_tasks(3, 'bob') == ['a', 'e']
    assert one.assign_tasks(3, 'cid') == []


def test_tasks_come_back_in_order_and_as_the_type_they_were_put_in(one):
    tasks = [-10**30, -12, -2, 0, 7, 10, 10**30, '', '-2', '0', '10', '7',
             'Z', 'a', 'a ', "o'brien", '{"a",\\}', 'ä', '\U0001f600']
    one.recreate_task_pool(dict.fromkeys(reversed(tasks), 1.0))

    assigned = one.assign_tasks(100, 'ann')

    assert assigned == tasks
    assert list(map(type, assigned)) == list(map(type, tasks))


def test_scores_keep_their_exact_order(one):
    scores = {'a': 0.1, 'b': math.nextafter(0.1, 1), 'c': 1e300,
              'd': -1e300, 'e': 0.0, 'f': -0.0, 'g': 5e-300,
              'h': fractions.Fraction(1, 3), 'i': 2**53, 'j': 2**53 - 1}
    one.recreate_task_pool(scores)

    assert one.assign_tasks(100, 'ann') == [
        'c', 'i', 'j', 'h', 'b', 'a', 'g', 'e', 'f', 'd']


def test_the_tasks_in_a_bucket_count_and_only_the_rest_is_added(one):
    one.recreate_task_pool({'a': 4, 'b': 3, 'c': 2, 'd': 1})
    one.assign_tasks(2, 'ann')

    assert one.assign_tasks(2, 'ann') == ['a', 'b']
    assert one.assign_tasks(3, 'ann') == ['a', 'b', 'c']


def test_a_better_task_that_comes_later_does_not_push_one_out(one):
    one.recreate_task_pool({'a': 1, 'b': 2})
    one.assign_tasks(2, 'ann')
    one.recreate_task_pool({'z': 9})

    assert one.assign_tasks(2, 'ann') == ['b', 'a']
    assert one.assign_tasks(3, 'ann') == ['z', 'b', 'a']


def test_a_smaller_limit_gives_back_the_lowest_scores(one):
    one.recreate_task_pool({'a': 4, 'b': 3, 'c': 2, 'd': 1})
    one.assign_tasks(4, 'ann')

    assert one.assign_tasks(2, 'ann') == ['a', 'b']
    assert one.check_tasks('ann', ['a', 'b'])
    assert one.assign_tasks(9, 'bob') == ['c', 'd']


def test_a_limit_of_any_size_is_fine(one):
    one.recreate_task_pool({number: number for number in range(2500)})

    assert len(one.assign_tasks(10**30, 'ann')) == 2500
    assert one.tasks_done('ann', range(2500))
    assert one.stats().done == 2500


# -- check, done, give back


def test_check_is_true_for_exactly_the_tasks_in_the_bucket(one):
    one.recreate_task_pool({1: 1, '1': 1, 2: 1})
    one.assign_tasks(2, 'ann')

    assert one.check_tasks('ann', [1, 2])
    assert one.check_tasks('ann', (2, 1, 1))
    for other in [1], ['1', 2], [1, 2, '1'], []:
        assert not one.check_tasks('ann', other)
    assert one.check_tasks('nobody', [])
    assert not one.check_tasks('nobody', [1])


def test_only_named_tasks_in_the_bucket_are_done(one):
    one.recreate_task_pool({'a': 3, 'b': 2, 'c': 1, 'd': 0})
    one.assign_tasks(3, 'ann')
    one.assign_tasks(1, 'bob')

    assert one.tasks_done('ann', ['a'])
    assert not one.tasks_done('ann', ['b', 'd', 'unknown'])

    assert one.check_tasks('ann', ['c'])
    assert one.check_tasks('bob', ['d'])
    assert one.tasks_done('ann', [])
    assert one.stats().done == 2


def test_done_may_be_repeated_by_the_worker_that_finished_a_task(world, pool):
    """The answer to a call may be lost, and the worker may be restarted."""
    one = world.dispenser(pool)
    one.recreate_task_pool({'a': 3, 'b': 2, 'c': 1})
    one.assign_tasks(3, 'ann')
    assert one.tasks_done('ann', ['a', 'b'])

    for repeated in (one, world.dispenser(pool)):
        assert repeated.tasks_done('ann', ['b', 'a'])
        assert repeated.tasks_done('ann', ['a'])
        assert not repeated.tasks_done('bob', ['a'])
        assert not repeated.tasks_done('ann', ['a', 'unknown'])
    assert one.tasks_done('ann', ['a', 'c'])
    assert one.stats().done == 3
    assert not one.give_back('ann', ['a'])


def test_a_task_that_is_offered_again_is_no_longer_done_by_its_worker(one):
    one.recreate_task_pool({'a': 1})
    one.assign_tasks(1, 'ann')
    assert one.tasks_done('ann', ['a'])
    one.recreate_task_pool({'a': 1}, as_of=one.now())

    assert not one.tasks_done('ann', ['a'])
    assert one.assign_tasks(1, 'bob') == ['a']
    assert not one.tasks_done('ann', ['a'])
    assert one.tasks_done('bob', ['a'])
    assert not one.tasks_done('ann', ['a'])


def test_a_task_that_is_given_back_is_offered_again_with_its_score(one):
    one.recreate_task_pool({'a': 3, 'b': 2, 'c': 1})
    one.assign_tasks(2, 'ann')

    assert one.give_back('ann', ['b'])
    assert not one.give_back('ann', ['b', 'a'])

    assert one.check_tasks('ann', [])
    assert one.assign_tasks(9, 'bob') == ['a', 'b', 'c']


def test_a_task_of_another_worker_is_neither_ended_nor_given_back(one, caplog):
    one.recreate_task_pool({'a': 1})
    one.assign_tasks(1, 'ann')

    assert not one.tasks_done('bob', ['a'])
    assert not one.give_back('bob', ['a'])

    assert one.check_tasks('ann', ['a'])
    assert [record.message.partition(':')[0] for record in caplog.records
            if record.levelname == 'WARNING'
            ] == ['tasks not in the bucket'] * 2


# -- recreation


def test_a_task_in_a_bucket_is_not_put_back_into_the_pool(one):
    one.recreate_task_pool({'a': 2, 'b': 1})
    one.assign_tasks(1, 'ann')

    found = one.recreate_task_pool({'a': 2, 'b': 1, 'c': 0})

    assert found == (1, 1, 0, 1, 0)
    assert one.assign_tasks(9, 'bob') == ['b', 'c']
    assert one.check_tasks('ann', ['a'])


def test_a_task_that_is_not_named_leaves_the_pool_but_no_bucket(one):
    one.recreate_task_pool({'a': 3, 'b': 2, 'c': 1})
    one.assign_tasks(1, 'ann')

    found = one.recreate_task_pool({})

    assert found.removed == 2
    assert one.check_tasks('ann', ['a'])
    assert one.assign_tasks(9, 'bob') == []
    assert one.tasks_done('ann', ['a'])


def test_a_new_score_counts_in_the_pool_and_in_a_bucket(one):
    one.recreate_task_pool({'a': 3, 'b': 2, 'c': 1, 'd': 0})
    one.assign_tasks(2, 'ann')
    one.recreate_task_pool({'a': 3, 'b': 4, 'c': 1, 'd': 2})

    assert one.assign_tasks(1, 'ann') == ['b']
    assert one.assign_tasks(9, 'bob') == ['a', 'd', 'c']


def test_a_done_task_does_not_come_back_with_older_data(one):
    scores = {'a': 2, 'b': 1}
    one.recreate_task_pool(scores)
    one.tasks_done('ann', one.assign_tasks(1, 'ann'))

    assert one.recreate_task_pool(scores).done == 1
    one.recreate_task_pool({'b': 1})
    one.recreate_task_pool(scores)

    assert one.assign_tasks(9, 'bob') == ['b']


def test_a_done_task_is_new_work_if_it_was_read_after_its_end(one):
    before = one.now()
    one.recreate_task_pool({'a': 1})
    one.tasks_done('ann', one.assign_tasks(1, 'ann'))
    after = wait_until(lambda: one.now() if one.now() > before else None)

    assert one.recreate_task_pool({'a': 1}, as_of=before).done == 1
    assert one.assign_tasks(1, 'ann') == []
    assert one.recreate_task_pool({'a': 5}, as_of=after).added == 1
    assert one.assign_tasks(1, 'ann') == ['a']


def test_a_done_task_is_forgotten_when_it_is_no_longer_named(world, pool):
    forgets = world.dispenser(pool, done_retention=0.0)
    forgets.recreate_task_pool({'a': 1})
    forgets.tasks_done('ann', forgets.assign_tasks(1, 'ann'))

    forgets.recreate_task_pool({'a': 1})
    assert forgets.stats().done == 1
    forgets.recreate_task_pool({})
    assert forgets.stats().done == 0
    forgets.recreate_task_pool({'a': 1})
    assert forgets.assign_tasks(1, 'ann') == ['a']


def test_pools_and_groups_do_not_share_tasks(world, pool):
    here = world.dispenser(pool)
    others = [world.dispenser(f'{pool}-2'),
              world.dispenser(pool, group='another')]
    for number, dispenser in enumerate([here, *others]):
        dispenser.recreate_task_pool({'a': 1, f'b{number}': 0})

    for number, dispenser in enumerate([here, *others]):
        assert dispenser.assign_tasks(9, 'ann') == ['a', f'b{number}']
    assert here.tasks_done('ann', ['a'])
    assert all(other.check_tasks('ann', ['a', f'b{number}'])
               for number, other in enumerate(others, 1))


# -- expiry


def test_the_tasks_of_a_silent_worker_are_offered_again(world, one):
    one.recreate_task_pool({'a': 2, 'b': 1})
    one.assign_tasks(2, 'ann')
    assert one.assign_tasks(2, 'bob') == []
    world.expire(one, 'ann')

    assert one.stats().free == 2
    assert one.assign_tasks(2, 'bob') == ['a', 'b']


def test_a_worker_that_was_silent_for_too_long_holds_nothing(world, one):
    one.recreate_task_pool({'a': 2, 'b': 1})
    one.assign_tasks(2, 'ann')
    world.expire(one, 'ann')

    assert not one.check_tasks('ann', ['a', 'b'])
    assert one.check_tasks('ann', [])
    assert not one.tasks_done('ann', ['a'])
    assert not one.give_back('ann', ['b'])
    assert one.stats().buckets == {}
    assert one.assign_tasks(1, 'ann') == ['a']
    assert one.assign_tasks(9, 'bob') == ['b']


def test_a_recreation_frees_expired_tasks(world, one):
    one.recreate_task_pool({'a': 2, 'b': 1})
    one.assign_tasks(2, 'ann')
    world.expire(one, 'ann')

    assert one.recreate_task_pool({'a': 2}) == (0, 1, 1, 0, 0)


def test_a_bucket_expires_by_itself(world, pool):
    one = world.dispenser(pool, bucket_timeout=0.3)
    one.recreate_task_pool({'a': 1})
    one.assign_tasks(1, 'ann')

    wait_until(lambda: one.assign_tasks(1, 'bob') == ['a'])


RENEWALS = {
    'assign_tasks': lambda one: one.assign_tasks(1, 'ann'),
    'check_tasks': lambda one: one.check_tasks('ann', []),
    'tasks_done': lambda one: one.tasks_done('ann', ['other']),
    'tasks_done without tasks': lambda one: one.tasks_done('ann', []),
    'give_back': lambda one: one.give_back('ann', ['other']),
}


@each('call', RENEWALS)
def test_any_call_of_its_worker_renews_a_bucket(world, pool, call):
    brief = world.dispenser(pool, bucket_timeout=60.0)
    brief.recreate_task_pool({'a': 1})
    brief.assign_tasks(1, 'ann')
    until = sa.select(tables.bucket.c.until).join(
        tables.pool, tables.pool.c.id == tables.bucket.c.pool).where(
            tables.pool.c.name == pool)

    def expiry():
        return world.database.read(
            lambda connection: connection.execute(until).scalar_one())
    before = expiry()
    RENEWALS[call](world.dispenser(pool))

    assert expiry() > before + 3000 * 1_000_000


# -- invalid arguments


BAD_CALLS = {
    'limit 0': lambda one: one.assign_tasks(0, 'ann'),
    'limit below 0': lambda one: one.assign_tasks(-1, 'ann'),
    'limit True': lambda one: one.assign_tasks(True, 'ann'),
    'limit 1.5': lambda one: one.assign_tasks(1.5, 'ann'),
    'limit text': lambda one: one.assign_tasks('1', 'ann'),
    'limit None': lambda one: one.assign_tasks(None, 'ann'),
    'worker empty': lambda one: one.assign_tasks(1, ''),
    'worker None': lambda one: one.assign_tasks(1, None),
    'worker 7': lambda one: one.tasks_done(7, ['a']),
    'worker bytes': lambda one: one.check_tasks(b'ann', ['a']),
    'worker long': lambda one: one.give_back('w' * 256, ['a']),
    'worker NUL': lambda one: one.give_back('an\0n', ['a']),
    'worker surrogate': lambda one: one.give_back('\ud800', ['a']),
    'score nan': lambda one: one.recreate_task_pool({'z': math.nan}),
    'score inf': lambda one: one.recreate_task_pool({'z': math.inf}),
    'score -inf': lambda one: one.recreate_task_pool({'z': -math.inf}),
    'score huge': lambda one: one.recreate_task_pool({'z': 10**400}),
    'score text': lambda one: one.recreate_task_pool({'z': '1'}),
    'score None': lambda one: one.recreate_task_pool({'z': None}),
    'score True': lambda one: one.recreate_task_pool({'z': True}),
    'score complex': lambda one: one.recreate_task_pool({'z': 1j}),
    'score decimal': lambda one: one.recreate_task_pool(
        {'z': decimal.Decimal(1)}),
    'one bad score of two': lambda one: one.recreate_task_pool(
        {'y': 1, 'z': math.nan}),
    'tasks no dict': lambda one: one.recreate_task_pool(['a']),
    'task None': lambda one: one.recreate_task_pool({None: 1}),
    'task float': lambda one: one.recreate_task_pool({1.5: 1}),
    'task bool': lambda one: one.recreate_task_pool({True: 1}),
    'task bytes': lambda one: one.recreate_task_pool({b'a': 1}),
    'task long': lambda one: one.recreate_task_pool({'a' * 256: 1}),
    'task many digits': lambda one: one.recreate_task_pool({10**250: 1}),
    'task NUL': lambda one: one.recreate_task_pool({'a\0': 1}),
    'task surrogate': lambda one: one.recreate_task_pool({'\udfff': 1}),
    'tasks a str': lambda one: one.tasks_done('ann', 'a'),
    'tasks an int': lambda one: one.give_back('ann', 1),
    'tasks None': lambda one: one.check_tasks('ann', None),
    'tasks with a list': lambda one: one.tasks_done('ann', [['a']]),
    'as_of naive': lambda one: one.recreate_task_pool(
        {'z': 1}, as_of=datetime.datetime(2026, 1, 1)),  # noqa: DTZ001
    'as_of number': lambda one: one.recreate_task_pool({'z': 1}, as_of=1),
}


@each('name', BAD_CALLS)
def test_a_bad_argument_is_one_clear_line_and_nothing_is_lost(one, name):
    one.recreate_task_pool({'a': 2, 'b': 1})
    one.assign_tasks(1, 'ann')

    with pytest.raises(distperiodic.InvalidPoolRequest) as refused:
        BAD_CALLS[name](one)

    assert '\n' not in str(refused.value)
    assert one.check_tasks('ann', ['a'])
    assert (one.stats().free, one.stats().assigned) == (1, 1)


@pytest.mark.parametrize('name', ['', None, 7, 'p' * 201, 'p\0'])
def test_a_bad_name_of_a_pool_is_one_clear_line(name):
    with pytest.raises(distperiodic.InvalidPoolRequest) as refused:
        dispensed.dispenser('sqlite:////nowhere', name)

    assert '\n' not in str(refused.value)


UNKNOWN = {
    'assign_tasks': lambda one: one.assign_tasks(1, 'ann'),
    'check_tasks': lambda one: one.check_tasks('ann', []),
    'tasks_done': lambda one: one.tasks_done('ann', ['a']),
    'give_back': lambda one: one.give_back('ann', ['a']),
    'stats': lambda one: one.stats(),
}


@each('call', UNKNOWN)
def test_an_unknown_pool_is_reported_in_one_line(one, call):
    with pytest.raises(distperiodic.PoolNotFound) as refused:
        UNKNOWN[call](one)

    assert one.pool in str(refused.value)
    assert '\n' not in str(refused.value)


def test_an_empty_pool_is_a_pool(one):
    one.recreate_task_pool({})

    assert one.assign_tasks(1, 'ann') == []
    assert one.stats() == distperiodic.dispenser.Stats(0, 0, 0, {})


# -- faults


def test_a_repeated_transaction_gives_the_same_answer(one, monkeypatch):
    """The transaction was committed, but the dispenser received no answer."""
    def twice(database, work):
        write(database, work)
        return write(database, work)
    write = Database.write
    monkeypatch.setattr(Database, 'write', twice)
    _call_all(one)


def test_a_repeated_statement_gives_the_same_answer(one, monkeypatch):
    """The statement was committed, but the dispenser received no answer."""
    def lost(database, *arguments):
        execute(database, *arguments)
    execute = Database.execute_alone
    monkeypatch.setattr(Database, 'execute_alone', lost)
    _call_all(one)


def _call_all(one):
    one.recreate_task_pool({'a': 4, 'b': 3, 'c': 2, 'd': 1})

    assert one.assign_tasks(3, 'ann') == ['a', 'b', 'c']
    assert one.assign_tasks(2, 'ann') == ['a', 'b']
    assert one.tasks_done('ann', ['a'])
    assert one.give_back('ann', ['b'])
    assert not one.give_back('ann', ['b'])
    assert one.assign_tasks(9, 'bob') == ['b', 'c', 'd']


@pytest.mark.parametrize('database_url', ['postgresql'], indirect=True)
def test_a_statement_that_arrives_late_changes_nothing(one, monkeypatch):
    """The network delivers the statement after the call was repeated."""
    one.recreate_task_pool({'a': 1})
    one.assign_tasks(1, 'ann')
    late = []

    with monkeypatch.context() as patch:
        patch.setattr(Database, 'execute_alone',
                      lambda *arguments: late.append(arguments))
        assert one.give_back('ann', ['a'])
    assert one.assign_tasks(1, 'ann') == ['a']

    [arguments] = late
    assert Database.execute_alone(*arguments) == []
    assert one.check_tasks('ann', ['a'])


@pytest.mark.parametrize('database_url', ['postgresql'], indirect=True)
def test_the_other_driver_of_postgresql_gives_the_same_answers(
        database_url, pool):
    url = sa.make_url(database_url).set(drivername='postgresql+psycopg2')
    world = World(url.render_as_string(hide_password=False))
    _call_all(world.dispenser(pool))
    world.close()


def test_a_transaction_after_calls_is_undone_as_a_whole(world, pool):
    store = SqlTaskPool(
        world.url, namespace='tests', pool=pool, bucket_timeout=60.0)
    store.recreate({'sa': 1.0}, as_of=None, done_retention=60.0)
    for _ in range(2):
        assert store.assign(1, 'ann') == ['sa']

    def fail(connection):
        connection.execute(sa.delete(tables.pool_task))
        raise RuntimeError('failed')
    with pytest.raises(RuntimeError, match='failed'):
        store.database.write(fail)

    assert store.held('ann') == {'sa'}
    store.close()


@pytest.mark.parametrize('database_url', ['postgresql'], indirect=True)
def test_a_call_opens_a_new_connection_if_the_old_one_was_closed(world, one):
    one.recreate_task_pool({'a': 2, 'b': 1})
    one.assign_tasks(1, 'ann')
    for call in (lambda: one.assign_tasks(2, 'ann') == ['a', 'b'],
                 lambda: one.check_tasks('ann', ['a', 'b']),
                 lambda: one.tasks_done('ann', ['a']),
                 lambda: one.give_back('ann', ['b'])):
        world.database.write(lambda connection: connection.execute(sa.text(
            'SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity '
            'WHERE datname = current_database() '
            'AND pid <> pg_backend_pid()')).all())
        assert call()


def test_tables_that_were_recreated_hold_no_pool(world, one):
    one.recreate_task_pool({'a': 1})
    one.assign_tasks(1, 'ann')

    def recreated(connection):
        for table in tables.bucket, tables.pool_task, tables.pool:
            connection.execute(sa.delete(table))
    world.database.write(recreated)

    with pytest.raises(exceptions.PoolNotFound):
        one.assign_tasks(1, 'ann')
    one.recreate_task_pool({'b': 1})
    assert one.assign_tasks(1, 'ann') == ['b']


# -- concurrent calls


def together(number, act):
    """Call *act* in threads at the same moment; return the results."""
    ready = threading.Barrier(number)

    def run(which):
        ready.wait()
        return act(which)
    with concurrent.futures.ThreadPoolExecutor(number) as threads:
        return list(threads.map(run, range(number)))


def test_workers_that_ask_at_once_share_the_best_tasks(world, pool):
    one = world.dispenser(pool)
    one.recreate_task_pool({number: -number for number in range(100)})

    shares = together(8, lambda which: world.dispenser(pool).assign_tasks(
        10, f'worker-{which}'))

    assert sorted(sum(shares, [])) == list(range(80))


def test_calls_for_one_worker_at_once_do_not_exceed_its_limit(world, pool):
    one = world.dispenser(pool)
    one.recreate_task_pool({number: -number for number in range(100)})

    # A dispenser looks up the pool at its first call, so make this call here.
    every = [world.dispenser(pool) for _ in range(6)]
    for other in every:
        other.give_back('ann', other.assign_tasks(10, 'ann'))

    for _ in range(5):
        answers = together(6, lambda which: every[which].assign_tasks(
            10, 'ann'))
        assert answers == [answers[0]] * 6
        assert len(answers[0]) == 10
        assert one.tasks_done('ann', answers[0])


@pytest.mark.parametrize('database_url', ['postgresql'], indirect=True)
def test_a_call_sees_the_call_of_its_worker_for_which_it_waited(
        world, pool, one):
    one.recreate_task_pool({'a': 2, 'b': 1})
    one.assign_tasks(1, 'ann')

    # Another call assigns 'b', and has not committed yet.
    engine = make_engine(world.url)
    with (engine.begin() as connection,
          concurrent.futures.ThreadPoolExecutor(1) as threads):
        bucket = connection.execute(
            sa.update(tables.bucket).where(
                tables.bucket.c.worker == 'ann',
                tables.bucket.c.pool == sa.select(tables.pool.c.id).where(
                    tables.pool.c.name == pool).scalar_subquery()
            ).values(calls=tables.bucket.c.calls + 1).returning(
                tables.bucket.c.id, tables.bucket.c.pool)).one()
        connection.execute(sa.update(tables.pool_task).where(
            tables.pool_task.c.pool == bucket.pool).values(bucket=bucket.id))
        answer = threads.submit(one.tasks_done, 'ann', ['a', 'b'])
        wait_until(lambda: connection.execute(sa.text(
            'SELECT count(*) FROM pg_locks WHERE NOT granted')).scalar())
        connection.commit()

        assert answer.result()
    engine.dispose()


def test_only_one_of_many_workers_ends_a_task(world, pool):
    one = world.dispenser(pool)
    one.recreate_task_pool({'a': 1})
    one.assign_tasks(1, 'worker-0')

    answers = together(6, lambda which: world.dispenser(pool).tasks_done(
        f'worker-{which % 2}', ['a']))

    assert sorted(answers) == [False] * 3 + [True] * 3


def test_recreations_at_once_leave_the_tasks_of_one_of_them(world, pool):
    one = world.dispenser(pool)
    one.recreate_task_pool({})

    together(4, lambda which: world.dispenser(pool).recreate_task_pool(
        {f'{which}-{number}': 1 for number in range(50)}))

    assert len({task[0] for task in one.assign_tasks(500, 'ann')}) == 1
    assert one.stats().assigned == 50


def test_a_pool_that_many_create_at_once_is_one_pool(world, pool):
    together(6, lambda which: world.dispenser(pool).recreate_task_pool(
        {'a': 1}))

    shares = together(6, lambda which: world.dispenser(pool).assign_tasks(
        1, f'worker-{which}'))
    assert sorted(shares) == [[]] * 5 + [['a']]


# -- comparison with the model


TASKS = st.sampled_from([0, 1, -7, 10, '0', '1', 'b', 'a', 'ä', 'x' * 40])
SOME = st.lists(TASKS, max_size=6)
WORKERS = st.sampled_from(['ann', 'bob', 'cid'])
SCORES = st.dictionaries(TASKS, st.sampled_from([-1.5, 0, 1, 2, 2.5, 3]))


class Machine(stateful.RuleBasedStateMachine):
    """Random calls, each compared with the model of a pool."""

    world = None

    def __init__(self):
        super().__init__()
        self.model = dispensed.Model()
        self.one = self.world.dispenser(f'pool-{uuid.uuid4().hex[:12]}')
        self.one.recreate_task_pool({})

    @stateful.rule(scores=SCORES, again=st.booleans())
    def recreate(self, scores, again):
        self.one.recreate_task_pool(
            scores, as_of=self.one.now() if again else None)
        self.model.recreate(scores, again)

    @stateful.rule(limit=st.integers(1, 6), worker=WORKERS)
    def assign(self, limit, worker):
        assert (self.one.assign_tasks(limit, worker)
                == self.model.assign(limit, worker))

    @stateful.rule(worker=WORKERS, tasks=SOME)
    def check(self, worker, tasks):
        assert (self.one.check_tasks(worker, tasks)
                == self.model.check(worker, tasks))

    @stateful.rule(worker=WORKERS)
    def check_all(self, worker):
        assert self.one.check_tasks(
            worker, list(self.model.buckets.get(worker, ())))

    @stateful.rule(worker=WORKERS, tasks=SOME)
    def finish(self, worker, tasks):
        assert (self.one.tasks_done(worker, tasks)
                == self.model.finish(worker, tasks))

    @stateful.rule(worker=WORKERS, tasks=SOME)
    def give_back(self, worker, tasks):
        assert (self.one.give_back(worker, tasks)
                == self.model.give_back(worker, tasks))

    @stateful.rule(worker=WORKERS)
    def expire(self, worker):
        self.world.expire(self.one, worker)
        self.model.expire(worker)

    @stateful.invariant()
    def counts(self):
        found = self.one.stats()
        assert (found.free, found.assigned, found.done,
                found.buckets) == self.model.numbers

    def teardown(self):
        self.one.close()


def test_any_calls_have_the_results_of_the_model(world, request):
    kind = type('Machine', (Machine,), {'world': world})
    examples = hypothesis.settings().max_examples
    stateful.run_state_machine_as_test(
        kind, settings=hypothesis.settings(
            max_examples=examples // (2 if 'sqlite' in request.node.name
                                      else 4),
            stateful_step_count=30,
            suppress_health_check=list(hypothesis.HealthCheck)))


def test_equal_seeds_of_two_processes_do_not_mix_their_buckets(world, pool):
    for number in range(2):
        random.seed(0)
        one = world.dispenser(f'{pool}-{number}')
        one.recreate_task_pool({f'a{number}': 1})
        one.assign_tasks(1, 'ann')

    assert one.check_tasks('ann', ['a1'])


def test_a_pool_store_belongs_to_no_thread(world, pool):
    """A dispenser uses each connection in many threads, one after another."""
    store = SqlTaskPool(
        world.url, namespace='tests', pool=pool, bucket_timeout=60.0)
    store.recreate({'sa': 1.0}, as_of=None, done_retention=60.0)

    [keys] = together(1, lambda which: store.assign(1, 'ann'))

    assert keys == ['sa']
    store.close()
