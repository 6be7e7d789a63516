# SPDX-License-Identifier: Apache-2.0
"""Alembic environment that runs the migrations on a given connection."""

from alembic import context

from distperiodic.adapters.sql import tables
from distperiodic.adapters.sql.schema import VERSION_TABLE

context.configure(
    connection=context.config.attributes['connection'],
    target_metadata=tables.metadata,
    version_table=VERSION_TABLE,
    # To change a table, SQLite must create a new table and copy the rows.
    render_as_batch=True)

with context.begin_transaction():
    context.run_migrations()
