# SPDX-License-Identifier: Apache-2.0
"""The active worker of a partition: guarantees in every database.

Each test has a group of its own.
"""

import concurrent.futures
import contextlib
import subprocess
import threading
import uuid

import pytest
import sqlalchemy as sa

from distperiodic import exceptions
from distperiodic.adapters.sql import restored
from distperiodic.adapters.sql import schema
from distperiodic.adapters.sql import tables
from distperiodic.adapters.sql.store import SqlClaimStore
from distperiodic.core.claim import HeldLease
from distperiodic.core.claim_request import NewLease
from distperiodic.core.standby import Active
from distperiodic.core.standby import PartitionWorker
from distperiodic.core.standby import Role
from distperiodic.operator import partitions
from distperiodic.operator.group_reader import GroupStore
from tests import claiming
from tests import programs
from tests import waiting

LONG, OVER = 600.0, -1.0
A, B, C = 'h:0~00000000000000aa', 'h:1~00000000000000bb', 'i:0~00cc'


class World:
    """One group in a database, with any number of stores."""

    def __init__(self, url):
        self.url = url
        self.group = f'tests-{uuid.uuid4().hex[:8]}'
        self._made = []
        self.store = self.another()

    def another(self):
        self._made.append(SqlClaimStore(self.url, namespace=self.group))
        return self._made[-1]

    @property
    def partitions(self):
        return self.store.partitions

    def acquire(self, worker, fence=None, seconds=LONG, partition='p',
                members=()):
        if fence is None:
            fence = self.partitions.beat(
                PartitionWorker(partition, worker), Role.STANDBY,
                seconds=LONG).fence
        return self.partitions.acquire(
            PartitionWorker(partition, worker), fence=fence, seconds=seconds,
            members=members)

    def share(self, worker, seconds=LONG, starting=True):
        return self.partitions.share(
            PartitionWorker('p', worker), seconds=seconds, starting=starting)

    def change(self, **values):
        self.store.database.write(lambda connection: connection.execute(
            sa.update(tables.partition).where(
                tables.partition.c.space == self.group).values(values)))

    def seen(self):
        """For each worker, its role and the seconds since its last heartbeat.
        """
        now = self.store.database.dialect.lease_now
        return {row.worker: (row.role, (row.age) / 1e6)
                for row in self.store.database.read(
                    lambda connection: connection.execute(sa.select(
                        tables.partition_worker,
                        (now - tables.partition_worker.c.seen).label('age')
                    ).where(tables.partition_worker.c.space == self.group)
                    ).all())}

    def claimed(self, *objects):
        """Claim objects; return the name of their lease, and a name for a new
        lease.
        """
        lease = uuid.uuid4().hex
        self.tick = self.store.now()
        claiming.claim(self.store, 'poll', self.tick, objects, lease=lease,
                       holder='api-1', seconds=LONG, supersede=False)
        return lease, uuid.uuid4().hex

    def start(self, lease, into, *objects, active=None):
        return [one.object for one in self.store.start(
            HeldLease(lease, 'poll', self.tick), objects,
            NewLease(into, 'h:0', LONG), active=active)]

    def close(self):
        self.store.forget()
        for one in self._made:
            one.close()


@pytest.fixture
def world(database_url):
    made = World(database_url)
    yield made
    made.close()


def test_a_new_partition_has_no_active_worker(world):
    found = world.partitions.beat(
        PartitionWorker('p', A), Role.STARTING, seconds=LONG)

    assert found[:2] == ('', 0)
    assert found.left <= 0
    assert found.promoted == ''


def test_the_first_worker_that_asks_becomes_active(world):
    found = world.acquire(A)

    assert (found.worker, found.fence) == (A, 1)
    assert LONG - 60 < found.left <= LONG
    assert world.acquire(B)[:2] == (A, 1)


def test_an_expired_lease_is_taken_over_under_the_next_fence(world):
    world.acquire(A, seconds=OVER)

    assert world.acquire(B)[:2] == (B, 2)


def test_a_lease_that_has_not_expired_is_not_taken_over(world):
    world.acquire(A)

    assert world.acquire(B, fence=1)[:2] == (A, 1)


def test_a_worker_that_has_read_an_older_fence_takes_nothing_over(world):
    """After the read, another worker took over, and then the lease of that
    worker expired.
    """
    world.acquire(A, seconds=OVER)
    world.acquire(B, seconds=OVER)

    assert world.acquire(C, fence=1)[:2] == (B, 2)


def test_a_heartbeat_of_the_active_worker_renews_its_lease(world):
    world.acquire(A, seconds=OVER)
    world.partitions.beat(PartitionWorker('p', A), Role.ACTIVE, seconds=LONG)

    assert world.acquire(B, fence=1)[:2] == (A, 1)


def test_a_heartbeat_of_another_worker_renews_nothing(world):
    world.acquire(A, seconds=OVER)
    found = world.partitions.beat(
        PartitionWorker('p', B), Role.STANDBY, seconds=LONG)

    assert found.left < 0


def test_a_released_partition_is_free_at_once(world):
    world.acquire(A)
    assert world.partitions.release(
        PartitionWorker('p', A), fence=1)[:2] == ('', 1)

    assert world.acquire(B)[:2] == (B, 2)


def test_only_the_active_worker_releases(world):
    world.acquire(A)

    assert world.partitions.release(
        PartitionWorker('p', B), fence=1)[:2] == (A, 1)


def test_a_repeated_request_has_the_same_answer(world):
    world.acquire(A)
    assert world.acquire(A, fence=0)[:2] == (A, 1)
    world.partitions.release(PartitionWorker('p', A), fence=1)
    assert world.partitions.release(
        PartitionWorker('p', A), fence=1)[:2] == ('', 1)


def test_a_take_over_fulfils_the_choice_of_an_operator(world):
    world.acquire(A, seconds=OVER)
    world.change(promoted='h:1', promoted_by='op')
    assert world.partitions.beat(
        PartitionWorker('p', B), Role.STANDBY, seconds=LONG).promoted == 'h:1'

    assert world.acquire(B).promoted == ''


def test_each_heartbeat_is_recorded_with_its_role(world):
    world.acquire(A)
    world.partitions.beat(PartitionWorker('p', B), Role.STANDBY, seconds=LONG)

    seen = world.seen()
    assert {worker: role for worker, (role, _) in seen.items()} == {
        A: Role.ACTIVE, B: Role.STANDBY}
    assert all(-1 < age < 60 for _, age in seen.values())
    world.partitions.depart(PartitionWorker('p', A))
    assert world.seen()[A][0] is Role.GONE
    assert world.partitions.beat(
        PartitionWorker('p', B), Role.STANDBY, seconds=LONG)[:2] == ('', 1)


def test_partitions_of_one_group_and_of_two_are_apart(world):
    other = World(world.url)
    try:
        world.acquire(A)
        assert world.acquire(B, partition='q')[:2] == (B, 1)
        assert other.acquire(C)[:2] == (C, 1)
        assert world.acquire(C)[:2] == (A, 1)
    finally:
        other.close()


def test_runs_are_granted_to_the_active_worker_only(world):
    world.acquire(A)
    lease, into = world.claimed('x', 'y')
    for wrong in (Active('p', B, 1), Active('p', A, 0), Active('p', A, 2),
                  Active('q', A, 1)):
        assert world.start(lease, into, 'x', 'y', active=wrong) == []
        assert not world.partitions.is_in_force(wrong)

    right = Active('p', A, 1)
    assert world.partitions.is_in_force(right)
    assert world.start(lease, into, 'x', 'y', active=right) == ['x', 'y']


def test_no_run_is_granted_under_an_expired_lease(world):
    """A frozen worker wakes up, and no other worker has taken over yet."""
    world.acquire(A, seconds=OVER)
    lease, into = world.claimed('x')

    assert world.start(lease, into, 'x', active=Active('p', A, 1)) == []


def test_a_repeated_start_has_the_same_answer(world):
    world.acquire(A)
    lease, into = world.claimed('x')
    active = Active('p', A, 1)
    assert world.start(lease, into, 'x', active=active) == ['x']

    assert world.start(lease, into, 'x', active=active) == ['x']


def test_one_of_many_that_ask_at_once_becomes_active(world):
    world.acquire(A, seconds=OVER)
    stores = [world.another() for _ in range(6)]
    ready = threading.Barrier(len(stores))

    def ask(number):
        ready.wait()
        return stores[number].partitions.acquire(
            PartitionWorker('p', f'w:{number}~0'), fence=1, seconds=LONG,
            members=())
    with concurrent.futures.ThreadPoolExecutor(len(stores)) as threads:
        found = list(threads.map(ask, range(len(stores))))

    assert {one.fence for one in found} == {2}
    assert len({one.worker for one in found}) == 1


def test_a_take_over_waits_for_a_transaction_that_starts_runs(world):
    """The runs start before the take-over. No run starts after it."""
    world.acquire(A)
    other, held = world.another(), threading.Event()

    def take():
        held.wait(60)
        return waiting.wait_until(
            lambda: other.partitions.acquire(
                PartitionWorker('p', B), fence=1, seconds=LONG,
                members=()).worker == B, 30)

    def hold(connection):
        if not world.partitions.hold(connection, Active('p', A, 1)):
            return None
        held.set()
        # The database ends a transaction that is idle for longer than 2 s.
        concurrent.futures.wait([taken], timeout=1.0)
        return taken.done()

    def hold_to_the_end():
        """Hold the partition while its lease expires.

        On a busy machine, the lease may expire before the partition is held.
        Then return None.
        """
        world.partitions.beat(
            PartitionWorker('p', A), Role.ACTIVE, seconds=0.3)
        return world.store.database.write(hold)
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        taken = threads.submit(take)
        found = next(one for one in iter(hold_to_the_end, ...)
                     if one is not None)
        assert not found
        assert taken.result(60)


@pytest.mark.parametrize('chosen', ['silent', 'stopping', 'unknown'])
def test_a_choice_expires_when_its_member_cannot_become_active(
        world, chosen):
    world.acquire(A)
    if chosen != 'unknown':
        world.partitions.beat(
            PartitionWorker('p', B),
            Role.STOPPING if chosen == 'stopping' else Role.STANDBY,
            seconds=LONG)
    world.change(promoted='h:1', promoted_by='op')

    standing = world.partitions.beat(
        PartitionWorker('p', A), Role.ACTIVE,
        seconds=OVER if chosen == 'silent' else LONG)
    assert standing.promoted == ''
    assert world.partitions.beat(
        PartitionWorker('p', B), Role.STANDBY, seconds=LONG).promoted == ''


def test_a_late_release_does_not_end_a_later_tenure(world):
    """The request was delayed until the worker had become active again."""
    world.acquire(A)
    world.partitions.release(PartitionWorker('p', A), fence=1)
    world.acquire(A)

    assert world.partitions.release(
        PartitionWorker('p', A), fence=1)[:2] == (A, 2)


def test_no_worker_becomes_active_while_another_shares_the_partition(world):
    assert world.share(A) == set()
    assert world.share(B) == set()

    found = world.acquire(C)
    assert (found.worker, found.fence, found.shared) == ('', 0, (A, B))
    assert world.seen()[C][0] is Role.STANDBY
    world.partitions.depart(PartitionWorker('p', A))
    world.partitions.depart(PartitionWorker('p', B))
    assert world.acquire(C)[:2] == (C, 1)


def test_no_worker_shares_a_partition_that_has_an_active_worker(world):
    world.acquire(A)

    assert world.share(B) == {A}
    assert world.share(B, starting=False) == {A}
    assert B not in world.seen()


def test_a_worker_that_shares_does_not_start_beside_one_that_stands_by(
        world):
    world.partitions.beat(PartitionWorker('p', A), Role.STANDBY, seconds=LONG)

    assert world.share(B) == {A}
    assert world.share(B, starting=False) == set(), 'it was there before'


def test_a_worker_that_shares_keeps_its_partition_only_by_renewal(world):
    world.share(A)
    assert world.acquire(B, seconds=OVER)[:2] == (B, 1)

    assert world.share(A, starting=False) == {B}


def test_a_worker_that_shares_and_starts_voids_an_expired_lease(world):
    """When the holder of the expired lease comes back, it is not active."""
    world.acquire(A, seconds=OVER)
    assert world.share(B, seconds=OVER) == set()

    found = world.partitions.beat(
        PartitionWorker('p', A), Role.ACTIVE, seconds=LONG)
    assert found[:2] == ('', 2)


def test_a_worker_that_does_not_start_voids_no_lease(world):
    world.acquire(A, seconds=OVER)
    world.partitions.beat(PartitionWorker('p', B), Role.STANDBY, seconds=LONG)
    assert world.share(C) >= {B}
    assert world.share(C, starting=False) == {A}

    assert world.partitions.beat(
        PartitionWorker('p', A), Role.ACTIVE, seconds=LONG)[:2] == (A, 1)


@pytest.mark.parametrize('known', [True, False])
def test_a_silent_member_of_the_group_may_share_the_partition(world, known):
    """The silent worker is in the group, or the members of the group are
    unknown. In both cases the runs of this worker may continue, although its
    last heartbeat is too old.
    """
    world.share(A)
    members = [A] if known else None

    assert world.acquire(B, seconds=OVER, members=members).shared == (A,)
    world.partitions.depart(PartitionWorker('p', A))
    assert world.acquire(B, seconds=OVER, members=members).worker == B


@pytest.mark.parametrize('shared', [True, False])
def test_a_worker_that_is_gone_prevents_nothing_in_its_group(world, shared):
    """The worker has stopped while the coordination service was unavailable.
    """
    if shared:
        world.share(A)
    else:
        world.acquire(A)
    world.partitions.depart(PartitionWorker('p', A))

    assert world.acquire(B, members=[A]).worker == B
    world.partitions.depart(PartitionWorker('p', B))
    assert world.share(C) == set()


def test_a_member_that_has_sent_no_heartbeat_may_share_the_partition(world):
    world.partitions.beat(PartitionWorker('p', A), Role.STANDBY, seconds=LONG)
    world.partitions.beat(PartitionWorker('q', B), Role.STANDBY, seconds=LONG)

    assert world.acquire(C, members=[A, B]).shared == (B,)
    assert world.acquire(C, members=[A])[:2] == (C, 1)


def test_one_of_a_sharing_and_a_standby_worker_starts_at_once(world):
    """The two workers start at the same moment, 40 times."""
    one, other = world.another(), world.another()
    ready = threading.Barrier(2)

    def share(number):
        ready.wait()
        return not one.partitions.share(
            PartitionWorker(f'p{number}', A), seconds=LONG, starting=True)

    def acquire(number):
        ready.wait()
        return other.partitions.acquire(
            PartitionWorker(f'p{number}', B), fence=0, seconds=LONG,
            members=()).worker == B
    shared = 0
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        for number in range(40):
            world.partitions.beat(
                PartitionWorker(f'p{number}', C), Role.STANDBY, seconds=LONG)
            world.partitions.depart(PartitionWorker(f'p{number}', C))
            found = (threads.submit(share, number),
                     threads.submit(acquire, number))
            won = [future.result(60) for future in found]
            assert won.count(True) == 1
            shared += won[0]
    print(f'{shared} of 40 shared')


def promote(world, member):
    with contextlib.closing(GroupStore(world.url, world.group)) as store:
        return partitions.promote(store, 'p', member, by='op', within=LONG)


def test_a_worker_that_is_stopping_cannot_be_chosen(world):
    world.acquire(A)
    world.partitions.beat(PartitionWorker('p', B), Role.STANDBY, seconds=LONG)
    world.partitions.beat(PartitionWorker('p', A), Role.STOPPING, seconds=LONG)

    with pytest.raises(exceptions.ConfigError, match="'h:0'.*is stopping"):
        promote(world, 'h:0')
    promote(world, 'h:1')
    assert world.partitions.beat(
        PartitionWorker('p', A), Role.STOPPING, seconds=LONG).promoted == 'h:1'


@pytest.mark.parametrize('worker', [B, C], ids=['gone', 'sharing'])
def test_only_a_worker_that_takes_part_can_be_chosen(world, worker):
    world.share(C)
    world.partitions.beat(PartitionWorker('p', B), Role.STANDBY, seconds=LONG)
    world.partitions.depart(PartitionWorker('p', B))
    world.partitions.beat(PartitionWorker('p', A), Role.STANDBY, seconds=LONG)

    with pytest.raises(exceptions.ConfigError, match='no worker .*stands by'):
        promote(world, worker.rpartition('~')[0])


def test_a_later_choice_replaces_one_that_was_not_read(world):
    world.acquire(A)
    for worker in B, C:
        world.partitions.beat(
            PartitionWorker('p', worker), Role.STANDBY, seconds=LONG)

    promote(world, 'h:1')
    promote(world, 'i:0')
    assert world.partitions.beat(
        PartitionWorker('p', A), Role.ACTIVE, seconds=LONG).promoted == 'i:0'
    promote(world, 'h:0')
    assert world.partitions.beat(
        PartitionWorker('p', A), Role.ACTIVE, seconds=LONG).promoted == ''


PROMOTE = '''
import sys
from distperiodic.operator import partitions
from distperiodic.operator.group_reader import GroupStore
store = GroupStore(sys.argv[1], sys.argv[2])
print('ready', flush=True)
input()
print(partitions.promote(
    store, 'p', 'h:1', by='op', within=600.0).active, flush=True)
'''


def test_a_choice_waits_for_a_take_over_by_the_chosen_worker(world):
    """Without the wait, the store would record the choice although the worker
    has already taken over.
    """
    world.acquire(A)
    world.partitions.beat(PartitionWorker('p', B), Role.STANDBY, seconds=LONG)
    with subprocess.Popen(
            [*programs.PYTHON, '-c', PROMOTE, world.url, world.group],
            cwd=programs.ROOT, text=True, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == 'ready\n'
        answered = threading.Event()
        answers = []

        def read():
            answers.append(other.stdout.readline().strip())
            answered.set()
        threading.Thread(target=read, daemon=True).start()

        def take_over(connection):
            connection.execute(sa.update(tables.partition).where(
                tables.partition.c.space == world.group).values(
                    worker=B, fence=2))
            other.stdin.write('\n')
            other.stdin.flush()
            return answered.wait(1.0)
        assert not world.store.database.write(take_over)
        assert answered.wait(60)
        other.stdin.close()

    assert answers == [B]
    assert world.partitions.beat(
        PartitionWorker('p', B), Role.ACTIVE, seconds=LONG).promoted == ''


def test_a_restore_raises_the_fences_of_partitions_above_all_before(tmp_path):
    """The workers after the backup had fences that the backup lacks."""
    # The call raises the fences of all groups, so it has its own database.
    url = f'sqlite:///{tmp_path}/restored.sqlite'
    schema.sync(url)
    group = World(url)
    saved = group.acquire(A).fence
    for worker in (B, A, B):
        group.change(worker='', until=0)
        last = group.acquire(worker).fence
    group.change(worker='', fence=saved)

    restored.raise_fences(url)

    assert group.acquire(C).fence > last
    group.close()
