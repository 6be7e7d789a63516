# SPDX-License-Identifier: Apache-2.0
"""The tasks: stay in the group, and ping this process's part of the hosts.

The program was written for tooz and oslo.service. To port it, two import lines
were changed. The old lines are::

    import coordinator                     # a copy of Sahara's ring
    from oslo_service import periodic_task
"""

import os
import time

from oslo_config import cfg
from oslo_log import log

from distperiodic import coordinator
from distperiodic import periodic as periodic_task

CONF = cfg.CONF
LOG = log.getLogger(__name__)

BACKEND_URL = os.environ.get('BACKEND_URL', 'zookeeper://localhost:2181')
NETWORK = '192.168.10'


class Host:

    def __init__(self, address):
        self.id = address

    def ping(self):
        # Only sleep, because an example must send nothing to your network.
        time.sleep(0.05)


class PeriodicTasks(periodic_task.PeriodicTasks):

    # All instances share one ring. The ring does not connect here, but at its
    # first use, in the process that uses it.
    hr = coordinator.HashRing(BACKEND_URL, 'distribution_tasks')

    def __init__(self):
        super().__init__(CONF)

    @periodic_task.periodic_task(spacing=2)
    def heartbeat(self, context):
        self.hr.heartbeat()

    @periodic_task.periodic_task(spacing=6)
    def ping_hosts(self, context):
        hosts = [Host(f'{NETWORK}.{number}') for number in range(60)]
        for host in self.hr.get_subset(hosts):
            host.ping()
            LOG.info('pinged: host=%s', host.id)
