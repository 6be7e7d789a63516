# SPDX-License-Identifier: Apache-2.0
"""The servers, as fixtures. They start when the first test asks for them."""

import logging
import os
import pathlib
import shutil
import tempfile

import hypothesis
import pytest

from tests import services

# Property tests judge results, never how long a loaded machine took. Whoever
# runs all tests tests a change, not their luck: the examples are the same
# each time, and --hypothesis-profile=search looks for new ones.
# So a slow generation of examples, by the clock, is no failure either.
_SLOW = [hypothesis.HealthCheck.too_slow]
hypothesis.settings.register_profile(
    'same', deadline=None, derandomize=True, suppress_health_check=_SLOW)
hypothesis.settings.register_profile(
    'search', deadline=None, max_examples=2_000, print_blob=True)
# Whoever only asks whether anything fails has no use for a smaller example.
hypothesis.settings.register_profile(
    'first', deadline=None, derandomize=True, suppress_health_check=_SLOW,
    phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate])
hypothesis.settings.load_profile('same')


def pytest_configure(config):
    """Have all that the tests run keep its default state in a directory of
    this run, and not where this user's own services have theirs.
    """
    place = tempfile.mkdtemp(prefix='distperiodic-tests-')
    # Servers run as users of their own, and make files there as well.
    pathlib.Path(place).chmod(0o1777)
    config.add_cleanup(lambda: shutil.rmtree(place, ignore_errors=True))
    # What tests leave for whoever looks into a failure stays where it was.
    os.environ.setdefault('PYTEST_DEBUG_TEMPROOT', tempfile.gettempdir())
    os.environ['TMPDIR'] = tempfile.tempdir = place


def _shared(name):
    @pytest.fixture(scope='session', name=name)
    def fixture():
        """A server that all tests share: use names of your own in it."""
        with getattr(services, name)() as server:
            yield server
    return fixture


def _own(name):
    @pytest.fixture(name=f'{name}_server')
    def fixture():
        """A server of one test, which may break it."""
        with getattr(services, name)(its_own=True) as server:
            yield server
    return fixture


zookeeper, rabbitmq, redis, etcd, postgresql, mariadb = map(_shared, (
    'zookeeper', 'rabbitmq', 'redis', 'etcd', 'postgresql', 'mariadb'))
(zookeeper_server, rabbitmq_server, redis_server, postgresql_server,
 mariadb_server) = map(_own, (
     'zookeeper', 'rabbitmq', 'redis', 'postgresql', 'mariadb'))


@pytest.fixture
def zookeeper_ensemble():
    """Three ZooKeeper servers of one test, which may break them."""
    with services.zookeeper_ensemble(3) as ensemble:
        yield ensemble


@pytest.fixture
def rabbitmq_cluster():
    """Three RabbitMQ nodes of one test, which may break them."""
    with services.rabbitmq_cluster(3) as cluster:
        yield cluster


@pytest.fixture
def logging_as_it_was():
    """For tests of what sets logging up for a whole program."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:], root.level = handlers, level
