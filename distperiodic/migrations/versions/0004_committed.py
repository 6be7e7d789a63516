# SPDX-License-Identifier: Apache-2.0
"""Add a state for claims that a handler has ended in its own transaction.

Before this migration, such a claim had the state "done" and a lease name that
ended in '+'.
"""

import sqlalchemy as sa
from alembic import op

revision = '0004'
down_revision = '0003'

_DONE, _COMMITTED = 10, 5


def upgrade() -> None:
    # Both columns change in one statement, so the update may be repeated.
    claim = sa.table('distperiodic_claim', sa.column('state', sa.SmallInteger),
                     sa.column('lease', sa.String))
    op.execute(sa.update(claim).where(
        claim.c.state == _DONE, claim.c.lease.like('%+')).values(
            state=_COMMITTED, lease=sa.func.substr(
                claim.c.lease, 1, sa.func.length(claim.c.lease) - 1)))
