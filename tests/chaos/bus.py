# SPDX-License-Identifier: Apache-2.0
"""The bus of a cluster: its server, its faults and its queues.

Each message bus is a subclass of :class:`Bus`. The cluster has one bus. The
plan, the faults, the gauges and the report know the broker only through this
bus, so they are the same for every broker.
"""

import abc


class Bus(abc.ABC):
    """One message bus of the product, on a running server.

    :param server: a server that :meth:`serve` has started.
    """

    name: str
    #: Unit in which requests to the server are counted.
    unit: str
    #: Class of the product that carries the messages, as MODULE:CLASS.
    carrier: str
    #: Kinds of faults that a cluster with this bus omits.
    without: frozenset[str] = frozenset()

    def __init__(self, server):
        self.server = server

    @staticmethod
    @abc.abstractmethod
    def serve():
        """Return a context manager that starts a server and yields it."""

    @abc.abstractmethod
    def listened(self):
        """Return the names of the queues to which a process listens.

        If a host has several, its newest queue comes last.
        """

    @abc.abstractmethod
    def waiting(self, queues):
        """Return the number of messages in each of *queues* that exists."""

    @abc.abstractmethod
    def delete_queue(self, queue):
        """Delete a queue, with its messages.

        :returns: False if there is no such queue, or the server does not
            answer.
        """

    @abc.abstractmethod
    def close_connections(self):
        """Make the server close all connections of its clients."""

    @abc.abstractmethod
    def run_out(self, resource):
        """Make the server run out of a resource, so that it accepts no
        messages.
        """

    @abc.abstractmethod
    def recover(self, resource):
        """End the effect of :meth:`run_out`."""

    @abc.abstractmethod
    def send_garbage(self, queues):
        """Send bytes that are not a message of the product to each queue."""

    @abc.abstractmethod
    def tap(self, *, listens=True):
        """Return a :class:`Tap`.

        :param listens: True if the tap receives copies of the messages of all
            members.
        """


class Tap(abc.ABC):
    """A connection that receives a copy of each message, and can send
    messages.
    """

    @abc.abstractmethod
    def messages(self):
        """Yield all messages of the product since the last call.

        Messages that this tap has sent are left out.
        """

    @abc.abstractmethod
    def again(self, found):
        """Send a message once more, to its original receiver."""

    @abc.abstractmethod
    def anew(self, found, random, change=lambda message: None):
        """Send a message under a new id, to its original receiver.

        :param change: called with the content of the message, which it may
            change.
        """

    @abc.abstractmethod
    def close(self):
        """Disconnect."""
