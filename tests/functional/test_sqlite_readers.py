# SPDX-License-Identifier: Apache-2.0
"""Readers of a store in SQLite do not block writers, and writers do not block
readers.
"""

import contextlib

import pytest
import sqlalchemy as sa

from distperiodic.adapters.sql import database
from distperiodic.adapters.sql import tables
from distperiodic.adapters.sql.store import SqlClaimStore
from distperiodic.operator.activity import Activity
from distperiodic.operator.health_queries import HealthQueries
from distperiodic.operator.queries import StoreQueries
from distperiodic.operator.store_probe import StoreProbe
from tests import claiming
from tests.functional.places import SECOND

LOOKS = {
    'history': (Activity, lambda one: one.history(job=None, since=0, limit=9)),
    'dead': (Activity, lambda one: one.failing(limit=9)),
    'job list': (StoreQueries, lambda one: one.group.jobs()),
    'explain': (StoreQueries, lambda one: one.object('poll', 'a')),
    'objects': (Activity, lambda one: one.unserved('poll', 0.0, 9)),
    'unknown jobs': (Activity, lambda one: one.unknown_jobs([])),
    'audit': (StoreQueries, lambda one: one.account('poll', 0, None)),
    'doctor, the tables': (StoreProbe, lambda one: one.missing() == []),
    'status, the leases': (HealthQueries, lambda one: one.expired()),
    'status, the jobs': (HealthQueries, lambda one: one.jobs(0, 9.0)),
    'doctor, how it writes': (StoreProbe, lambda one: one.journal_problem()),
    'the time': (StoreProbe, lambda one: one.group.now()),
    'listed objects': (SqlClaimStore, lambda one: one.rows(
        'poll', -2 ** 63, 2 ** 63 - 1, limit=9)),
}


@pytest.fixture
def place(place_of_sqlite):
    place = place_of_sqlite
    place.run('poll', place.now - 5 * SECOND, 'a', 'b', dead=['b'])
    claiming.claim(place.store, 'poll', place.now, ['a'], lease='one',
                   holder='api-1', seconds=-1.0, supersede=False)
    return place


def test_a_claim_does_not_wait_for_a_reader(place):
    claims = sa.select(sa.func.count()).select_from(tables.claim)

    def look(connection):
        before = connection.scalar(claims)
        claimed = claiming.claim(place.store, 'poll', place.now, ['new'],
                                 lease='two', holder='api-1', seconds=60.0,
                                 supersede=False)
        return before, len(claimed.won), connection.scalar(claims)

    with contextlib.closing(
            Activity(place.url, namespace=place.group)) as activity:
        # A read sees the database at the moment when the read began.
        assert activity.group.read(look) == (2, 1, 2)
        assert activity.group.read(lambda c: c.scalar(claims)) == 3


@pytest.mark.timeout(9)
@pytest.mark.parametrize('look', LOOKS)
def test_a_reader_does_not_wait_for_a_writer(place, look):
    """A reader that takes the write lock would wait for the writer, and fail
    after 10 s.
    """
    kind, call = LOOKS[look]
    looker = kind(place.url, namespace=place.group)
    writer = database.make_engine(place.url)
    try:
        with writer.begin() as connection:
            connection.execute(sa.update(tables.job).values(paused_why='x'))
            assert call(looker)
    finally:
        writer.dispose()
        looker.close()
