# SPDX-License-Identifier: Apache-2.0
"""Buses to the workers of partitions that have brokers of their own.

An unreachable broker of a partition delays only its own partitions, apart from
a short wait in start(). The buses of all other partitions start and send
without this broker.
"""

import dataclasses
import logging
import threading
from collections.abc import Callable
from collections.abc import Mapping
from typing import Protocol

from distperiodic.core.control_message import ControlReply
from distperiodic.core.message import Batch
from distperiodic.exceptions import BusUnavailable
from distperiodic.exceptions import ConfigError

LOG = logging.getLogger(__name__)

# Maximum seconds for which start() waits for a broker of a partition.
_FIRST_WAIT = 5.0
# Maximum seconds of one attempt to connect to a broker of a partition.
_ATTEMPT = 10.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 10.0


class Bus(Protocol):
    """The bus of one broker."""

    @property
    def problem(self) -> str | None: ...

    def start(self, timeout: float) -> None: ...

    def send(self, batch: Batch) -> None: ...

    def reply(self, reply: ControlReply, word: str) -> None: ...

    def close(self, timeout: float) -> None: ...


@dataclasses.dataclass(slots=True, eq=False)
class _Start:
    """The start of a bus, in a thread of its own."""

    thread: threading.Thread
    #: Set after the first attempt.
    tried: threading.Event
    refused: ConfigError | None = None


class PartitionBuses:
    """Buses of all partitions, which send each batch over the right broker.

    :param main: Bus of all partitions that have no bus of their own.
    :param own: Buses of the other partitions, by partition. Partitions with
        the same broker share a bus.
    """

    def __init__(self, main: Bus, own: Mapping[str, Bus],
                 monotonic: Callable[[], float]):
        self._main = main
        self._own = dict(own)
        self._monotonic = monotonic
        self._closing = threading.Event()
        self._starts: dict[Bus, _Start] = {}

    @property
    def problem(self) -> str | None:
        """Problem of the first bus that cannot reach its broker."""
        return next((
            problem for bus in (self._main, *self._own.values())
            if (problem := bus.problem) is not None), None)

    def start(self, timeout: float = 30.0) -> None:
        """Connect to the main broker, and begin to connect to the others.

        The other brokers are retried in the background until they answer.
        After an error, start() may be called again.

        :param timeout: Maximum duration of the call, in seconds.
        :raises ConfigError: A transport URL is invalid.
        :raises BusUnavailable: The main broker did not accept the connection.
        """
        deadline = self._monotonic() + timeout
        for bus in self._own.values():
            if bus not in self._starts:
                self._begin(bus)
        self._main.start(timeout)
        for start in self._starts.values():
            start.tried.wait(max(0.0, min(
                _FIRST_WAIT, deadline - self._monotonic())))
            if start.refused is not None:
                raise start.refused

    def send(self, batch: Batch) -> None:
        """See :meth:`distperiodic.ports.WorkBus.send`."""
        self._own.get(batch.partition, self._main).send(batch)

    def reply(self, reply: ControlReply, word: str) -> None:
        """Send the reply to a command over the main broker."""
        self._main.reply(reply, word)

    def close(self, timeout: float = 5.0) -> None:
        """Close all buses at the same time.

        :param timeout: Maximum duration of the call, in seconds.
        """
        self._closing.set()
        deadline = self._monotonic() + timeout
        closing = [threading.Thread(
            target=bus.close, args=(timeout,), name='distperiodic-close',
            daemon=True) for bus in {*self._own.values(), self._main}]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join(max(0.0, deadline - self._monotonic()))

    def _begin(self, bus: Bus) -> None:
        tried = threading.Event()
        start = self._starts[bus] = _Start(threading.Thread(
            target=lambda: self._connect(bus, start),
            name='distperiodic-start', daemon=True), tried)
        start.thread.start()

    def _connect(self, bus: Bus, start: _Start) -> None:
        names = ','.join(sorted(
            name for name, own in self._own.items() if own is bus))
        pause, logged = _FIRST_PAUSE, ''
        while not self._closing.is_set():
            try:
                bus.start(_ATTEMPT)
            except ConfigError as exc:
                start.refused = exc
                LOG.error('bus of a partition not started: partition=%s '
                          'reason=%s; correct the option and restart',
                          names, exc)
                break
            except BusUnavailable as exc:
                reason = str(exc)
            else:
                if self._closing.is_set():
                    bus.close(0.0)
                elif logged:
                    LOG.info('bus of a partition started: partition=%s',
                             names)
                break
            if reason != logged:
                logged = reason
                LOG.error('bus of a partition not started: partition=%s '
                          'reason=%s; this process retries, and the work of '
                          'the partition waits', names, reason)
            start.tried.set()
            self._closing.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        start.tried.set()
