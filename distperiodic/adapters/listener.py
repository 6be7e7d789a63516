# SPDX-License-Identifier: Apache-2.0
"""The server through which a link hears, and what oslo.messaging's lacks.

* It acknowledges a message before it hands it over, and would take any number
  of them. The window of the scheduler bounds them instead.
* It would answer a forged call and wait a minute for an absent caller. Ours
  answers nobody, and runs no method by name: there is one, ours.
* It makes two queues more than the one that is its own, and leaves that one
  to the broker for ever if its process is killed.
* It is loud about garbage, and some of it tears down the channel. Ours counts
  it and goes on.
* It opens whatever comes, so that a small message that was compressed fills
  the memory of who hears it. Ours looks at length and headers before that.
"""

import collections
import functools
import logging
from collections.abc import Callable
from typing import Any

LOG = logging.getLogger(__name__)

# Milliseconds without a listener after which the broker deletes a queue. What
# it holds then was taken back by its sender long ago.
_EXPIRES = 30 * 60 * 1000
#: Bytes of a message: what the longest of ours takes, twice in JSON, with
#: each letter of its ids outside of what 16 bits can say.
LONGEST = 20 * 2 ** 20


@functools.cache
def server_class() -> type:
    """The class of our server, from one that must not be imported early."""
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
            try:
                return _own_queue_alone(
                    self.transport._driver, self._target, self.on_garbage)
            except (AttributeError, TypeError):
                # Another driver, or another release: it makes three queues,
                # and logs each piece of garbage with a traceback. It works.
                LOG.debug('the queues are left to oslo.messaging',
                          exc_info=True)
                return super()._create_listener()

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


def _own_queue_alone(driver: Any, target: Any,
                     on_garbage: Callable[[str, str], None]) -> Any:
    """Listen to the queue of *target*'s server, and make no other.

    As the driver itself would, but without the queues that all servers of a
    topic share: nothing is ever sent to those. Ours is deleted by the broker
    when its process does not come back.
    """
    from oslo_messaging._drivers import amqpdriver
    from oslo_messaging._drivers import base
    from oslo_messaging._drivers import common

    connection = driver._get_connection(common.PURPOSE_LISTEN)
    listener = amqpdriver.RpcAMQPListener(driver, connection)
    declare = connection.connection.declare_consumer

    def declare_ours(consumer: Any) -> None:
        consumer.queue_arguments['x-expires'] = _EXPIRES
        declare(consumer)
        consumer._callback = _quiet_callback(consumer, on_garbage)

    connection.connection.declare_consumer = declare_ours
    connection.declare_topic_consumer(
        exchange_name=driver._get_exchange(target),
        topic=f'{target.topic}.{target.server}', callback=listener)
    return base.PollStyleListenerAdapter(listener, 1, None)


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
        reason = _unopened(raw)
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


def _unopened(raw: Any) -> str | None:
    """Why *raw*, as it came from the broker, is not even opened."""
    compression = (getattr(raw, 'headers', None) or {}).get('compression')
    if compression:
        return f'compressed ({compression!r:.40}), which ours are not'
    length = len(getattr(raw, 'body', ''))
    if length > LONGEST:
        return f'of {length} bytes, and {LONGEST} are the most'
    return None
