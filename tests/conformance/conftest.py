# SPDX-License-Identifier: Apache-2.0
"""The buses and the databases that the conformance tests use.

``quorum`` is RabbitMQ with quorum queues. ``directory`` is the example bus of
the page "Write a bus".
"""

import functools
import runpy

import pytest

from distperiodic.adapters.messaging import drivers
from distperiodic.adapters.sql import schema
from tests.ends import BROKERS

EXAMPLE = 'doc/source/howto/write_a_bus.py'


@pytest.fixture(params=['fake', *BROKERS])
def url(request, tmp_path, monkeypatch):
    if request.param == 'fake':
        return 'fake://'
    if request.param == 'quorum':
        server = request.getfixturevalue('rabbitmq')
        return f'{server.url}?rabbit_quorum_queue=true'
    if request.param != 'directory':
        return request.getfixturevalue(request.param).url
    example = runpy.run_path(EXAMPLE)['DirectoryBus']
    monkeypatch.setattr(drivers, 'driver_of', lambda url: example())
    return f'directory://{tmp_path}'


@pytest.fixture(scope='session')
def url_of_sqlite(tmp_path_factory):
    return f'sqlite:///{tmp_path_factory.mktemp("database")}/d.sqlite'


@pytest.fixture(params=['sqlite', 'postgresql', 'mariadb'])
def database_url(request):
    """The URL of a database with tables. Each test uses a group of its own."""
    if request.param == 'sqlite':
        found = request.getfixturevalue('url_of_sqlite')
    else:
        found = request.getfixturevalue(request.param).url
    _sync(found)
    return found


@functools.cache
def _sync(url):
    """Create the tables, once in a run."""
    schema.sync(url)
