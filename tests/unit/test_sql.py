# SPDX-License-Identifier: Apache-2.0
"""A member reads its own rows of a table and no others."""

import ast
import pathlib
import types

import pytest
import sqlalchemy as sa
from alembic import autogenerate
from alembic.runtime import migration

from distperiodic import exceptions
from distperiodic import migrations
from distperiodic import sql
from distperiodic.adapters.sql import schema
from distperiodic.adapters.sql import tables
from distperiodic.core import ring

NAMES = [f'node-{n}' for n in range(2000)]


@pytest.fixture(scope='module')
def nodes():
    engine = sa.create_engine('sqlite://')
    metadata = sa.MetaData()
    table = sa.Table(
        'node', metadata, sa.Column('name', sa.String, primary_key=True),
        sa.Column('position', sa.BigInteger, index=True))
    metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(sa.insert(table), [
            {'name': n, 'position': sql.position_of(n)} for n in NAMES])
    with engine.connect() as connection:
        def read(arcs, which=lambda condition: condition):
            return set(connection.scalars(sa.select(table.c.name).where(
                which(sql.in_arcs(table.c.position, arcs)))))
        read.table = table
        read.connection = connection
        yield read


def test_each_row_is_read_by_its_owner_alone(nodes):
    members = ring.Ring({'a': 40, 'b': 40, 'c': 80})

    for one in members.members:
        assert nodes(members.arcs(one)) == {
            n for n in NAMES if members.owner_of(n) == one}


def test_one_member_reads_all(nodes):
    assert nodes(ring.Ring({'a': 1}).arcs('a')) == set(NAMES)


def test_without_arcs_nothing_is_read(nodes):
    assert nodes([]) == set()


def test_it_is_a_condition_among_others(nodes):
    members = ring.Ring({'a': 40, 'b': 40})
    ours, theirs = members.arcs('a'), members.arcs('b')

    assert nodes(ours, sa.not_) == nodes(theirs)
    assert nodes(ours, lambda mine: mine & sa.false()) == set()
    assert nodes(ours, lambda mine: sa.true() & ~mine) == nodes(theirs)


def test_the_rows_are_found_by_the_index(nodes):
    arcs = ring.Ring({'a': 40, 'b': 40}).arcs('a')
    found = sa.select(nodes.table.c.name).where(
        sql.in_arcs(nodes.table.c.position, arcs))

    plan = [row.detail for row in nodes.connection.exec_driver_sql(
        f'EXPLAIN QUERY PLAN {found.compile(nodes.connection)}')]

    assert not any('SCAN' in step for step in plan)
    assert sum('position>? AND position<?' in step for step in plan) == len(
        arcs)


def test_an_object_is_placed_by_its_id():
    assert sql.position_of(types.SimpleNamespace(id=7)) == sql.position_of(
        '7') == ring.position_of('7')


def test_an_object_without_an_id_has_no_place():
    with pytest.raises(exceptions.InvalidObject, match='has no id'):
        sql.position_of(object())


def differences(url, **options):
    """Return what Alembic would change in a database that a host shares."""
    metadata = sa.MetaData()
    sa.Table('node', metadata, sa.Column('name', sa.String(9)))
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        found = autogenerate.compare_metadata(
            migration.MigrationContext.configure(connection, opts=options),
            metadata)
    engine.dispose()
    return {(change[0], change[1].name) for change in found}


def test_alembic_of_a_host_leaves_our_tables_alone(tmp_path):
    """Without the helper, Alembic would drop them."""
    url = f'sqlite:///{tmp_path}/shared.sqlite'
    schema.sync(url)
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.execute(sa.text('CREATE TABLE old (name VARCHAR(9))'))
    engine.dispose()

    assert differences(url, include_name=sql.include_name) == {
        ('add_table', 'node'), ('remove_table', 'old')}
    assert {name for change, name in differences(url)
            if change == 'remove_table'} == {
                'old', schema.VERSION_TABLE, *tables.metadata.tables}


def test_a_migration_is_summed_up_in_one_line():
    """Alembic logs the first paragraph, and a log has one line per event."""
    folder = pathlib.Path(migrations.__file__).parent / 'versions'
    summaries = {
        path.name: ast.get_docstring(ast.parse(path.read_text()))
        .partition('\n\n')[0] for path in folder.glob('0*.py')}

    assert {name: text for name, text in summaries.items()
            if '\n' in text} == {}
