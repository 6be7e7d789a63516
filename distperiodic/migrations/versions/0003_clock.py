# SPDX-License-Identifier: Apache-2.0
"""Add the offsets of the two clocks of a store in a SQLite file.

The table has one row. Stores on a database server use the clock of the server,
and not this table.
"""

import sqlalchemy as sa
from alembic import op

revision = '0003'
down_revision = '0002'

_CLOCK = 'distperiodic_clock'


def upgrade() -> None:
    # MySQL commits each step on its own, so an earlier attempt may have been
    # interrupted after some steps.
    if not sa.inspect(op.get_bind()).has_table(_CLOCK):
        op.create_table(
            _CLOCK,
            sa.Column('boot', sa.String(64), primary_key=True),
            *(sa.Column(name, sa.BigInteger, nullable=False)
              for name in ('lease', 'offset')),
            sa.Column('knee', sa.BigInteger),
            sa.Column('seen', sa.BigInteger, nullable=False),
            mysql_engine='InnoDB', mysql_charset='utf8mb4',
            mysql_row_format='DYNAMIC')
    found = sa.table(_CLOCK, *map(sa.column, (
        'boot', 'lease', 'offset', 'seen')))
    if not op.get_bind().execute(sa.select(found)).first():
        op.execute(sa.insert(found).values(
            {'boot': '', 'lease': 0, 'offset': 0, 'seen': 0}))
