# SPDX-License-Identifier: Apache-2.0
"""Leave more free space in each page of PostgreSQL's claim table.

The table is not rewritten: existing pages get the space as their rows change.
"""

from alembic import op

revision = '0005'
down_revision = '0004'


def upgrade() -> None:
    if op.get_bind().dialect.name == 'postgresql':
        op.execute('ALTER TABLE distperiodic_claim SET (fillfactor = 45)')
