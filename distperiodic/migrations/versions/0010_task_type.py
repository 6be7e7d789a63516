# SPDX-License-Identifier: Apache-2.0
"""Index tasks by type, so that listing one type reads no other tasks."""

import sqlalchemy as sa
from alembic import op

revision = '0010'
down_revision = '0009'

_TASK = 'distperiodic_task'
_INDEX = 'distperiodic_task_type'


def upgrade() -> None:
    # MySQL commits each step on its own, so an earlier attempt may have been
    # interrupted after this step.
    found = sa.inspect(op.get_bind()).get_indexes(_TASK)
    if _INDEX not in [one['name'] for one in found]:
        op.create_index(_INDEX, _TASK, [
            'space', 'type', 'status', 'created', 'id'])
