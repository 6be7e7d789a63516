# SPDX-License-Identifier: Apache-2.0
"""Add tables for jobs, claims, leases, the history and failures.

This file repeats the types of tables.py: tables.py changes over time, but a
migration must not change.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = '0001'
down_revision = None

_OF_TABLES: dict[str, Any] = {
    'mysql_engine': 'InnoDB', 'mysql_charset': 'utf8mb4',
    'mysql_row_format': 'DYNAMIC'}
_CHANGING: dict[str, Any] = {'postgresql_with': {'fillfactor': 70}}


def _exact(length: int) -> sa.types.TypeEngine[str]:
    return sa.String(length).with_variant(
        mysql.VARBINARY(4 * length), 'mysql').with_variant(
            sa.String(length, collation='C'), 'postgresql')


def upgrade() -> None:
    lease_name = sa.String(100).with_variant(
        mysql.VARCHAR(100, charset='ascii', collation='ascii_bin'), 'mysql')
    long_text = sa.Text().with_variant(mysql.MEDIUMTEXT(), 'mysql')

    op.create_table(
        'distperiodic_job',
        sa.Column('id', sa.Integer, primary_key=True),
        sa.Column('space', _exact(100), nullable=False),
        sa.Column('kind', _exact(20), nullable=False),
        sa.Column('name', _exact(200), nullable=False),
        sa.Column('paused_since', sa.BigInteger),
        sa.Column('paused_by', sa.String(200)),
        sa.Column('paused_why', sa.String(200)),
        sa.UniqueConstraint(
            'space', 'kind', 'name', name='distperiodic_job_of'),
        **_OF_TABLES)

    op.create_table(
        'distperiodic_claim',
        sa.Column('object', _exact(255), primary_key=True),
        sa.Column('job', sa.Integer, primary_key=True, autoincrement=False),
        sa.Column('position', sa.BigInteger, nullable=False),
        sa.Column('tick', sa.BigInteger, nullable=False),
        sa.Column('previous', sa.BigInteger),
        sa.Column('settled', sa.BigInteger, nullable=False),
        sa.Column('skipped_by', sa.SmallInteger),
        sa.Column('state', sa.SmallInteger, nullable=False),
        sa.Column('fence', sa.BigInteger, nullable=False),
        sa.Column('attempt', sa.Integer, nullable=False),
        sa.Column('lease', lease_name, nullable=False),
        sa.Column('worker', _exact(255)),
        sa.Column('served', sa.BigInteger),
        sa.Column('progress', long_text),
        **_OF_TABLES, **_CHANGING)

    op.create_table(
        'distperiodic_lease',
        sa.Column('id', lease_name, primary_key=True),
        sa.Column('job', sa.Integer, nullable=False),
        sa.Column('tick', sa.BigInteger, nullable=False),
        sa.Column('state', sa.SmallInteger, nullable=False),
        sa.Column('holder', _exact(255), nullable=False),
        sa.Column('until', sa.BigInteger, nullable=False),
        sa.Column('remaining', sa.Integer, nullable=False),
        sa.Column('superseded', sa.Integer, nullable=False),
        sa.Column('objects', long_text, nullable=False),
        **_OF_TABLES, **_CHANGING)
    op.create_index('distperiodic_lease_until', 'distperiodic_lease',
                    ['until'])
    if op.get_context().dialect.name == 'postgresql':
        # A row exists for a few seconds only. Compressing it would take longer
        # than writing it.
        op.execute('ALTER TABLE distperiodic_lease '
                   'ALTER COLUMN objects SET STORAGE EXTERNAL')

    op.create_table(
        'distperiodic_history',
        sa.Column('job', sa.Integer, primary_key=True, autoincrement=False),
        sa.Column('tick', sa.BigInteger, primary_key=True,
                  autoincrement=False),
        sa.Column('member', _exact(255), primary_key=True),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in (
            'due', 'done', 'dead', 'skipped', 'by_misfire', 'by_overlap',
            'by_pause', 'missed', 'superseded', 'cancelled', 'retried',
            'taken_over', 'lateness', 'latest', 'late')),
        sa.Column('reason', sa.String(200)),
        **_OF_TABLES, **_CHANGING)

    op.create_table(
        'distperiodic_failure',
        sa.Column('id', sa.BigInteger().with_variant(sa.Integer, 'sqlite'),
                  primary_key=True),
        sa.Column('job', sa.Integer, nullable=False),
        sa.Column('object', _exact(255), nullable=False),
        sa.Column('tick', sa.BigInteger, nullable=False),
        sa.Column('fence', sa.BigInteger, nullable=False),
        sa.Column('attempt', sa.Integer, nullable=False),
        sa.Column('worker', _exact(255)),
        sa.Column('error', long_text, nullable=False),
        sa.Column('traceback', long_text, nullable=False),
        sa.Column('at', sa.BigInteger, nullable=False),
        **_OF_TABLES)
    op.create_index('distperiodic_failure_object', 'distperiodic_failure',
                    ['job', 'object'])
