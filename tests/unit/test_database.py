# SPDX-License-Identifier: Apache-2.0
"""A database connection, and its log lines."""

import logging

from distperiodic.adapters.sql.database import Database


def test_oslo_db_logs_no_tracebacks_of_errors_that_are_converted(
        caplog, tmp_path):
    warn = logging.getLogger('oslo_db.sqlalchemy.exc_filters').warning
    database = Database(f'sqlite:///{tmp_path}/d.sqlite', lambda *_: None)

    database.read(lambda connection: warn('of this library'))
    warn('of the host')
    database.close()

    assert caplog.messages == ['of the host']
