# SPDX-License-Identifier: Apache-2.0
"""A longer timeout for functional tests, which wait for real sessions to
expire.
"""

import pathlib
import threading

import pytest

from tests import proxy
from tests import waiting
from tests.functional import places
from tests.functional.desk import Desk

HERE = pathlib.Path(__file__).parent
SECONDS = 500
#: On a machine that several test processes share with clusters, everything
#: takes several times as long as on an idle one.
PATIENCE = 4.0


def pytest_collection_modifyitems(items):
    for item in items:
        if (HERE in item.path.parents
                and item.get_closest_marker('timeout') is None):
            item.add_marker(pytest.mark.timeout(SECONDS))


@pytest.fixture(autouse=True)
def _patience():
    """Let all tests of real processes wait longer than their timeouts.

    With the fixture 'monkeypatch', the changes of each test would end later
    than its other fixtures.
    """
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(waiting, 'patience', PATIENCE)
        yield


@pytest.fixture(autouse=True, scope='module')
def _connections_are_closed():
    """Fail if a test leaves a connection to RabbitMQ.

    Its thread would write to the log of later tests.
    """
    yield
    waiting.wait_until(
        lambda: 'Rabbit-heartbeat' not in {
            thread.name for thread in threading.enumerate()},
        5, 'a connection to RabbitMQ is left')


@pytest.fixture(params=['sqlite', 'postgresql', 'mariadb'])
def place(request, tmp_path):
    url = f'sqlite:///{tmp_path}/claims.sqlite'
    if request.param != 'sqlite':
        url = request.getfixturevalue(request.param).url
    made = places.Place(url, tmp_path)
    yield made
    made.store.forget()
    made.store.close()


@pytest.fixture
def place_of_sqlite(tmp_path):
    made = places.Place(f'sqlite:///{tmp_path}/claims.sqlite', tmp_path)
    yield made
    made.store.close()


@pytest.fixture
def way(postgresql):
    """A proxy before PostgreSQL, with the attribute ``url``."""
    with proxy.Proxy.before(postgresql.url) as way:
        yield way


@pytest.fixture
def desk(place):
    made = Desk(place)
    yield made
    made.client.close()


@pytest.fixture
def desk_of_sqlite(place_of_sqlite):
    made = Desk(place_of_sqlite)
    yield made
    made.client.close()
