# SPDX-License-Identifier: Apache-2.0
"""A server behind a proxy, so that one test can lose it."""

from tests import proxy
from tests.services import ports
from tests.services import server


class Behind:
    """A server whose clients see it die and come back, while it runs.

    A client cannot distinguish this from a server that was killed and keeps
    its data. But a start of RabbitMQ keeps a processor busy for seconds.
    """

    def __init__(self, behind: server.Server | server.ExternalServer):
        self._target = behind.url
        self._port = ports.free_port()
        self.start()
        self.url = self._way.url

    def start(self) -> None:
        """Serve clients, after :meth:`kill` on the same port."""
        self._way = proxy.Proxy.before(self._target, self._port)

    def kill(self) -> None:
        """End all connections, and refuse new ones."""
        self._way.close()

    def freeze(self) -> None:
        """Answer nothing. Connections stay open."""
        self._way.set('drop')

    def thaw(self) -> None:
        """Answer again. Clients lose the connections that were suspended."""
        self._way.set('pass')
