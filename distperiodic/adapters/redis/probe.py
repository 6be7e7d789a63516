# SPDX-License-Identifier: Apache-2.0
"""Redis probes for operators: reachability, settings and queues."""

import contextlib
from collections.abc import Iterator
from typing import Any

import redis

from distperiodic.adapters.redis import client as clients
from distperiodic.adapters.redis.carrier import EXPIRES
from distperiodic.adapters.redis.carrier import RENEWAL
from distperiodic.adapters.redis.url import RedisDatabase
from distperiodic.exceptions import BusUnavailable
from distperiodic.ports import BrokerHost
from distperiodic.ports import QueueState
from distperiodic.ports import Weakness

_TIMEOUT = 3.0
# Milliseconds after which a temporary queue is deleted.
_SHORT = 10_000
# Milliseconds without a renewal after which the reader of a stream counts as
# gone. The idle time of the consumer would not show this: before version 7.2,
# Redis does not count a read that finds no message.
_SILENT = RENEWAL * 1000 + 10_000


class RedisProbe:
    """See :class:`distperiodic.ports.BrokerProbe`."""

    tls_remedy = 'write rediss:// in transport_url'

    def __init__(self, place: RedisDatabase):
        self._place = place
        self.hosts = list(place.hosts)
        self.space = f'database {place.database}'
        self.tls = place.tls

    def __str__(self) -> str:
        return str(self._place)

    def open_to_all(self, host: BrokerHost) -> Weakness | None:
        """Return a weakness if there is no password."""
        if self._place.password:
            return None
        return Weakness(
            f'no password for {host}: every client may write messages',
            'set requirepass or an ACL in the configuration of Redis, and '
            'put the password into transport_url')

    def check(self, host: BrokerHost) -> None:
        """See :meth:`distperiodic.ports.BrokerProbe.check`."""
        with self._client(host) as client:
            client.ping()

    def check_rights(self, host: BrokerHost, queue: str) -> None:
        """See :meth:`distperiodic.ports.BrokerProbe.check_rights`."""
        group, names = 'doctor', f'{queue}.names'
        with self._client(host) as client:
            client.xgroup_create(queue, group, '0', mkstream=True)
            try:
                client.pexpire(queue, _SHORT)
                client.pttl(queue)
                client.sadd(names, queue)
                client.sismember(names, queue)
                client.smembers(names)
                client.srem(names, queue)
                client.xadd(queue, {'message': ''}, nomkstream=True)
                [[_, entries]] = client.xreadgroup(
                    group, group, {queue: '>'}, count=1)
                client.xautoclaim(queue, group, group, 0)
                for id_, _ in entries:
                    client.xack(queue, group, id_)
                    client.xdel(queue, id_)
                client.exists(queue)
            finally:
                client.delete(queue)

    def find(self) -> BrokerHost:
        """See :meth:`distperiodic.ports.BrokerProbe.find`."""
        reasons = []
        for host in self.hosts:
            try:
                self.check(host)
            except BusUnavailable as exc:
                reasons.append(str(exc))
            else:
                return host
        raise BusUnavailable('; '.join(reasons))

    def weaknesses(self, host: BrokerHost) -> list[Weakness]:
        """See :meth:`distperiodic.ports.BrokerProbe.weaknesses`."""
        found = []
        with self._client(host) as client:
            try:
                memory = client.info('memory')
            except redis.exceptions.NoPermissionError:
                return [Weakness(
                    f'{host}: user {self._place.user!r} may not read the '
                    'memory settings', 'allow the user +info')]
            policy = memory.get('maxmemory_policy', 'noeviction')
            if policy != 'noeviction':
                found.append(Weakness(
                    f'{host} has maxmemory-policy {policy}: when its memory '
                    'is full, it deletes queues with their messages',
                    'set maxmemory-policy noeviction in the configuration '
                    'of Redis, or use a separate server'))
            if client.info('replication').get('role') != 'master':
                found.append(Weakness(
                    f'{host} is a replica, which accepts no messages',
                    'put the master into transport_url'))
        return found

    def queues(self, host: BrokerHost,
               names: list[str]) -> dict[str, QueueState | None]:
        """See :meth:`distperiodic.ports.BrokerProbe.queues`."""
        with self._client(host) as client:
            return {name: _state(client, name) for name in names}

    def delete(self, host: BrokerHost, names: list[str]) -> None:
        """See :meth:`distperiodic.ports.BrokerProbe.delete`."""
        with self._client(host) as client:
            for name in names:
                client.delete(name)

    @contextlib.contextmanager
    def _client(self, host: BrokerHost) -> Iterator[Any]:
        try:
            with contextlib.closing(clients.client_of(
                    self._place, _TIMEOUT, host)) as client:
                clients.check_version(client, self._place)
                yield client
        except clients.FAILURES as exc:
            refused = clients.refusal_of(exc, self._place)
            raise refused or BusUnavailable(
                f'no Redis answers at {host} ({self._place.redacted(exc)}); '
                'check that it runs there, and that transport_url has the '
                'right host and port') from None


def _state(client: Any, name: str) -> QueueState | None:
    if not client.exists(name):
        return None
    left = client.pttl(name)
    return QueueState(client.xlen(name), int(left >= EXPIRES - _SILENT))
