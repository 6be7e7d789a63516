# SPDX-License-Identifier: Apache-2.0
"""Work and reports over oslo.messaging, on RabbitMQ.

Every worker has a queue of its own, and so has every scheduler; a message is
addressed to one process, so a scheduler knows exactly what each worker still
holds, and no worker can hoard::

    exchange 'distperiodic' (topic, durable)
        distperiodic.GROUP.work.PARTITION.WORKER  <- batches, one a message
        distperiodic.GROUP.reports.SCHEDULER      <- reports, many a message

What oslo.messaging is used for, and where it is kept at arm's length:

* Its RPC server acknowledges a message before it hands it over, and would
  take any number of them. The window of the scheduler bounds them instead.
* It would answer a forged call and wait a minute for an absent caller. Our
  server answers nobody, and runs no method by name: there is one, ours.
* A cast to a missing queue succeeds and is lost; ours is mandatory, so the
  broker says that nobody is there.
* A cast during an outage, or with the broker out of memory, blocks for ever.
  Ours fails at once in the first case, and runs in a thread that nobody
  waits for in the second (:mod:`distperiodic.adapters.outbox`).

Importing oslo.messaging fixes the backend of oslo.service for the whole
process, so it is imported by ``start()`` and not before.

Limits: a worker that was killed leaves its queue behind, durable and empty or
nearly so; a broker policy with ``expires`` for ``^distperiodic\\.`` removes
it. One that is closed removes its own.
"""

import collections
import functools
import logging
import os
import threading
import urllib.parse
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

from oslo_utils import strutils

from distperiodic.adapters.clock import SystemClock
from distperiodic.adapters.outbox import BatchOutbox
from distperiodic.adapters.outbox import NobodyThere
from distperiodic.adapters.outbox import ReportOutbox
from distperiodic.core import message
from distperiodic.core.message import Batch
from distperiodic.core.message import Report
from distperiodic.core.message import Reports
from distperiodic.exceptions import BusUnavailable
from distperiodic.exceptions import ConfigError
from distperiodic.exceptions import InvalidMessage

LOG = logging.getLogger(__name__)

EXCHANGE = 'distperiodic'
_METHOD = 'hear'
_ROUTING_KEY_LIMIT = 255  # characters, of AMQP; all of ours are ASCII

_EXAMPLE = 'rabbit://user:password@broker:5672/vhost'

# Distinct (origin, reason) pairs that are kept apart; a forger could make up
# any number of them.
_MOST_ORIGINS = 200


def work_topic(group: str, partition: str) -> str:
    """The topic below which each worker of *partition* has its queue."""
    return f'distperiodic.{_word(group)}.work.{_word(partition)}'


def reports_topic(group: str) -> str:
    """The topic below which each scheduler has its queue of reports."""
    return f'distperiodic.{_word(group)}.reports'


def _word(name: str) -> str:
    """*name* as one word of a topic.

    A dot would let one partition's queue be another's, and '#' or '*' in a
    binding would receive everybody's work.
    """
    return urllib.parse.quote(name, safe=':@').replace('.', '%2E')


def _identity(entry: str) -> str:
    return urllib.parse.quote(entry.partition('~')[0], safe=':@')


def _process(entry: str) -> list[str]:
    """Identity and nonce: the same process, in whichever term."""
    return entry.split('~')[:2]


class _Drops:
    """Messages that were dropped: each kind is told once, then counted."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, str], int] = {}

    def note(self, origin: str, reason: str,
             level: int = logging.WARNING) -> None:
        key = (f'{origin:.120}', f'{reason:.200}')
        with self._lock:
            if key not in self._counts and len(self._counts) > _MOST_ORIGINS:
                key = ('many others', 'various')
            count = self._counts[key] = self._counts.get(key, 0) + 1
        if count == 1:
            LOG.log(level, 'message dropped: origin=%r reason=%r; more of '
                    'the same are counted and not logged', *key)

    def counts(self) -> dict[tuple[str, str], int]:
        with self._lock:
            return dict(self._counts)


class _Link:
    """The connections of one process to the broker: one to hear, one to say.

    :param on_message: called with each message's payload, parsed JSON, by
        the thread that listens; must not block and must not raise.
    :param on_garbage: called with origin and reason for what is not even
        a message of oslo.messaging.
    """

    def __init__(self, conf: Any, transport_url: str | None, *, topic: str,
                 identity: str, quorum: bool,
                 on_message: Callable[[Any], None],
                 on_garbage: Callable[[str, str], None],
                 monotonic: Callable[[], float]):
        self._conf = conf
        self._transport_url = transport_url
        self._topic = topic
        self._own = identity
        self._quorum = quorum
        self._on_message = on_message
        self._on_garbage = on_garbage
        self._monotonic = monotonic
        self._given = ''  # the URL with its password
        self._shown = ''  # and without
        self._secrets: list[str] = []
        self._transport: Any = None
        self._server: Any = None
        self._clients: dict[tuple[str, str], Any] = {}
        self._connecting: threading.Thread | None = None
        self._casting = threading.Lock()
        self._casts = 0  # under way
        self._over = False  # the last cast is to let the connections go
        self._opened = threading.Event()
        self._closed = threading.Event()
        self._away = False
        self._trouble = 'it does not answer'

    def open(self, timeout: float) -> None:
        """Connect and listen.

        :raises ConfigError: the transport URL can never work.
        :raises BusUnavailable: the broker did not let us in in time.
        """
        self._transport = self._make_transport()
        deadline = self._monotonic() + timeout
        self._connecting, failure = _within(
            timeout, 'distperiodic-connect', lambda: self._connect(deadline))
        if failure is None and self._opened.is_set():
            return
        self.close(0)
        if isinstance(failure, NotImplementedError):
            raise ConfigError(
                f'transport_url {self._shown}: this driver of oslo.messaging '
                f'cannot carry RPC; use rabbit, as in {_EXAMPLE}')
        if failure is not None and not isinstance(failure, BusUnavailable):
            self._trouble = self._clean(failure)
        if 'Configuration Error' in self._trouble:
            # The driver finds contradictions when it declares a queue.
            raise ConfigError(
                f'transport_url {self._shown} and [oslo_messaging_rabbit] '
                f'contradict each other: {self._trouble}')
        raise BusUnavailable(
            f'no broker at {self._shown} let us in within {timeout:g} s '
            f'({self._trouble}); check that it runs, and the host, port, '
            'user, password and virtual host of transport_url')

    def ended(self, timeout: float) -> bool:
        """Wait for what an open() that failed may have left under way."""
        if self._connecting is not None:
            self._connecting.join(timeout)
        return self._connecting is None or not self._connecting.is_alive()

    def cast(self, topic: str, identity: str, payload: dict[str, Any]) -> None:
        """Hand *payload* to the broker; returns when it has confirmed.

        May block for as long as the broker accepts nothing while it is up.

        :raises NobodyThere: no queue of that name.
        :raises BusUnavailable: anything else that kept it from arriving.
        """
        import oslo_messaging
        if len(topic) + 1 + len(identity) > _ROUTING_KEY_LIMIT:
            raise NobodyThere(f'no queue can have the name {topic}.{identity}')
        with self._casting:
            self._casts += 1
        try:
            self._client(topic, identity).cast({}, _METHOD, message=payload)
        except oslo_messaging.MessageUndeliverable:
            self._note_answer()
            raise NobodyThere(
                f'nobody has the queue {topic}.{identity}') from None
        except Exception as exc:
            # kombu's errors come through bare, beside those of oslo, and a
            # broken driver may raise anything; all mean the same here.
            trouble = self._clean(exc)
            self._note_trouble(trouble)
            raise BusUnavailable(trouble) from None
        finally:
            with self._casting:
                self._casts -= 1
            self._let_go()
        self._note_answer()

    def close(self, timeout: float) -> None:
        """Stop listening and let the connections go.

        What takes longer than *timeout* ends in the background.
        """
        self._closed.set()
        deadline = self._monotonic() + timeout
        if self._opened.is_set():
            threading.Thread(target=self._wake, name='distperiodic-wake',
                             daemon=True).start()
        _, failure = _within(max(0.0, deadline - self._monotonic()),
                             'distperiodic-close', self._shut)
        if failure is not None:
            LOG.info('closing the bus was not clean (the broker will notice '
                     'by itself): reason=%r', self._clean(failure))

    # Opening.

    def _make_transport(self) -> Any:
        import oslo_messaging
        _register_missing_groups(self._conf)
        # This registers the option.
        oslo_messaging.TransportURL(self._conf)
        self._given = self._transport_url or self._conf.transport_url
        self._shown = _masked(self._given)
        if '://' not in self._given:
            raise ConfigError(
                f'transport_url {self._shown} does not begin with a driver; '
                f'it should look like {_EXAMPLE}')
        try:
            url = oslo_messaging.TransportURL.parse(self._conf, self._given)
            self._remember(url)
            self._set_defaults(url)
            return oslo_messaging.get_rpc_transport(self._conf, url)
        except ConfigError:
            raise
        except Exception as exc:
            # It names its own errors for some faults of a URL; a wrong port
            # is a ValueError, an unknown option one of oslo.config's.
            raise ConfigError(
                f'transport_url {self._shown} cannot be used: '
                f'{self._clean(exc)}; it should look like {_EXAMPLE}'
            ) from None

    def _remember(self, url: Any) -> None:
        self._secrets = [h.password for h in url.hosts if h.password]
        hosts = ','.join(
            f'{h.hostname}:{h.port}' if h.port else f'{h.hostname}'
            for h in url.hosts)
        self._shown = f'{url.transport}://{hosts}/{url.virtual_host or ""}'

    def _set_defaults(self, url: Any) -> None:
        """Our queues' options, for this transport only: a query in the URL
        overrides the options of the driver, which belong to the host."""
        if url.transport not in ('rabbit', 'kombu'):
            return
        if not url.hosts:
            # oslo.messaging would try guest:guest on this machine.
            raise ConfigError(
                'transport_url names no broker; set it, as in '
                f'transport_url = {_EXAMPLE}')
        if self._quorum:
            url.query.setdefault('rabbit_quorum_queue', 'true')
        else:
            url.query.setdefault('amqp_durable_queues', 'true')
        # The exchange is shared, and those who declare it must agree.
        url.query.setdefault('amqp_auto_delete', 'false')

    def _connect(self, deadline: float) -> None:
        import oslo_messaging
        self._reach(deadline)
        if self._closed.is_set():
            return
        server = oslo_messaging.get_rpc_server(
            self._transport,
            oslo_messaging.Target(exchange=EXCHANGE, topic=self._topic,
                                  server=self._own),
            [], server_cls=_server_class())
        server.on_message = self._hear
        server.on_garbage = self._on_garbage
        # A pool of one, of which no thread is ever started: see _Server.
        server.start(override_pool_size=1)
        self._server = server
        self._opened.set()
        if self._closed.is_set():
            self._shut()

    def _reach(self, deadline: float) -> None:
        """Talk to the broker until it answers: listening would wait for it
        for ever, and could not be told to stop."""
        if self._shown.startswith('fake:'):
            return
        while not self._closed.is_set():
            try:
                # To a queue that does not exist.
                self.cast(f'{self._topic}.probe', 'nobody', {})
            except NobodyThere:
                return
            except BusUnavailable as exc:
                self._trouble = str(exc)
                if ('ACCESS_REFUSED' in self._trouble
                        or self._monotonic() >= deadline):
                    raise
                self._closed.wait(0.2)
            else:
                return

    # Hearing.

    def _hear(self, received: Any) -> None:
        if self._closed.is_set():
            return
        arguments = received.get('args')
        if received.get('method') != _METHOD or type(arguments) is not dict:
            self._on_garbage(f'queue {self._topic}.{self._own}',
                             'a message of oslo.messaging, but not ours')
            return
        self._on_message(arguments.get('message'))

    # Saying.

    def _client(self, topic: str, identity: str) -> Any:
        client = self._clients.get((topic, identity))
        if client is None:
            import oslo_messaging
            if len(self._clients) > 1000:
                # Workers come and go under new names; these are cheap.
                self._clients.clear()
            client = self._clients[topic, identity] = (
                oslo_messaging.get_rpc_client(
                    self._transport,
                    oslo_messaging.Target(exchange=EXCHANGE, topic=topic,
                                          server=identity),
                    retry=0,
                    transport_options=oslo_messaging.TransportOptions(
                        at_least_once=True)))
        return client

    def _note_trouble(self, trouble: str) -> None:
        if self._opened.is_set() and not self._away:
            self._away = True
            LOG.warning('the broker cannot be reached: url=%s reason=%r; '
                        'trying again until it can', self._shown, trouble)

    def _note_answer(self) -> None:
        if self._away:
            self._away = False
            LOG.info('the broker answers again: url=%s', self._shown)

    def _clean(self, exc: BaseException) -> str:
        """The text of an error in one line and without a password."""
        text = ' '.join(f'{exc}'.split()) or type(exc).__name__
        if self._given:
            text = text.replace(self._given, self._shown)
        for secret in self._secrets:
            for form in (secret, urllib.parse.quote(secret),
                         urllib.parse.quote(secret, '')):
                text = text.replace(form, '***')
        return strutils.mask_password(text)

    # Closing.

    def _wake(self) -> None:
        """A listener looks up when a message comes, else after 5 s."""
        try:
            self.cast(self._topic, self._own, {})
        except BusUnavailable:
            LOG.debug('the listener could not be woken; it ends by itself')

    def _shut(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.stop()
            server.forget_queue(f'{self._topic}.{self._own}')
            server.wait()
        with self._casting:
            # The queues of the fake driver belong to the process, and other
            # buses use them.
            self._over = not self._shown.startswith('fake:')
        self._let_go()

    def _let_go(self) -> None:
        """Close the connections, unless one is still in use: what a cast
        holds would go back to its pool afterwards, and stay for ever."""
        with self._casting:
            if not self._over or self._casts:
                return
            self._over = False
        self._transport.cleanup()


@functools.cache
def _server_class() -> type:
    """The class of our server; it derives from one that must not be
    imported early."""
    from oslo_messaging.rpc import server

    class _Server(server.RPCServer):
        """Hands each message to ``on_message`` in the listening thread.

        Not through the pool of threads: what is called only puts something
        into a queue, messages keep their order, and there is nothing to
        wait for. It never replies: to a forged reply queue that does not
        exist, oslo.messaging would try to for a minute.
        """

        on_message: Callable[[Any], None]
        on_garbage: Callable[[str, str], None]

        def _create_listener(self):
            listener = super()._create_listener()
            try:
                for consumer in _connection_of(listener)._consumers:
                    consumer._callback = _quiet_callback(
                        consumer, self.on_garbage)
            except AttributeError:
                # Another driver, or another release: it logs each piece of
                # garbage with a traceback, which is loud but works.
                LOG.debug('garbage in the queues is left to oslo.messaging')
            return listener

        def _on_incoming(self, incoming):
            for received in incoming:
                self.on_message(received.message)

        def _process_incoming(self, incoming):
            raise NotImplementedError('nothing is handed to the pool')

        def forget_queue(self, name):
            """Delete our queue, if nobody else listens to it.

            Between stop() and wait(), when this connection is idle.
            """
            try:
                connection = _connection_of(self.listener)
                for consumer, tag in connection._consumers.items():
                    consumer.cancel(tag)
                for consumer in connection._consumers:
                    if consumer.queue_name == name:
                        left = consumer.queue.queue_declare(passive=True)
                        if left.consumer_count == 0:
                            consumer.queue.delete()
            except Exception as exc:
                # The broker is away, or it is another driver. The queue
                # stays, and what it holds is refused by whoever finds it.
                LOG.debug('queue left behind: queue=%s reason=%r', name, exc)

    return _Server


def _connection_of(listener: Any) -> Any:
    return listener._poll_style_listener.conn


def _quiet_callback(consumer: Any,
                    on_garbage: Callable[[str, str], None]
                    ) -> Callable[[Any], None]:
    """The driver's own callback, but for what it does with garbage.

    The original logs a traceback for each piece, and for each message with
    an id that came lately; and it rejects what may have been acknowledged
    already, which tears down the channel.
    """
    from oslo_messaging._drivers import impl_rabbit
    # A message whose acknowledgement was lost is delivered again, among the
    # first ones after the connection is back.
    lately: collections.deque[str] = collections.deque(maxlen=100)

    def callback(raw: Any) -> None:
        convert = getattr(consumer.queue.channel, 'message_to_python', None)
        received = convert(raw) if convert else raw
        try:
            body = impl_rabbit.RabbitMessage(received)
            unique_id = body.pop('_unique_id', None)
            if unique_id in lately:
                on_garbage(f'queue {consumer.queue_name}', 'delivered twice')
                received.ack()
                return
            consumer.callback(body)
            if received.acknowledged and type(unique_id) is str:
                lately.append(unique_id)
        except Exception as exc:
            on_garbage(f'queue {consumer.queue_name}',
                       f'not a message of oslo.messaging '
                       f'({type(exc).__name__})')
            if not received.acknowledged:
                received.reject()

    return callback


def _register_missing_groups(conf: Any) -> None:
    """oslo.messaging registers some groups on the global conf only, and
    then reads them from the one it was given."""
    for module, name in (('_tracing', 'oslo_messaging_tracing'),
                         ('_metrics', 'oslo_messaging_metrics')):
        try:
            client = __import__(f'oslo_messaging.{module}.client',
                                fromlist=[name])
            conf.register_opts(getattr(client, name), group=name)
        except (ImportError, AttributeError):
            LOG.debug('oslo.messaging has no group %s', name)


def _masked(url: str) -> str:
    """*url* with all between '//' and the last '@' hidden."""
    scheme, separator, rest = url.partition('://')
    if not separator:
        return '***'
    return f'{scheme}://{"***@" if "@" in rest else ""}' + rest.rpartition(
        '@')[2].partition('?')[0]


def _within(timeout: float, name: str, act: Callable[[], None]
            ) -> tuple[threading.Thread, Exception | None]:
    """Run *act* in a thread of its own and wait for it up to *timeout* s.

    :returns: the thread, and what it raised; None: nothing, or nothing yet.
    """
    failures: list[Exception] = []

    def run() -> None:
        try:
            act()
        except Exception as exc:
            failures.append(exc)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    thread.join(timeout)
    return thread, failures[0] if failures else None


class _Bus:
    """What both ends have in common: an address, keys, and what it drops."""

    _link: _Link | None = None
    _failed: _Link | None = None  # the last one that could not be opened
    _pid = 0

    def __init__(self, conf: Any, transport_url: str | None, topic: str,
                 me: str, keys: Sequence[message.Key], quorum: bool,
                 monotonic: Callable[[], float] | None):
        queue = f'{topic}.{_identity(me)}'
        if len(queue) > _ROUTING_KEY_LIMIT:
            raise ConfigError(
                f'the queue {queue!r:.80}... would have a name of '
                f'{len(queue)} characters, AMQP allows {_ROUTING_KEY_LIMIT}; '
                'shorten the group, the partition or the member id')
        self._conf = conf
        self._transport_url = transport_url
        self._topic = topic
        #: Our membership entry, of any term of this process.
        self.me = me
        self._keys = tuple(keys)
        self._quorum = quorum
        self._monotonic = monotonic or SystemClock().monotonic
        self._drops = _Drops()

    @property
    def dropped(self) -> dict[tuple[str, str], int]:
        """How many messages were dropped, by origin and reason."""
        return self._drops.counts()

    def start(self, timeout: float = 30.0) -> None:
        """Connect, listen, and start our threads; takes *timeout* at most.

        :raises ConfigError: the transport URL can never work.
        :raises BusUnavailable: no broker let us in; start() may be called
            again.
        """
        if self._link is not None and self._pid == os.getpid():
            raise ConfigError('the bus is started already')
        began = self._monotonic()
        if self._failed is not None and self._pid == os.getpid() and (
                not self._failed.ended(timeout)):
            # Else each attempt would leave one more connection waiting.
            raise BusUnavailable(
                'the broker has let us in and accepts nothing; it may be out '
                'of memory or disk, see its log')
        timeout -= self._monotonic() - began
        link = _Link(
            self._conf, self._transport_url, topic=self._topic,
            identity=_identity(self.me), quorum=self._quorum,
            on_message=self._receive, on_garbage=self._drops.note,
            monotonic=self._monotonic)
        # In a forked child what the parent had started is left as it is:
        # its threads are not here, and its sockets are the parent's.
        self._pid, self._link, self._failed = os.getpid(), None, link
        link.open(max(0.1, timeout))
        self._failed = None
        self._begin(link)
        self._link = link

    def _begin(self, link: _Link) -> None:
        raise NotImplementedError

    def _unusable(self) -> str | None:
        """Why nothing can be sent now; None: it can."""
        if self._link is None:
            return 'the bus is not started'
        if self._pid != os.getpid():
            return (f'the bus was started in process {self._pid} and this is '
                    f'process {os.getpid()}; call start() after the fork')
        return None

    def _receive(self, payload: Any) -> None:
        try:
            received = message.decode(payload, self._keys)
        except InvalidMessage as exc:
            origin = _claimed_origin(payload) or (
                f'queue {self._topic}.{_identity(self.me)}')
            self._drops.note(origin, str(exc))
            return
        try:
            self._take(received)
        except Exception:
            LOG.exception('a message was lost in a callback')

    def _take(self, received: Batch | Reports) -> None:
        raise NotImplementedError


def _claimed_origin(payload: Any) -> str:
    """Who a message says it is from, for the log: it was not believed.

    Empty if it does not say.
    """
    try:
        origin = payload.get('sender') or payload['reports'][0]['worker']
    except (AttributeError, KeyError, IndexError, TypeError):
        return ''
    return origin if type(origin) is str else ''


class MessagingWorkBus(_Bus):
    """The scheduler's side: batches go out, reports come in.

    The callbacks are called by threads of the bus, *on_unsent* also from
    within :meth:`send`; they must not block.

    :param conf: where oslo.messaging's options are; they are not changed.
    :param transport_url: None: ``[DEFAULT] transport_url`` of *conf*.
    :param group: of the schedulers and workers that talk to each other.
    :param me: the scheduler's membership entry.
    :param on_report: called with the reports of one message.
    :param on_unsent: called with a batch that could not be handed to the
        broker, and the reason.
    :param on_sent: called with a batch that the broker has confirmed.
    :param keys: secrets that sign messages; the first signs, all are
        accepted. Empty: nothing is signed or checked.
    :param quorum: quorum queues in place of durable ones.
    :param patience: seconds without any answer of the broker after which a
        batch is given up.
    :param capacity: batches that may wait to be sent.
    """

    def __init__(self, conf: Any, transport_url: str | None, *, group: str,
                 me: str, on_report: Callable[[list[Report]], None],
                 on_unsent: Callable[[Batch, str], None],
                 on_sent: Callable[[Batch], None],
                 keys: Sequence[message.Key] = (), quorum: bool = False,
                 patience: float = 5.0, capacity: int = 1000,
                 monotonic: Callable[[], float] | None = None):
        super().__init__(conf, transport_url, reports_topic(group), me, keys,
                         quorum, monotonic)
        self._group = group
        self._on_report = on_report
        self._on_unsent = on_unsent
        self._on_sent = on_sent
        self._patience = patience
        self._capacity = capacity
        self._outbox: BatchOutbox | None = None

    def send(self, batch: Batch) -> None:
        """See :meth:`distperiodic.ports.WorkBus.send`."""
        reason = self._unusable()
        if reason is None and self._outbox is not None:
            self._outbox.put(batch)
        else:
            self._on_unsent(batch, reason or 'the bus is not started')

    def close(self, timeout: float = 5.0) -> None:
        """Send what waits, then let go; takes *timeout* s at most.

        What could not be sent by then is told unsent.
        """
        deadline = self._monotonic() + timeout
        link, self._link = self._link, None
        if link is None or self._outbox is None or self._pid != os.getpid():
            return
        self._outbox.close(timeout)
        link.close(max(0.0, deadline - self._monotonic()))

    def _begin(self, link: _Link) -> None:
        def publish(batch: Batch) -> None:
            link.cast(work_topic(self._group, batch.partition),
                      _identity(batch.worker),
                      message.encode_batch(batch, self._keys))

        self._outbox = BatchOutbox(
            publish, self._on_sent, self._on_unsent, capacity=self._capacity,
            patience=self._patience, monotonic=self._monotonic)
        self._outbox.start()

    def _take(self, received: Batch | Reports) -> None:
        if not isinstance(received, Reports):
            self._drops.note(received.sender, 'a batch, sent to a scheduler')
        elif _process(received.to) != _process(self.me):
            # A report for an earlier term of this process is still news:
            # the batch may be in our books, and its fence decides.
            self._drops.note(received.reports[0].worker,
                             'reports for another process', logging.INFO)
        else:
            self._on_report(received.reports)


class MessagingReportBus(_Bus):
    """The worker's side: batches come in, reports go out.

    *on_batch* is called by the thread that listens; it must not block.

    :param conf: where oslo.messaging's options are; they are not changed.
    :param transport_url: None: ``[DEFAULT] transport_url`` of *conf*.
    :param group: of the schedulers and workers that talk to each other.
    :param partition: whose work this worker does.
    :param me: the worker's membership entry.
    :param keys: see :class:`MessagingWorkBus`.
    :param quorum: see :class:`MessagingWorkBus`.
    :param patience: seconds until a report that cannot be sent is given up.
    :param capacity: reported objects that may wait to be sent.
    """

    def __init__(self, conf: Any, transport_url: str | None, *, group: str,
                 partition: str, me: str, on_batch: Callable[[Batch], None],
                 keys: Sequence[message.Key] = (), quorum: bool = False,
                 patience: float = 60.0, capacity: int = 200_000,
                 monotonic: Callable[[], float] | None = None):
        super().__init__(conf, transport_url, work_topic(group, partition),
                         me, keys, quorum, monotonic)
        self._group = group
        self._on_batch = on_batch
        self._patience = patience
        self._capacity = capacity
        self._outbox: ReportOutbox | None = None

    def report(self, report: Report, to_entry: str) -> None:
        """See :meth:`distperiodic.ports.ReportBus.report`.

        :raises BusUnavailable: the bus was not started in this process.
        """
        reason = self._unusable()
        if reason is not None or self._outbox is None:
            raise BusUnavailable(reason or 'the bus is not started')
        self._outbox.put(report, to_entry)

    def forget(self, to_entry: str) -> None:
        """Send no more to a scheduler that is gone."""
        if self._outbox is not None:
            self._outbox.forget(to_entry)

    def close(self, timeout: float = 5.0) -> None:
        """Send what waits, then let go; takes *timeout* s at most."""
        deadline = self._monotonic() + timeout
        link, self._link = self._link, None
        if link is None or self._outbox is None or self._pid != os.getpid():
            return
        self._outbox.close(timeout)
        link.close(max(0.0, deadline - self._monotonic()))

    def _begin(self, link: _Link) -> None:
        def publish(to_entry: str, reports: list[Report]) -> None:
            link.cast(reports_topic(self._group), _identity(to_entry),
                      message.encode_reports(reports, to=to_entry,
                                             keys=self._keys))

        self._outbox = ReportOutbox(
            publish, self._lost, patience=self._patience,
            capacity=self._capacity, monotonic=self._monotonic)
        self._outbox.start()

    def _lost(self, report: Report, to_entry: str, reason: str) -> None:
        self._drops.note(f'this worker, to {to_entry}',
                         f'report not sent: {reason}')

    def _take(self, received: Batch | Reports) -> None:
        if not isinstance(received, Batch):
            self._drops.note(received.reports[0].worker,
                             'reports, sent to a worker')
        elif _process(received.worker) != _process(self.me):
            # A batch for an earlier tenure of this process goes on: whoever
            # starts it compares, and refuses it to its sender by name.
            self._drops.note(received.sender, 'a batch for another process',
                             logging.INFO)
        else:
            self._on_batch(received)
