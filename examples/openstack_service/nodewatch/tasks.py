# SPDX-License-Identifier: Apache-2.0
"""The tasks and their schedules. distperiodic chooses where they run."""

import json

from oslo_log import log

from distperiodic import PeriodicTasks
from distperiodic import periodic_task
from nodewatch.conf import GROUP
from nodewatch.conf import OPTS

LOG = log.getLogger(__name__)


class Node:
    """A node of the inventory.

    :param spacing: Seconds between two polls, for a node that is not polled as
        often as the others.
    """

    def __init__(self, name, spacing=None):
        self.id = name
        self.spacing = spacing


class NodeTasks(PeriodicTasks):

    def __init__(self, conf):
        # The distperiodic commands build this class with a configuration that
        # lacks the options of this service. It is harmless to register options
        # twice. The base class reads those that the decorators below name.
        conf.register_opts(OPTS, group=GROUP)
        super().__init__(conf)

    def _inventory(self):
        with open(self.conf[GROUP].inventory) as inventory:
            return [Node(**node) for node in json.load(inventory)]

    def nodes(self, context):
        return self._inventory()

    def names(self, context):
        """Return the ids of all nodes. An id has no schedule of its own."""
        return [node.id for node in self._inventory()]

    @periodic_task(spacing=lambda conf: conf[GROUP].poll_interval,
                   objects='nodes', timeout=30, retries=2)
    def poll(self, context, node):
        """Poll one node. Each node is polled once per tick, in any process."""
        LOG.info('polled: node=%s tick=%s', node, context.tick.isoformat())

    @periodic_task(cron='0 2 * * *', timezone='Europe/Berlin',
                   objects='names', max_in_flight=50)
    def snapshot(self, context, node):
        """Take a snapshot of one node, each night at two.

        At most 50 nodes are handled at the same time.
        """
        LOG.info('snapshot taken: node=%s tick=%s', node,
                 context.tick.isoformat())

    @periodic_task(spacing=4, scope='group')
    def report(self, context):
        """Report the number of nodes, once per tick, in one process."""
        LOG.info('reported: nodes=%d tick=%s', len(self._inventory()),
                 context.tick.isoformat())

    @periodic_task(spacing=4)
    def clean_cache(self, context):
        """Clean the cache once per tick on each scheduler."""
        LOG.info('cache cleaned: tick=%s', context.tick.isoformat())
