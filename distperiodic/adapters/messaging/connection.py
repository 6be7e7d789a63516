# SPDX-License-Identifier: Apache-2.0
"""The connections of one process to a broker, through oslo.messaging.

Only this module, the transport (module ``transport``) and the server (module
``consumer``) send and receive through oslo.messaging. They work around two
problems of oslo.messaging:

* By default, a cast to a missing queue succeeds, and the message is lost. Here
  each cast is mandatory, so the broker reports a missing queue.
* By default, a cast blocks forever during an outage, or if the broker is out
  of memory. Here a cast fails at once during an outage. If the broker is out
  of memory or frozen, the cast still blocks, but no other thread waits for the
  thread of the cast (module ``outbox``), and a thread of the connection
  notices it. If a process sends nothing, this thread sends a message to a
  queue that does not exist every few seconds.

The import of oslo.messaging fixes the backend of oslo.service for the whole
process. So only the functions that need oslo.messaging import it.

Limits: a process that is killed does not delete its queue. The broker deletes
that queue after half an hour without a consumer. A process that stops normally
deletes its own queue.
"""

import contextlib
import functools
import logging
import re
import threading
from collections.abc import Callable
from typing import Any

from distperiodic.adapters.messaging import consumer
from distperiodic.adapters.messaging.drivers import EXAMPLE
from distperiodic.adapters.messaging.drivers import RABBIT_RIGHTS
from distperiodic.adapters.messaging.probe import RabbitProbe
from distperiodic.adapters.messaging.queue_names import NAME_LIMIT
from distperiodic.adapters.messaging.transport import EXCHANGE
from distperiodic.adapters.messaging.transport import METHOD
from distperiodic.adapters.messaging.transport import BrokerTransport
from distperiodic.adapters.messaging.transport import sender
from distperiodic.exceptions import BusUnavailable
from distperiodic.exceptions import ConfigError
from distperiodic.exceptions import NoConsumer
from distperiodic.ports import Inbox

LOG = logging.getLogger(__name__)

# Seconds without an answer to a message after which the broker counts as away,
# seconds without a message after which the broker is asked for an answer, and
# seconds between two looks at these times.
_UNANSWERED, _QUIET, _LOOK = 4.0, 4.0, 1.0
# Part of RabbitMQ's error for a missing right, as opposed to a refused login.
_NO_RIGHT = re.compile('access to (?:queue|exchange|topic)')
# The broker's error if a queue or an exchange exists with other options.
_INEQUIVALENT = re.compile(
    r"inequivalent arg '(?P<what>[^']*)' for (?P<kind>queue|exchange) "
    r"'(?P<name>[^']*)'.*?: received (?:the value )?(?P<requested>.*?)"
    r"(?: of type '\w+')? but current is (?:the value )?"
    r"(?P<current>'[^']*'|\w+)")


class OsloMessaging:
    """The buses of oslo.messaging; see :class:`distperiodic.ports.BusDriver`.
    """

    def carrier(self, conf: Any, url: str, *, inbox: Inbox | None,
                monotonic: Callable[[], float]) -> 'BrokerConnection':
        return BrokerConnection(conf, url, inbox, monotonic)

    def probe(self, conf: Any, url: str) -> RabbitProbe:
        return RabbitProbe(conf, url)


class BrokerConnection:
    """Connections of a process to a broker: one receives, the others send.

    See :class:`distperiodic.ports.Carrier`.
    """

    def __init__(self, conf: Any, url: str, inbox: Inbox | None,
                 monotonic: Callable[[], float]):
        self._inbox = inbox
        self._broker = BrokerTransport(
            conf, url, inbox is not None and inbox.replicated)
        self._monotonic = monotonic
        self._transport: Any = None
        self._server: consumer.Server | None = None
        self._clients: dict[tuple[str, str], Any] = {}
        self._connecting: threading.Thread | None = None
        self._casting = threading.Lock()
        #: Monotonic time of the beginning of each cast in progress, and of the
        #: end of the last cast, in seconds.
        self._casts: dict[object, float] = {}
        self._last_cast = 0.0
        self._releasing = False  # the last cast must close the connections
        self._opened = threading.Event()
        self._closed = threading.Event()
        self._problem: str | None = None
        self._last_error = 'it does not answer'

    @property
    def problem(self) -> str | None:
        """See :attr:`distperiodic.ports.Carrier.problem`."""
        return self._problem

    def open(self, timeout: float) -> None:
        """Connect and start to listen.

        :raises ConfigError: the transport URL is invalid.
        :raises BusUnavailable: no broker accepted a login within *timeout* s.
        """
        self._transport = self._broker.open()
        inbox = self._inbox
        if inbox is None:
            return
        deadline = self._monotonic() + timeout
        self._connecting, failure = _run_in_thread(
            timeout, 'distperiodic-connect',
            lambda: self._connect(inbox, deadline))
        if failure is None and self._opened.is_set():
            if not self._broker.is_fake:
                threading.Thread(
                    target=self._watch, args=(inbox,),
                    name='distperiodic-broker-watch', daemon=True).start()
            return
        self.close(0)
        if isinstance(failure, NotImplementedError):
            raise ConfigError(
                f'transport_url {self._broker.redacted_url}: this driver of '
                f'oslo.messaging cannot carry RPC; use rabbit, for example '
                f'{EXAMPLE}')
        if failure is not None and not isinstance(failure, BusUnavailable):
            self._last_error = self._broker.redacted(failure)
        if 'Configuration Error' in self._last_error:
            # The driver detects contradictory options only when it declares a
            # queue.
            raise ConfigError(
                f'transport_url {self._broker.redacted_url} and '
                '[oslo_messaging_rabbit] contradict each other: '
                f'{self._last_error}')
        other = _INEQUIVALENT.search(self._last_error)
        if other is not None:
            raise BusUnavailable(
                f'the {other["kind"]} {other["name"]!r} of '
                f'{self._broker.redacted_url} exists with another '
                f'{other["what"]} (requested: {other["requested"]}, current: '
                f'{other["current"]}), which cannot be changed; give all '
                'processes the same options in transport_url and '
                '[oslo_messaging_rabbit], or stop all of them, delete the '
                f'{other["kind"]}, and start them again')
        if _NO_RIGHT.search(self._last_error):
            raise BusUnavailable(
                f'the broker at {self._broker.redacted_url} accepts the '
                f'login, but refuses a right ({self._last_error}); allow the '
                f'user to configure, write and read: {RABBIT_RIGHTS}')
        raise BusUnavailable(
            f'no broker at {self._broker.redacted_url} accepted a login '
            f'within {timeout:g} s ({self._last_error}); check that the '
            'broker is running, and that the host, port, user, password and '
            'virtual host in transport_url are right')

    def ended(self, timeout: float) -> bool:
        """Wait for the thread of a failed open(); return True if it ended."""
        if self._connecting is not None:
            self._connecting.join(timeout)
        return self._connecting is None or not self._connecting.is_alive()

    def cast(self, topic: str, identity: str, payload: dict[str, Any]) -> None:
        """Send *payload*, and return when the broker has confirmed it.

        The call blocks while a running broker accepts no messages.

        :raises NoConsumer: there is no queue of that name.
        :raises BusUnavailable: the message could not be sent for another
            reason.
        """
        import oslo_messaging
        if len(topic) + 1 + len(identity) > NAME_LIMIT:
            raise NoConsumer(
                f'there can be no queue {topic}.{identity}: the name has '
                f'{len(topic) + 1 + len(identity)} characters, but AMQP '
                f'allows {NAME_LIMIT}')
        this = object()
        with self._casting:
            self._casts[this] = self._monotonic()
        try:
            self._client(topic, identity).cast({}, METHOD, message=payload)
        except oslo_messaging.MessageUndeliverable:
            self._record_answer()
            raise NoConsumer(
                f'there is no queue {topic}.{identity}') from None
        except Exception as exc:
            # The error may come from oslo.messaging or from kombu, and a
            # faulty driver may raise any error. Treat all errors alike.
            error = self._broker.redacted(exc)
            self._record_failure(error)
            raise BusUnavailable(error) from None
        finally:
            with self._casting:
                del self._casts[this]
                self._last_cast = self._monotonic()
            self._release()
        self._record_answer()

    def close(self, timeout: float) -> None:
        """Stop listening and close the connections.

        Steps that take longer than *timeout* s continue in the background.
        """
        self._closed.set()
        deadline = self._monotonic() + timeout
        if self._inbox is not None and self._opened.is_set():
            threading.Thread(
                target=self._wake, args=(self._inbox,),
                name='distperiodic-wake', daemon=True).start()
        _, failure = _run_in_thread(
            max(0.0, deadline - self._monotonic()), 'distperiodic-close',
            self._stop_listening)
        if failure is not None:
            LOG.info('closing the bus was not clean (the broker will notice '
                     'by itself): reason=%r', self._broker.redacted(failure))

    # Opening.

    def _connect(self, inbox: Inbox, deadline: float) -> None:
        import oslo_messaging
        self._reach(inbox, deadline)
        if self._closed.is_set():
            return
        self._server = consumer.Server(
            self._transport,
            oslo_messaging.Target(exchange=EXCHANGE, topic=inbox.topic,
                                  server=inbox.identity),
            on_message=functools.partial(self._receive, inbox),
            on_garbage=inbox.on_garbage, hears=inbox.hears)
        self._opened.set()
        if self._closed.is_set():
            self._stop_listening()

    def _reach(self, inbox: Inbox, deadline: float) -> None:
        """Probe the broker until it answers.

        Without this probe, the start of the server could block forever, and
        could not be interrupted.
        """
        if self._broker.is_fake:
            return
        while not self._closed.is_set():
            try:
                self._probe(inbox)
            except BusUnavailable as exc:
                self._last_error = str(exc)
                if ('ACCESS_REFUSED' in self._last_error
                        or _INEQUIVALENT.search(self._last_error)
                        or self._monotonic() >= deadline):
                    raise
                self._closed.wait(0.2)
            else:
                return

    def _probe(self, inbox: Inbox) -> None:
        """Return when the broker has answered.

        :raises BusUnavailable: see :meth:`cast`.
        """
        # No queue has this name, so NoConsumer proves that the broker has
        # answered.
        with contextlib.suppress(NoConsumer):
            self.cast(f'{inbox.topic}.probe', 'no-queue', {})

    def _watch(self, inbox: Inbox) -> None:
        """Notice that the broker does not answer, or answers again."""
        while not self._closed.wait(_LOOK):
            now = self._monotonic()
            with self._casting:
                oldest = min(self._casts.values(), default=None)
                quiet = now - self._last_cast
            if oldest is None:
                if quiet >= _QUIET:
                    _run_in_thread(_LOOK, 'distperiodic-broker-probe',
                                   functools.partial(self._probe, inbox))
            elif now - oldest >= _UNANSWERED:
                self._record_failure(
                    'it has not answered a message for '
                    f'{_UNANSWERED:g} s or longer')

    # Receiving.

    def _receive(self, inbox: Inbox, received: Any) -> None:
        if self._closed.is_set():
            return
        arguments = received.get('args')
        if received.get('method') != METHOD or type(arguments) is not dict:
            inbox.on_garbage(f'queue {inbox.queue}', 'a message of '
                             'oslo.messaging from another program')
            return
        inbox.on_message(arguments.get('message'))

    # Sending.

    def _client(self, topic: str, identity: str) -> Any:
        client = self._clients.get((topic, identity))
        if client is None:
            if len(self._clients) > 1000:
                # The names of workers change over time, so limit the number of
                # clients. Creating a client again is cheap.
                self._clients.clear()
            client = self._clients[topic, identity] = sender(
                self._transport, topic, identity)
        return client

    def _record_failure(self, error: str) -> None:
        if not self._opened.is_set():
            return
        first = self._problem is None
        self._problem = error
        if first:
            LOG.warning('the broker cannot be reached: url=%s reason=%r; '
                        'this process retries until it answers',
                        self._broker.redacted_url, error)

    def _record_answer(self) -> None:
        if self._problem is not None:
            self._problem = None
            LOG.info('the broker answers again: url=%s',
                     self._broker.redacted_url)

    # Closing.

    def _wake(self, inbox: Inbox) -> None:
        """Wake the listener with a message, so that it ends at once.

        Otherwise the listener could wait for a message for up to 5 s.
        """
        try:
            self.cast(inbox.topic, inbox.identity, {})
        except BusUnavailable:
            LOG.debug('the listener could not be woken; it ends by itself')

    def _stop_listening(self) -> None:
        server, self._server = self._server, None
        if server is not None and self._inbox is not None:
            server.stop()
            server.forget_queue(self._inbox.queue)
            server.close()
        with self._casting:
            # All buses of this process share the queues of the fake driver, so
            # keep these queues.
            self._releasing = not self._broker.is_fake
        self._release()

    def _release(self) -> None:
        """Close the connections after close(), unless a cast is in progress.

        If the connections were closed during a cast, the connection of the
        cast would return to the pool later and stay open forever. So the last
        cast closes the connections.
        """
        with self._casting:
            if not self._releasing or self._casts:
                return
            self._releasing = False
        self._transport.cleanup()


def _run_in_thread(timeout: float, name: str, function: Callable[[], None]
                   ) -> tuple[threading.Thread, Exception | None]:
    """Run *function* in a new thread, and wait up to *timeout* s for its end.

    :returns: The thread and its exception. None means no exception so far.
    """
    failures: list[Exception] = []

    def run() -> None:
        try:
            function()
        except Exception as exc:
            failures.append(exc)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    thread.join(timeout)
    return thread, failures[0] if failures else None
