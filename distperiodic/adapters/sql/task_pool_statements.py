# SPDX-License-Identifier: Apache-2.0
"""SQL statements of the pools of tasks, for one dialect.

Each call binds values: ``of_pool``, ``of_worker`` and ``of_bucket`` select the
rows, and ``keys`` selects tasks among these rows.

Each statement that changes a task has a condition on the bucket in which the
task must be. Some statements skip locked rows, so that callers do not wait
for each other. The correctness of the results does not depend on this.
"""

import sqlalchemy as sa

from distperiodic.adapters.sql import lease_terms
from distperiodic.adapters.sql import tables
from distperiodic.adapters.sql.dialects.dialect import Dialect
from distperiodic.adapters.sql.tables import done_of
from distperiodic.adapters.sql.tables import free_of
from distperiodic.core.task_pool import Stats

_bucket = tables.bucket
_pool = tables.pool
_task = tables.pool_task


class TaskPoolStatements:
    """All statements of the pools of tasks."""

    def __init__(self, dialect: Dialect):
        # A scalar subquery is evaluated once per statement, not once per row.
        now = sa.select(dialect.now).scalar_subquery()
        lease_now = sa.select(dialect.lease_now).scalar_subquery()
        of_pool = sa.bindparam('of_pool', type_=sa.Integer)
        of_bucket = sa.bindparam('of_bucket', type_=sa.BigInteger)
        into = sa.bindparam('into', type_=sa.BigInteger)
        mark = sa.bindparam('new_mark', type_=sa.BigInteger)
        at_most = sa.bindparam('at_most', type_=sa.BigInteger)
        before = sa.bindparam('done_before', type_=sa.BigInteger)

        named = sa.and_(_pool.c.space == sa.bindparam('of_space'),
                        _pool.c.name == sa.bindparam('of_name'))
        self.find = sa.select(_pool.c.id).where(named)
        #: Change the row of the pool, so that other recreations wait.
        self.occupy = sa.update(_pool).where(named).values(recreated=now)
        self.now = sa.select(dialect.now)

        # Buckets. The sum ``until + 0`` keeps databases from using the index
        # of ``until`` to find one bucket.
        ours = sa.and_(_bucket.c.pool == of_pool,
                       _bucket.c.worker == sa.bindparam('of_worker'))
        live = lease_terms.in_force(_bucket.c.until + 0, lease_now)
        self.renew = lease_terms.renewal(dialect, _bucket, ours, live).values(
            calls=_bucket.c.calls + 1)
        others = _bucket.alias()
        any_expired = sa.exists().where(
            others.c.pool == of_pool,
            lease_terms.expired(others.c.until, lease_now)
        ).label('expired')
        #: Select the id of the worker's bucket. ``expired`` is true if any
        #: bucket of the pool has expired.
        self.opened = sa.select(_bucket.c.id, any_expired).where(ours, live)
        #: One statement that does the work of ``renew`` and ``opened``.
        self.renew_returning = self.renew.returning(
            _bucket.c.id, any_expired)
        self.expired = sa.select(_bucket.c.worker, _bucket.c.id).where(
            _bucket.c.pool == of_pool,
            lease_terms.expired(_bucket.c.until, lease_now)
        ).order_by(_bucket.c.worker)
        this = sa.and_(ours, _bucket.c.id == of_bucket)
        self.expire = sa.delete(_bucket).where(
            this, lease_terms.expired(_bucket.c.until + 0, lease_now))
        self.stands = sa.select(_bucket.c.id).where(this)
        #: Give the worker's bucket, which has the id ``of_bucket``, a new id.
        self.replace = sa.update(_bucket).where(this).values(id=into)
        self.buckets = sa.select(
            _bucket.c.worker, _bucket.c.id,
            dialect.at_tick_clock(_bucket.c.until).label('until'),
            live.label('live')).where(_bucket.c.pool == of_pool)

        # Tasks. The sum ``bucket + 0`` keeps databases from searching all
        # tasks of a bucket for the given keys.
        some = sa.and_(_task.c.pool == of_pool,
                       dialect.among(_task.c.task))
        among = sa.and_(some, _task.c.bucket + 0 == of_bucket)
        columns = _task.c.task, _task.c.place
        self.content = sa.select(*columns).where(
            _task.c.bucket == of_bucket).order_by(*reversed(columns))
        #: Move tasks of the bucket ``of_bucket`` to another bucket.
        self.move = sa.update(_task).where(among).values(bucket=into)
        #: Move tasks, and write the mark that identifies the call.
        self.give_back = sa.update(_task).where(among).values(
            bucket=into, mark=mark)
        self.finish = sa.update(_task).where(among).values(
            bucket=into, mark=mark, place=now)
        self.marked = sa.select(sa.func.count()).where(
            some, _task.c.mark == mark)
        #: Move all tasks of a bucket.
        self.empty = sa.update(_task).where(
            _task.c.bucket == of_bucket).values(bucket=into)
        #: Select and lock the first tasks of a bucket, in order of place.
        #: Without the index, a database could sort and lock all free tasks.
        self.best = dialect.prefer_index(
            self.content.limit(at_most), _task,
            'distperiodic_pool_task_place').with_for_update(skip_locked=True)

        # Recreation.
        self.assigned = sa.select(*columns).join_from(
            _bucket, _task, _task.c.bucket == _bucket.c.id).where(
                _bucket.c.pool == of_pool)
        #: Select and lock the tasks that no other transaction has locked.
        self.unlocked = sa.select(_task.c.task).where(
            among).with_for_update(skip_locked=True)
        self.unlocked_assigned = sa.select(_task.c.task).where(
            some, _task.c.bucket + 0 > 0).with_for_update(skip_locked=True)
        self.remove = sa.delete(_task).where(among)
        self.rescore = sa.update(_task).where(
            _task.c.pool == of_pool,
            _task.c.task == sa.bindparam('of_task'),
            _task.c.bucket + 0 > 0).values(place=sa.bindparam('new_place'))
        self.some = sa.select(*columns).where(among)
        self.before = sa.select(_task.c.task).where(
            _task.c.bucket == of_bucket, _task.c.place < before)
        self.remove_before = sa.delete(_task).where(
            among, _task.c.place < before)
        self.number = sa.select(sa.func.count()).where(
            _task.c.bucket == of_bucket)
        self.numbers = sa.select(_bucket.c.id, sa.func.count()).join_from(
            _bucket, _task, _task.c.bucket == _bucket.c.id).where(
                _bucket.c.pool == of_pool).group_by(_bucket.c.id)


def stats_of(connection: sa.Connection, sql: TaskPoolStatements,
             number: int) -> Stats:
    """Return the content of a pool, in a transaction with one snapshot.

    Tasks in expired buckets count as free.
    """
    of_pool = {'of_pool': number}
    tasks = {row[0]: row[1] for row in connection.execute(
        sql.numbers, of_pool)}
    buckets = {row.worker: tasks.pop(row.id)
               for row in connection.execute(sql.buckets, of_pool)
               if row.live and row.id in tasks}
    free, done = (connection.execute(
        sql.number, {'of_bucket': bucket}).scalar_one()
        for bucket in (free_of(number), done_of(number)))
    return Stats(free + sum(tasks.values()), sum(buckets.values()), done,
                 {worker: buckets[worker] for worker in sorted(buckets)})
