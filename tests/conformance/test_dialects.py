# SPDX-License-Identifier: Apache-2.0
"""What each database does in its own way.

Each test has a group of its own.
"""

import collections
import uuid

import pytest
import sqlalchemy as sa

from distperiodic.adapters.sql import tables
from distperiodic.adapters.sql.dialects import dialect
from distperiodic.adapters.sql.dialects import mysql
from distperiodic.adapters.sql.store import SqlClaimStore
from distperiodic.core.attributes import PLAIN
from distperiodic.core.ring import position_of
from distperiodic.ports import Listed

CLAIM = tables.claim
HOUR = 3_600_000_000
#: Expression with a few values.
SLICES = CLAIM.c.position.op('>>')(sa.literal_column('62'))


class World:
    """One group, whose job lists objects from two instants on."""

    def __init__(self, url):
        self.group = f'tests-{uuid.uuid4().hex[:8]}'
        self.store = SqlClaimStore(url, namespace=self.group)
        self.dialect = self.store.database.dialect
        #: Objects by the instant of their listing.
        self.objects = {}
        now = self.store.now()
        names = [*(f'node-{number}' for number in range(10)), 'Node-1', 'snö']
        for at, some in ((now - 2 * HOUR, names[:7]), (now, names[7:])):
            self.objects[at] = some
            self.store.sync(
                'poll', [Listed(key, PLAIN, at) for key in some], [],
                readings=[at])

    def gathered(self, column, *groups):
        """Read the values of a column; return them by group."""
        ours = sa.select(tables.job.c.id).where(
            tables.job.c.space == self.group)
        selection = dialect.Selection(
            column, [CLAIM.c.job.in_(ours)], groups, CLAIM.c.object, SLICES)

        def work(connection):
            found = collections.defaultdict(list)
            for group, values in self.dialect.gather(connection, selection):
                found[group] += values
            return dict(found)
        return self.store.database.read(work)


@pytest.fixture
def world(database_url, monkeypatch):
    monkeypatch.setattr(mysql, '_JOINED', 4)
    monkeypatch.setattr(dialect, '_ROWS', 4)
    made = World(database_url)
    yield made
    made.store.forget()
    made.store.close()


def test_all_values_of_a_column_are_read_once(world):
    found = world.gathered(CLAIM.c.object)

    assert {group: sorted(values) for group, values in found.items()} == {
        (): sorted(sum(world.objects.values(), []))}


def test_the_values_of_a_column_are_read_by_group(world):
    found = world.gathered(CLAIM.c.position, CLAIM.c.since)

    assert {group: sorted(values) for group, values in found.items()} == {
        (at,): sorted(map(position_of, some))
        for at, some in world.objects.items()}


def test_a_condition_without_rows_has_no_values(world):
    world.store.forget()

    assert world.gathered(CLAIM.c.object) == {}


def test_a_usable_database_has_no_findings(world):
    def work(connection):
        return (world.dialect.refused_sequences(
            connection, [tables.job.name, tables.failure.name]),
            world.dialect.other_engines(connection),
            world.dialect.journal_problem(connection))

    assert world.store.database.read(work) == ([], {}, '')
