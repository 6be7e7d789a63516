# SPDX-License-Identifier: Apache-2.0
"""Seconds of each page beside many rows, and of the commands' JSON twins.

One group has ten million claims of one job and a million tasks. One claim in a
thousand is dead, and one in a hundred runs.

    pytest -s -o timeout=0 tests/benchmarks/test_pages.py
"""

import statistics

import pytest
import sqlalchemy as sa
from werkzeug.test import Client

from distperiodic import tasks
from distperiodic import web
from distperiodic.adapters.sql import database
from distperiodic.adapters.sql import tables
from distperiodic.core.claim import STATE_CODES
from distperiodic.core.claim import State
from distperiodic.core.workflow import CODES
from distperiodic.core.workflow import Status
from tests import services
from tests.benchmarks import measuring
from tests.configured import configuration
from tests.functional.places import SECOND
from tests.functional.places import Place

CLAIMS, TASKS = 10_000_000, 1_000_000
JOB, FEW = 'poll', ['first', 'second']
PATHS = ('/', '/jobs', f'/jobs/{JOB}', f'/jobs/{JOB}/objects/first',
         '/tasks', '/tasks?status=succeeded', '/tasks?status=stuck',
         '/tasks?type=vm.boot&limit=1000', '/tasks?queue=db', '/tasks/STUCK',
         '/queues', '/pools', '/partitions', '/members', '/ring', '/events')


@pytest.fixture
def place(tmp_path):
    with services.postgresql(its_own=True) as server:
        yield Place(server.url, tmp_path)


def copies(table, **values):
    """Return the statement that copies a row of *table* many times.

    :param values: SQL expressions of the columns that differ between the
        copies. ``i`` is the number of a copy.
    """
    kept = [column.name for column in table.columns
            if column.name not in values]
    return sa.text(
        f'INSERT INTO {table.name} ({", ".join([*values, *kept])}) '  # noqa: S608
        f'SELECT {", ".join([*values.values(), *kept])} '
        f'FROM {table.name}, generate_series(1, :copies) i '
        'WHERE {condition}'.format(condition=' AND '.join(
            f'{column.name} = :{column.name}'
            for column in table.primary_key if column.name != 'job')))


def fill(place):
    """Fill the store of *place*; return the id of a stuck task."""
    for ago in range(100, 0, -1):
        place.run(JOB, place.now - ago * 60 * SECOND, *FEW, dead=FEW[ago:])
    client = tasks.Client(configuration(
        connection=place.url, group=place.group))
    alone = client.submit('vm.boot', {})
    queued = client.submit('vm.boot', {}, queue='db')
    client.close()
    engine = database.make_engine(place.url, bounded=False)
    with engine.begin() as connection:
        connection.execute(copies(
            tables.claim, object="'vm-' || lpad(i::text, 33, '0')",
            position='i * 900000000000',
            state=f'CASE WHEN i % 1000 = 0 THEN {STATE_CODES[State.DEAD]} '
            f'WHEN i % 100 = 0 THEN {STATE_CODES[State.RUNNING]} '
            f'ELSE state END'),
            {'copies': CLAIMS, 'object': FEW[0]})
        for task, share, mark in (alone, 0.9, 'a'), (queued, 0.1, 'q'):
            connection.execute(copies(
                tables.task, id=f"'{mark}' || lpad(i::text, 31, '0')",
                status=f'CASE WHEN i % 10000 = 0 THEN {CODES[Status.STUCK]} '
                f'WHEN i % 100 < 5 THEN {CODES[Status.WAITING]} '
                f'WHEN i % 100 < 6 THEN {CODES[Status.FAILED]} '
                f'ELSE {CODES[Status.SUCCEEDED]} END',
                created='created - i * 1000'),
                {'copies': int(TASKS * share), 'id': task})
    with engine.connect().execution_options(
            isolation_level='AUTOCOMMIT') as connection:
        for table in tables.claim, tables.task:
            connection.execute(sa.text(f'VACUUM ANALYZE {table.name}'))
    engine.dispose()
    return f'a{10_000:031d}'


def test_seconds_of_each_page(place):
    stuck = fill(place)
    client = Client(web.application(configuration(
        connection=place.url, group=place.group)))
    with measuring.table(
            f'seconds of a page beside {CLAIMS:,} claims and {TASKS:,} tasks',
            'page', 'status', 'first', 'median', 'most', 'KiB', 'twin',
            file=__file__) as row:
        for path in PATHS:
            path = path.replace('STUCK', stuck)
            found = []
            seconds = [measuring.seconds_of(
                lambda path=path, found=found: found.append(client.get(path)))
                for _ in range(measuring.rounds(5))]
            twin = measuring.seconds_of(
                lambda path=path: client.get(f'/api{path}'))
            assert found[0].status_code in (200, 503), found[0].text
            row(path.replace(stuck, 'ID'), found[0].status_code,
                f'{seconds[0]:.2f}', f'{statistics.median(seconds):.2f}',
                f'{max(seconds):.2f}', len(found[0].data) // 1024,
                f'{twin:.2f}')
