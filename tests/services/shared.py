# SPDX-License-Identifier: Apache-2.0
"""One server of each kind for all processes of a test run (pytest-xdist).

The controlling process starts a server when a worker process first asks for
it. In databases each worker process has a database of its own.
"""

import contextlib
import os
import pathlib
import threading
from multiprocessing import connection

import pytest
import sqlalchemy as sa

from tests import services
from tests.services import container
from tests.services import server

_PLACE = 'DISTPERIODIC_TEST_SERVERS'


class Keeper:
    """Starts servers for the worker processes, and ends them in close().

    A separate thread starts them all: the kernel kills a server when the
    thread that has started it ends.
    """

    def __init__(self, directory: pathlib.Path):
        self._path = os.environ[_PLACE] = str(directory / 'servers')
        self._listener = connection.Listener(self._path, backlog=64)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self):
        answers = {}
        with contextlib.ExitStack() as running:
            while True:
                # A process that asks may have been killed.
                with (contextlib.suppress(OSError, EOFError),
                      self._listener.accept() as asking):
                    name = asking.recv()
                    if name is None:
                        return
                    if name not in answers:
                        answers[name] = _started(name, running)
                    asking.send(answers[name])

    def close(self):
        with connection.Client(self._path) as asking:
            asking.send(None)
        self._thread.join()
        self._listener.close()


def _started(name, running):
    """Return the URL of a new server, and the reason if there is none."""
    try:
        return running.enter_context(getattr(services, name)()).url, ''
    except (pytest.fail.Exception, Exception) as error:
        # Each process that asks fails with the reason, whatever it is.
        return None, str(error) or repr(error)


@contextlib.contextmanager
def shared(name: str):
    """Yield the server *name*. It is shared by all processes of the test run,
    if pytest-xdist has started several.
    """
    worker = os.environ.get('PYTEST_XDIST_WORKER')
    database = name in ('postgresql', 'mariadb')
    if not worker or server.external(name.upper()) or (
            # In the container no user may create databases.
            name == 'mariadb' and container.docker_answers()):
        with getattr(services, name)() as one:
            yield one
        return
    with connection.Client(os.environ[_PLACE]) as asking:
        asking.send(name)
        url, reason = asking.recv()
    if not url:
        pytest.fail(reason, pytrace=False)
    yield server.ExternalServer(
        _own_database(url, f'tests_{worker}') if database else url)


def _own_database(url, name):
    """Create the database *name*, and return its URL."""
    url = sa.make_url(url)
    driver = {'postgresql': 'postgresql+psycopg2', 'mysql': 'mysql+pymysql'}
    engine = sa.create_engine(
        url.set(drivername=driver[url.drivername]),
        isolation_level='AUTOCOMMIT')
    with engine.connect() as one:
        one.execute(sa.text(f'CREATE DATABASE {name}'))
    engine.dispose()
    return url.set(database=name).render_as_string(hide_password=False)
