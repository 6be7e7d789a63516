# SPDX-License-Identifier: Apache-2.0
"""Leave more free space in each page of the claim table in PostgreSQL.

The table is not rewritten. A page that exists already gets the free space
gradually, as its rows change.
"""

from alembic import op

revision = '0005'
down_revision = '0004'


def upgrade() -> None:
    if op.get_bind().dialect.name == 'postgresql':
        op.execute('ALTER TABLE distperiodic_claim SET (fillfactor = 45)')
