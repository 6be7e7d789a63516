# SPDX-License-Identifier: Apache-2.0
"""Create all tables.

This file repeats the columns of tables.py: tables.py changes over time, but a
migration must not change. For the same reason, the types and options that
differ between databases must not change once a release has created tables with
them.
"""

import sqlalchemy as sa
from alembic import op

from distperiodic.adapters.sql.column_types import Exact
from distperiodic.adapters.sql.column_types import LeaseName
from distperiodic.adapters.sql.column_types import LongBinary
from distperiodic.adapters.sql.column_types import LongText
from distperiodic.adapters.sql.column_types import Serial
from distperiodic.adapters.sql.dialects.dialect import Room
from distperiodic.adapters.sql.dialects.registry import dialect_of

revision = '0001'
down_revision = None


def upgrade() -> None:
    _create_jobs()
    _create_history()
    _create_clock()
    _create_tasks()
    _create_pools()
    _create_partitions()
    _create_control()


def _create(name: str, *columns: sa.schema.SchemaItem,
            room: Room | None = None) -> sa.Table:
    """Create a table.

    :param room: Room for changed rows. None means no room.
    """
    dialect = dialect_of(op.get_context().dialect)
    table = op.create_table(name, *columns, **dialect.table_options)
    if room and (statement := dialect.leave_room(name, room)):
        op.execute(statement)
    return table


def _create_jobs() -> None:
    _create(
        'distperiodic_job',
        sa.Column('id', sa.Integer, primary_key=True),
        sa.Column('space', Exact(100), nullable=False),
        sa.Column('kind', Exact(20), nullable=False),
        sa.Column('name', Exact(200), nullable=False),
        sa.Column('paused_since', sa.BigInteger),
        sa.Column('paused_by', sa.String(200)),
        sa.Column('paused_why', sa.String(200)),
        sa.Column('paused_until', sa.BigInteger),
        sa.Column('paused_objects', sa.Integer),
        sa.Column('schedule', Exact(400)),
        sa.Column('schedule_since', sa.BigInteger),
        sa.Column('definitions', sa.String(200)),
        sa.Column('attended_since', sa.BigInteger),
        sa.Column('attended_until', sa.BigInteger),
        sa.Column('checked', sa.BigInteger),
        sa.Column('pruned_before', sa.BigInteger),
        sa.Column('claims_pruned', sa.BigInteger),
        sa.UniqueConstraint(
            'space', 'kind', 'name', name='distperiodic_job_of'))
    _create(
        'distperiodic_paused_object',
        sa.Column('job', sa.Integer, primary_key=True, autoincrement=False),
        sa.Column('object', Exact(255), primary_key=True),
        sa.Column('paused_since', sa.BigInteger, nullable=False),
        sa.Column('paused_by', sa.String(200), nullable=False),
        sa.Column('paused_why', sa.String(200), nullable=False),
        sa.Column('paused_until', sa.BigInteger))
    _create(
        'distperiodic_claim',
        sa.Column('object', Exact(255), primary_key=True),
        sa.Column('job', sa.Integer, primary_key=True, autoincrement=False),
        sa.Column('position', sa.BigInteger, nullable=False),
        sa.Column('tick', sa.BigInteger, nullable=False),
        sa.Column('previous', sa.BigInteger),
        sa.Column('settled', sa.BigInteger, nullable=False),
        sa.Column('skipped_by', sa.SmallInteger),
        sa.Column('state', sa.SmallInteger, nullable=False),
        sa.Column('fence', sa.BigInteger, nullable=False),
        sa.Column('attempt', sa.Integer, nullable=False),
        sa.Column('lease', LeaseName, nullable=False),
        sa.Column('worker', Exact(255)),
        sa.Column('waiting', sa.BigInteger),
        sa.Column('started', sa.BigInteger),
        sa.Column('losses', sa.Integer),
        sa.Column('served', sa.BigInteger),
        sa.Column('progress', LongText),
        sa.Column('since', sa.BigInteger),
        sa.Column('delisted', sa.BigInteger),
        sa.Column('rule', Exact(300), nullable=False),
        sa.Index('distperiodic_claim_position', 'position', 'job'),
        room=Room.TOGETHER)
    _create(
        'distperiodic_lease',
        sa.Column('id', LeaseName, primary_key=True),
        sa.Column('job', sa.Integer, nullable=False),
        sa.Column('tick', sa.BigInteger, nullable=False),
        sa.Column('state', sa.SmallInteger, nullable=False),
        sa.Column('holder', Exact(255), nullable=False),
        sa.Column('until', sa.BigInteger, nullable=False),
        sa.Column('made', sa.BigInteger, nullable=False),
        sa.Column('remaining', sa.Integer, nullable=False),
        sa.Column('superseded', sa.Integer, nullable=False),
        sa.Column('objects', LongText, nullable=False),
        sa.Index('distperiodic_lease_until', 'until'),
        room=Room.CHANGING)
    # A row exists for a few seconds only. Compressing it would take longer
    # than writing it.
    if statement := dialect_of(op.get_context().dialect).store_uncompressed(
            'distperiodic_lease', 'objects'):
        op.execute(statement)


def _create_history() -> None:
    _create(
        'distperiodic_history',
        sa.Column('job', sa.Integer, primary_key=True, autoincrement=False),
        sa.Column('tick', sa.BigInteger, primary_key=True,
                  autoincrement=False),
        sa.Column('member', Exact(255), primary_key=True),
        sa.Column('due', sa.BigInteger, nullable=False),
        sa.Column('done', sa.BigInteger, nullable=False),
        sa.Column('dead', sa.BigInteger, nullable=False),
        sa.Column('skipped', sa.BigInteger, nullable=False),
        sa.Column('by_misfire', sa.BigInteger, nullable=False),
        sa.Column('by_overlap', sa.BigInteger, nullable=False),
        sa.Column('by_pause', sa.BigInteger, nullable=False),
        sa.Column('by_lost', sa.BigInteger, nullable=False),
        sa.Column('missed', sa.BigInteger, nullable=False),
        sa.Column('superseded', sa.BigInteger, nullable=False),
        sa.Column('cancelled', sa.BigInteger, nullable=False),
        sa.Column('retried', sa.BigInteger, nullable=False),
        sa.Column('taken_over', sa.BigInteger, nullable=False),
        sa.Column('late', sa.BigInteger, nullable=False),
        sa.Column('started', sa.String(800)),
        sa.Column('ran', sa.String(800)),
        sa.Column('slowest', Exact(255)),
        sa.Column('reason', sa.String(200)),
        room=Room.CHANGING)
    _create(
        'distperiodic_failure',
        sa.Column('id', Serial, primary_key=True),
        sa.Column('job', sa.Integer, nullable=False),
        sa.Column('object', Exact(255), nullable=False),
        sa.Column('tick', sa.BigInteger, nullable=False),
        sa.Column('fence', sa.BigInteger, nullable=False),
        sa.Column('attempt', sa.Integer, nullable=False),
        sa.Column('worker', Exact(255)),
        sa.Column('error', LongText, nullable=False),
        sa.Column('traceback', LongText, nullable=False),
        sa.Column('at', sa.BigInteger, nullable=False),
        sa.Index('distperiodic_failure_object', 'job', 'object'),
        sa.Index('distperiodic_failure_at', 'at', 'id'))
    _create(
        'distperiodic_exception',
        sa.Column('id', Serial, primary_key=True),
        sa.Column('job', sa.Integer, nullable=False),
        sa.Column('tick', sa.BigInteger, nullable=False),
        sa.Column('after', sa.BigInteger, nullable=False),
        sa.Column('span', sa.SmallInteger, nullable=False),
        sa.Column('outcome', sa.String(20), nullable=False),
        sa.Column('member', Exact(255), nullable=False),
        sa.Column('reason', sa.String(200)),
        sa.Column('at', sa.BigInteger, nullable=False),
        sa.Column('number', sa.Integer, nullable=False),
        sa.Column('objects', LongBinary),
        sa.Index('distperiodic_exception_tick', 'job', 'tick'),
        sa.Index(
            'distperiodic_exception_span', 'job', 'span', 'tick', 'after'))


def _create_clock() -> None:
    """Create the table of the two clocks of a store in a SQLite file.

    The table has one row. Stores on a database server use the clock of the
    server, and not this table.
    """
    clock = _create(
        'distperiodic_clock',
        sa.Column('boot', sa.String(64), primary_key=True),
        sa.Column('lease', sa.BigInteger, nullable=False),
        sa.Column('offset', sa.BigInteger, nullable=False),
        sa.Column('knee', sa.BigInteger),
        sa.Column('seen', sa.BigInteger, nullable=False))
    op.bulk_insert(clock, [{'boot': '', 'lease': 0, 'offset': 0, 'seen': 0}])


def _create_tasks() -> None:
    _create(
        'distperiodic_task',
        sa.Column('id', Exact(64), primary_key=True),
        sa.Column('space', Exact(100), nullable=False),
        sa.Column('type', Exact(200), nullable=False),
        sa.Column('key', Exact(255)),
        sa.Column('digest', LeaseName),
        sa.Column('queue', Exact(200)),
        sa.Column('status', sa.SmallInteger, nullable=False),
        sa.Column('message', LongText),
        sa.Column('cursor', sa.Integer, nullable=False),
        sa.Column('step', sa.Integer, nullable=False),
        sa.Column('back', sa.SmallInteger, nullable=False),
        sa.Column('move', sa.Integer, nullable=False),
        sa.Column('priority', sa.Integer, nullable=False),
        sa.Column('created', sa.BigInteger, nullable=False),
        sa.Column('due', sa.BigInteger),
        sa.Column('started', sa.BigInteger),
        sa.Column('ended', sa.BigInteger),
        sa.Column('cancelled_by', sa.String(200)),
        sa.Column('definition', LongText, nullable=False),
        sa.Column('parameters', LongText, nullable=False),
        sa.Column('records', LongText, nullable=False),
        sa.UniqueConstraint('space', 'key', name='distperiodic_task_key'),
        sa.Index('distperiodic_task_status',
                 'space', 'status', 'created', 'id'),
        sa.Index('distperiodic_task_queue',
                 'space', 'queue', 'status', 'created', 'id'),
        sa.Index('distperiodic_task_type',
                 'space', 'type', 'status', 'created', 'id'),
        room=Room.CHANGING)
    _create(
        'distperiodic_ready',
        sa.Column('task', Exact(64), primary_key=True),
        sa.Column('job', sa.Integer, nullable=False),
        sa.Column('delayed', sa.SmallInteger, nullable=False),
        sa.Column('precedence', sa.Integer, nullable=False),
        sa.Column('due', sa.BigInteger, nullable=False),
        sa.Column('after', sa.BigInteger, nullable=False),
        sa.Column('move', sa.Integer, nullable=False),
        sa.Column('starts', sa.SmallInteger, nullable=False),
        sa.Index('distperiodic_ready_job',
                 'job', 'delayed', 'precedence', 'due', 'task'),
        sa.Index('distperiodic_ready_due', 'delayed', 'due'))
    _create(
        'distperiodic_queue',
        sa.Column('space', Exact(100), primary_key=True),
        sa.Column('name', Exact(200), primary_key=True),
        sa.Column('head', Exact(64)),
        sa.Column('changes', sa.BigInteger, nullable=False),
        sa.Column('goes_on', sa.SmallInteger, nullable=False),
        sa.Column('halted', sa.BigInteger),
        sa.Column('halted_why', sa.String(200)),
        sa.Column('halted_by', Exact(64)),
        room=Room.CHANGING)


def _create_pools() -> None:
    _create(
        'distperiodic_pool',
        sa.Column('id', sa.Integer, primary_key=True, autoincrement=False),
        sa.Column('space', Exact(100), nullable=False),
        sa.Column('name', Exact(200), nullable=False),
        sa.Column('recreated', sa.BigInteger, nullable=False),
        sa.UniqueConstraint('space', 'name', name='distperiodic_pool_of'),
        room=Room.CHANGING)
    _create(
        'distperiodic_pool_bucket',
        sa.Column('worker', Exact(255), primary_key=True),
        sa.Column('pool', sa.Integer, primary_key=True, autoincrement=False),
        sa.Column('id', sa.BigInteger, nullable=False),
        sa.Column('until', sa.BigInteger, nullable=False),
        sa.Column('calls', sa.BigInteger, nullable=False),
        sa.Index('distperiodic_pool_bucket_until', 'until', 'pool'),
        room=Room.CHANGING)
    _create(
        'distperiodic_pool_task',
        sa.Column('task', Exact(256), primary_key=True),
        sa.Column('pool', sa.Integer, primary_key=True, autoincrement=False),
        sa.Column('bucket', sa.BigInteger, nullable=False),
        sa.Column('place', sa.Double, nullable=False),
        sa.Column('mark', sa.BigInteger),
        sa.Index('distperiodic_pool_task_place', 'bucket', 'place', 'task'),
        room=Room.CHANGING)


def _create_partitions() -> None:
    _create(
        'distperiodic_partition',
        sa.Column('space', Exact(100), primary_key=True),
        sa.Column('name', Exact(200), primary_key=True),
        sa.Column('worker', Exact(255)),
        sa.Column('fence', sa.BigInteger, nullable=False),
        sa.Column('since', sa.BigInteger, nullable=False),
        sa.Column('until', sa.BigInteger, nullable=False),
        sa.Column('starts', sa.BigInteger, nullable=False),
        sa.Column('promoted', Exact(255)),
        sa.Column('promoted_by', sa.String(200)),
        room=Room.CHANGING)
    _create(
        'distperiodic_partition_worker',
        sa.Column('space', Exact(100), primary_key=True),
        sa.Column('partition', Exact(200), primary_key=True),
        sa.Column('worker', Exact(255), primary_key=True),
        sa.Column('role', sa.SmallInteger, nullable=False),
        sa.Column('since', sa.BigInteger, nullable=False),
        sa.Column('seen', sa.BigInteger, nullable=False),
        room=Room.CHANGING)


def _create_control() -> None:
    _create(
        'distperiodic_member',
        sa.Column('space', Exact(100), primary_key=True),
        sa.Column('part', Exact(100), primary_key=True),
        sa.Column('name', Exact(200), primary_key=True),
        sa.Column('process', Exact(255), nullable=False),
        sa.Column('seen', sa.BigInteger, nullable=False),
        sa.Column('state', LongText, nullable=False),
        sa.Column('drained', LeaseName),
        sa.Column('pool_size', sa.Integer),
        room=Room.CHANGING)
    _create(
        'distperiodic_drained_host',
        sa.Column('space', Exact(100), primary_key=True),
        sa.Column('host', Exact(200), primary_key=True),
        sa.Column('action', LeaseName, nullable=False))
    _create(
        'distperiodic_action',
        sa.Column('id', LeaseName, primary_key=True),
        sa.Column('space', Exact(100), nullable=False),
        sa.Column('at', sa.BigInteger, nullable=False),
        sa.Column('who', sa.String(200), nullable=False),
        sa.Column('host', sa.String(200), nullable=False),
        sa.Column('verb', sa.String(200), nullable=False),
        sa.Column('target', sa.String(255), nullable=False),
        sa.Column('arguments', LongText, nullable=False),
        sa.Column('why', sa.String(200), nullable=False),
        sa.Column('outcome', LongText),
        sa.Index('distperiodic_action_at', 'space', 'at', 'id'))
    _create(
        'distperiodic_answer',
        sa.Column('action', LeaseName, primary_key=True),
        sa.Column('part', Exact(100), primary_key=True),
        sa.Column('name', Exact(200), primary_key=True),
        sa.Column('space', Exact(100), nullable=False),
        sa.Column('at', sa.BigInteger, nullable=False),
        sa.Column('process', Exact(255)),
        sa.Column('done', sa.SmallInteger, nullable=False),
        sa.Column('outcome', LongText),
        sa.Index('distperiodic_answer_open', 'space', 'part', 'name', 'at'))
