# SPDX-License-Identifier: Apache-2.0
"""What a handler's session has ended has a state of its own.

Before it had the state of what is done, and a lease whose name ended in '+'.
"""

import sqlalchemy as sa
from alembic import op

revision = '0004'
down_revision = '0003'

_DONE, _COMMITTED = 10, 5


def upgrade() -> None:
    # Each row is changed whole, so doing it again does no harm.
    claim = sa.table('distperiodic_claim', sa.column('state', sa.SmallInteger),
                     sa.column('lease', sa.String))
    op.execute(sa.update(claim).where(
        claim.c.state == _DONE, claim.c.lease.like('%+')).values(
            state=_COMMITTED, lease=sa.func.substr(
                claim.c.lease, 1, sa.func.length(claim.c.lease) - 1)))
