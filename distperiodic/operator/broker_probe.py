# SPDX-License-Identifier: Apache-2.0
"""Broker probes for operators: reachability, queues and consumers.

This module uses AMQP directly. oslo.messaging does not report why a broker
rejected a login, retries forever, and declares a queue when it asks about it.
In this module every request has a timeout, and a query creates nothing.
"""

import contextlib
import dataclasses
import socket
from typing import Any

from distperiodic import exceptions

EXAMPLE = 'rabbit://user:password@broker:5672/vhost'
_PORT = 5672


@dataclasses.dataclass(frozen=True, slots=True)
class Host:
    """One server of the transport URL."""

    name: str
    port: int
    user: str
    password: str = dataclasses.field(repr=False)

    def __str__(self) -> str:
        return f'{self.name}:{self.port}'


@dataclasses.dataclass(frozen=True, slots=True)
class Queue:
    """The numbers of messages and consumers of a queue."""

    messages: int
    consumers: int


def url_of(conf: Any) -> str:
    """Return ``[DEFAULT] transport_url``, including passwords."""
    import oslo_messaging
    # Creating a TransportURL registers the option.
    oslo_messaging.TransportURL(conf)
    return conf.transport_url


class BrokerProbe:
    """The servers that ``transport_url`` names.

    :param conf: Configuration that holds oslo.messaging's options.
    :raises ConfigError: the URL can never work.
    """

    def __init__(self, conf: Any):
        # This import fixes the backend of oslo.service, so import it late.
        import oslo_messaging
        from oslo_messaging import opts
        for group, options in opts.list_opts():
            if group == 'oslo_messaging_rabbit':
                conf.register_opts(options, group=group)
        given = url_of(conf)
        if '://' not in given:
            raise exceptions.ConfigError(
                'transport_url does not begin with a driver; it should look '
                f'like {EXAMPLE}')
        try:
            url = oslo_messaging.TransportURL.parse(conf, given)
            port = [int(h.port) if h.port else _PORT for h in url.hosts]
        except Exception as exc:
            text = ' '.join(str(exc).replace(given, '').split())
            raise exceptions.ConfigError(
                f'transport_url cannot be used: {text}; it should look like '
                f'{EXAMPLE}') from None
        self.driver = url.transport
        self.vhost = url.virtual_host or '/'
        self.hosts = [
            Host(h.hostname or '', p, h.username or 'guest',
                 h.password or 'guest')
            for h, p in zip(url.hosts, port, strict=True)]
        if self.driver not in ('rabbit', 'kombu'):
            raise exceptions.ConfigError(
                f'transport_url names the driver {self.driver!r}, but '
                'schedulers and workers can use only rabbit; write for '
                f'example {EXAMPLE}')
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
        return f'{self.driver}://{hosts}/{self.vhost.lstrip("/")}'

    def check(self, host: Host) -> None:
        """Log in to *host*.

        :raises BusUnavailable: the login failed; the message says why.
        """
        with self._connection(host):
            pass

    def find(self) -> Host:
        """Return the first server that accepts the login.

        :raises BusUnavailable: no server accepts it.
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

    def queues(self, host: Host,
               names: list[str]) -> dict[str, Queue | None]:
        """Return the queues of *names*; None means that it does not exist."""
        import amqp
        found: dict[str, Queue | None] = {}
        with self._connection(host) as connection:
            for name in names:
                # The broker closes a channel when a queue is not found, so
                # use one channel per queue.
                channel = connection.channel()
                try:
                    answer = channel.queue_declare(name, passive=True)
                except amqp.NotFound:
                    found[name] = None
                else:
                    found[name] = Queue(answer.message_count,
                                        answer.consumer_count)
                    channel.close()
        return found

    def delete(self, host: Host, names: list[str]) -> None:
        """Delete queues and their messages; ignore missing queues."""
        with self._connection(host) as connection:
            for name in names:
                channel = connection.channel()
                channel.queue_delete(name)
                channel.close()

    @contextlib.contextmanager
    def _connection(self, host: Host) -> Any:
        import amqp
        tls: Any = False
        if self.tls:
            tls = {k: v for k, v in self._tls_options.items() if v} or True
        try:
            with amqp.Connection(
                    str(host), userid=host.user, password=host.password,
                    virtual_host=self.vhost, ssl=tls, connect_timeout=3,
                    read_timeout=5, write_timeout=5) as connection:
                yield connection
        except (amqp.AccessRefused, amqp.NotAllowed) as exc:
            raise exceptions.BusUnavailable(
                f'{host} refuses user {host.user!r} at vhost '
                f'{self.vhost!r}: {exc.reply_text}; correct the user, '
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
