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
from distperiodic.core.ring import Arc
from distperiodic.operator import activity
from distperiodic.operator import health_queries
from distperiodic.operator import queries
from distperiodic.operator import store_probe
from distperiodic.operator.group_reader import GroupStore
from tests import claiming
from tests.functional.places import SECOND

LOOKS = {
    'history': lambda one: activity.history(one, job=None, since=0, limit=9),
    'dead': lambda one: activity.failing(one, limit=9),
    'job list': lambda one: one.jobs(),
    'explain': lambda one: queries.object_of(one, 'poll', 'a'),
    'objects': lambda one: activity.unserved(one, 'poll', 0.0, 9),
    'unknown jobs': lambda one: activity.unknown_jobs(one, []),
    'audit': lambda one: queries.account(one, 'poll', 0, None),
    'doctor, the tables': lambda one: store_probe.missing(one) == [],
    'status, the leases': health_queries.expired,
    'status, the jobs': lambda one: health_queries.jobs(one, 0, 9.0),
    'doctor, how it writes':
        lambda one: store_probe.journal_problem(one) == '',
    'the time': lambda one: one.now(),
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
            GroupStore(place.url, place.group)) as store:
        # A read sees the database at the moment when the read began.
        assert store.read(look) == (2, 1, 2)
        assert store.read(lambda c: c.scalar(claims)) == 3


@pytest.mark.timeout(9)
@pytest.mark.parametrize('look', [*LOOKS, 'listed objects'])
def test_a_reader_does_not_wait_for_a_writer(place, look):
    """A reader that takes the write lock would wait for the writer, and fail
    after 10 s.
    """
    if look in LOOKS:
        looker, call = GroupStore(place.url, place.group), LOOKS[look]
    else:
        looker = SqlClaimStore(place.url, namespace=place.group)

        def call(store):
            return store.rows('poll', Arc(-2 ** 63, 2 ** 63 - 1), limit=9)
    writer = database.make_engine(place.url)
    try:
        with writer.begin() as connection:
            connection.execute(sa.update(tables.job).values(paused_why='x'))
            assert call(looker)
    finally:
        writer.dispose()
        looker.close()
