# SPDX-License-Identifier: Apache-2.0
"""Messages over Redis, with one stream for each queue.

The keys have the names of the queues::

    distperiodic.GROUP.work.PARTITION.MEMBER~NONCE   stream, one per queue
    distperiodic.GROUP.notices.all.hearers   set of streams that hear a name

A sender appends to a stream only if the stream exists, so the sender learns at
once that the receiving process is gone. If several processes listen to a name,
a message to this name is appended to the streams of all of them.

A process reads its stream through a consumer group. An entry is pending until
the process has passed on the message in the entry. Then the entry is deleted.
After a reconnect, the process first handles the pending entries. So no message
is lost or passed on twice because of a lost connection.

Limits: a stream keeps about 10,000 messages, the newest ones. A process that
is killed leaves its stream behind, and Redis deletes the stream half an hour
later. Redis Cluster is not supported, because the streams of processes that
listen to the same name may be on different nodes.
"""

import collections
import json
import logging
import random
import threading
from collections.abc import Callable
from collections.abc import Iterable
from typing import Any

import redis

from distperiodic.adapters.redis import client as clients
from distperiodic.adapters.redis.url import RedisDatabase
from distperiodic.exceptions import BusUnavailable
from distperiodic.exceptions import NoConsumer
from distperiodic.ports import LONGEST_MESSAGE
from distperiodic.ports import Inbox

LOG = logging.getLogger(__name__)

_GROUP = 'distperiodic'
#: Field of an entry that holds the message, as JSON.
_FIELD = b'message'
#: Approximate maximum number of messages in a stream. Redis deletes old
#: messages in groups, so a stream may have a few more.
_MOST = 10_000
#: Maximum number of messages that are read with one command.
_AT_ONCE = 100
# Bytes of a message above which the next messages are read one by one. The
# messages of a process are shorter, but any client of the server could write
# longer ones, which together would fill the memory.
_LONG = 1_000_000
#: Milliseconds after which Redis deletes a stream, unless its process renews
#: the expiry. By then, the senders have reclaimed the work in the stream.
EXPIRES = 30 * 60 * 1000
#: Seconds between two renewals of the expiry of a stream.
RENEWAL = 60.0
# Milliseconds for which a read waits. close() waits until a read has ended.
_WAIT = 500
# Maximum seconds for one command.
_TIMEOUT = 3.0
# Seconds between two attempts to connect.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0
# Beginnings of the errors with which the server answers a read of a missing
# stream.
_GONE = ('NOGROUP', 'UNBLOCKED the stream key')
# Beginning of the error with which a server that becomes a replica ends a read
# that waits.
_DEMOTED = 'UNBLOCKED force unblock'


class RedisCarrier:
    """See :class:`distperiodic.ports.Carrier`."""

    def __init__(self, place: RedisDatabase, inbox: Inbox | None,
                 monotonic: Callable[[], float]):
        self._place = place
        self._inbox = inbox
        self._monotonic = monotonic
        self._client = clients.client_of(place, _TIMEOUT)
        self._reader: threading.Thread | None = None
        self._closed = threading.Event()
        #: Set when the queue is declared, or when the server has refused this
        #: client.
        self._decided = threading.Event()
        self._refused: BusUnavailable | None = None
        self._last_error = 'it does not answer'
        self._state = threading.Lock()
        self.problem: str | None = None
        self._refusing = False
        #: Ids of the entries most recently put into the inbox, to detect
        #: duplicates.
        self._recent: collections.deque[bytes] = collections.deque(
            maxlen=2 * _AT_ONCE)

    def open(self, timeout: float) -> None:
        """See :meth:`distperiodic.ports.Carrier.open`."""
        if self._inbox is None:
            return
        self._reader = threading.Thread(
            target=self._receive, args=(self._inbox,),
            name='distperiodic-receive', daemon=True)
        self._reader.start()
        self._decided.wait(timeout)
        if self._decided.is_set() and self._refused is None:
            return
        self.close(0)
        raise self._refused or BusUnavailable(
            f'no Redis at {self._place} accepted a login within {timeout:g} s '
            f'({self._last_error}); check that it runs, the host and port of '
            'transport_url, and that the port '
            + ('uses TLS' if self._place.tls else
               'uses no TLS, or write rediss://'))

    def ended(self, timeout: float) -> bool:
        """See :meth:`distperiodic.ports.Carrier.ended`."""
        if self._reader is not None:
            self._reader.join(timeout)
        return self._reader is None or not self._reader.is_alive()

    def cast(self, topic: str, identity: str, payload: dict[str, Any]) -> None:
        """See :meth:`distperiodic.ports.Carrier.cast`.

        This takes at most a few seconds.
        """
        queue = f'{topic}.{identity}'
        body = json.dumps(payload, separators=(',', ':')).encode()
        try:
            sent = (self._add(self._client, queue, body) is not None
                    or self._add_to_all(queue, body))
        except clients.FAILURES as exc:
            # The server may have become a replica. Close the idle connections,
            # so that the next command opens a new connection.
            self._client.connection_pool.disconnect(inuse_connections=False)
            raise BusUnavailable(self._send_failed(exc)) from None
        self._send_worked()
        if not sent:
            raise NoConsumer(f'there is no queue {queue}')

    def close(self, timeout: float) -> None:
        """See :meth:`distperiodic.ports.Carrier.close`."""
        self._closed.set()
        if self._reader is not None:
            self._reader.join(max(0.0, timeout))
            if self._reader.is_alive():
                # The thread closes the client when it ends.
                return
        self._client.close()

    # Sending.

    @staticmethod
    def _add(client: Any, queue: str | bytes, body: bytes) -> Any:
        """Append a message to a stream; return None if there is no stream."""
        return client.xadd(queue, {_FIELD: body}, maxlen=_MOST,
                           nomkstream=True)

    def _add_to_all(self, name: str, body: bytes) -> bool:
        """Append a message to all streams that receive messages to *name*."""
        hearers = sorted(self._client.smembers(_hearers(name)))
        if not hearers:
            return False
        with self._client.pipeline(transaction=False) as pipeline:
            for hearer in hearers:
                self._add(pipeline, hearer, body)
            # An error that the pipeline itself raised would contain the text
            # of the command, and so the message.
            added = pipeline.execute(raise_on_error=False)
        gone = [hearer for hearer, found in zip(hearers, added, strict=True)
                if found is None]
        if gone:
            self._client.srem(_hearers(name), *gone)
            # The process may have created its stream again meanwhile. The
            # process itself would add the stream to the set only after a
            # minute.
            back = [hearer for hearer in gone if self._client.exists(hearer)]
            if back:
                self._client.sadd(_hearers(name), *back)
        for found in added:
            if isinstance(found, Exception):
                raise found
        return len(gone) < len(hearers)

    # Receiving.

    def _receive(self, inbox: Inbox) -> None:
        pause = _FIRST_PAUSE
        while not self._closed.is_set():
            try:
                clients.check_version(self._client, self._place)
                self._declare(inbox)
                self._take_pending(inbox)
                pause = _FIRST_PAUSE
                self._read_all(inbox)
            except (*clients.FAILURES, BusUnavailable) as exc:
                if str(exc).startswith(_GONE):
                    LOG.warning(
                        'the broker lost a queue: url=%s queue=%s; it is '
                        'declared again, and lost messages are sent again',
                        self._place, inbox.queue)
                    continue
                if str(exc).startswith(_DEMOTED):
                    # Nothing is lost. The next connection finds the master.
                    self._client.connection_pool.disconnect()
                    continue
                self._read_failed(exc)
                self._closed.wait(pause * random.uniform(0.5, 1.0))
                pause = min(2 * pause, _LONGEST_PAUSE)
        self._delete(inbox)
        self._client.close()

    def _declare(self, inbox: Inbox) -> None:
        """Create the stream, or renew the time until it expires."""
        try:
            self._create(inbox)
        except redis.exceptions.OutOfMemoryError:
            # A server without free memory rejects these commands even if they
            # have no effect. Read the stream nevertheless, because this frees
            # memory.
            if not self._declared(inbox):
                raise
        self._client.pexpire(inbox.queue, EXPIRES)
        for name in inbox.hears:
            self._client.pexpire(_hearers(name), EXPIRES)
        self._decided.set()
        self._record_answer()

    def _create(self, inbox: Inbox) -> None:
        try:
            self._client.xgroup_create(inbox.queue, _GROUP, '0',
                                       mkstream=True)
        except redis.ResponseError as exc:
            if not str(exc).startswith('BUSYGROUP'):
                raise
        for name in inbox.hears:
            self._client.sadd(_hearers(name), inbox.queue)

    def _declared(self, inbox: Inbox) -> bool:
        """Return whether the stream exists and is in the sets of its names."""
        return bool(self._client.exists(inbox.queue)) and all(
            self._client.sismember(_hearers(name), inbox.queue)
            for name in inbox.hears)

    def _take_pending(self, inbox: Inbox) -> None:
        """Pass on the entries that were read before and are still pending."""
        start: Any = '0-0'
        count = 1
        while not self._closed.is_set():
            start, entries = self._client.xautoclaim(
                inbox.queue, _GROUP, inbox.identity, 0, start,
                count=count)[:2]
            count = _next_count(count, [(inbox.queue, entries)])
            self._take(inbox, entries, set(self._recent))
            if start == b'0-0':
                return

    def _read_all(self, inbox: Inbox) -> None:
        renew_at = self._monotonic() + RENEWAL
        count = 1
        while not self._closed.is_set():
            found = self._client.xreadgroup(
                _GROUP, inbox.identity, {inbox.queue: '>'}, count=count,
                block=_WAIT)
            count = _next_count(count, found)
            self._record_answer()
            if self._closed.is_set():
                # The process accepts no more messages. Their senders send them
                # again when it has left its group.
                return
            for _, entries in found or ():
                self._take(inbox, entries, set())
            if self._monotonic() >= renew_at:
                self._declare(inbox)
                renew_at = self._monotonic() + RENEWAL

    def _take(self, inbox: Inbox, entries: Iterable[tuple[bytes, Any]],
              known: set[bytes]) -> None:
        """Pass on the entries that are not *known*, and delete all of them."""
        ids = []
        for id_, fields in entries:
            if id_ is None:
                # Older servers also return deleted entries, without their ids.
                continue
            ids.append(id_)
            if id_ not in known and fields is not None:
                self._recent.append(id_)
                _pass_on(inbox, fields)
        if ids:
            with self._client.pipeline(transaction=False) as pipeline:
                pipeline.xack(inbox.queue, _GROUP, *ids)
                pipeline.xdel(inbox.queue, *ids)
                pipeline.execute()

    def _delete(self, inbox: Inbox) -> None:
        try:
            for name in inbox.hears:
                self._client.srem(_hearers(name), inbox.queue)
            self._client.delete(inbox.queue)
        except clients.FAILURES as exc:
            LOG.debug('queue left behind: queue=%s reason=%s', inbox.queue,
                      self._place.redacted(exc))

    # Failures.

    def _read_failed(self, error: Exception) -> None:
        self._last_error = self._place.redacted(error)
        self._client.connection_pool.disconnect(inuse_connections=False)
        refused = clients.refusal_of(error, self._place)
        if not self._decided.is_set() and refused is not None:
            self._refused = refused
            self._closed.set()
            self._decided.set()
            return
        self._record_away(self._last_error)

    def _send_failed(self, error: Exception) -> str:
        """Record a failure, and return its text."""
        text = self._place.redacted(error)
        if isinstance(error, clients.DISCONNECTED):
            self._record_away(text)
            return text
        with self._state:
            new, self._refusing = not self._refusing, True
        if new:
            LOG.warning('the broker refuses messages: url=%s reason=%r; this '
                        'process retries until it accepts them', self._place,
                        text)
        return text

    def _send_worked(self) -> None:
        self._record_answer()
        with self._state:
            old, self._refusing = self._refusing, False
        if old:
            LOG.info('the broker accepts messages again: url=%s', self._place)

    def _record_away(self, reason: str) -> None:
        if self._inbox is None or not self._decided.is_set() or (
                self._closed.is_set()):
            return
        with self._state:
            new, self.problem = self.problem is None, reason
        if new:
            LOG.warning('the broker cannot be reached: url=%s reason=%r; '
                        'this process retries until it answers', self._place,
                        reason)

    def _record_answer(self) -> None:
        with self._state:
            old, self.problem = self.problem, None
        if old is not None:
            LOG.info('the broker answers again: url=%s', self._place)


def _hearers(name: str) -> str:
    return f'{name}.hearers'


def _next_count(count: int, found: Any) -> int:
    """Return the number of messages to read with the next command.

    The number grows while messages are waiting. It is 1 after a long message,
    and while few messages arrive.

    :param count: Number of messages that the last command asked for.
    :param found: Answer to the last command.
    """
    fields = [one for _, entries in found or () for _, one in entries]
    if len(fields) < count or any(
            len(value) > _LONG for one in fields if one is not None
            for value in one.values()):
        return 1
    return min(2 * count, _AT_ONCE)


def _pass_on(inbox: Inbox, fields: dict[bytes, bytes]) -> None:
    """Pass on the message of an entry, unless the entry is invalid.

    Any client of the server may have written the entry, so check it first.
    """
    origin = f'queue {inbox.queue}'
    body = fields.get(_FIELD)
    if body is None:
        inbox.on_garbage(origin, 'an entry of another program')
    elif len(body) > LONGEST_MESSAGE:
        inbox.on_garbage(origin, f'{len(body)} bytes long; the limit is '
                         f'{LONGEST_MESSAGE}')
    else:
        try:
            payload = json.loads(body)
        except (ValueError, RecursionError):
            inbox.on_garbage(origin, 'not JSON')
            return
        inbox.on_message(payload)
