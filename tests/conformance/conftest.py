# SPDX-License-Identifier: Apache-2.0
"""The buses that each test of a driver runs on.

``quorum`` is RabbitMQ with quorum queues, ``directory`` the example of the
page "Write a bus".
"""

import runpy

import pytest

from distperiodic.adapters.messaging import drivers
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
