# SPDX-License-Identifier: Apache-2.0
"""Where the processes of the demo meet, and what they read about it.

By default files in a directory that goes away with the demo; else somebody's
ZooKeeper, RabbitMQ and database, in which the demo has names of its own and
leaves nothing behind.
"""

import contextlib
import pathlib
import secrets
from collections.abc import Iterable
from typing import Any

from distperiodic import exceptions
from distperiodic import ports
from distperiodic import service
from distperiodic.adapters import backend_url as backend_url_
from distperiodic.adapters import broker as broker_
from distperiodic.adapters import messaging
from distperiodic.adapters import schema
from distperiodic.adapters import sql_store
from distperiodic.adapters import survey as survey_

#: Seconds without a sign of life after which the others take over; a server
#: may grant another value.
SESSION = 2
#: Seconds that claims are held without a renewal.
LEASE = 5
#: Seconds between looks at files, which cannot push.
HEARTBEAT = 0.2


class Servers:
    """The coordination service, the store of the claims and, where workers
    run the pings, the broker.

    :param place: a directory of this user alone.
    :param backend_url: empty: files in *place*.
    :param transport_url: empty: no broker.
    :param connection: empty: SQLite in *place*.
    :raises ConfigError: a URL can never work.
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
        backend_url_.check(self.backend_url)
        self._broker = self._broker_of(transport_url)
        self.group = f'demo-{secrets.token_hex(4)}'
        self.workers_group = service.worker_group(self.group, 'default')

    @staticmethod
    def _broker_of(url: str) -> broker_.Broker | None:
        if not url:
            return None
        from oslo_config import cfg
        conf: Any = cfg.ConfigOpts()
        conf([], use_env=False, default_config_files=[])
        broker_.url_of(conf)  # registers the option
        conf.set_override('transport_url', url)
        return broker_.Broker(conf)

    @property
    def lock(self) -> pathlib.Path | None:
        """The one lock of all members; None: they have none in common."""
        if not self.backend_url.startswith('file:'):
            return None
        return pathlib.Path(
            survey_.directory(self.backend_url)) / '.driver_lock'

    def check(self) -> None:
        """See that they answer.

        :raises CoordinationUnavailable: the coordination service does not.
        :raises BusUnavailable: the broker does not.
        :raises StoreUnavailable: the database does not.
        :raises SchemaError: it has not the tables of this release.
        """
        with self._survey():
            pass
        if self._own_store:
            schema.sync(self._connection)
        else:
            schema.check(self._connection)
        if self._broker is not None:
            self._broker.find()

    def _survey(self) -> survey_.Survey:
        return survey_.Survey(self.backend_url, session_timeout=SESSION,
                              clock=self._clock)

    def write_config(self, hosts: int) -> pathlib.Path:
        """The options of all processes, in a file of this user alone, since
        URLs hold passwords.
        """
        options = {
            'backend_url': self.backend_url, 'group': self.group,
            'session_timeout': SESSION, 'late_claim_after': SESSION,
            'coordinator_heartbeat_interval': HEARTBEAT,
            'state_path': self._place / 'state',
            'connection': self._connection, 'lease': LEASE,
            'send_timeout': LEASE / 2,
            'dispatcher': 'messaging' if self._broker else 'local',
            # One member can serve all hosts within a period.
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
        """Leave nothing behind in servers that are not ours.

        :param seen: group and process of all that were ever a member.
        """
        if not self._own:
            with (contextlib.suppress(exceptions.DistperiodicError),
                  self._survey() as survey):
                survey.delete_group(self.group)
                survey.delete_group(self.workers_group)
        if not self._own_store:
            with contextlib.suppress(exceptions.DistperiodicError):
                store = sql_store.SqlClaimStore(
                    self._connection, space=self.group)
                store.forget()
                store.close()
        if self._broker is not None:
            # A member that was killed could not delete its own.
            reports = messaging.reports_topic(self.group)
            work = messaging.work_topic(self.group, 'default')
            with contextlib.suppress(exceptions.DistperiodicError):
                self._broker.delete(self._broker.find(), [
                    f'{reports if group == self.group else work}.'
                    f'{messaging.queue_of(process)}'
                    for group, process in sorted(seen)])


def _option(name: str, value: object) -> str:
    # oslo.config would look for what '$' names.
    return f'{name} = {str(value).replace("$", "$$")}'
