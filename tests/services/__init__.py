# SPDX-License-Identifier: Apache-2.0
"""The servers for tests: found, or started, in one place.

Each context manager yields a server or a cluster, and afterwards ends what it
has started. It uses the first of these that is available. But a cluster is
never taken from the environment, and most clusters always use the programs of
the Debian package:

1. the server whose URL is in the environment: ``DISTPERIODIC_TEST_`` +
   service + ``_URL``, for example ``DISTPERIODIC_TEST_ZOOKEEPER_URL``. A test
   that breaks its server passes ``its_own``, and never gets this one;
2. a container, if a Docker daemon answers;
3. the program of the Debian package.

If none of these is available, the test fails and names the package to install.
No test is skipped because a server is missing.
"""

from tests.services.etcd import etcd
from tests.services.galera import Galera
from tests.services.galera import GaleraNode
from tests.services.galera import galera
from tests.services.mariadb import MariaDB
from tests.services.mariadb import mariadb
from tests.services.postgresql import PostgreSQL
from tests.services.postgresql import postgresql
from tests.services.prometheus import Prometheus
from tests.services.prometheus import prometheus
from tests.services.rabbitmq import RabbitMQ
from tests.services.rabbitmq import rabbitmq
from tests.services.rabbitmq import rabbitmq_cluster
from tests.services.redis import redis
from tests.services.redis import redis_failover
from tests.services.server import ExternalServer
from tests.services.server import Server
from tests.services.zookeeper import Ensemble
from tests.services.zookeeper import ZooKeeper
from tests.services.zookeeper import zookeeper
from tests.services.zookeeper import zookeeper_divided
from tests.services.zookeeper import zookeeper_ensemble

__all__ = [
    'Ensemble',
    'ExternalServer',
    'Galera',
    'GaleraNode',
    'MariaDB',
    'PostgreSQL',
    'Prometheus',
    'RabbitMQ',
    'Server',
    'ZooKeeper',
    'etcd',
    'galera',
    'mariadb',
    'postgresql',
    'prometheus',
    'rabbitmq',
    'rabbitmq_cluster',
    'redis',
    'redis_failover',
    'zookeeper',
    'zookeeper_divided',
    'zookeeper_ensemble',
]
