# SPDX-License-Identifier: Apache-2.0
"""Alembic's environment: run migrations over the connection it is given."""

from alembic import context

from distperiodic.adapters import schema
from distperiodic.adapters import tables

context.configure(
    connection=context.config.attributes['connection'],
    target_metadata=tables.metadata,
    version_table=schema.VERSION_TABLE,
    # To change a table, SQLite must create a new one and copy the rows.
    render_as_batch=True)

with context.begin_transaction():
    context.run_migrations()
