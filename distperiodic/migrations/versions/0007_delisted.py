# SPDX-License-Identifier: Apache-2.0
"""Record when an object was delisted.

Without this time, a process with an older reading of the catalogue could list
the object again as of an instant before the delisting. For objects that were
delisted before this migration, no time is recorded.
"""

import sqlalchemy as sa
from alembic import op

revision = '0007'
down_revision = '0006'

_CLAIM = 'distperiodic_claim'


def upgrade() -> None:
    # MySQL commits each step on its own, so an earlier attempt may have been
    # interrupted after some steps.
    found = sa.inspect(op.get_bind()).get_columns(_CLAIM)
    if 'delisted' not in [one['name'] for one in found]:
        op.add_column(_CLAIM, sa.Column('delisted', sa.BigInteger))
