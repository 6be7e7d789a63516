# SPDX-License-Identifier: Apache-2.0
"""The oslo.messaging transport of one URL, with the options of its queues.

The URL contains a password, and so do some errors of oslo.messaging. This
module removes the password from the texts of these errors.
"""

import logging
import urllib.parse
from typing import Any

from oslo_utils import strutils

from distperiodic.adapters.messaging.drivers import EXAMPLE
from distperiodic.adapters.messaging.drivers import masked
from distperiodic.exceptions import ConfigError

LOG = logging.getLogger(__name__)

EXCHANGE = 'distperiodic'
#: The only method name that messages contain.
METHOD = 'hear'


class BrokerTransport:
    """A transport of oslo.messaging, whose error texts contain no password.

    :param url: URL with its password.
    :param quorum: Use quorum queues instead of durable queues.
    """

    def __init__(self, conf: Any, url: str, quorum: bool):
        self._conf = conf
        self._quorum = quorum
        self._url = url
        self._secrets: list[str] = []
        #: The URL without its password.
        self.redacted_url = masked(url)

    @property
    def is_fake(self) -> bool:
        """True if the URL names oslo.messaging's driver for tests."""
        return self.redacted_url.startswith('fake:')

    def open(self) -> Any:
        """Return the transport of oslo.messaging; it does not connect yet.

        :raises ConfigError: the URL is invalid.
        """
        import oslo_messaging
        _register_missing_groups(self._conf)
        try:
            url = oslo_messaging.TransportURL.parse(self._conf, self._url)
            self._remember(url)
            self._set_defaults(url)
            return oslo_messaging.get_rpc_transport(self._conf, url)
        except ConfigError:
            raise
        except Exception as exc:
            # oslo.messaging raises its own errors for some faults of a URL,
            # ValueError for an invalid port, and an error of oslo.config for
            # an unknown option.
            raise ConfigError(
                f'transport_url {self.redacted_url} cannot be used: '
                f'{self.redacted(exc)}; it should look like {EXAMPLE}'
            ) from None

    def _remember(self, url: Any) -> None:
        self._secrets = [h.password for h in url.hosts if h.password]
        hosts = ','.join(
            f'{h.hostname}:{h.port}' if h.port else f'{h.hostname}'
            for h in url.hosts)
        self.redacted_url = (
            f'{url.transport}://{hosts}/{url.virtual_host or ""}')

    def _set_defaults(self, url: Any) -> None:
        """Set the options of the queues for this transport only.

        The options are added to the query of the URL, because the query
        overrides the driver's options in the configuration. The configuration
        itself belongs to the service, so it must not change.
        """
        if url.transport not in ('rabbit', 'kombu'):
            return
        if not url.hosts:
            # Otherwise oslo.messaging would try guest:guest on this host.
            raise ConfigError(
                'transport_url names no broker; set it, for example '
                f'transport_url = {EXAMPLE}')
        if self._quorum:
            url.query.setdefault('rabbit_quorum_queue', 'true')
        else:
            url.query.setdefault('amqp_durable_queues', 'true')
        # Do not compress messages, because the listener rejects compressed
        # messages.
        url.query['kombu_compression'] = ''
        # All processes that declare the shared exchange must use the same
        # value of this option.
        url.query.setdefault('amqp_auto_delete', 'false')

    def redacted(self, exc: BaseException) -> str:
        """Return the text of an error in one line, without passwords."""
        text = ' '.join(f'{exc}'.split()) or type(exc).__name__
        text = text.replace(self._url, self.redacted_url)
        for secret in self._secrets:
            for form in (secret, urllib.parse.quote(secret),
                         urllib.parse.quote(secret, '')):
                text = text.replace(form, '***')
        return strutils.mask_password(text)


def sender(transport: Any, topic: str, server: str) -> Any:
    """Return a client of oslo.messaging that sends to one queue.

    The broker confirms each message, or reports that the queue is missing.
    """
    import oslo_messaging
    return oslo_messaging.get_rpc_client(
        transport,
        oslo_messaging.Target(exchange=EXCHANGE, topic=topic, server=server),
        retry=0, transport_options=oslo_messaging.TransportOptions(
            at_least_once=True))


def _register_missing_groups(conf: Any) -> None:
    """Register option groups that oslo.messaging does not register on *conf*.

    oslo.messaging reads these groups from *conf*, but registers them only on
    the global conf.
    """
    for module, name in (('_tracing', 'oslo_messaging_tracing'),
                         ('_metrics', 'oslo_messaging_metrics')):
        try:
            client = __import__(f'oslo_messaging.{module}.client',
                                fromlist=[name])
            conf.register_opts(getattr(client, name), group=name)
        except (ImportError, AttributeError):
            LOG.debug('oslo.messaging has no group %s', name)
