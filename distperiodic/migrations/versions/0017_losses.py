# SPDX-License-Identifier: Apache-2.0
"""Count the lost runs of an object apart from those that failed."""

import sqlalchemy as sa
from alembic import op

revision = '0017'
down_revision = '0016'


def upgrade() -> None:
    op.add_column('distperiodic_claim', sa.Column('losses', sa.Integer))
