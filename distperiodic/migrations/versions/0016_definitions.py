# SPDX-License-Identifier: Apache-2.0
"""Record the definitions of a job's schedule.

With them, a restarted process of an earlier release does not replace the
schedule of a later one.
"""

import sqlalchemy as sa
from alembic import op

revision = '0016'
down_revision = '0015'

_JOB = 'distperiodic_job'
_COLUMN = 'definitions'


def upgrade() -> None:
    # MySQL commits each step on its own, so an earlier attempt may have been
    # interrupted after this step.
    found = sa.inspect(op.get_bind()).get_columns(_JOB)
    if _COLUMN not in [one['name'] for one in found]:
        op.add_column(_JOB, sa.Column(_COLUMN, sa.String(200)))
