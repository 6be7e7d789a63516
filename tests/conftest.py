# SPDX-License-Identifier: Apache-2.0
"""The servers, as fixtures. Each server starts when a test first needs it."""

import collections
import gc
import logging
import multiprocessing.util
import os
import pathlib
import shutil
import tempfile

import hypothesis
import pytest

from tests import compiled
from tests import services
from tests.services.behind import Behind
from tests.services.shared import Keeper
from tests.services.shared import shared

pytest_plugins = ['tests.rerun']

# Property tests check results, not speed, so a slow generation of examples on
# a busy machine is not a failure. A run of all tests must not depend on
# chance, so it always uses the same examples. --hypothesis-profile=search
# tries other examples.
_SLOW = [hypothesis.HealthCheck.too_slow]
for _name, _examples in ('same', 30), ('full', 200):
    hypothesis.settings.register_profile(
        _name, deadline=None, derandomize=True, suppress_health_check=_SLOW,
        max_examples=_examples)
hypothesis.settings.register_profile(
    'search', deadline=None, max_examples=2_000, print_blob=True)
# For runs that need only the result of each test: do not search for smaller
# examples of a failure.
hypothesis.settings.register_profile(
    'first', deadline=None, derandomize=True, suppress_health_check=_SLOW,
    max_examples=100,
    phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate])
hypothesis.settings.load_profile('same')


#: Seconds that a test may take to be among the first.
_LONG = 600
#: Niceness of the processes whose tests have no short time limits, and the
#: directories of these tests.
_LOW, _PATIENT = 10, ('unit', 'simulation', 'conformance')


def pytest_configure(config):
    """Give this test run a directory of its own for temporary files and state.

    Without this, tests would use the default state directory of the user's own
    services.
    """
    # Let multiprocessing create its own directory now, outside the directory
    # below. It removes its directory when this process ends. By then the
    # directory below has been removed.
    multiprocessing.util.get_temp_dir()
    place = tempfile.mkdtemp(prefix='distperiodic-tests-')
    # Servers run as other users, and create files in this directory, too.
    pathlib.Path(place).chmod(0o1777)
    config.add_cleanup(lambda: shutil.rmtree(place, ignore_errors=True))
    # Files for the analysis of a failure stay in the usual directory.
    os.environ.setdefault('PYTEST_DEBUG_TEMPROOT', tempfile.gettempdir())
    os.environ['TMPDIR'] = tempfile.tempdir = place
    if config.getoption('dist', 'no') != 'no' and not hasattr(
            config, 'workerinput'):
        config.add_cleanup(Keeper(pathlib.Path(place)).close)
    # futurist imports eventlet, and eventlet imports a resolver. These imports
    # take a quarter of the time in which a process of the tests starts.
    os.environ.setdefault('EVENTLET_NO_GREENDNS', 'yes')


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """With several processes, order the tests so that the processors are busy
    until the end.

    The tests that may take longest come first, and then the simulation. The
    tests of all other files are spread evenly over the rest of the time,
    because some need the processor and others wait.
    """
    if not hasattr(config, 'workerinput'):
        return
    sizes = collections.Counter(item.path for item in items)
    numbers = collections.Counter()

    def place(item):
        limit = item.get_closest_marker('timeout')
        numbers[item.path] += 1
        return (not limit or limit.args[0] < _LONG,
                item.path.parent.name != 'simulation',
                numbers[item.path] / sizes[item.path])
    items.sort(key=place)


def pytest_runtest_setup(item):
    """Give tests without short time limits a low priority.

    Otherwise they would take the processor from the clusters of tests/chaos,
    which run at the same time in another process.
    """
    if hasattr(item.config, 'workerinput') and os.nice(0) < _LOW and (
            item.path.parent.name in _PATIENT):
        os.nice(_LOW)


def pytest_collection_finish(session):
    """Let the garbage collector ignore what exists before the first test, and
    compile each statement once, except for a benchmark.

    Otherwise each full collection would visit all modules and all tests, which
    takes an eighth of the time of the unit tests.
    """
    gc.collect()
    gc.freeze()
    if not any(item.path.parent.name == 'benchmarks'
               for item in session.items):
        compiled.share()


def _shared(name):
    @pytest.fixture(scope='session', name=name)
    def fixture():
        """A server shared by all tests; each test uses names of its own."""
        with shared(name) as server:
            yield server
    return fixture


def _own(name):
    @pytest.fixture(name=f'{name}_server')
    def fixture():
        """A server for one test, which may break it."""
        with getattr(services, name)(its_own=True) as server:
            yield server
    return fixture


zookeeper, rabbitmq, redis, etcd, postgresql, mariadb = map(_shared, (
    'zookeeper', 'rabbitmq', 'redis', 'etcd', 'postgresql', 'mariadb'))
(zookeeper_server, rabbitmq_server, redis_server, postgresql_server,
 mariadb_server) = map(_own, (
     'zookeeper', 'rabbitmq', 'redis', 'postgresql', 'mariadb'))


@pytest.fixture(params=[
    'unreachable', pytest.param('broken', marks=pytest.mark.full)])
def breakable_rabbitmq(request):
    """A broker that one test may kill or suspend: the shared one behind a
    proxy, and in a run of all tests also one of its own.
    """
    if request.param == 'broken':
        yield request.getfixturevalue('rabbitmq_server')
        return
    broker = Behind(request.getfixturevalue('rabbitmq'))
    yield broker
    broker.kill()


@pytest.fixture
def zookeeper_ensemble():
    """Three ZooKeeper servers for one test, which may break them."""
    with services.zookeeper_ensemble(3) as ensemble:
        yield ensemble


@pytest.fixture
def rabbitmq_cluster():
    """Three RabbitMQ nodes for one test, which may break them."""
    with services.rabbitmq_cluster(3) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def _logging_as_it_was():
    """Restore the root logger after each test.

    Otherwise a command that runs in this process would change which lines
    later tests capture.
    """
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:], root.level = handlers, level
