# SPDX-License-Identifier: Apache-2.0
"""The load on the servers, and the resources in use, over time.

The proxies count the requests. So the counts include all members, and a
restart of a server does not reset them.
"""

import collections
import contextlib
import time

import psutil
import sqlalchemy as sa

from distperiodic.adapters.sql.tables import claim
from distperiodic.adapters.sql.tables import lease
from distperiodic.core.claim import OPEN
from distperiodic.core.claim import State
from tests.chaos.cluster import SERVERS
from tests.chaos.pace import PACE

# The unit in which requests are counted, for each server except the broker.
_UNITS = {'zookeeper': 'requests to ZooKeeper', 'postgresql': 'statements'}
#: Length in seconds of the window over which a rate is measured.
WINDOW = 10 * PACE
#: Maximum allowed ratio of a rate to the rate without faults.
STORM = 3.0
# Number of measurements of the resources, and seconds between two of them. At
# least one measurement falls between two ticks.
_LOOKS, _BETWEEN = 20, 0.3 * PACE
# A committed run stays in its lease until it is in the history.
_OPEN = OPEN | {State.COMMITTED}


def unit(server, bus):
    """Return the unit in which requests to a server are counted.

    :param bus: bus of the cluster.
    """
    return bus.unit if server == 'broker' else _UNITS[server]


class Rates:
    """Requests per second, from the counts of the proxies."""

    def __init__(self, cluster):
        self._cluster = cluster
        self._due = 0.0
        #: (monotonic seconds, counts by server)
        self.samples = []

    def look(self):
        """Take a sample if the last sample is at least a second old."""
        now = time.monotonic()
        if now >= self._due:
            self._due = now + 1.0
            self.samples.append((now, {
                server: sum(way.pieces['client']
                            for way in self._cluster.ways(server))
                for server in SERVERS}))

    def between(self, begin, end):
        """Return the rates of each server, one for every window between two
        times.
        """
        some = [one for one in self.samples if begin <= one[0] <= end]
        rates = collections.defaultdict(list)
        for i, (at, counts) in enumerate(some):
            for later, then in some[i + 1:]:
                if later - at >= WINDOW:
                    for server, number in counts.items():
                        rates[server].append(
                            (then[server] - number) / (later - at))
                    break
        return rates


def sizes(cluster, engine):
    """Return the size of each resource by name: the minimum of several
    measurements.

    A resource that a tick needs only for a moment is not a leak.
    """
    least = {}
    queues = ()
    for _ in range(_LOOKS):
        if len(queues) < len(cluster.hosts):
            # RabbitMQ takes a second or more to list its queues.
            queues = cluster.queues().values()
        for name, number in _look(cluster, engine, queues).items():
            least[name] = min(number, least.get(name, number))
        time.sleep(_BETWEEN)
    return least


def _look(cluster, engine, queues):
    found = {}
    for host in cluster.hosts.values():
        for server in SERVERS:
            name = f'connections of a {host.kind} to {server}'
            found[name] = max(found.get(name, 0),
                              host.ways[server].connections)
        for process in host.program.family():
            with contextlib.suppress(psutil.NoSuchProcess):
                found[f'threads of a {host.kind}'] = max(
                    found.get(f'threads of a {host.kind}', 0),
                    process.num_threads())
                found[f'descriptors of a {host.kind}'] = max(
                    found.get(f'descriptors of a {host.kind}', 0),
                    process.num_fds())
    for server in SERVERS:
        found[f'connections to {server}'] = sum(
            way.connections for way in cluster.ways(server))
    for line in cluster.zookeeper.ask('mntr').splitlines():
        name, _, value = line.partition('\t')
        if name in ('zk_znode_count', 'zk_ephemerals_count'):
            found[name.removeprefix('zk_').replace('_count', '')] = int(
                value)
    with engine.connect() as connection:
        # Each submission adds rows of tasks, so leave these rows out.
        ours = "SELECT id FROM distperiodic_job WHERE kind = 'job'"
        for table, column in ('claim', 'job'), ('job', 'id'):
            found[f'rows of {table}'] = connection.scalar(sa.text(
                f'SELECT count(*) FROM distperiodic_{table} '  # noqa: S608
                f'WHERE {column} IN ({ours})'))
        # The slower the machine, the more claims are open at a time, so the
        # number of leases with an open claim says nothing.
        found['leases without an open claim'] = connection.scalar(
            sa.select(sa.func.count()).select_from(lease).where(
                ~sa.exists().where(claim.c.lease == lease.c.id,
                                   claim.c.state.in_(_OPEN))))
    waiting = cluster.bus.waiting(queues)
    return found | {'messages in queues': sum(waiting),
                    'queues missing': len(cluster.hosts) - len(waiting)}


#: Allowed growth of each resource, by a prefix of its name. A resource that is
#: not listed must not grow. oslo.messaging keeps up to two idle connections in
#: each of the nine processes, and a process needs the second one only if two
#: threads send at the same time.
ROOM = {'threads': 4, 'descriptors': 8, 'connections of': 2,
        'connections to': 9, 'messages': 20, 'znode': 2}


def leaks(before, after):
    """Return the resources that have grown by more than the allowed amount."""
    return [
        f'{name}: {before.get(name, 0)}, and {number} at the end'
        for name, number in after.items()
        if number > before.get(name, 0) + next(
            (room for start, room in ROOM.items()
             if name.startswith(start)), 0)]
