# SPDX-License-Identifier: Apache-2.0
"""RabbitMQ probes for operators: reachability, queues and consumers.

This module uses AMQP directly, for three reasons: oslo.messaging does not
report why a broker rejected a login, it retries forever, and it creates a
missing queue when it reads the state of the queue. In this module, every
request has a timeout, and a query creates nothing.
"""

import contextlib
import socket
from typing import Any

from distperiodic import exceptions
from distperiodic.adapters.messaging.drivers import EXAMPLE
from distperiodic.adapters.messaging.drivers import RABBIT_RIGHTS
from distperiodic.ports import BrokerHost
from distperiodic.ports import QueueState
from distperiodic.ports import Weakness

_PORT = 5672


class RabbitProbe:
    """The RabbitMQ servers that a URL names.

    See :class:`distperiodic.ports.BrokerProbe`.

    :param conf: Configuration that holds oslo.messaging's options.
    :param given: URL with its password.
    :raises ConfigError: the URL is invalid.
    """

    tls_remedy = 'set [oslo_messaging_rabbit] ssl = true'

    def __init__(self, conf: Any, given: str):
        # This import fixes the backend of oslo.service, so import it late.
        import oslo_messaging
        from oslo_messaging import opts
        for group, options in opts.list_opts():
            if group == 'oslo_messaging_rabbit':
                conf.register_opts(options, group=group)
        try:
            url = oslo_messaging.TransportURL.parse(conf, given)
            port = [int(h.port) if h.port else _PORT for h in url.hosts]
        except Exception as exc:
            text = ' '.join(str(exc).replace(given, '').split())
            raise exceptions.ConfigError(
                f'transport_url cannot be used: {text}; it should look like '
                f'{EXAMPLE}') from None
        self.driver = url.transport
        self._vhost = url.virtual_host or '/'
        self.space = f'vhost {self._vhost}'
        self.hosts = [
            BrokerHost(h.hostname or '', p, h.username or 'guest')
            for h, p in zip(url.hosts, port, strict=True)]
        self._passwords = {
            host: h.password or 'guest'
            for host, h in zip(self.hosts, url.hosts, strict=True)}
        if self.driver not in ('rabbit', 'kombu'):
            raise exceptions.ConfigError(
                f'transport_url names the driver {self.driver!r} of '
                'oslo.messaging, but rabbit is the only one of its drivers '
                f'that services can use; write for example {EXAMPLE}')
        if not self.hosts or not all(h.name for h in self.hosts):
            raise exceptions.ConfigError(
                'transport_url names no broker; set it, for example '
                f'transport_url = {EXAMPLE}')
        self.tls = conf.oslo_messaging_rabbit.ssl or (
            url.query.get('ssl', '').lower() in ('1', 'true', 'yes'))
        self._tls_options = {
            'ca_certs': conf.oslo_messaging_rabbit.ssl_ca_file or None,
            'certfile': conf.oslo_messaging_rabbit.ssl_cert_file or None,
            'keyfile': conf.oslo_messaging_rabbit.ssl_key_file or None,
        }

    def __str__(self) -> str:
        hosts = ','.join(str(h) for h in self.hosts)
        return f'{self.driver}://{hosts}/{self._vhost.lstrip("/")}'

    def open_to_all(self, host: BrokerHost) -> Weakness | None:
        """Return a weakness if the user is guest, whose password is known."""
        if host.user != 'guest':
            return None
        return Weakness(
            f'guest at {host}; RabbitMQ accepts this user from its own host '
            'only',
            'rabbitmqctl add_user NAME PASSWORD; rabbitmqctl '
            'set_permissions NAME ".*" ".*" ".*"; put the user and the '
            'password into transport_url')

    def weaknesses(self, host: BrokerHost) -> list[Weakness]:
        """Return an empty list: RabbitMQ deletes no messages to free memory.
        """
        return []

    def check(self, host: BrokerHost) -> None:
        """Log in to *host*.

        :raises BusUnavailable: the login failed; the text gives the reason.
        """
        with self._connection(host):
            pass

    def check_rights(self, host: BrokerHost, queue: str) -> None:
        """See :meth:`distperiodic.ports.BrokerProbe.check_rights`."""
        import amqp
        with self._connection(host) as connection:
            channel = connection.channel()
            try:
                channel.exchange_declare(queue, 'topic', auto_delete=True)
                channel.queue_declare(queue, exclusive=True)
                channel.queue_bind(queue, queue, queue)
                channel.basic_publish(amqp.Message(''), queue, queue)
                channel.basic_get(queue, no_ack=True)
                channel.queue_delete(queue)
            except amqp.AccessRefused as exc:
                raise exceptions.BusUnavailable(
                    f'{host} accepts the login of user {host.user!r}, but '
                    f'refuses a right ({exc.reply_text}); allow the user to '
                    f'configure, write and read: {RABBIT_RIGHTS}') from None

    def find(self) -> BrokerHost:
        """Return the first server that accepts the login.

        :raises BusUnavailable: no server accepts the login.
        """
        reasons = []
        for host in self.hosts:
            try:
                self.check(host)
            except exceptions.BusUnavailable as exc:
                reasons.append(str(exc))
            else:
                return host
        raise exceptions.BusUnavailable('; '.join(reasons))

    def queues(self, host: BrokerHost,
               names: list[str]) -> dict[str, QueueState | None]:
        """Return the state of each queue; None means that it does not exist.
        """
        import amqp
        found: dict[str, QueueState | None] = {}
        with self._connection(host) as connection:
            for name in names:
                # The broker closes a channel if a queue is not found, so use
                # one channel for each queue.
                channel = connection.channel()
                try:
                    answer = channel.queue_declare(name, passive=True)
                except amqp.NotFound:
                    found[name] = None
                else:
                    found[name] = QueueState(answer.message_count,
                                        answer.consumer_count)
                    channel.close()
        return found

    def delete(self, host: BrokerHost, names: list[str]) -> None:
        """Delete queues and their messages; ignore missing queues."""
        with self._connection(host) as connection:
            for name in names:
                channel = connection.channel()
                channel.queue_delete(name)
                channel.close()

    @contextlib.contextmanager
    def _connection(self, host: BrokerHost) -> Any:
        import amqp
        tls: Any = False
        if self.tls:
            tls = {k: v for k, v in self._tls_options.items() if v} or True
        try:
            with amqp.Connection(
                    str(host), userid=host.user,
                    password=self._passwords[host],
                    virtual_host=self._vhost, ssl=tls, connect_timeout=3,
                    read_timeout=5, write_timeout=5) as connection:
                yield connection
        except (amqp.AccessRefused, amqp.NotAllowed) as exc:
            raise exceptions.BusUnavailable(
                f'{host} refuses user {host.user!r} at vhost '
                f'{self._vhost!r}: {exc.reply_text}; correct the user, '
                'password and vhost in transport_url, or create them with '
                'rabbitmqctl') from None
        except socket.gaierror as exc:
            raise exceptions.BusUnavailable(
                f'{host} cannot be resolved ({exc.strerror}); correct the '
                'host in transport_url') from None
        except (OSError, amqp.AMQPError) as exc:
            text = ' '.join(str(exc).split()) or type(exc).__name__
            raise exceptions.BusUnavailable(
                f'no broker answers at {host} ({text}); check that it runs '
                'there, and that transport_url has the right host and port'
            ) from None
