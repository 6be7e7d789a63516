# SPDX-License-Identifier: Apache-2.0
"""The pool with real threads: its limits, and the order of its work."""

import collections
import itertools
import random
import threading
import weakref

import pytest

from distperiodic.adapters.local.pool import Pools
from distperiodic.adapters.local.pool import ThreadPool
from tests import waiting
from tests.logged import lines
from tests.unit.world import job

LIMIT = 20.0
NUMBERS = itertools.count()
#: For each pool the prefix of the names of its threads.
NAMES = weakref.WeakKeyDictionary()


class Parts:
    """A source of *number* parts; each part calls *function*."""

    def __init__(self, number, function):
        self.left = number
        self.function = function
        self.asked = 0

    def take(self):
        self.asked += 1
        if not self.left:
            return None, False
        self.left -= 1
        return self.left, self.left > 0

    def run(self, part):
        self.function(part)


@pytest.fixture
def make():
    """Return a function that makes pools, which are stopped at the end."""
    made = []

    def pool(size):
        name = f'pool-{next(NUMBERS)}.'
        made.append(ThreadPool(size, name))
        NAMES[made[-1]] = name
        return made[-1]
    yield pool
    for one in made:
        one.stop()


def threads_of(pool):
    return [t for t in threading.enumerate()
            if t.name.startswith(NAMES[pool])]


def busy(pool):
    """Make a thread of *pool* wait; return the event that releases it."""
    began, go = threading.Event(), threading.Event()

    def wait(part):
        began.set()
        assert go.wait(LIMIT)
    pool.submit(0, Parts(1, wait))
    assert began.wait(LIMIT)
    return go


def test_a_part_runs_in_a_thread_of_the_pool(make):
    ran = threading.Event()
    names = []

    def note(part):
        names.append(threading.current_thread().name)
        ran.set()
    pool = make(2)
    pool.submit(0, Parts(1, note))

    assert ran.wait(LIMIT)
    assert names == [f'{NAMES[pool]}-1']
    assert threading.current_thread().name not in names


def test_no_thread_is_started_before_there_is_work(make):
    pool = make(50)

    assert threads_of(pool) == []


def test_all_threads_work_at_once_where_there_is_work_for_them(make):
    together = threading.Barrier(8)
    pool = make(8)

    passed = threading.Event()
    pool.submit(0, Parts(8, lambda part: together.wait(LIMIT)))
    # This part has a lower priority, so it runs after the eight other parts.
    pool.submit(-1, Parts(1, lambda part: passed.set()))

    assert passed.wait(LIMIT)
    assert not together.broken


def test_work_that_comes_in_quick_succession_wakes_a_thread_for_each(make):
    """Each part wakes or starts a thread, even if the first one takes long."""
    for _ in range(200):
        together = threading.Barrier(3)
        pool = make(3)
        for _ in range(3):
            pool.submit(0, Parts(1, lambda part, together=together: (
                together.wait(LIMIT))))
        over = threading.Event()
        pool.submit(0, Parts(1, lambda part, over=over: over.set()))

        assert over.wait(LIMIT)
        assert not together.broken
        pool.stop()


def test_the_pool_never_has_more_threads_than_its_size(make):
    pool = make(3)
    seen = set()
    over = threading.Semaphore(0)

    def note(part):
        seen.add(threading.get_ident())
        over.release()
    for _ in range(500):
        pool.submit(0, Parts(2, note))
    for _ in range(1000):
        assert over.acquire(timeout=LIMIT)

    assert len(seen) <= 3
    assert len(threads_of(pool)) <= 3


def test_the_most_urgent_work_is_taken_first(make):
    pool = make(1)
    go, over, order = busy(pool), threading.Event(), []
    for priority in (1, 5, 3, 5, -2):
        pool.submit(priority, Parts(
            2, lambda part, priority=priority: order.append(priority)))
    pool.submit(-10, Parts(1, lambda part: over.set()))
    go.set()

    assert over.wait(LIMIT)
    assert order == [5, 5, 5, 5, 3, 3, 1, 1, -2, -2]


def test_sources_of_one_priority_take_turns(make):
    pool = make(1)
    go, over, order = busy(pool), threading.Event(), []
    for name, number in (('long', 1000), ('short', 2), ('other', 1)):
        pool.submit(0, Parts(
            number, lambda part, name=name: order.append(name)))
    pool.submit(-1, Parts(1, lambda part: over.set()))
    go.set()

    assert over.wait(LIMIT)
    assert order[:5] == ['long', 'short', 'other', 'long', 'short']
    assert order[5:] == ['long'] * 998


def test_a_source_that_is_queued_is_not_queued_again(make):
    pool = make(1)
    go, over, ran = busy(pool), threading.Event(), []
    source = Parts(3, ran.append)
    for _ in range(100):
        pool.submit(0, source)
    pool.submit(-1, Parts(1, lambda part: over.set()))
    go.set()
    assert over.wait(LIMIT)
    assert source.asked == 3

    # An exhausted source may be submitted again.
    over.clear()
    source.left = 2
    pool.submit(0, source)
    pool.submit(-1, Parts(1, lambda part: over.set()))
    assert over.wait(LIMIT)
    assert len(ran) == 5


@pytest.mark.parametrize('error', [
    RuntimeError, SystemExit, KeyboardInterrupt, GeneratorExit])
def test_a_part_that_raises_costs_no_thread(make, error, caplog):
    pool = make(1)
    over = threading.Event()

    def fail(part):
        raise error('on purpose')
    pool.submit(0, Parts(3, fail))
    pool.submit(-1, Parts(1, lambda part: over.set()))

    assert over.wait(LIMIT)
    assert len(threads_of(pool)) == 1
    assert [line.level for line in lines(caplog)] == 3 * ['ERROR']
    assert all(isinstance(line.error, error) for line in lines(caplog))


def test_handlers_that_hang_block_no_other_while_the_pool_has_room(make):
    pool = make(4)
    forever = threading.Event()
    began = threading.Semaphore(0)
    ran = []
    over = threading.Event()

    def hang(part):
        began.release()
        forever.wait(LIMIT)

    def note(part):
        ran.append(part)
        if len(ran) == 100:
            over.set()
    for _ in range(3):
        pool.submit(0, Parts(1, hang))
    for _ in range(3):
        assert began.acquire(timeout=LIMIT)
    for _ in range(100):
        pool.submit(0, Parts(1, note))

    assert over.wait(LIMIT)
    forever.set()


def test_a_thread_that_was_written_off_is_replaced(make):
    pool = make(1)
    forever, began, over = (threading.Event() for _ in range(3))
    hanging = []

    def hang(part):
        hanging.append(threading.get_ident())
        began.set()
        forever.wait(LIMIT)
    pool.submit(0, Parts(1, hang))
    assert began.wait(LIMIT)
    pool.submit(0, Parts(1, lambda part: over.set()))
    assert not over.is_set()

    assert pool.status() == {'size': 1, 'busy': 1, 'hanging': 0}
    assert pool.write_off(hanging[0]) == 1
    assert over.wait(LIMIT)
    waiting.wait_until(lambda: pool.status() == {
        'size': 1, 'busy': 0, 'hanging': 1}, LIMIT)

    # The hanging call returns after all, and its thread ends by itself.
    forever.set()
    waiting.wait_until(lambda: len(threads_of(pool)) == 1, LIMIT,
                       'the thread that hung has not ended')
    assert pool.write_off(hanging[0]) == 0


def test_writing_off_a_thread_that_is_already_back_loses_no_work(make):
    pool = make(1)
    idents = []
    for number in range(50):
        over = threading.Event()

        def note(part, over=over):
            idents.append(threading.get_ident())
            over.set()
        pool.submit(0, Parts(1, note))
        assert over.wait(LIMIT)
        if number % 3 == 0:
            pool.write_off(idents[-1])

    assert len(idents) == 50


def test_a_stopped_pool_takes_nothing_more(make):
    pool = make(2)
    go, ran = busy(pool), []
    pool.submit(0, Parts(1, ran.append))
    pool.stop()
    go.set()
    pool.submit(0, Parts(1, ran.append))

    waiting.wait_until(lambda: not threads_of(pool), LIMIT,
                       'threads of a stopped pool continue')
    assert len(ran) <= 1


def test_where_no_thread_can_be_started_the_others_do_the_work(
        make, monkeypatch, caplog):
    pool = make(4)
    go, ran = busy(pool), threading.Semaphore(0)

    def refuse(self):
        raise RuntimeError("can't start new thread")
    monkeypatch.setattr(threading.Thread, 'start', refuse)
    for _ in range(5):
        pool.submit(0, Parts(1, lambda part: ran.release()))
    go.set()

    for _ in range(5):
        assert ran.acquire(timeout=LIMIT)
    assert len(lines(caplog, 'no thread')) == 1


@pytest.mark.parametrize('seed', range(5))
def test_under_contention_nothing_is_lost_and_nothing_runs_twice(make, seed):
    """Many submitters, short and failing parts, and threads written off."""
    chance = random.Random(seed)
    pool = make(chance.randint(1, 6))
    ran = collections.Counter()
    lock = threading.Lock()
    total = 0
    over = threading.Semaphore(0)
    work = []
    for number in range(300):
        parts = chance.randint(1, 8)
        total += parts

        def run(part, number=number):
            with lock:
                ran[number, part] += 1
            over.release()
            if number % 20 == seed:
                raise SystemExit(3)
        work.append((chance.randint(-2, 2), Parts(parts, run)))

    def submit(mine):
        for priority, source in mine:
            pool.submit(priority, source)
            if priority == 2:
                pool.write_off(next(
                    (thread.ident for thread in threads_of(pool)), 0))
    submitters = [threading.Thread(target=submit, args=(work[n::4],))
                  for n in range(4)]
    for thread in submitters:
        thread.start()
    for thread in submitters:
        thread.join(LIMIT)
    for _ in range(total):
        assert over.acquire(timeout=LIMIT)

    assert sum(ran.values()) == total
    assert set(ran.values()) == {1}
    waiting.wait_until(lambda: len(threads_of(pool)) <= pool.size, LIMIT,
                       'threads that were written off have not ended')


def test_a_pool_that_is_made_larger_works_with_more_threads(make):
    pool = make(1)
    together, over = threading.Barrier(4), threading.Event()
    pool.submit(0, Parts(4, lambda part: together.wait(LIMIT)))
    pool.submit(-1, Parts(1, lambda part: over.set()))

    pool.resize(4)

    assert over.wait(LIMIT)
    assert not together.broken


def test_surplus_threads_of_a_pool_that_is_made_smaller_end(make):
    pool = make(4)
    together, over = threading.Barrier(4), threading.Event()
    pool.submit(0, Parts(4, lambda part: together.wait(LIMIT)))
    pool.submit(-1, Parts(1, lambda part: over.set()))
    assert over.wait(LIMIT)

    pool.resize(1)

    waiting.wait_until(lambda: len(threads_of(pool)) == 1, LIMIT)
    assert pool.status() == {'size': 1, 'busy': 0, 'hanging': 0}


# -- a pool for each partition

class OfPartition(Parts):
    """Parts that belong to a job of one partition."""

    def __init__(self, topic, number, function):
        super().__init__(number, function)
        self.job = job(topic=topic)


@pytest.fixture
def partitions():
    made = Pools(f'pool-{next(NUMBERS)}.', {'bad': 3, 'good': 1})
    yield made
    made.stop()


def test_the_threads_of_all_partitions_are_counted_after_a_change_of_size(
        partitions):
    assert partitions.size == 4

    partitions.resize({'bad': 1, 'good': 4})

    assert partitions.size == 5


def test_a_partition_whose_threads_all_hang_takes_none_from_its_neighbour(
        partitions):
    forever, began = threading.Event(), threading.Semaphore(0)

    def hang(part):
        began.release()
        forever.wait(LIMIT)
    partitions.submit(9, OfPartition('bad', 50, hang))
    for _ in range(3):
        assert began.acquire(timeout=LIMIT)

    over, ran = threading.Event(), []
    partitions.submit(0, OfPartition('good', 100, ran.append))
    partitions.submit(-1, OfPartition('good', 1, lambda part: over.set()))

    assert over.wait(LIMIT)
    assert len(ran) == 100
    assert partitions.status()['bad'] == {'size': 3, 'busy': 3, 'hanging': 0}
    forever.set()


def test_a_thread_that_is_written_off_is_replaced_in_its_partition(
        partitions):
    forever, began, over = (threading.Event() for _ in range(3))
    hanging = []

    def hang(part):
        hanging.append(threading.get_ident())
        began.set()
        forever.wait(LIMIT)
    partitions.submit(0, OfPartition('good', 1, hang))
    assert began.wait(LIMIT)
    partitions.submit(0, OfPartition('good', 1, lambda part: over.set()))

    assert partitions.write_off(hanging[0]) == 1
    assert over.wait(LIMIT)
    assert partitions.status()['good']['hanging'] == 1
    assert partitions.status()['bad']['hanging'] == 0
    forever.set()
