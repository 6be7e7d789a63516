# SPDX-License-Identifier: Apache-2.0
"""SQL statements of the pools of tasks, for one dialect.

Each call binds values: ``of_pool``, ``of_worker`` and ``of_bucket`` select the
rows, and ``keys`` the tasks among them.

A statement that changes a task names in its condition the bucket that the
task must be in. Locks that skip locked rows only keep callers from waiting
for each other: nothing depends on them.
"""

from typing import Any

import sqlalchemy as sa

from distperiodic.adapters.sql import tables
from distperiodic.adapters.sql.dialect import Dialect
from distperiodic.adapters.sql.tables import DONE
from distperiodic.adapters.sql.tables import FREE
from distperiodic.core.task_pool import Stats

_bucket = tables.bucket
_pool = tables.pool
_task = tables.task
#: Name of the index for MySQL, which could otherwise sort all free tasks, and
#: lock them, to find the best ones.
_PLACE = 'FORCE INDEX (distperiodic_pool_task_place)'


class Statements:
    """All statements of the pools of tasks."""

    def __init__(self, dialect: Dialect):
        # A scalar subquery is evaluated once per statement, not once per row.
        now = sa.select(dialect.now).scalar_subquery()
        lease_now = sa.select(dialect.lease_now).scalar_subquery()
        of_pool = sa.bindparam('of_pool', type_=sa.Integer)
        of_bucket = sa.bindparam('of_bucket', type_=sa.BigInteger)
        at_most = sa.bindparam('at_most', type_=sa.BigInteger)
        mark = sa.bindparam('new_mark', type_=sa.BigInteger)

        self.find = sa.select(_pool.c.id).where(
            _pool.c.space == sa.bindparam('of_space'),
            _pool.c.name == sa.bindparam('of_name'))
        #: Change the pool's row, so that others wait to do the same.
        self.occupy = sa.update(_pool).where(
            _pool.c.space == sa.bindparam('of_space'),
            _pool.c.name == sa.bindparam('of_name')).values(recreated=now)
        self.now = sa.select(dialect.now)

        # Buckets.
        buckets = _bucket.c.pool == of_pool
        ours = sa.and_(buckets,
                       _bucket.c.worker == sa.bindparam('of_worker'))
        live = _bucket.c.until >= lease_now
        expired = _bucket.c.until < lease_now
        until = dialect.lease_now + sa.bindparam(
            'microseconds', type_=sa.BigInteger)
        self.renew = sa.update(_bucket).where(ours, live).values(until=until)
        others = _bucket.alias()
        any_expired = sa.exists().where(
            others.c.pool == of_pool, others.c.until < lease_now)
        #: Select the id of the worker's bucket, and whether any bucket of the
        #: pool has expired.
        self.opened = sa.select(
            _bucket.c.id, any_expired.label('expired')).where(ours, live)
        #: Do the same as ``renew`` and ``opened``.
        self.renew_returning = self.renew.returning(
            _bucket.c.id, any_expired.label('expired'))
        self.expired = sa.select(_bucket.c.worker, _bucket.c.id).where(
            buckets, expired).order_by(_bucket.c.worker)
        this = sa.and_(ours, _bucket.c.id == of_bucket)
        self.expire = sa.delete(_bucket).where(this, expired)
        self.stands = sa.select(_bucket.c.id).where(this)
        self.buckets = sa.select(
            _bucket.c.worker, _bucket.c.id, _bucket.c.until,
            live.label('live')).where(buckets)

        # Tasks. The sum keeps databases from searching all tasks with this
        # bucket for those with the right keys.
        tasks = _task.c.pool == of_pool
        some = sa.and_(tasks, dialect.among(_task.c.task))
        among = sa.and_(some, _task.c.bucket + 0 == of_bucket)
        order = _task.c.place, _task.c.task
        columns = _task.c.task, _task.c.place
        self.content = sa.select(*columns).where(
            tasks, _task.c.bucket == of_bucket).order_by(*order)
        best = sa.select(*columns).where(
            tasks, _task.c.bucket == FREE).order_by(*order)
        #: Select and lock the best free tasks.
        self.best = best.limit(at_most).with_hint(
            _task, _PLACE, 'mysql').with_for_update(skip_locked=True)
        #: Move tasks of the bucket ``of_bucket`` to another one.
        self.move = sa.update(_task).where(among).values(
            bucket=sa.bindparam('into', type_=sa.BigInteger))
        self.give_back = sa.update(_task).where(among).values(
            bucket=FREE, mark=mark)
        self.finish = sa.update(_task).where(among).values(
            bucket=DONE, mark=mark, place=now)
        self.marked = sa.select(sa.func.count()).where(
            some, _task.c.mark == mark)
        #: Move all tasks of a bucket that has expired.
        self.empty = sa.update(_task).where(
            tasks, _task.c.bucket == of_bucket).values(bucket=FREE)

        # Recreation.
        self.present = sa.select(
            _task.c.task, _task.c.bucket, _task.c.place).where(
                tasks, _task.c.bucket >= FREE)
        #: Select and lock those tasks that no other transaction has locked.
        self.unlocked = sa.select(_task.c.task).where(among).with_for_update(
            skip_locked=True)
        self.unlocked_assigned = sa.select(_task.c.task).where(
            some, _task.c.bucket > FREE).with_for_update(skip_locked=True)
        self.remove = sa.delete(_task).where(among)
        self.rescore = sa.update(_task).where(
            tasks, _task.c.task == sa.bindparam('of_task'),
            _task.c.bucket > FREE).values(place=sa.bindparam('new_place'))
        self.done = sa.select(*columns).where(
            some, _task.c.bucket + 0 == DONE)
        #: Remove tasks that were done before ``done_before``.
        self.forget = sa.delete(_task).where(
            some, _task.c.bucket + 0 == DONE,
            _task.c.place < sa.bindparam('done_before'))
        self.done_before = sa.select(_task.c.task).where(
            tasks, _task.c.bucket == DONE,
            _task.c.place < sa.bindparam('done_before'))
        self.numbers = sa.select(
            _task.c.bucket, sa.func.count()).where(
                tasks).group_by(_task.c.bucket)

        #: Renew a bucket and finish tasks in it. None means that this
        #: database cannot do both in one statement.
        self.finish_at_once: Any = None
        self.give_back_at_once: Any = None
        self.content_at_once: Any = None
        #: Move the best free tasks to a bucket up to ``at_most`` tasks; select
        #: its content before and after.
        self.fill: Any = None
        if dialect.name != 'postgresql':
            return
        mine = self.renew.returning(_bucket.c.id).cte('mine')
        named = sa.and_(some, _task.c.bucket == mine.c.id)
        self.finish_at_once = sa.update(_task).where(named).values(
            bucket=DONE, mark=mark, place=now).returning(_task.c.task)
        self.give_back_at_once = sa.update(_task).where(named).values(
            bucket=FREE, mark=mark).returning(_task.c.task)
        self.content_at_once = sa.select(*columns).where(
            tasks, _task.c.bucket == mine.c.id)
        held = sa.select(*columns).where(
            tasks, _task.c.bucket == of_bucket).cte('held')
        number = sa.select(sa.func.count()).select_from(
            held).scalar_subquery()
        found = best.limit(sa.func.greatest(0, at_most - number)
                           ).with_for_update(skip_locked=True).cte('found')
        won = sa.update(_task).where(
            tasks, _task.c.task == found.c.task,
            _task.c.bucket + 0 == FREE).values(
                bucket=of_bucket).returning(*columns).cte('won')
        self.fill = sa.union_all(sa.select(held), sa.select(won))


def stats_of(connection: sa.Connection, sql: Statements,
             number: int) -> Stats:
    """Return the content of a pool, in a transaction with one snapshot.

    The tasks in buckets that have expired count as free.
    """
    of_pool = {'of_pool': number}
    tasks = {row[0]: row[1] for row in connection.execute(
        sql.numbers, of_pool)}
    done = tasks.pop(DONE, 0)
    buckets = {row.worker: tasks.get(row.id, 0)
               for row in connection.execute(sql.buckets, of_pool)
               if row.live}
    assigned = sum(buckets.values())
    return Stats(sum(tasks.values()) - assigned, assigned, done, {
        worker: buckets[worker] for worker in sorted(buckets)
        if buckets[worker]})
