# SPDX-License-Identifier: Apache-2.0
"""Calls of task pools on PostgreSQL, each of which is a single statement.

Each statement renews the worker's bucket, and then fills the bucket, reads it,
or moves tasks out of it. The statement is a transaction of its own.

A statement names both the worker and the id of the bucket. If the answer
to a statement is lost, the network may still deliver the statement after the
call was repeated. The repetition gives the bucket another id, so the late
statement does nothing.

If the renewal has to wait for another call for this worker, the rest of the
statement does not see the changes of that call. In this case, the number of
calls after the renewal is more than one higher than the number that the rest
of the statement sees. The statement then changes no task and returns no row.
"""

from typing import Any

import sqlalchemy as sa

from distperiodic.adapters.sql import lease_terms
from distperiodic.adapters.sql import tables
from distperiodic.adapters.sql.dialects.dialect import Dialect
from distperiodic.adapters.sql.task_pool_statements import TaskPoolStatements

_bucket = tables.bucket
_task = tables.pool_task


class Calls:
    """The statements. They have the same parameters as
    :class:`TaskPoolStatements`.

    On databases other than PostgreSQL, all of them are None.
    """

    fill: Any = None
    read: Any = None
    give_back: Any = None
    finish: Any = None

    def __init__(self, dialect: Dialect):
        if not dialect.writes_in_with:
            return
        sql: TaskPoolStatements = dialect.once(TaskPoolStatements)
        now = sa.select(dialect.now).scalar_subquery()
        lease_now = sa.select(dialect.lease_now).scalar_subquery()
        of_pool = sa.bindparam('of_pool', type_=sa.Integer)
        free = sa.bindparam('of_bucket', type_=sa.BigInteger)
        into = sa.bindparam('into', type_=sa.BigInteger)
        mark = sa.bindparam('new_mark', type_=sa.BigInteger)
        at_most = sa.bindparam('at_most', type_=sa.BigInteger)

        mine = sql.renew.where(_bucket.c.id == sa.bindparam(
            'of_id', type_=sa.BigInteger)).returning(
                _bucket.c.id, _bucket.c.calls).cte('mine')
        seen = _bucket.alias()
        alone = mine.c.calls == sa.select(seen.c.calls + 1).where(
            seen.c.pool == of_pool,
            seen.c.worker == sa.bindparam('of_worker')).scalar_subquery()
        its = sa.select(mine.c.id).where(alone).scalar_subquery()
        #: Return the tasks in the bucket.
        self.read = sa.select(_task.c.task).where(_task.c.bucket == its)
        # The sum ``bucket + 0`` keeps the database from searching all tasks of
        # the bucket, including those that have just left it.
        among = sa.and_(_task.c.pool == of_pool, dialect.among(_task.c.task),
                        _task.c.bucket + 0 == its)
        #: Move tasks out of the bucket, and return them.
        self.give_back = sa.update(_task).where(among).values(
            bucket=into, mark=mark).returning(_task.c.task)
        self.finish = sa.update(_task).where(among).values(
            bucket=into, mark=mark, place=now).returning(_task.c.task)

        others = _bucket.alias()
        none_expired = ~sa.exists().where(
            others.c.pool == of_pool,
            lease_terms.expired(others.c.until, lease_now))
        usable = sa.select(mine.c.id).where(alone, none_expired).cte('usable')
        target = sa.select(usable.c.id).scalar_subquery()
        columns = _task.c.place, _task.c.task
        held = sa.select(*columns).where(
            _task.c.bucket == target).cte('held')
        missing = at_most * _number_of(usable) - _number_of(held)
        # The locks keep each row at its physical address until the commit. So
        # the row can be found by its address, without a search by key. Select
        # the addresses as an array: with a join, the database could read all
        # tasks.
        address: Any = sa.literal_column(f'{_task.name}.ctid')
        first = sa.func.array(sa.select(address).where(
            _task.c.bucket == free).order_by(*columns).limit(
                sa.func.greatest(0, missing)).with_for_update(
                    skip_locked=True).scalar_subquery())
        won = sa.update(_task).where(
            _task.c.pool == of_pool, address == sa.any_(first),
            _task.c.bucket + 0 == free).values(
                bucket=target).returning(*columns).cte('won')
        #: Fill the bucket up to ``at_most`` tasks, and return the places and
        #: the tasks in it. If a bucket of the pool has expired, move no task
        #: and return no row. Otherwise, return one more row, with a lower
        #: place than all tasks. This row distinguishes an empty bucket from a
        #: call that filled no bucket.
        self.fill = sa.union_all(
            sa.select(held), sa.select(won), sa.select(
                sa.literal_column("CAST('-Infinity' AS DOUBLE PRECISION)"),
                sa.literal_column("''")).select_from(usable))


def _number_of(rows: Any) -> Any:
    return sa.select(sa.func.count()).select_from(rows).scalar_subquery()
