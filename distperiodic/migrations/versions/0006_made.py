# SPDX-License-Identifier: Apache-2.0
"""Record when each lease was created, to compute the age of its runs.

The creation time of the leases that exist before this migration stays unknown.
"""

import sqlalchemy as sa
from alembic import op

revision = '0006'
down_revision = '0005'

_LEASE = 'distperiodic_lease'


def upgrade() -> None:
    # MySQL commits each step on its own, so an earlier attempt may have been
    # interrupted after some steps.
    found = sa.inspect(op.get_bind()).get_columns(_LEASE)
    if 'made' not in [one['name'] for one in found]:
        op.add_column(_LEASE, sa.Column('made', sa.BigInteger))
