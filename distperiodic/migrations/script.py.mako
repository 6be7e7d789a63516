# SPDX-License-Identifier: Apache-2.0
"""${message}"""

import sqlalchemy as sa
from alembic import op

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}


def upgrade() -> None:
    # MySQL commits each step on its own, so an earlier attempt may have been
    # interrupted after some steps. Before each step, check that it is not
    # complete.
    ${upgrades if upgrades else "pass"}
