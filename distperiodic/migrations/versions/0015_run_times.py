# SPDX-License-Identifier: Apache-2.0
"""Record how late runs begin and how long they last.

These columns replace the lateness of claims.

Claims may be punctual while the runs wait for a worker.
"""

import sqlalchemy as sa
from alembic import op

revision = '0015'
down_revision = '0014'

_HISTORY = 'distperiodic_history'


def upgrade() -> None:
    # MySQL commits each step on its own, so an earlier attempt may have been
    # interrupted after some steps.
    found = {one['name'] for one in sa.inspect(
        op.get_bind()).get_columns(_HISTORY)}
    for name in ('started', 'ran'):
        if name not in found:
            op.add_column(_HISTORY, sa.Column(name, sa.String(800)))
    for name in ('lateness', 'latest'):
        if name in found:
            op.drop_column(_HISTORY, name)
