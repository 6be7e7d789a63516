# SPDX-License-Identifier: Apache-2.0
"""More room in each page of the claims of PostgreSQL.

Existing pages get that room as their rows change; the table is not rewritten.
"""

from alembic import op

revision = '0005'
down_revision = '0004'


def upgrade() -> None:
    if op.get_bind().dialect.name == 'postgresql':
        op.execute('ALTER TABLE distperiodic_claim SET (fillfactor = 45)')
