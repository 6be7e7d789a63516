# SPDX-License-Identifier: Apache-2.0
"""Record listings of objects, schedules, and when jobs are served.

The objects of existing rows count as listed. Their schedules are recorded when
the catalogue is next read.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = '0002'
down_revision = '0001'

_CLAIM = 'distperiodic_claim'
_POSITION = 'distperiodic_claim_position'


def _exact(length: int) -> sa.types.TypeEngine[str]:
    return sa.String(length).with_variant(
        mysql.VARBINARY(4 * length), 'mysql').with_variant(
            sa.String(length, collation='C'), 'postgresql')


def upgrade() -> None:
    _add('distperiodic_job',
         sa.Column('schedule', _exact(400)),
         *(sa.Column(name, sa.BigInteger) for name in (
             'schedule_since', 'attended_since', 'attended_until',
             'checked', 'pruned_before')))
    _add(_CLAIM, sa.Column('since', sa.BigInteger),
         sa.Column('rule', _exact(300)))
    _add('distperiodic_history', sa.Column(
        'by_lost', sa.BigInteger, nullable=False, server_default='0'))
    op.execute(f'UPDATE {_CLAIM} SET since = settled')  # noqa: S608
    indexes = sa.inspect(op.get_bind()).get_indexes(_CLAIM)
    if _POSITION not in [one['name'] for one in indexes]:
        op.create_index(_POSITION, _CLAIM, ['position', 'job'])


def _add(table: str, *columns: sa.Column[Any]) -> None:
    # MySQL commits each step on its own, so an earlier attempt may have been
    # interrupted after some steps.
    found = {one['name']
             for one in sa.inspect(op.get_bind()).get_columns(table)}
    for column in columns:
        if column.name not in found:
            op.add_column(table, column)
