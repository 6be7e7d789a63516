# SPDX-License-Identifier: Apache-2.0
"""Whoever looks at a store on SQLite is in nobody's way, nor anybody in his.
"""

import pytest
import sqlalchemy as sa

from distperiodic.adapters.sql import database
from distperiodic.adapters.sql import tables
from distperiodic.operator.store_probe import StoreProbe
from tests.functional.places import SECOND

LOOKS = {
    'history': lambda one: one.history(job=None, since=0, limit=9),
    'dead': lambda one: one.dead(job=None, limit=9),
    'job list': lambda one: one.jobs(),
    'explain': lambda one: one.object('poll', 'a'),
    'objects': lambda one: one.unserved('poll', 0.0, 9),
    'audit': lambda one: one.account('poll', 0, None),
    'doctor, the tables': lambda one: one.missing() == [],
    'doctor, the leases': lambda one: one.overdue_lease(),
    'doctor, how it writes': lambda one: one.journal(),
    'the time': lambda one: one.now(),
    'what is listed': lambda one: one.rows(
        'poll', -2 ** 63, 2 ** 63 - 1, limit=9),
}


@pytest.fixture
def place(place_of_sqlite):
    place = place_of_sqlite
    place.run('poll', place.now - 5 * SECOND, 'a', 'b', dead=['b'])
    place.store.claim('poll', place.now, ['a'], lease='one', holder='api-1',
                      seconds=-1.0, supersede=False)
    return place


@pytest.fixture
def looker(place):
    one = StoreProbe(place.url, namespace=place.group)
    yield one
    one.close()


def test_nobody_waits_for_who_looks(place, looker):
    claims = sa.select(sa.func.count()).select_from(tables.claim)

    def look(connection):
        before = connection.scalar(claims)
        claimed = place.store.claim(
            'poll', place.now, ['new'], lease='two', holder='api-1',
            seconds=60.0, supersede=False)
        return before, len(claimed.won), connection.scalar(claims)

    # All that is read is of the moment in which it began.
    assert looker._database.read(look) == (2, 1, 2)
    assert looker._database.read(lambda c: c.scalar(claims)) == 3


@pytest.mark.timeout(9)
@pytest.mark.parametrize('look', LOOKS)
def test_who_looks_takes_no_turn_at_writing(place, looker, look):
    """It would wait for who writes, and fail after 10 s."""
    writer = database.make_engine(place.url)
    try:
        with writer.begin() as connection:
            connection.execute(sa.update(tables.job).values(paused_why='x'))
            assert LOOKS[look](looker)
    finally:
        writer.dispose()
