# SPDX-License-Identifier: Apache-2.0
"""The services that the processes of the demo share, and their configuration.

By default the services are files in a temporary directory. Otherwise they are
the user's ZooKeeper, RabbitMQ and database. On these servers the demo uses
names of its own, and at its end deletes everything that it has created.
"""

import contextlib
import pathlib
import secrets
from collections.abc import Iterable
from typing import Any

from distperiodic import exceptions
from distperiodic import ports
from distperiodic import service
from distperiodic.adapters.coordination.url import check_backend_url
from distperiodic.adapters.messaging import drivers
from distperiodic.adapters.messaging import queue_names
from distperiodic.adapters.sql import schema
from distperiodic.adapters.sql.store import SqlClaimStore
from distperiodic.operator.activity import Activity
from distperiodic.operator.coordination_probe import CoordinationProbe
from distperiodic.operator.coordination_probe import directory

#: Requested session timeout in seconds. If a process is silent for longer,
#: other processes take over its work. A server may grant another value.
SESSION = 2
#: Seconds until a lease that is not renewed expires.
LEASE = 5
#: Seconds between two polls of the files, which cannot push changes.
HEARTBEAT = 0.2


class Servers:
    """The coordination service, the store and, with workers, the broker.

    :param place: Directory that only this user can read.
    :param backend_url: Empty means files in *place*.
    :param transport_url: Empty means no broker.
    :param connection: Empty means SQLite in *place*.
    :raises ConfigError: a URL cannot be used.
    """

    def __init__(self, place: pathlib.Path, backend_url: str,
                 transport_url: str, connection: str, clock: ports.Clock):
        self._place = place
        self._own_store = not connection
        self._connection = connection or f'sqlite:///{place}/claims.db'
        self._own = not backend_url
        self._clock = clock
        self._transport_url = transport_url
        self.backend_url = backend_url or (
            f'file://{place}/coordination?timeout={SESSION}')
        check_backend_url(self.backend_url)
        self._broker = self._broker_of(transport_url)
        self.group = f'demo-{secrets.token_hex(4)}'
        self._activity: Activity | None = None
        self.workers_group = service.worker_group(self.group, 'default')

    @staticmethod
    def _broker_of(url: str) -> ports.BrokerProbe | None:
        if not url:
            return None
        from oslo_config import cfg
        conf: Any = cfg.ConfigOpts()
        conf([], use_env=False, default_config_files=[])
        return drivers.probe(conf, url)

    @property
    def lock(self) -> pathlib.Path | None:
        """Path of the lock that all members share.

        None means that there is no such lock.
        """
        if not self.backend_url.startswith('file:'):
            return None
        return pathlib.Path(
            directory(self.backend_url)) / '.driver_lock'

    def check(self) -> None:
        """Check that all services answer, and that the store has its tables.

        Without a *connection*, create the store.

        :raises CoordinationUnavailable: the coordination service does not
            answer.
        :raises BusUnavailable: the broker does not answer.
        :raises StoreUnavailable: the database does not answer.
        :raises SchemaError: the database lacks the tables of this release.
        """
        with self._survey():
            pass
        if self._own_store:
            schema.sync(self._connection)
        else:
            schema.check(self._connection)
        if self._broker is not None:
            self._broker.find()

    def _survey(self) -> CoordinationProbe:
        return CoordinationProbe(self.backend_url, session_timeout=SESSION,
                                 clock=self._clock)

    def runs_in_progress(self) -> bool:
        """Return whether the store has runs whose end is not recorded yet.

        :raises StoreUnavailable: the database does not answer.
        """
        if self._activity is None:
            self._activity = Activity(
                self._connection, namespace=self.group)
        return bool(self._activity.runs(None, 1))

    def write_config(self, hosts: int) -> pathlib.Path:
        """Write the options of all processes; return the path of the file.

        Only this user can read the file, since URLs hold passwords.
        """
        options = {
            'backend_url': self.backend_url, 'group': self.group,
            'session_timeout': SESSION, 'late_claim_after': SESSION,
            'coordinator_heartbeat_interval': HEARTBEAT,
            'state_path': self._place / 'state',
            'connection': self._connection, 'lease': LEASE,
            'send_timeout': LEASE / 2,
            'dispatcher': 'messaging' if self._broker else 'local',
            # With this pool size, a single member can serve all hosts in time.
            'pool_size': max(8, min(200, hosts // 8))}
        lines = ['[DEFAULT]']
        if self._transport_url:
            lines.append(_option('transport_url', self._transport_url))
        lines += ['[distperiodic]', *(
            _option(name, value) for name, value in options.items()), '']
        path = self._place / 'demo.conf'
        path.touch(0o600)
        path.write_text('\n'.join(lines))
        return path

    def sweep_up(self, seen: Iterable[tuple[str, str]]) -> None:
        """Delete everything that the demo has created on the user's servers.

        :param seen: Group and process of each entry that the demo has seen in
            a group.
        """
        if not self._own:
            with (contextlib.suppress(exceptions.DistperiodicError),
                  self._survey() as survey):
                survey.delete_group(self.group)
                survey.delete_group(self.workers_group)
        if self._activity is not None:
            self._activity.close()
        if not self._own_store:
            with contextlib.suppress(exceptions.DistperiodicError):
                store = SqlClaimStore(
                    self._connection, namespace=self.group)
                store.forget()
                store.close()
        if self._broker is not None:
            # A member that was killed could not delete its own queue.
            reports = queue_names.reports_topic(self.group)
            work = queue_names.work_topic(self.group, 'default')
            with contextlib.suppress(exceptions.DistperiodicError):
                self._broker.delete(self._broker.find(), [
                    f'{reports if group == self.group else work}.'
                    f'{queue_names.queue_of(process)}'
                    for group, process in sorted(seen)])


def _option(name: str, value: object) -> str:
    # oslo.config would substitute a name that follows '$'.
    return f'{name} = {str(value).replace("$", "$$")}'
