# SPDX-License-Identifier: Apache-2.0
"""Commands that an operator's process sends as messages, and the replies.

A command is sent to all members of a group, over all brokers at the same time.
An unreachable broker delays the operator's process until the timeout, but does
not delay messages over the other brokers. If the operator's process expects
replies, it has a queue that receives them.
"""

import queue
import threading
import uuid
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

from distperiodic.adapters.local.clock import SystemClock
from distperiodic.adapters.messaging import drivers
from distperiodic.adapters.messaging.drops import Drops
from distperiodic.adapters.messaging.queue_names import ALL
from distperiodic.adapters.messaging.queue_names import control_topic
from distperiodic.adapters.messaging.queue_names import replies_topic
from distperiodic.core import message
from distperiodic.core.control_message import ControlReply
from distperiodic.core.control_message import ControlRequest
from distperiodic.core.control_message import encode_request
from distperiodic.core.partition import Partitions
from distperiodic.core.wire import Key
from distperiodic.exceptions import DistperiodicError
from distperiodic.exceptions import InvalidMessage
from distperiodic.exceptions import NoConsumer
from distperiodic.ports import Carrier
from distperiodic.ports import ClosedSink
from distperiodic.ports import Inbox


def urls_of(conf: Any, partitions: Partitions) -> list[str]:
    """Return the URLs of all configured brokers, including passwords."""
    return list(dict.fromkeys([drivers.url_of(conf), *(
        one.transport_url for _, one in sorted(partitions.items())
        if one.transport_url)]))


class CommandBus:
    """The operator's end of the bus.

    :param conf: Configuration of the command; not changed.
    :param urls: URLs of the brokers.
    :param keys: Secrets that sign messages. The first key signs commands;
        replies that are signed with any of the keys are accepted.
    :param hears: True to receive replies.
    """

    def __init__(self, conf: Any, urls: Sequence[str], *, group: str,
                 keys: Sequence[Key] = (), hears: bool = True):
        self._conf = conf
        self._urls = urls
        self._group = group
        self._keys = tuple(keys)
        #: Last word of the name of the queue for replies. Empty means that no
        #: replies are received.
        self.word = uuid.uuid4().hex if hears else ''
        self._clock = SystemClock()
        self._carriers: dict[str, Carrier] = {}
        self._sent: set[str] = set()
        self._received: queue.SimpleQueue[ControlReply] = queue.SimpleQueue()
        self._drops = Drops(ClosedSink())

    def open(self, timeout: float) -> dict[str, str]:
        """Connect to the brokers that answer.

        :param timeout: Maximum duration of the call, in seconds.
        :returns: Reasons for failed connections, by URL without its password.
        """
        inbox = Inbox(replies_topic(self._group), self.word, self._receive,
                      self._drops.note) if self.word else None

        def connect(url: str) -> None:
            carrier = drivers.driver_of(url).carrier(
                self._conf, url, inbox=inbox,
                monotonic=self._clock.monotonic)
            carrier.open(timeout)
            self._carriers[url] = carrier
        return self._at_once(self._urls, connect, timeout)

    def send(self, request: ControlRequest,
             timeout: float) -> dict[str, str]:
        """Send a command over all connected brokers.

        :param timeout: Maximum duration of the call, in seconds.
        :returns: Reasons for failures, by URL without its password.
        :raises InvalidMessage: Every member would reject the command.
        """
        payload = encode_request(request, self._keys)
        self._sent.add(request.id)

        def cast(url: str) -> None:
            self._carriers[url].cast(
                control_topic(self._group), ALL, payload)
        return self._at_once(list(self._carriers), cast, timeout)

    @property
    def dropped(self) -> dict[tuple[str, str], int]:
        """Number of dropped messages, by origin and reason."""
        return self._drops.counts()

    def received(self) -> list[ControlReply]:
        """Return the replies that have arrived since the last call."""
        found = []
        while not self._received.empty():
            found.append(self._received.get())
        return found

    def close(self, timeout: float) -> None:
        """Delete the queue for replies, and disconnect.

        :param timeout: Maximum duration of the call, in seconds.
        """
        self._at_once(list(self._carriers),
                      lambda url: self._carriers[url].close(timeout), timeout)

    def _receive(self, payload: Any) -> None:
        try:
            reply = message.decode(payload, self._keys)
        except InvalidMessage as exc:
            self._drops.note('an unknown sender', str(exc))
            return
        if isinstance(reply, ControlReply) and reply.request in self._sent:
            self._received.put(reply)
        else:
            self._drops.note('an unknown sender',
                             'a message that replies to no command of this '
                             'process')

    def _at_once(self, urls: Sequence[str], act: Callable[[str], None],
                 timeout: float) -> dict[str, str]:
        """Call *act* with all URLs at the same time, each in its own thread.

        :returns: The failures, by URL without its password.
        """
        failures = dict.fromkeys(
            urls, f'it has not answered within {timeout:.1f} s')

        def run(url: str) -> None:
            try:
                act(url)
            except NoConsumer:
                failures[url] = 'no member listens there'
            except DistperiodicError as exc:
                failures[url] = str(exc)
            else:
                del failures[url]
        deadline = self._clock.monotonic() + timeout
        threads = [threading.Thread(
            target=run, args=(url,), name='distperiodic-command', daemon=True)
            for url in urls]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, deadline - self._clock.monotonic()))
        return {drivers.masked(url): reason
                for url, reason in dict(failures).items()}
