# SPDX-License-Identifier: Apache-2.0
"""The server that receives the messages of a connection.

It differs from oslo.messaging's own server:

* oslo.messaging puts messages into the queue of a thread pool. Our server
  passes each message on in its own thread. Both acknowledge a message before
  it is handled, so the broker does not limit the number of messages that wait
  in a process. Here the flow control of the schedulers limits this number.
* oslo.messaging would reply to a forged call, and wait for a minute if the
  caller does not exist. Our server never replies, and accepts only one method
  name.
* oslo.messaging declares three queues. If the process is killed, the broker
  keeps two of them forever. Our server declares only the queue that it needs,
  and the broker deletes this queue after a time without a consumer.
* oslo.messaging logs a traceback for each invalid message, and some invalid
  messages close the channel. Our server counts them and continues.
* oslo.messaging logs a traceback if the broker refuses a login, for example
  because its virtual host was deleted. Our server tries again, and leaves the
  log to the driver, which has logged the reason in one line.
* oslo.messaging decompresses every message, so a small compressed message can
  fill the receiver's memory. Our server checks length and headers first.
"""

import collections
import logging
import threading
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

from distperiodic.ports import LONGEST_MESSAGE

LOG = logging.getLogger(__name__)

# Milliseconds without a consumer after which the broker deletes a queue. By
# then, the senders have reclaimed the work in the queue.
_EXPIRES = 30 * 60 * 1000
# Number of times that the broker is asked whether a queue has consumers, and
# seconds between two of them.
_CHECKS, _CHECK_PAUSE = 10, 0.02
# Seconds between two logins after a refusal.
_LOGIN_PAUSE = 1.0


class Server:
    """A server that passes messages to *on_message* in its own thread.

    It has no thread pool, because the callback only puts a message into a
    queue, and the messages must keep their order. It never replies: if the
    reply queue of a forged call did not exist, oslo.messaging would retry for
    a minute.

    :param transport: Transport of oslo.messaging.
    :param target: Its target: the queue that this server reads.
    :param on_garbage: Called with the origin of an invalid message and the
        reason to drop the message.
    :param hears: Further routing keys to which the queue is bound.
    """

    def __init__(self, transport: Any, target: Any, *,
                 on_message: Callable[[Any], None],
                 on_garbage: Callable[[str, str], None],
                 hears: Sequence[str]):
        self._on_message = on_message
        self._listener = _listener_of(transport, target, on_garbage, hears)
        self._listener.start(self._pass_on)

    def stop(self) -> None:
        """Receive no more messages; return when the thread has ended."""
        self._listener.stop()

    def close(self) -> None:
        """Close the connection. Call stop() first."""
        self._listener.cleanup()

    def forget_queue(self, name: str) -> None:
        """Delete the queue of this server, if no other process uses it.

        Call it between stop() and close(), while the connection is idle.
        """
        try:
            connection = _connection_of(self._listener)
            for consumer, tag in connection._consumers.items():
                consumer.cancel(tag)
            for consumer in connection._consumers:
                if (consumer.queue_name == name
                        and _is_unused(consumer.queue)):
                    consumer.queue.delete()
        except Exception as exc:
            # The broker is unreachable, or another driver is in use. The queue
            # remains until it expires, if the driver has set an expiry.
            LOG.debug('queue left behind: queue=%s reason=%r', name, exc)

    def _pass_on(self, incoming: Sequence[Any]) -> None:
        for received in incoming:
            self._on_message(received.message)


def _listener_of(transport: Any, target: Any,
                 on_garbage: Callable[[str, str], None],
                 hears: Sequence[str]) -> Any:
    try:
        return _listen_to_own_queue(
            transport._driver, target, on_garbage, hears)
    except (AttributeError, TypeError):
        # This is another driver, or the driver of another release of
        # oslo.messaging. Let oslo.messaging declare its three queues and log a
        # traceback for each invalid message. The server works in this way,
        # too.
        LOG.debug('the queues are left to oslo.messaging', exc_info=True)
        return transport._listen(target, 1, None)


def _is_unused(queue: Any) -> bool:
    """Return whether a queue has no consumers.

    A quorum queue counts a cancelled consumer until the acknowledgement of its
    last message has taken effect, so the broker is asked several times.
    """
    for _ in range(_CHECKS):
        if not queue.queue_declare(passive=True).consumer_count:
            return True
        threading.Event().wait(_CHECK_PAUSE)
    return False


def _listen_to_own_queue(driver: Any, target: Any,
                         on_garbage: Callable[[str, str], None],
                         hears: Sequence[str]) -> Any:
    """Listen to the queue of *target*'s server, and declare no other queue.

    By itself, the driver would also declare a fanout queue, and a queue that
    all servers of a topic share, but no message is ever sent to these two. The
    broker deletes the server's queue after a time without a consumer.

    :param hears: Further routing keys to which the queue is bound.
    """
    from oslo_messaging import exceptions
    from oslo_messaging._drivers import amqpdriver
    from oslo_messaging._drivers import base
    from oslo_messaging._drivers import common

    connection = driver._get_connection(common.PURPOSE_LISTEN)
    listener = amqpdriver.RpcAMQPListener(driver, connection)
    poll = listener.poll

    def poll_again(*args: Any, **kwargs: Any) -> Any:
        while True:
            try:
                return poll(*args, **kwargs)
            except exceptions.MessageDeliveryFailure:
                # The broker has refused a login.
                threading.Event().wait(_LOGIN_PAUSE)

    listener.poll = poll_again
    declare = connection.connection.declare_consumer

    def declare_expiring(consumer: Any) -> None:
        consumer.queue_arguments['x-expires'] = _EXPIRES
        if hears:
            _bind_to_all(consumer, hears)
        declare(consumer)
        consumer._callback = _quiet_callback(consumer, on_garbage)

    connection.connection.declare_consumer = declare_expiring
    connection.declare_topic_consumer(
        exchange_name=driver._get_exchange(target),
        topic=f'{target.topic}.{target.server}', callback=listener)
    return base.PollStyleListenerAdapter(listener, 1, None)


def _bind_to_all(consumer: Any, routing_keys: Sequence[str]) -> None:
    """Also bind the queue of *consumer* to *routing_keys*.

    The queue is bound again each time that the driver declares it.
    """
    declare = consumer.declare

    def declare_and_bind(connection: Any) -> None:
        declare(connection)
        for routing_key in routing_keys:
            consumer.queue.bind_to(consumer.exchange, routing_key)
    consumer.declare = declare_and_bind


def _connection_of(listener: Any) -> Any:
    return listener._poll_style_listener.conn


def _quiet_callback(consumer: Any,
                    on_garbage: Callable[[str, str], None]
                    ) -> Callable[[Any], None]:
    """Return a callback that reports invalid messages without a traceback.

    The driver's own callback logs a traceback for each invalid message, and
    for each repeated message id. It also rejects messages that may already be
    acknowledged. Such a rejection closes the channel.
    """
    from oslo_messaging._drivers import impl_rabbit
    # Ids of recent messages, to detect duplicates. A message whose
    # acknowledgement was lost is delivered again soon after a reconnect.
    recent_ids: collections.deque[str] = collections.deque(maxlen=100)

    def callback(raw: Any) -> None:
        reason = _rejection(raw)
        if reason is not None:
            on_garbage(f'queue {consumer.queue_name}', reason)
            consumer.queue.channel.basic_reject(raw.delivery_tag,
                                                requeue=False)
            return
        convert = getattr(consumer.queue.channel, 'message_to_python', None)
        received = convert(raw) if convert else raw
        try:
            body = impl_rabbit.RabbitMessage(received)
            unique_id = body.pop('_unique_id', None)
            if unique_id in recent_ids:
                on_garbage(f'queue {consumer.queue_name}', 'delivered twice')
                received.ack()
                return
            consumer.callback(body)
            if received.acknowledged and type(unique_id) is str:
                recent_ids.append(unique_id)
        except Exception as exc:
            on_garbage(f'queue {consumer.queue_name}',
                       f'not a message of oslo.messaging '
                       f'({type(exc).__name__})')
            if not received.acknowledged:
                received.reject()

    return callback


def _rejection(raw: Any) -> str | None:
    """Return the reason to reject *raw* before it is decoded, or None.

    :param raw: Message as the broker delivers it.
    """
    compression = (getattr(raw, 'headers', None) or {}).get('compression')
    if compression:
        return (f'compressed ({compression!r:.40}), unlike messages of '
                'distperiodic')
    length = len(getattr(raw, 'body', ''))
    if length > LONGEST_MESSAGE:
        return f'{length} bytes long; the limit is {LONGEST_MESSAGE}'
    return None
