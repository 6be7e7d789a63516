# SPDX-License-Identifier: Apache-2.0
"""The processes: three servers, three schedulers, six workers.

Three of the workers serve a partition with one active worker.

The broker is the server of the cluster's bus; see :mod:`tests.chaos.bus`. Each
scheduler and worker reaches each server through a proxy of its own. So a test
can cut off one process or all of them.
"""

import contextlib
import json
import os
import pathlib
import re
import subprocess
import tempfile
import urllib.parse

from distperiodic.adapters.sql import schema
from tests import forks
from tests import programs
from tests import proxy
from tests import services
from tests import waiting
from tests import wall_clock
from tests.chaos import journal
from tests.chaos.pace import PACE

GROUP = 'chaos'
SERVERS = ('zookeeper', 'broker', 'postgresql')
SCHEDULERS = ('s1', 's2', 's3')
WORKERS = ('w1', 'w2', 'w3')
#: Workers of the partition with one active worker, and the name of this
#: partition. The first of these workers is the preferred one.
SPARES = ('p1', 'p2', 'p3')
ALONE = 'alone'
#: Number of points of a scheduler on the ring.
POINTS = 40

SESSION = 3.0 * PACE
LEASE = 6.0 * PACE
LATE_AFTER = 2.0 * PACE
SWEEP = 1.0 * PACE
#: Seconds within which a process must end after a request to stop.
GRACE = round(20 * PACE)
#: Size of the database's file system in megabytes.
DISK = 1500

#: The section about the partition with one active worker. All processes of
#: the group have it.
STANDBY = {f'partition:{ALONE}': {'mode': 'standby', 'preferred': SPARES[0]}}

# Number of bytes at the end of the ledger that contain the most recent runs.
_LATELY = 1_000_000


class Host:
    """One scheduler or worker: its program, its configuration and its proxies.

    :param servers: servers by name. The host gets a proxy to each of them.
    :param carrier: see :attr:`tests.chaos.bus.Bus.carrier`.
    """

    def __init__(self, place, name, servers, ledger, carrier):
        self.name = name
        self.kind = 'scheduler' if name in SCHEDULERS else 'worker'
        self.partition = ALONE if name in SPARES else 'default'
        self.place = place / name
        self.place.mkdir()
        self.ledger = ledger
        self.carrier = carrier
        self.points_place = place / 'points'
        self.ways = {what: proxy.Proxy((proxy.HOST, one.port))
                     for what, one in servers.items()}
        self.points = POINTS
        self.clock = self.place / 'clock'
        self.turn_clock(0.0)
        self.log = self.place / 'log'
        self._urls = {what: _through(one.url, self.ways[what].port)
                      for what, one in servers.items()}
        self.program = None

    @property
    def queues(self):
        """Prefix of the names of the host's queues. Each process of the host
        has a queue of its own.
        """
        topic = ('reports' if self.kind == 'scheduler'
                 else f'work.{self.partition}')
        return f'distperiodic.{GROUP}.{topic}.{self.name}~'

    @property
    def connection(self):
        """The URL of the store, through this host's proxy."""
        return self._urls['postgresql']

    def configure(self, name='service.conf', **more):
        """Write the configuration. Return the path of the file."""
        ours = {
            'backend_url': self._urls['zookeeper'], 'group': GROUP,
            'connection': self.connection, 'member_id': self.name,
            'dispatcher': 'messaging', 'pool_size': 12,
            'session_timeout': SESSION, 'lease': LEASE,
            'late_claim_after': LATE_AFTER, 'sweep_interval': SWEEP,
            'send_timeout': 2 * PACE, 'dispatch_batch_size': 40,
            'hash_ring_replicas_count': self.points,
            'state_path': self.place / 'state', **more}
        return programs.write_config(self.place / name, DEFAULT={
            'transport_url': self._urls['broker'],
            'graceful_shutdown_timeout': GRACE}, distperiodic=ours, **STANDBY)

    def turn_clock(self, seconds):
        """Set the host's wall clock ahead by *seconds*. A negative number sets
        it back.
        """
        wall_clock.set_ahead(self.clock, seconds)

    def start(self, log=None):
        """Start the program.

        :param log: file for the log. None means the host's own file.
        """
        self.program = self.spawn(self.configure(), log)

    def spawn(self, config, log=None):
        return forks.Program(
            [*programs.PYTHON, '-m', 'tests.chaos.member', self.kind,
             self.partition, config, self.ledger, self.points_place,
             self.clock, self.carrier],
            log or self.log, append=True)

    def close(self):
        if self.program is not None:
            self.program.kill()
        for way in self.ways.values():
            way.close()


def _through(url, port):
    """Return *url* with another port, on the loopback address."""
    parts = urllib.parse.urlsplit(url)
    netloc = re.sub(r':\d+$', f':{port}', parts.netloc)
    return urllib.parse.urlunsplit(parts._replace(netloc=netloc))


class Cluster:
    """All servers and hosts, with a ledger and a journal.

    :param place: an empty directory for logs and records.
    :param bus: subclass of :class:`tests.chaos.bus.Bus`.
    """

    def __init__(self, place, bus):
        self.place = place
        self._bus = bus
        self._stack = contextlib.ExitStack()
        (place / 'points').mkdir()
        self.book = place / 'ledger.jsonl'
        self.hosts = {}

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            self._begin(stack)
            self._stack = stack.pop_all()
        return self

    def _begin(self, stack):
        self.disk = self._small_disk(stack)
        self.zookeeper = stack.enter_context(services.zookeeper(its_own=True))
        self.broker = stack.enter_context(self._bus.serve())
        self.bus = self._bus(self.broker)
        self.postgresql = stack.enter_context(services.postgresql(
            its_own=True, within=self.disk))
        schema.sync(self.postgresql.url)
        journal.keep(self.postgresql.url)
        # The path of a Unix socket must be short, but *place* may be long.
        address = pathlib.Path(stack.enter_context(
            tempfile.TemporaryDirectory(prefix='ledger-'))) / 'socket'
        stack.enter_context(programs.Program(
            [*programs.PYTHON, '-m', 'tests.chaos.ledger', address,
             self.book], self.place / 'ledger.log'))
        waiting.wait_until(address.exists)
        servers = {name: getattr(self, name) for name in SERVERS}
        for name in (*SCHEDULERS, *WORKERS, *SPARES):
            host = self.hosts[name] = Host(
                self.place, name, servers, address, self.bus.carrier)
            stack.callback(host.close)
        #: Configuration of commands and clients, which use no proxies.
        self.client_config = programs.write_config(
            self.place / 'client.conf', DEFAULT={
                'transport_url': self.broker.url}, distperiodic={
                    'connection': self.postgresql.url, 'group': GROUP,
                    'backend_url': self.zookeeper.url,
                    'session_timeout': SESSION,
                    'dispatcher': 'messaging'}, **STANDBY)

    def _small_disk(self, stack):
        """Mount a file system that a test can fill. Return None if this
        process is not allowed to mount one.
        """
        # Do not mount the disk in *place*, because the server's user cannot
        # access *place*.
        disk = pathlib.Path(stack.enter_context(
            tempfile.TemporaryDirectory(prefix='disk-')))
        mounted = subprocess.run(
            ['mount', '-t', 'tmpfs', '-o', f'size={DISK}m', 'tmpfs', disk],
            stderr=subprocess.DEVNULL, check=False)
        if mounted.returncode:
            return None
        stack.callback(subprocess.run, ['umount', '-l', disk], check=True)
        return disk

    def __exit__(self, *exc):
        self._stack.close()

    def of_kind(self, kind):
        return [one for one in self.hosts.values() if one.kind == kind]

    def ways(self, server):
        """Return the proxies of all hosts to a server."""
        return [one.ways[server] for one in self.hosts.values()]

    def start(self):
        for host in self.hosts.values():
            host.start()

    def queues(self):
        """Return the queue to which the process of each host listens, by host
        name.
        """
        listened = self.bus.listened()
        return {host.name: queue for host in self.hosts.values()
                for queue in listened if queue.startswith(host.queues)}

    def told(self):
        """Return the records that the ledger has written so far."""
        return programs.records(self.book)

    def active(self):
        """Return the host of :data:`SPARES` that began the most recent run, as
        the end of the ledger shows. None means that none of them began a run
        lately.
        """
        with self.book.open('rb') as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _LATELY))
            lines = file.read().split(b'\n')[1:-1]
        for line in lines[::-1]:
            if b'"start"' in line or b'"step"' in line:
                host = json.loads(line)['host']
                if host in SPARES:
                    return host
        return None
