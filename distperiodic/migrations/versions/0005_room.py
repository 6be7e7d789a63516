# SPDX-License-Identifier: Apache-2.0
"""More room in each page of the claims of PostgreSQL.

Pages that are full get it as their rows change; nothing is written anew.
"""

from alembic import op

revision = '0005'
down_revision = '0004'


def upgrade() -> None:
    if op.get_bind().dialect.name == 'postgresql':
        op.execute('ALTER TABLE distperiodic_claim SET (fillfactor = 45)')
