# SPDX-License-Identifier: Apache-2.0
"""Add tables for active workers of partitions, and for heartbeats."""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = '0011'
down_revision = '0010'

_OPTIONS: dict[str, Any] = {
    'mysql_engine': 'InnoDB', 'mysql_charset': 'utf8mb4',
    'mysql_row_format': 'DYNAMIC', 'postgresql_with': {'fillfactor': 70}}


def _exact(length: int) -> sa.types.TypeEngine[str]:
    return sa.String(length).with_variant(
        mysql.VARBINARY(4 * length), 'mysql').with_variant(
            sa.String(length, collation='C'), 'postgresql')


def upgrade() -> None:
    _create(
        'distperiodic_partition',
        sa.Column('space', _exact(100), primary_key=True),
        sa.Column('name', _exact(200), primary_key=True),
        sa.Column('worker', _exact(255)),
        sa.Column('fence', sa.BigInteger, nullable=False),
        sa.Column('since', sa.BigInteger, nullable=False),
        sa.Column('until', sa.BigInteger, nullable=False),
        sa.Column('starts', sa.BigInteger, nullable=False),
        sa.Column('promoted', _exact(255)),
        sa.Column('promoted_by', sa.String(200)))
    _create(
        'distperiodic_partition_worker',
        sa.Column('space', _exact(100), primary_key=True),
        sa.Column('partition', _exact(200), primary_key=True),
        sa.Column('worker', _exact(255), primary_key=True),
        sa.Column('role', sa.SmallInteger, nullable=False),
        sa.Column('since', sa.BigInteger, nullable=False),
        sa.Column('seen', sa.BigInteger, nullable=False))


def _create(table: str, *columns: sa.schema.SchemaItem) -> None:
    # MySQL commits each step on its own, so an earlier attempt may have been
    # interrupted after some steps.
    if not sa.inspect(op.get_bind()).has_table(table):
        op.create_table(table, *columns, **_OPTIONS)
