# SPDX-License-Identifier: Apache-2.0
"""Add tables for tasks, ready steps and ordered queues."""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = '0008'
down_revision = '0007'

_OF_TABLES: dict[str, Any] = {
    'mysql_engine': 'InnoDB', 'mysql_charset': 'utf8mb4',
    'mysql_row_format': 'DYNAMIC'}
_CHANGING: dict[str, Any] = {'postgresql_with': {'fillfactor': 70}}
_LONG_TEXT = sa.Text().with_variant(mysql.MEDIUMTEXT(), 'mysql')


def _exact(length: int) -> sa.types.TypeEngine[str]:
    return sa.String(length).with_variant(
        mysql.VARBINARY(4 * length), 'mysql').with_variant(
            sa.String(length, collation='C'), 'postgresql')


def upgrade() -> None:
    # MySQL commits each step on its own, so an earlier attempt may have been
    # interrupted after some steps.
    found = sa.inspect(op.get_bind()).get_table_names()
    if 'distperiodic_task' not in found:
        op.create_table(
            'distperiodic_task',
            sa.Column('id', _exact(64), primary_key=True),
            sa.Column('space', _exact(100), nullable=False),
            sa.Column('type', _exact(200), nullable=False),
            sa.Column('key', _exact(255)),
            sa.Column('digest', sa.String(100).with_variant(mysql.VARCHAR(
                100, charset='ascii', collation='ascii_bin'), 'mysql')),
            sa.Column('queue', _exact(200)),
            sa.Column('status', sa.SmallInteger, nullable=False),
            sa.Column('message', _LONG_TEXT),
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
            sa.Column('definition', _LONG_TEXT, nullable=False),
            sa.Column('parameters', _LONG_TEXT, nullable=False),
            sa.Column('records', _LONG_TEXT, nullable=False),
            sa.UniqueConstraint('space', 'key', name='distperiodic_task_key'),
            sa.Index('distperiodic_task_status', 'space', 'status',
                     'created', 'id'),
            sa.Index('distperiodic_task_queue', 'space', 'queue', 'status',
                     'created', 'id'),
            **_OF_TABLES, **_CHANGING)
    if 'distperiodic_ready' not in found:
        op.create_table(
            'distperiodic_ready',
            sa.Column('task', _exact(64), primary_key=True),
            sa.Column('job', sa.Integer, nullable=False),
            sa.Column('delayed', sa.SmallInteger, nullable=False),
            sa.Column('precedence', sa.Integer, nullable=False),
            sa.Column('due', sa.BigInteger, nullable=False),
            sa.Column('after', sa.BigInteger, nullable=False),
            sa.Column('move', sa.Integer, nullable=False),
            sa.Column('starts', sa.SmallInteger, nullable=False),
            sa.Index('distperiodic_ready_job', 'job', 'delayed', 'precedence',
                     'due', 'task'),
            sa.Index('distperiodic_ready_due', 'delayed', 'due'),
            **_OF_TABLES)
    if 'distperiodic_queue' not in found:
        op.create_table(
            'distperiodic_queue',
            sa.Column('space', _exact(100), primary_key=True),
            sa.Column('name', _exact(200), primary_key=True),
            sa.Column('head', _exact(64)),
            sa.Column('changes', sa.BigInteger, nullable=False),
            sa.Column('goes_on', sa.SmallInteger, nullable=False),
            sa.Column('halted', sa.BigInteger),
            sa.Column('halted_why', sa.String(200)),
            sa.Column('halted_by', _exact(64)),
            **_OF_TABLES, **_CHANGING)
