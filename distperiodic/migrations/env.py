# SPDX-License-Identifier: Apache-2.0
"""How Alembic runs our migrations: over the connection it is given."""

from alembic import context

from distperiodic.adapters import schema
from distperiodic.adapters import tables

context.configure(
    connection=context.config.attributes['connection'],
    target_metadata=tables.metadata,
    version_table=schema.VERSION_TABLE,
    # SQLite changes a table by making it anew.
    render_as_batch=True)

with context.begin_transaction():
    context.run_migrations()
