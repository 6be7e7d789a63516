# SPDX-License-Identifier: Apache-2.0
"""A server behind a proxy, so that one test can lose it."""

from urllib import parse

from tests import proxy
from tests.services import ports
from tests.services import server


class Behind:
    """A server whose clients see it die and come back, while it runs.

    A client cannot distinguish this from a server that was killed and keeps
    its data. But a start of RabbitMQ keeps a processor busy for seconds.
    """

    def __init__(self, behind: server.Server | server.ExternalServer):
        parts = parse.urlsplit(behind.url)
        assert parts.hostname and parts.port, behind.url
        self._target = parts.hostname, parts.port
        self._port = ports.free_port()
        login, at, _ = parts.netloc.rpartition('@')
        self.url = parts._replace(
            netloc=f'{login}{at}{proxy.HOST}:{self._port}').geturl()
        self.start()

    def start(self) -> None:
        """Serve clients, after :meth:`kill` on the same port."""
        self._way = proxy.Proxy(self._target, self._port)

    def kill(self) -> None:
        """End all connections, and refuse new ones."""
        self._way.close()

    def freeze(self) -> None:
        """Answer nothing. Connections stay open."""
        self._way.set('drop')

    def thaw(self) -> None:
        """Answer again. Clients lose the connections that were suspended."""
        self._way.set('pass')
