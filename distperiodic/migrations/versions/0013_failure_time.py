# SPDX-License-Identifier: Apache-2.0
"""Index failures by time, so that a service can find and delete old rows."""

import sqlalchemy as sa
from alembic import op

revision = '0013'
down_revision = '0012'

_FAILURE = 'distperiodic_failure'
_INDEX = 'distperiodic_failure_at'


def upgrade() -> None:
    # MySQL commits each step on its own, so an earlier attempt may have been
    # interrupted after this step.
    found = sa.inspect(op.get_bind()).get_indexes(_FAILURE)
    if _INDEX not in [one['name'] for one in found]:
        op.create_index(_INDEX, _FAILURE, ['at', 'id'])
