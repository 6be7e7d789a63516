# SPDX-License-Identifier: Apache-2.0
"""The services that the processes of the demo share, and their configuration.

By default the services are files in a temporary directory. Otherwise they are
the user's ZooKeeper, RabbitMQ and database. On these servers the demo uses
names of its own, which it deletes at its end.
"""

import contextlib
import fcntl
import pathlib
import secrets
from collections.abc import Iterator

from oslo_config import cfg

from distperiodic import exceptions
from distperiodic import service
from distperiodic.adapters.coordination.membership import ToozMembership
from distperiodic.adapters.coordination.url import directory
from distperiodic.adapters.local.clock import SystemClock
from distperiodic.adapters.messaging import drivers
from distperiodic.adapters.sql import schema
from distperiodic.adapters.sql.store import SqlClaimStore
from distperiodic.operator.coordination_probe import CoordinationProbe

#: Requested session timeout in seconds. If a process is silent for longer,
#: other processes take over its work. A server may grant another value.
SESSION = 2
# Seconds until a lease that is not renewed expires.
_LEASE = 5
# Seconds between two polls of the files, which cannot push changes.
_HEARTBEAT = 0.2


class Servers:
    """The coordination service, the store and, with workers, the broker.

    :param place: Directory that only this user can read.
    :param backend_url: Empty means files in *place*.
    :param transport_url: Empty means no broker.
    :param connection: Empty means SQLite in *place*.
    :raises ConfigError: a URL cannot be used.
    :raises CoordinationUnavailable: the coordination service does not answer.
    :raises BusUnavailable: the broker does not answer.
    :raises StoreUnavailable: the database does not answer.
    :raises SchemaError: the database lacks the tables of this release.
    """

    def __init__(self, place: pathlib.Path, backend_url: str,
                 transport_url: str, connection: str):
        self._backend_url = (
            backend_url or f'file://{place}/coordination?timeout={SESSION}')
        self._transport_url = transport_url
        self._connection = connection or f'sqlite:///{place}/claims.db'
        group = f'demo-{secrets.token_hex(4)}'
        #: The group of members and the group of workers.
        self.groups = group, service.worker_group(group, 'default')
        with self._probe():
            # The service answers.
            pass
        (schema.check if connection else schema.sync)(self._connection)
        if transport_url:
            drivers.probe(cfg.ConfigOpts(), transport_url).find()

    def unlocked(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which no process holds the lock of files.

        A process that is frozen while it holds this lock blocks all other
        processes. Only ``file://`` has this limitation, and the demo is not
        meant to show it.
        """
        return (unlocked(directory(self._backend_url))
                if self._backend_url.startswith('file:')
                else contextlib.nullcontext())

    def _probe(self) -> CoordinationProbe:
        return CoordinationProbe(self._backend_url, session_timeout=SESSION,
                                 clock=SystemClock())

    def observe(self) -> ToozMembership:
        """Return an observer of the groups that has connected."""
        observer = ToozMembership(
            self._backend_url, 'audience', clock=SystemClock(),
            session_timeout=SESSION, heartbeat_interval=_HEARTBEAT)
        for group in self.groups:
            observer.watch(group)
        observer.start()
        observer.wait_joined(15.0)
        return observer

    def options(self, hosts: int) -> str:
        """Return the configuration file of all processes."""
        # With this pool size, a single member can serve all hosts in time.
        pool = max(8, min(200, hosts // 8))
        return f'''
[DEFAULT]
transport_url = {self._transport_url}
[distperiodic]
backend_url = {self._backend_url}
group = {self.groups[0]}
connection = {self._connection}
dispatcher = {'messaging' if self._transport_url else 'local'}
session_timeout = {SESSION}
late_claim_after = {SESSION}
coordinator_heartbeat_interval = {_HEARTBEAT}
lease = {_LEASE}
send_timeout = {_LEASE / 2}
pool_size = {pool}
'''.replace('$', '$$')  # oslo.config would substitute a name after '$'.

    def clear(self) -> None:
        """Delete everything that the demo has created on the user's servers.

        Only the queue of a member that was killed remains, until it expires.
        """
        ignored = contextlib.suppress(exceptions.DistperiodicError)
        with ignored, self._probe() as probe:
            for group in self.groups:
                probe.delete_group(group)
        with ignored, contextlib.closing(SqlClaimStore(
                self._connection, namespace=self.groups[0])) as store:
            store.forget()


@contextlib.contextmanager
def unlocked(place: str) -> Iterator[None]:
    """Hold the lock of tooz's file driver in a directory, during the block."""
    with open(f'{place}/.driver_lock', 'ab') as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        yield
