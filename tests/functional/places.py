# SPDX-License-Identifier: Apache-2.0
"""Stores for the tests of operator commands."""

import contextlib
import functools
import importlib.util
import json
import pathlib
import stat
import tempfile
import textwrap
import time
import uuid

import sqlalchemy as sa

from distperiodic.adapters.sql import database
from distperiodic.adapters.sql import schema
from distperiodic.adapters.sql import tables
from distperiodic.adapters.sql.store import SqlClaimStore
from distperiodic.core.claim import Failure
from distperiodic.core.claim import HeldLease
from distperiodic.core.claim_request import NewLease
from distperiodic.ports import NO_TIMES
from tests import claiming
from tests.functional import commands

SECOND = 1_000_000
HOUR = 3600 * SECOND
DAY = 24 * HOUR


@contextlib.contextmanager
def user_who_reads(url):
    """Create a user of PostgreSQL who can only read. The value is the URL of
    the database for this user.
    """
    name = f'reader_{uuid.uuid4().hex[:8]}'
    url = sa.make_url(url)
    engine = sa.create_engine(url.set(drivername='postgresql+psycopg'))
    with engine.begin() as connection:
        connection.execute(sa.text(
            f"CREATE ROLE {name} LOGIN PASSWORD '{url.password}'"))
        connection.execute(sa.text(
            f'GRANT SELECT ON ALL TABLES IN SCHEMA public TO {name}'))
    try:
        yield url.set(username=name).render_as_string(hide_password=False)
    finally:
        with engine.begin() as connection:
            connection.execute(sa.text(f'DROP OWNED BY {name}'))
            connection.execute(sa.text(f'DROP ROLE {name}'))
        engine.dispose()


@functools.cache
def _new_sqlite():
    """Return the content of a SQLite database with tables and no rows."""
    with tempfile.TemporaryDirectory() as place:
        file = pathlib.Path(place) / 'new.sqlite'
        schema.sync(f'sqlite:///{file}')
        assert [*file.parent.iterdir()] == [file]
        return file.read_bytes()


def make_tables(url):
    """Create the tables. A new SQLite file is a copy, because the migrations
    take longer than the rest of many tests.
    """
    file = pathlib.Path(sa.make_url(url).database)
    if url.startswith('sqlite:') and not file.exists():
        file.write_bytes(_new_sqlite())
    else:
        schema.sync(url)


class Place:
    """A database with tables, a store of one group in it, and commands."""

    def __init__(self, url, tmp_path):
        make_tables(url)
        self.url = url
        self.group = f'tests-{uuid.uuid4().hex[:8]}'
        self.make_store()
        self.now = self.store.now()
        self.config = tmp_path / f'{self.group}.conf'
        self.config.write_text('[distperiodic]\n'
                               f'connection = {url}\ngroup = {self.group}\n')
        self.config.chmod(stat.S_IRUSR | stat.S_IWUSR)

    def make_store(self):
        """Open the store."""
        self.store = SqlClaimStore(self.url, namespace=self.group)

    def show(self, *argv):
        """Run a command that may report findings. Return its output."""
        told = commands.call(*argv, '--config-file', self.config,
                             cwd=self.config.parent)
        assert (told.returncode in (0, 1), told.stderr) == (True, '')
        return told.stdout

    def ask(self, *argv):
        """Run a command that must succeed. Return its output."""
        told = commands.call(*argv, '--config-file', self.config,
                             cwd=self.config.parent)
        assert (told.returncode, told.stderr) == (0, '')
        return told.stdout

    def above(self, *argv):
        """Return the sentences above the table of a command, as one line."""
        return ' '.join(line for line in self.show(*argv).splitlines()
                        if not line.startswith(('+', '|'))).strip()

    def tell(self, *argv):
        """Run a command. Return its exit code and its JSON output."""
        told = commands.call(*argv, '-f', 'json', '--config-file', self.config,
                             cwd=self.config.parent)
        assert told.stdout, told.stderr
        return told.returncode, json.loads(told.stdout)

    def write_tasks(self, text):
        """Write the file tasks.py with a class ``Tasks``, for the option
        ``--tasks`` of commands. *text* contains the decorated methods.
        """
        path = self.config.parent / 'tasks.py'
        # Python detects a change of a file only by its modification time in
        # seconds and its size.
        pathlib.Path(importlib.util.cache_from_source(str(path))).unlink(
            missing_ok=True)
        path.write_text(
            'from distperiodic import PeriodicTasks\n'
            'from distperiodic import periodic_task\n\n\n'
            'class Tasks(PeriodicTasks):\n'
            + textwrap.indent(textwrap.dedent(text), '    '))

    def refuse(self, *argv):
        """Run a command that must be rejected. Return its one-line error."""
        told = commands.call(*argv, '--config-file', self.config,
                             cwd=self.config.parent)
        assert (told.returncode, told.stdout) == (2, '')
        assert told.stderr.count('\n') == 1
        return told.stderr

    def run(self, job, tick, *objects, dead=(), times=NO_TIMES):
        """Run objects until they end."""
        lease, running = uuid.uuid4().hex, uuid.uuid4().hex
        won = claiming.claim(self.store, job, tick, objects, lease=lease,
                             holder='api-1', seconds=60.0, supersede=False).won
        assert len(won) == len(objects)
        self.store.start(
            HeldLease(lease, job, tick), objects,
            NewLease(running, 'w-1', 60.0))
        self.store.finish(
            HeldLease(running, job, tick),
            [o for o in objects if o not in dead], times=times)
        self.store.fail(
            HeldLease(running, job, tick),
            [Failure(key, f'{key} is ill') for key in dead], None)

    def add_member(self, name, process, state, part='', ahead=0.0):
        """Add the row of a member that has just reported.

        :param ahead: Seconds for which the report stays new.
        """
        engine = database.make_engine(self.url)
        with engine.begin() as connection:
            connection.execute(sa.insert(tables.member).values(
                space=self.group, part=part, name=name, process=process,
                seen=int(time.time() + ahead) * SECOND,
                state=json.dumps(state)))
        engine.dispose()

    def rows(self, table, *jobs):
        """Return how many rows of a table belong to the group, or to these
        *jobs* of the group.
        """
        engine = database.make_engine(self.url)
        with engine.connect() as connection:
            number = connection.scalar(
                sa.select(sa.func.count()).select_from(table).join(
                    tables.job, tables.job.c.id == table.c.job).where(
                        tables.job.c.space == self.group,
                        tables.job.c.name.in_(jobs) if jobs else sa.true()))
        engine.dispose()
        return number
