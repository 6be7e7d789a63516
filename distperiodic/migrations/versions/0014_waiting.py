# SPDX-License-Identifier: Apache-2.0
"""Record since when an object waits, and when its last run was granted."""

import sqlalchemy as sa
from alembic import op

revision = '0014'
down_revision = '0013'

_CLAIM = 'distperiodic_claim'


def upgrade() -> None:
    # MySQL commits each step on its own, so an earlier attempt may have been
    # interrupted after this step.
    found = {one['name'] for one in sa.inspect(op.get_bind()).get_columns(
        _CLAIM)}
    for name in 'waiting', 'started':
        if name not in found:
            op.add_column(_CLAIM, sa.Column(name, sa.BigInteger))
