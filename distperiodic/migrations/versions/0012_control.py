# SPDX-License-Identifier: Apache-2.0
"""Add tables for members, operators' actions, and members' answers."""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = '0012'
down_revision = '0011'

_OPTIONS: dict[str, Any] = {
    'mysql_engine': 'InnoDB', 'mysql_charset': 'utf8mb4',
    'mysql_row_format': 'DYNAMIC'}
_CHANGING: dict[str, Any] = {'postgresql_with': {'fillfactor': 70}}
_LONG_TEXT = sa.Text().with_variant(mysql.MEDIUMTEXT(), 'mysql')
_ID = sa.String(100).with_variant(
    mysql.VARCHAR(100, charset='ascii', collation='ascii_bin'), 'mysql')


def _exact(length: int) -> sa.types.TypeEngine[str]:
    return sa.String(length).with_variant(
        mysql.VARBINARY(4 * length), 'mysql').with_variant(
            sa.String(length, collation='C'), 'postgresql')


def upgrade() -> None:
    _create(
        'distperiodic_member',
        sa.Column('space', _exact(100), primary_key=True),
        sa.Column('part', _exact(100), primary_key=True),
        sa.Column('name', _exact(200), primary_key=True),
        sa.Column('process', _exact(255), nullable=False),
        sa.Column('seen', sa.BigInteger, nullable=False),
        sa.Column('state', _LONG_TEXT, nullable=False),
        sa.Column('drained', _ID),
        sa.Column('pool_size', sa.Integer), **_CHANGING)
    _create(
        'distperiodic_action',
        sa.Column('id', _ID, primary_key=True),
        sa.Column('space', _exact(100), nullable=False),
        sa.Column('at', sa.BigInteger, nullable=False),
        sa.Column('who', sa.String(200), nullable=False),
        sa.Column('host', sa.String(200), nullable=False),
        sa.Column('verb', sa.String(200), nullable=False),
        sa.Column('target', sa.String(255), nullable=False),
        sa.Column('arguments', _LONG_TEXT, nullable=False),
        sa.Column('why', sa.String(200), nullable=False),
        sa.Column('outcome', _LONG_TEXT))
    _index('distperiodic_action', 'at', 'space', 'at', 'id')
    _create(
        'distperiodic_answer',
        sa.Column('action', _ID, primary_key=True),
        sa.Column('part', _exact(100), primary_key=True),
        sa.Column('name', _exact(200), primary_key=True),
        sa.Column('space', _exact(100), nullable=False),
        sa.Column('at', sa.BigInteger, nullable=False),
        sa.Column('process', _exact(255)),
        sa.Column('done', sa.SmallInteger, nullable=False),
        sa.Column('outcome', _LONG_TEXT))
    _index('distperiodic_answer', 'open', 'space', 'part', 'name', 'at')


def _create(table: str, *columns: sa.schema.SchemaItem,
            **options: Any) -> None:
    # MySQL commits each step on its own, so an earlier attempt may have been
    # interrupted after some steps.
    if not sa.inspect(op.get_bind()).has_table(table):
        op.create_table(table, *columns, **_OPTIONS, **options)


def _index(table: str, name: str, *columns: str) -> None:
    indexes = sa.inspect(op.get_bind()).get_indexes(table)
    if f'{table}_{name}' not in [one['name'] for one in indexes]:
        op.create_index(f'{table}_{name}', table, columns)
