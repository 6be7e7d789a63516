# SPDX-License-Identifier: Apache-2.0
"""The due rows of one member's objects, in a table of a million rows.

The table belongs to a service. Its columns are an id, the position that
``position_of`` returned, and the due time. It has an index on position and due
time. One member of a hundred reads its own rows with ``in_arcs``. In the
alternative, the member reads all due rows, and then keeps the rows that it
owns by the ring.

    pytest -s -o timeout=0 tests/benchmarks/test_arcs.py
"""

import array

import pytest
import sqlalchemy as sa

from distperiodic import sql
from distperiodic.adapters.sql.database import make_engine
from distperiodic.core import ring
from tests.benchmarks import filled
from tests.benchmarks import measuring

OBJECTS = 1_000_000
MEMBERS = 100
POINTS = 40
#: A value of N means that one of N objects is due.
DUE = [1, 10, 100]

nodes = sa.Table(
    'benchmark_nodes', sa.MetaData(),
    sa.Column('id', sa.String(36), primary_key=True),
    sa.Column('position', sa.BigInteger, nullable=False),
    sa.Column('due', sa.Integer, nullable=False),
    sa.Index('benchmark_nodes_position', 'position', 'due'))


@pytest.fixture(scope='module')
def objects():
    return filled.object_ids(OBJECTS)


def made(url, objects):
    engine = make_engine(url, bounded=False)
    nodes.create(engine)
    with filled.connected(url) as connection:
        filled.insert(connection, url, nodes.name, ['id', 'position', 'due'], (
            (key, position, number % 100)
            for number, (key, position) in enumerate(
                zip(objects, ring.positions_of(objects), strict=True))))
        connection.commit()
        filled.settle(connection, url, nodes.name)
    return engine


def test_due_rows_of_a_member(database, objects):
    kind, url = database
    engine = made(url, objects)
    members = ring.Ring({f'api-{n}': POINTS for n in range(MEMBERS)})
    ours = 'api-17'
    arcs = members.arcs(ours)

    with engine.connect() as connection, measuring.table(
            f'due rows of one member of {MEMBERS} in {kind}, {OBJECTS:,} rows'
            f' and {len(arcs)} arcs, ms', 'due', 'rows due', 'ours',
            'by arcs', 'least-most', 'all due, then the ring', 'to it',
            file=__file__, versions=('SQLAlchemy',)) as row:
        for one_in in DUE:
            before = 100 // one_in

            def by_arcs(before=before):
                return connection.scalars(sa.select(nodes.c.id).where(
                    nodes.c.due < before,
                    sql.in_arcs(nodes.c.position, arcs))).all()

            def filtered(before=before):
                due = connection.execute(
                    sa.select(nodes.c.id, nodes.c.position).where(
                        nodes.c.due < before)).all()
                owned = members.owned(
                    ours, array.array('q', [one.position for one in due]))
                return [one.id for one, is_ours in zip(
                    due, owned, strict=True) if is_ours]
            found = by_arcs()
            assert sorted(found) == sorted(filtered())
            took = measuring.in_turns({
                'arcs': lambda: by_arcs, 'filtered': lambda: filtered})
            arcs_, all_ = took['arcs'], took['filtered']
            row(f'1/{one_in}', f'{OBJECTS // one_in:,}', f'{len(found):,}',
                measuring.ms(arcs_.median), measuring.spread(arcs_),
                measuring.ms(all_.median),
                f'1/{all_.median / arcs_.median:.0f}')
    nodes.drop(engine)
    engine.dispose()
