# SPDX-License-Identifier: Apache-2.0
"""SQL statements about steps of tasks, each written once for all databases.

Each function builds one statement. If the dialect is the only parameter of the
function, pass the function to :meth:`.Dialect.once`.
"""

from typing import Any

import sqlalchemy as sa

from distperiodic.adapters.sql import tables
from distperiodic.adapters.sql.dialects.dialect import Dialect
from distperiodic.adapters.sql.statements import GRANTED
from distperiodic.adapters.sql.statements import Statements
from distperiodic.adapters.sql.statements import in_state
from distperiodic.core.attributes import Attributes
from distperiodic.core.claim import MOVES
from distperiodic.core.claim import Move
from distperiodic.core.claim import State
from distperiodic.core.workflow import Status

_claim = tables.claim
_lease = tables.lease
_queue = tables.queue
_ready = tables.ready
_task = tables.task


def claim(dialect: Dialect) -> Any:
    """Claim the next steps of tasks.

    If an earlier step of a task ran the same command, the statement changes
    the row of the earlier claim. Otherwise it inserts a row. Each claim of a
    task has a higher fence than the earlier claims of the task, even if the
    commands differ.
    """
    before, _ = MOVES[Move.CLAIM]

    def change(new: Any) -> list[tuple[str, Any]]:
        # MySQL assigns from left to right: copy the old tick first, and
        # change the state last. PyMySQL binds no parameters in this clause,
        # so the number is a literal.
        return [
            ('previous', _claim.c.tick), ('tick', new.tick),
            ('settled', new.tick), ('fence', sa.case(
                (_claim.c.fence < new.fence, new.fence),
                else_=_claim.c.fence + sa.literal_column('1'))),
            ('attempt', new.attempt), ('losses', sa.null()),
            ('worker', new.worker), ('progress', sa.null()),
            ('lease', new.lease),
            ('waiting', new.waiting), ('started', new.started),
            ('state', new.state)]
    return dialect.merge(
        _claim, ('object', 'position', 'waiting'), (
            'job', 'tick', 'settled', 'state', 'fence', 'attempt', 'lease',
            'worker', 'since', *Attributes._fields, 'started'), change,
        in_state(before), GRANTED)


def grant(dialect: Dialect) -> Any:
    """Claim the next steps of tasks and grant their runs.

    Use this statement only with a database that
    :attr:`~.Dialect.writes_in_with`.

    If all steps are claimed, the statement also counts them and creates their
    lease. In any case, if the lease of the ended runs contains no other runs,
    the statement deletes that lease, and ``left`` is 1.
    """
    statements: Statements = dialect.once(Statements)
    left = statements.last_leave.returning(_lease.c.id).cte('ended')
    return statements.at_once(dialect, claim(dialect)).add_columns(
        sa.select(sa.func.count()).select_from(left).scalar_subquery()
        .label('left'))


def _ready_now(dialect: Dialect, *conditions: Any) -> Any:
    return sa.select(_ready, dialect.now.label('now')).where(
        *conditions).order_by(
            _ready.c.precedence, _ready.c.due, _ready.c.task
    ).with_for_update(skip_locked=True)


def ready_of_command(dialect: Dialect) -> Any:
    return _ready_now(
        dialect, _ready.c.job == sa.bindparam('of_job'),
        _ready.c.delayed == 0).limit(
            sa.bindparam('at_most', type_=sa.Integer))


def ready_of_tasks(dialect: Dialect) -> Any:
    # The sum keeps databases from using an index for the second condition. If
    # the table was empty when its statistics were collected, that index would
    # seem cheaper than a search for each task.
    return _ready_now(
        dialect, dialect.among(_ready.c.task),
        _ready.c.delayed + sa.literal_column('0') == 0)


def precedences(dialect: Dialect) -> Any:
    return sa.select(
        _task.c.id, (-_task.c.priority).label('precedence')).where(
            dialect.among(_task.c.id))


def leases(dialect: Dialect) -> Any:
    return sa.select(_lease).where(dialect.among(_lease.c.id))


def lock_ending(dialect: Dialect) -> Any:
    of_lease = _lease.c.id == sa.bindparam('of_lease')
    return sa.select(
        _task, *(sa.select(column).where(of_lease)
                 .scalar_subquery().label(name)
                 for name, column in (
                     ('lease_made', dialect.at_tick_clock(_lease.c.made)),
                     ('lease_holder', _lease.c.holder))),
        dialect.now.label('now')).where(dialect.among(_task.c.id)).order_by(
            _task.c.id).with_for_update()


def heads_after(dialect: Dialect) -> Any:
    return sa.select(_queue.c.head).distinct().join(_task, sa.and_(
        _queue.c.space == _task.c.space, _queue.c.name == _task.c.queue)
    ).where(dialect.among(_task.c.id), _queue.c.head.is_not(None))


def idle_queues(dialect: Dialect) -> Any:
    return sa.select(_queue.c.name).distinct().join(_task, sa.and_(
        _queue.c.space == _task.c.space, _queue.c.name == _task.c.queue)
    ).where(dialect.among(_task.c.id), _task.c.status == Status.WAITING,
            _queue.c.head.is_(None), _queue.c.halted.is_(None))


def tasks(dialect: Dialect) -> Any:
    return sa.select(_task).where(dialect.among(_task.c.id))


def cancelled(dialect: Dialect) -> Any:
    return sa.select(_task.c.id).where(
        dialect.among(_task.c.id), _task.c.cancelled_by.is_not(None))


def committed(dialect: Dialect) -> Any:
    return sa.select(
        _claim.c.object, _claim.c.tick, _claim.c.progress, _claim.c.worker
    ).where(
        _claim.c.job == sa.bindparam('of_job'),
        _claim.c.lease == sa.bindparam('stands_in'),
        _claim.c.state == State.COMMITTED, dialect.among(_claim.c.object))


def no_more_ready(dialect: Dialect) -> Any:
    return sa.delete(_ready).where(dialect.among(_ready.c.task))


def starting(dialect: Dialect) -> Any:
    # There is no condition on the status: databases could choose the index of
    # the status, as explained in ready_of_tasks().
    waits = _task.c.status == Status.WAITING
    at = sa.bindparam('at', type_=sa.BigInteger)
    return sa.update(_task).where(dialect.among(_task.c.id)).ordered_values(
        # MySQL assigns from left to right.
        (_task.c.started, sa.case((sa.and_(
            waits, _task.c.started.is_(None)), at), else_=_task.c.started)),
        (_task.c.status, sa.case(
            (waits, sa.literal(Status.RUNNING, _task.c.status.type)),
            else_=_task.c.status)))
