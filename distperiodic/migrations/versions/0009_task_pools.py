# SPDX-License-Identifier: Apache-2.0
"""Add tables for pools of tasks, and for the buckets of workers."""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = '0009'
down_revision = '0008'

_OPTIONS: dict[str, Any] = {
    'mysql_engine': 'InnoDB', 'mysql_charset': 'utf8mb4',
    'mysql_row_format': 'DYNAMIC', 'postgresql_with': {'fillfactor': 70}}


def _exact(length: int) -> sa.types.TypeEngine[str]:
    return sa.String(length).with_variant(
        mysql.VARBINARY(4 * length), 'mysql').with_variant(
            sa.String(length, collation='C'), 'postgresql')


def upgrade() -> None:
    _create(
        'distperiodic_pool',
        sa.Column('id', sa.Integer, primary_key=True, autoincrement=False),
        sa.Column('space', _exact(100), nullable=False),
        sa.Column('name', _exact(200), nullable=False),
        sa.Column('recreated', sa.BigInteger, nullable=False),
        sa.UniqueConstraint('space', 'name', name='distperiodic_pool_of'))
    _create(
        'distperiodic_pool_bucket',
        sa.Column('worker', _exact(255), primary_key=True),
        sa.Column('pool', sa.Integer, primary_key=True, autoincrement=False),
        sa.Column('id', sa.BigInteger, nullable=False),
        sa.Column('until', sa.BigInteger, nullable=False),
        sa.Column('calls', sa.BigInteger, nullable=False))
    _index('distperiodic_pool_bucket', 'until', 'until', 'pool')
    _create(
        'distperiodic_pool_task',
        sa.Column('task', _exact(256), primary_key=True),
        sa.Column('pool', sa.Integer, primary_key=True, autoincrement=False),
        sa.Column('bucket', sa.BigInteger, nullable=False),
        sa.Column('place', sa.Double, nullable=False),
        sa.Column('mark', sa.BigInteger))
    _index('distperiodic_pool_task', 'place', 'bucket', 'place', 'task')


def _create(table: str, *columns: sa.schema.SchemaItem) -> None:
    # MySQL commits each step on its own, so an earlier attempt may have been
    # interrupted after some steps.
    if not sa.inspect(op.get_bind()).has_table(table):
        op.create_table(table, *columns, **_OPTIONS)


def _index(table: str, name: str, *columns: str) -> None:
    indexes = sa.inspect(op.get_bind()).get_indexes(table)
    if f'{table}_{name}' not in [one['name'] for one in indexes]:
        op.create_index(f'{table}_{name}', table, columns)
