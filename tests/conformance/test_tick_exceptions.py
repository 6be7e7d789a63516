# SPDX-License-Identifier: Apache-2.0
"""The past of one object, in every database.

Each test has a group of its own.
"""

import concurrent.futures
import contextlib
import uuid

import pytest
import sqlalchemy as sa

from distperiodic.adapters.sql import history
from distperiodic.adapters.sql import pruning
from distperiodic.adapters.sql import tables
from distperiodic.adapters.sql.pruning import prune_steps
from distperiodic.adapters.sql.store import SqlClaimStore
from distperiodic.core import due
from distperiodic.core.claim import Failure
from distperiodic.core.claim import HeldLease
from distperiodic.core.claim import SkippedBy
from distperiodic.core.claim import State
from distperiodic.core.claim_request import NewLease
from distperiodic.core.claim_request import SkipRequest
from distperiodic.core.outcomes import LATE
from distperiodic.core.outcomes import REQUEUED
from distperiodic.core.pruning import Ages
from distperiodic.core.pruning import PruneStep
from distperiodic.core.pruning import ages_of
from distperiodic.core.tick_exceptions import KEPT
from distperiodic.core.tick_exceptions import TickException
from distperiodic.operator import admin
from distperiodic.operator import dead_objects
from distperiodic.operator import object_past
from distperiodic.operator import queries
from distperiodic.operator.auditing import Actor
from distperiodic.operator.dead_objects import DeadFilter
from distperiodic.operator.group_reader import GroupStore
from distperiodic.ports import RunTimes
from tests import claiming
from tests.pruned import pruned

SECOND = 1_000_000
DAY = 86400 * SECOND
HOSTILE = ['\U0001f600' * 255, 'a\nb', '"', ', ', '\\', "'; --", 'é']


class World:
    """One group in a database."""

    def __init__(self, url):
        self.url = url
        self.group = f'tests-{uuid.uuid4().hex[:8]}'
        self.store = SqlClaimStore(url, namespace=self.group)
        self.now = self.store.now()

    def close(self):
        self.store.forget()
        self.store.close()

    def claim(self, tick, objects, holder='api-1', **options):
        lease = uuid.uuid4().hex
        assert len(claiming.claim(
            self.store, 'poll', tick, objects, lease=lease, holder=holder,
            seconds=600.0, supersede=True, **options).won) == len(objects)
        return HeldLease(lease, 'poll', tick)

    def start(self, tick, objects, holder='w-1'):
        lease, running = self.claim(tick, objects), uuid.uuid4().hex
        assert len(self.store.start(
            lease, objects, NewLease(running, holder, 600.0))) == len(objects)
        return HeldLease(running, 'poll', tick)

    def run(self, tick, objects, dead=()):
        """Run *objects*. Those of *dead* fail for good."""
        lease = self.start(tick, objects)
        if dead:
            self.store.fail(
                lease, [Failure(key, 'it is ill') for key in dead], None)
        done = [key for key in objects if key not in dead]
        if done:
            self.store.finish(lease, done)

    def skip(self, tick, objects, by, holder='api-1', reason='', missed=None):
        assert len(self.store.skip(SkipRequest(
            'poll', tick, objects, holder, by, reason,
            missed))) == len(objects)

    def requeue(self, key):
        with contextlib.closing(GroupStore(self.url, self.group)) as store:
            return dead_objects.requeue(
                store, DeadFilter('poll', [key]), Actor('me', 'here'))

    def exceptions(self, first, last=None, limit=100):
        """Exceptions of ticks, without the ids: those are in keys()."""
        number = self.store._numbers.of('poll')
        return self.store.database.read(
            lambda connection: object_past.exceptions(
                connection, number, first, first if last is None else last,
                limit))

    def found(self, first, last=None):
        return {(one.outcome, one.member, *sorted(one.keys()))
                for one in self.exceptions(first, last)}

    def rows(self):
        return self.store.database.read(lambda connection: connection.scalar(
            sa.select(sa.func.count()).select_from(tables.exception).join(
                tables.job, tables.job.c.id == tables.exception.c.job)
            .where(tables.job.c.space == self.group)))


@pytest.fixture
def world(database_url):
    made = World(database_url)
    yield made
    made.close()


@contextlib.contextmanager
def counted_statements():
    found = []

    def note(connection, cursor, statement, parameters, context, executemany):
        found.append(statement)
    sa.event.listen(sa.Engine, 'before_cursor_execute', note)
    try:
        yield found
    finally:
        sa.event.remove(sa.Engine, 'before_cursor_execute', note)


def test_a_healthy_tick_records_nothing_and_executes_no_statement_for_it(
        world):
    world.run(world.now - 60 * SECOND, ['a', 'b'])
    with counted_statements() as found:
        world.run(world.now - 30 * SECOND, ['a', 'b'])

    assert found != []
    assert [one for one in found if tables.exception.name in one] == []
    assert world.rows() == 0


def test_each_outcome_is_recorded_with_its_objects_and_its_member(world):
    tick = world.now - 60 * SECOND
    world.run(tick, ['a', 'b', 'c'], dead=['b', 'c'])
    late = tick + 10 * SECOND
    world.claim(late, ['a'])
    world.run(late + SECOND, ['a'])
    given_up = world.claim(late + 2 * SECOND, ['a', 'b'])
    world.store.discard(given_up, ['a'], State.CANCELLED, 'no owner')
    for at, by in enumerate(SkippedBy):
        world.skip(late + (3 + at) * SECOND, ['a'], by, f'api-{at}')

    assert world.found(tick) == {('dead', 'w-1', 'b', 'c')}
    assert world.found(late) == {('superseded', 'api-1', 'a')}
    assert world.found(late + SECOND) == set()
    assert world.found(late + 2 * SECOND) == {('cancelled', 'api-1', 'a')}
    assert [world.found(late + (3 + at) * SECOND) for at in range(4)] == [
        {('by_misfire', 'api-0', 'a')}, {('by_overlap', 'api-1', 'a')},
        {('by_pause', 'api-2', 'a')}, {('by_lost', 'api-3', 'a')}]


def test_objects_that_miss_several_ticks_at_once_are_in_each_of_them(world):
    tick = world.now - 60 * SECOND
    last = tick + 30 * SECOND
    world.run(tick, ['a', 'b'])
    world.run(tick + 10 * SECOND, ['b'])
    world.skip(last, ['a', 'b'], SkippedBy.MISFIRE, missed=lambda settled: (
        (last - settled) // (10 * SECOND) - 1))

    assert [world.found(tick + at * SECOND) for at in (0, 10, 20, 30, 40)] == [
        set(), {('by_misfire', 'api-1', 'a')}, *[{
            ('by_misfire', 'api-1', 'a'), ('by_misfire', 'api-1', 'b')}] * 2,
        set()]


def test_two_members_record_the_same_tick_apart(world):
    tick = world.now - 60 * SECOND
    world.run(tick, ['a', 'b'])
    for key, holder in ('a', 'api-1'), ('b', 'api-2'):
        world.skip(tick + SECOND, [key], SkippedBy.PAUSE, holder, key)

    assert world.found(tick + SECOND) == {
        ('by_pause', 'api-1', 'a'), ('by_pause', 'api-2', 'b')}
    assert {one.reason for one in world.exceptions(tick + SECOND)} == {
        'a', 'b'}


def test_any_id_is_found_as_it_was_written(world):
    tick = world.now - 60 * SECOND
    world.run(tick, HOSTILE, dead=HOSTILE)

    [found] = world.exceptions(tick)

    assert sorted(found.keys()) == sorted(HOSTILE)
    assert all(found.has(key) for key in HOSTILE)
    assert not found.has('a')


def test_a_requeue_is_recorded_with_the_dead_objects(world):
    tick = world.now - 60 * SECOND
    world.run(tick, ['a', 'b'], dead=['a', 'b'])
    world.requeue('a')

    assert world.found(tick) == {
        ('dead', 'w-1', 'a', 'b'), (REQUEUED, '', 'a')}


def test_a_call_that_is_repeated_records_nothing_twice(world):
    tick = world.now - 60 * SECOND
    lease = world.start(tick, ['a'])
    for _ in range(2):
        assert world.store.fail(lease, [Failure('a', '')], None) == {'a'}
    old = world.claim(tick + SECOND, ['a'])
    for _ in range(2):
        claiming.claim(world.store, 'poll', tick + 2 * SECOND, ['a'],
                       lease='new', holder='api-1', seconds=600.0,
                       supersede=True)
    assert old.tick == tick + SECOND

    assert world.rows() == 2


def test_a_transaction_that_fails_records_no_exception(world, monkeypatch):
    """The numbers and the ids are committed together."""
    tick = world.now - 60 * SECOND
    world.run(tick, ['a'])

    def fails(*args, **options):
        raise RuntimeError('the process dies')
    monkeypatch.setattr(history, 'count', fails)
    with pytest.raises(RuntimeError):
        world.skip(tick + SECOND, ['a'], SkippedBy.PAUSE)
    monkeypatch.undo()
    monkeypatch.setattr(history, 'record', fails)
    with pytest.raises(RuntimeError):
        world.skip(tick + SECOND, ['a'], SkippedBy.PAUSE)

    assert world.rows() == 0
    assert world.store.settled('poll', tick + SECOND) == 0


def test_ids_above_the_maximum_are_counted_and_not_kept(world, monkeypatch):
    monkeypatch.setattr(history, 'KEPT', 3)
    tick = world.now - 60 * SECOND
    world.run(tick, list('abcdef'))
    for keys in 'ab', 'cd', 'e', 'f':
        world.skip(tick + SECOND, list(keys), SkippedBy.PAUSE)

    kept = world.exceptions(tick + SECOND)

    assert [(one.number, sorted(one.keys())) for one in kept] == [
        (2, ['a', 'b']), (1, ['e']), (3, [])]
    assert kept[-1].objects is None
    assert KEPT >= 100_000


def test_the_maximum_applies_to_all_objects_of_one_call(world, monkeypatch):
    monkeypatch.setattr(history, 'KEPT', 3)
    tick = world.now - 60 * SECOND
    world.run(tick, ['a', 'b'])
    world.run(tick + SECOND, ['c', 'd'])
    world.skip(tick + 2 * SECOND, ['a', 'b', 'c', 'd'], SkippedBy.PAUSE)

    assert [(one.number, sorted(one.keys())) for one in world.exceptions(
        tick + 2 * SECOND)] == [(2, ['a', 'b']), (2, [])]


def test_the_ids_of_a_job_that_is_paused_as_a_whole_are_not_kept(world):
    tick = world.now - 60 * SECOND
    world.run(tick, ['a', 'b'])
    with contextlib.closing(GroupStore(world.url, world.group)) as store:
        admin.pause(store, 'poll', by='me', why='')
    world.skip(tick + SECOND, ['a'], SkippedBy.PAUSE)
    world.skip(tick + SECOND, ['b'], SkippedBy.MISFIRE)

    assert {(one.outcome, one.number, *one.keys())
            for one in world.exceptions(tick + SECOND)} == {
        ('by_pause', 1), ('by_misfire', 1, 'b')}


def test_the_ids_of_a_job_whose_pause_has_ended_are_kept(world):
    tick = world.now - 60 * SECOND
    world.run(tick, ['a'])
    with contextlib.closing(GroupStore(world.url, world.group)) as store:
        admin.pause(store, 'poll', by='me', why='', until=tick)
    world.skip(tick + SECOND, ['a'], SkippedBy.PAUSE)

    assert world.found(tick + SECOND) == {('by_pause', 'api-1', 'a')}


def times(*behind):
    return RunTimes(late=len(behind), behind=behind)


def test_the_objects_that_ran_late_are_recorded_with_their_results(world):
    tick = world.now - 60 * SECOND
    lease = world.start(tick, ['a', 'b', 'c', 'd'])
    for _ in range(2):
        world.store.finish(lease, ['a', 'b'], times('a', 'c'))
    world.store.fail(lease, [Failure('c', '')], NewLease('retry', '', 600.0))
    world.store.fail(lease, [Failure('d', '')], None, times('d'))

    assert world.found(tick) == {
        (LATE, 'w-1', 'a', 'c'), (LATE, 'w-1', 'd'), ('dead', 'w-1', 'd')}


def test_an_object_that_ran_late_and_waits_for_a_retry_is_recorded(world):
    tick = world.now - 60 * SECOND
    lease = world.start(tick, ['a', 'b'])
    world.store.fail(lease, [Failure('a', '')], NewLease('retry', '', 600.0),
                     times('a'))

    assert world.found(tick) == {(LATE, 'w-1', 'a')}


def in_store(world, statement):
    return world.store.database.write(
        lambda connection: connection.execute(statement))


def test_an_object_that_ended_its_run_itself_and_ran_late_is_recorded(world):
    tick = world.now - 60 * SECOND
    lease = world.start(tick, ['a', 'b'])
    in_store(world, sa.update(tables.claim).where(
        tables.claim.c.job == world.store._numbers.of('poll')).values(
            state=State.COMMITTED))
    world.store.finish(lease, ['a', 'b'], times('a'))

    assert world.found(tick) == {(LATE, 'w-1', 'a')}


def test_an_object_with_its_own_schedule_is_not_recorded_as_late(world):
    """The worker compares with the period of the job. An hourly object has
    ticks on the grid of a job that runs each minute.
    """
    tick = world.now - 60 * SECOND
    lease = world.start(tick, ['a', 'b'])
    in_store(world, sa.update(tables.claim).where(
        tables.claim.c.job == world.store._numbers.of('poll'),
        tables.claim.c.object == 'b').values(rule='every 3600'))
    world.store.finish(lease, ['a'], times('a', 'b'))
    world.store.finish(lease, ['b'], times('b'))

    assert world.found(tick) == {(LATE, 'w-1', 'a')}


def test_objects_that_ran_late_do_not_displace_those_that_did_not_run(
        world, monkeypatch):
    monkeypatch.setattr(history, 'KEPT', 2)
    tick = world.now - 60 * SECOND
    lease = world.start(tick, ['a', 'b', 'c'])
    world.store.finish(lease, ['a', 'b'], times('a', 'b'))
    world.store.fail(lease, [Failure('c', '')], None)

    assert world.found(tick) == {
        (LATE, 'w-1', 'a', 'b'), ('dead', 'w-1', 'c')}
    # The last rows are read if there are too many.
    assert [one.keys() for one in world.exceptions(tick, limit=1)] == [
        ['c'], []]


def test_an_old_tick_is_read_without_the_later_exceptions(world):
    """An interval of any length is found from each instant in it."""
    first = world.now - 100 * DAY
    lengths = [1, 2, 16, 17, 255, SECOND, 60 * SECOND + 1, DAY, 90 * DAY]
    keys = [f'{length}' for length in lengths]
    world.run(first, keys)
    for length, key in zip(lengths, keys, strict=True):
        world.skip(first + length, [key], SkippedBy.MISFIRE)

    def covering(instant):
        return {int(key) for one in world.exceptions(instant)
                for key in one.keys()}
    assert covering(first) == set()
    for length in lengths:
        for instant in length - 1, length, length + 1:
            assert covering(first + instant) == {
                one for one in lengths if 0 < instant <= one}
    assert len(world.exceptions(first, first + 90 * DAY)) == len(lengths)


def test_the_oldest_ids_of_a_job_are_replaced_by_their_number(
        world, monkeypatch):
    monkeypatch.setattr(pruning, 'KEPT_IN_ALL', 3 * (pruning.ROW + 2))
    monkeypatch.setattr(pruning, '_AT_A_TIME', 2)
    first = world.now - 600 * SECOND
    ticks = [first + at * SECOND for at in range(1, 6)]
    world.run(first, list('abcd'))
    for tick in ticks:
        world.skip(tick, ['a', 'b'], SkippedBy.PAUSE, 'api-1', 'x')
    world.skip(ticks[0], ['c', 'd'], SkippedBy.PAUSE, 'api-2', 'y')
    other = World(world.url)
    other.run(first, ['a'], dead=['a'])

    assert pruned(world.store.database, world.group)[
        'ids of exceptions'] == 3
    assert pruned(world.store.database, world.group) == {}

    assert [[(one.outcome, one.after, one.number, sorted(one.keys()))
             for one in world.exceptions(tick)] for tick in ticks] == [
        [('by_pause', first, 4, [])],
        [('by_pause', ticks[0], 2, [])],
        *([('by_pause', tick - SECOND, 2, ['a', 'b'])] for tick in ticks[2:])]
    assert other.found(first) == {('dead', 'w-1', 'a')}
    other.close()


def test_the_ids_of_each_job_are_read_in_a_step_of_their_own(world):
    """The store answers other calls between two steps."""
    tick = world.now - 600 * SECOND
    for job in 'one', 'two', 'three':
        claiming.claim(world.store, job, tick, ['a'], lease=job,
                       holder='api-1', seconds=600.0, supersede=False)
        running = f'running {job}'
        world.store.start(HeldLease(job, job, tick), ['a'],
                          NewLease(running, 'w-1', 600.0))
        world.store.fail(HeldLease(running, job, tick), [Failure('a', '')],
                         None)

    assert list(prune_steps(
        world.store.database, world.group, ages_of(0.0, 0.0))) == [
        PruneStep('ids of exceptions', 0)] * 3


def test_two_schedulers_at_once_count_each_object_once(world, monkeypatch):
    monkeypatch.setattr(pruning, 'KEPT_IN_ALL', 0)
    monkeypatch.setattr(pruning, '_AT_A_TIME', 3)
    tick = world.now - 600 * SECOND
    keys = [f'{n:02}' for n in range(40)]
    world.run(tick, keys)
    for key in keys:
        world.skip(tick + SECOND, [key], SkippedBy.PAUSE)
    stores = [SqlClaimStore(world.url, namespace=world.group)
              for _ in range(4)]

    def prune(store):
        found = pruned(store.database, world.group)
        store.close()
        return found['ids of exceptions']
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        assert sum(threads.map(prune, stores)) == 40

    assert [(one.number, one.keys()) for one in world.exceptions(
        tick + SECOND)] == [(40, [])]


def test_a_tick_before_the_claims_were_pruned_is_not_explained(world):
    """An object that is listed again may have been listed before."""
    tick = world.now - 9 * DAY
    world.run(tick, ['gone', 'stays'])
    world.run(world.now - DAY, ['stays'])
    world.store.sync('poll', [], ['gone'], readings=[tick + SECOND])

    def begins():
        with contextlib.closing(GroupStore(world.url, world.group)) as store:
            return queries.ticks(store, 'poll', 'stays', [tick])[
                tick].rows_begin

    def prune():
        return sum(step.rows for step in prune_steps(
            world.store.database, world.group, Ages(claims=days))
            if step.kind == 'claims')
    assert begins() == due.ALWAYS
    days = 30.0
    assert (prune(), begins()) == (0, due.ALWAYS)
    days = 3.0
    assert prune() == 1
    found = begins()
    assert found == pytest.approx(world.now - 3 * DAY, abs=600 * SECOND)
    days = 5.0
    assert (prune(), begins()) == (0, found)
    # No tick of the job was claimed since, although its objects are listed.
    days = 0.5
    assert prune() == 1
    assert begins() >= world.now


def test_exceptions_that_are_not_read_are_counted(world):
    tick = world.now - 60 * SECOND
    world.run(tick, list('abc'))
    for key in 'abc':
        world.skip(tick + SECOND, [key], SkippedBy.PAUSE)

    found = world.exceptions(tick + SECOND, limit=1)

    assert [(one.number, one.keys()) for one in found] == [(1, ['c']), (2, [])]
    assert isinstance(found[0], TickException)


def test_exceptions_are_deleted_with_the_history(world):
    for days in 9, 2:
        world.run(world.now - days * DAY, ['a', 'b'], dead=['a'])
    lease = world.start(world.now - 8 * DAY + SECOND, ['open'])
    world.store.fail(lease, [Failure('open', '')], NewLease('x', '', 600.0))
    world.run(world.now - 8 * DAY, ['c'], dead=['c'])

    found = pruned(world.store.database, world.group, history=3.0)

    assert found['exceptions'] == 2
    assert world.rows() == 1
    assert world.found(world.now - 2 * DAY) == {('dead', 'w-1', 'a')}


def test_many_exceptions_are_deleted_in_small_transactions(
        world, monkeypatch):
    monkeypatch.setattr(pruning, '_AT_A_TIME', 4)
    tick = world.now - 9 * DAY
    keys = [f'{n:04}' for n in range(9)]
    world.run(tick, keys)
    for key in keys:
        world.skip(tick + SECOND, [key], SkippedBy.PAUSE)

    steps = [step.rows for step in prune_steps(
        world.store.database, world.group, ages_of(3.0, 0.0))
        if step.kind == 'exceptions']

    assert [rows for rows in steps if rows] == [4, 4, 1]
    assert world.rows() == 0
