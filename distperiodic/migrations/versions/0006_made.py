# SPDX-License-Identifier: Apache-2.0
"""When a lease was made, so that the age of what runs in it is known.

Leases of before have none; they end within minutes.
"""

import sqlalchemy as sa
from alembic import op

revision = '0006'
down_revision = '0005'

_LEASE = 'distperiodic_lease'


def upgrade() -> None:
    # MySQL commits each step by itself, so this may have been cut short.
    found = sa.inspect(op.get_bind()).get_columns(_LEASE)
    if 'made' not in [one['name'] for one in found]:
        op.add_column(_LEASE, sa.Column('made', sa.BigInteger))
