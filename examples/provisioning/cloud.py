# SPDX-License-Identifier: Apache-2.0
"""The platform: its instances, its quota of storage, and its events.

An SQLite file stands for the systems that the commands change. Each change is
one transaction that is safe to repeat.
"""

import contextlib
import sqlite3

SCHEMA = """\
CREATE TABLE instance (name TEXT PRIMARY KEY, host TEXT);
CREATE TABLE quota (free INTEGER);
CREATE TABLE deduction (task TEXT PRIMARY KEY, storage INTEGER);
CREATE TABLE event (key TEXT PRIMARY KEY, text TEXT);
"""


class Cloud:

    def __init__(self, path):
        self.path = path

    def create(self, quota):
        """Create the tables, and set the quota."""
        with self._transaction() as db:
            for statement in SCHEMA.splitlines():
                db.execute(statement)
            db.execute('INSERT INTO quota VALUES (?)', [quota])

    def create_instance(self, name, host):
        with self._transaction() as db:
            db.execute('INSERT OR REPLACE INTO instance VALUES (?, ?)',
                       [name, host])

    def delete_instance(self, name):
        with self._transaction() as db:
            db.execute('DELETE FROM instance WHERE name = ?', [name])

    def deduct(self, task, storage):
        """Reduce the quota, once for each task."""
        with self._transaction() as db:
            added = db.execute('INSERT OR IGNORE INTO deduction VALUES (?, ?)',
                               [task, storage])
            if added.rowcount == 1:
                db.execute('UPDATE quota SET free = free - ?', [storage])

    def restore(self, task):
        """Undo the deduction for a task, if there is one."""
        with self._transaction() as db:
            deducted = db.execute(
                'SELECT storage FROM deduction WHERE task = ?',
                [task]).fetchone()
            if deducted:
                db.execute('DELETE FROM deduction WHERE task = ?', [task])
                db.execute('UPDATE quota SET free = free + ?', deducted)

    def report(self, key, text):
        """Record an event, once for each key."""
        with self._transaction() as db:
            db.execute('INSERT OR IGNORE INTO event VALUES (?, ?)',
                       [key, text])

    def column(self, query):
        """Return the first column of the result of a query."""
        with self._transaction() as db:
            return [row[0] for row in db.execute(query)]

    @contextlib.contextmanager
    def _transaction(self):
        # SQLite lets only transactions that begin with this statement wait for
        # other transactions.
        with contextlib.closing(sqlite3.connect(
                self.path, timeout=60, isolation_level=None)) as db:
            db.execute('BEGIN IMMEDIATE')
            with db:
                yield db
