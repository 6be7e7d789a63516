# SPDX-License-Identifier: Apache-2.0
"""Message bus for work and reports, over any broker that has a driver.

This module encodes, signs and checks the messages. A driver sends and receives
them. The scheme of ``transport_url`` selects the driver (module ``drivers``).
The modules ``outbox`` and ``report_outbox`` handle failures of the broker. No
client of a broker is imported before ``start()`` is called.
"""

import abc
import dataclasses
import logging
import os
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

from distperiodic import ports
from distperiodic.adapters.local.clock import SystemClock
from distperiodic.adapters.messaging import drivers
from distperiodic.adapters.messaging import queue_names
from distperiodic.adapters.messaging.drops import Drops
from distperiodic.adapters.messaging.outbox import BatchOutbox
from distperiodic.adapters.messaging.reply_outbox import ReplyOutbox
from distperiodic.adapters.messaging.report_outbox import ReportOutbox
from distperiodic.core import member
from distperiodic.core import message
from distperiodic.core.control_message import ControlReply
from distperiodic.core.control_message import ControlRequest
from distperiodic.core.control_message import RequestFilter
from distperiodic.core.control_message import encode_reply
from distperiodic.core.message import Batch
from distperiodic.core.message import Notice
from distperiodic.core.message import Report
from distperiodic.core.message import Reports
from distperiodic.core.wire import Key
from distperiodic.exceptions import BusUnavailable
from distperiodic.exceptions import ConfigError
from distperiodic.exceptions import InvalidMessage
from distperiodic.ports import Carrier
from distperiodic.ports import ClosedSink
from distperiodic.ports import Inbox

LOG = logging.getLogger(__name__)


def _server(entry: str) -> str:
    return queue_names.queue_of(member.process_of(entry))


#: Callback for the commands of operators; see :class:`MessagingWorkBus`.
OnControl = Callable[[ControlRequest], str | None]


@dataclasses.dataclass(frozen=True)
class Endpoint:
    """One process at a broker: its address, and how it sends."""

    #: Configuration of the service; not changed.
    conf: Any
    #: None means ``[DEFAULT] transport_url`` of *conf*.
    transport_url: str | None
    _: dataclasses.KW_ONLY
    #: Group of the schedulers and workers.
    group: str
    #: Entry of this process in its group, from any term of the process.
    me: str
    #: Secrets that sign messages. The first key signs; messages signed with
    #: any of the keys are accepted. If empty, messages are neither signed nor
    #: checked.
    keys: Sequence[Key] = ()
    #: Use quorum queues instead of durable queues, if the broker has both.
    quorum: bool = False
    monotonic: Callable[[], float] = SystemClock().monotonic
    #: Receives an event for each message that is dropped.
    sink: ports.EventSink = dataclasses.field(default_factory=ClosedSink)


class _Bus(abc.ABC):
    """Common base of both ends of the bus.

    It receives the commands of operators, and counts dropped messages.
    """

    _connection: Carrier | None = None
    # The last connection that could not be opened.
    _failed_connection: Carrier | None = None
    _outbox: BatchOutbox | ReportOutbox | None = None
    _replies: ReplyOutbox | None = None
    _pid = 0

    def __init__(self, endpoint: Endpoint, topic: str, *,
                 on_control: OnControl | None, hears: Sequence[str] = ()):
        #: Entry of this process in its group, from any term of the process.
        self.me = endpoint.me
        queue = f'{topic}.{_server(self.me)}'
        if len(queue) > queue_names.NAME_LIMIT:
            raise ConfigError(
                f'the name of the queue {queue!r:.80}... would have '
                f'{len(queue)} characters, but AMQP allows '
                f'{queue_names.NAME_LIMIT}; shorten the group, the partition '
                'or the member id')
        self._conf = endpoint.conf
        self._transport_url = endpoint.transport_url
        self._topic = topic
        self._keys = tuple(endpoint.keys)
        self._quorum = endpoint.quorum
        self._group = group = endpoint.group
        self._hears = tuple(hears)
        if on_control is not None:
            self._hears += (
                f'{queue_names.control_topic(group)}.{queue_names.ALL}',)
        self._on_control = on_control
        self._filter = RequestFilter(group)
        self._now = SystemClock().now
        self._monotonic = endpoint.monotonic
        self._drops = Drops(endpoint.sink)

    @property
    def dropped(self) -> dict[tuple[str, str], int]:
        """Number of dropped messages, by origin and reason."""
        return self._drops.counts()

    @property
    def problem(self) -> str | None:
        """See :attr:`distperiodic.ports.Carrier.problem`."""
        # A driver of another package may leave it out.
        return getattr(self._connection, 'problem', None)

    def start(self, timeout: float = 30.0) -> None:
        """Connect, listen, and start the threads of the bus.

        :param timeout: Maximum duration of the call, in seconds.
        :raises ConfigError: the transport URL is invalid, or the bus is
            started already.
        :raises BusUnavailable: no broker accepted the connection. start() may
            then be called again.
        """
        if self._connection is not None and self._pid == os.getpid():
            raise ConfigError('the bus is already started')
        began = self._monotonic()
        failed = self._failed_connection
        if failed is not None and self._pid == os.getpid() and (
                not failed.ended(timeout)):
            # Without this check, each attempt would leave another thread that
            # hangs.
            raise BusUnavailable(
                'the broker accepted the login but accepts no messages; it '
                'may be out of memory or disk space; see its log')
        timeout -= self._monotonic() - began
        url = self._transport_url or drivers.url_of(self._conf)
        connection = drivers.driver_of(url).carrier(
            self._conf, url, inbox=Inbox(
                self._topic, _server(self.me), self._receive,
                self._drops.note, self._hears, self._quorum),
            monotonic=self._monotonic)
        # In a forked child, do not touch the parent's connection. Its threads
        # do not run here, and the parent still uses its sockets.
        self._pid, self._connection = os.getpid(), None
        self._failed_connection = connection
        # Round the timeout, so that a failure that repeats has the same text
        # in each attempt.
        connection.open(max(0.1, round(timeout, 1)))
        self._failed_connection = None
        self._begin(connection)
        self._replies = ReplyOutbox(
            lambda reply, word: connection.cast(
                queue_names.replies_topic(self._group), word,
                encode_reply(reply, self._keys)))
        self._connection = connection

    def reply(self, reply: ControlReply, word: str) -> None:
        """Send the reply to a command; never block and never raise.

        :param word: Last word of the name of the queue to which the reply is
            sent.
        """
        if self._unusable() is None and self._replies is not None:
            self._replies.put(reply, word)

    @abc.abstractmethod
    def _begin(self, connection: Carrier) -> None:
        """Start to send through *connection*, which is open."""

    def close(self, timeout: float = 5.0) -> None:
        """Send the waiting messages, then disconnect.

        Messages that cannot be sent in time are given up.

        :param timeout: Maximum duration of the call, in seconds.
        """
        deadline = self._monotonic() + timeout
        connection, self._connection = self._connection, None
        if connection is None or self._pid != os.getpid():
            return
        for outbox in (self._outbox, self._replies):
            if outbox is not None:
                outbox.close(max(0.0, deadline - self._monotonic()))
        connection.close(max(0.0, deadline - self._monotonic()))

    def _unusable(self) -> str | None:
        """Return the reason why no message can be sent now.

        None means that messages can be sent.
        """
        if self._connection is None:
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
                f'queue {self._topic}.{_server(self.me)}')
            self._drops.note(origin, str(exc))
            return
        try:
            match received:
                case ControlRequest():
                    self._take_command(received)
                case ControlReply():
                    self._drops.note(received.process,
                                     'a reply to a command, sent to a member')
                case _:
                    self._take(received)
        except Exception:
            LOG.exception('a message was lost in a callback')

    def _take_command(self, request: ControlRequest) -> None:
        """Pass on a command, unless it must be dropped."""
        refusal = self._filter.refusal(request, self._now())
        if refusal is None and self._on_control is not None:
            refusal = self._on_control(request)
        if refusal is not None:
            self._drops.note(request.sender, refusal)

    @abc.abstractmethod
    def _take(self, received: Batch | Reports | Notice) -> None:
        """Pass on a received message, if it is for this process."""


def _claimed_origin(payload: Any) -> str:
    """Return the sender that is named in a rejected message, for the log.

    The sender is not verified. Empty means that the message names no sender.
    """
    try:
        origin = payload.get('sender') or payload['reports'][0]['worker']
    except (AttributeError, KeyError, IndexError, TypeError):
        return ''
    return origin if type(origin) is str else ''


class MessagingWorkBus(_Bus):
    """The scheduler's side of the bus: sends batches and receives reports.

    Threads of the bus call the callbacks; :meth:`send` and :meth:`close` may
    also call *on_unsent*. The callbacks must not block.

    :param endpoint: The scheduler's endpoint.
    :param on_report: Called with the reports of one message.
    :param on_unsent: Called with a batch that the broker has not confirmed,
        and the reason.
    :param on_sent: Called with a batch that the broker has confirmed.
    :param on_notice: Called with the ids of tasks that were submitted or
        changed.
    :param on_control: Called with each command of an operator, unless
        :class:`.RequestFilter` rejects the command. Returns the reason to drop
        the command, or None. If *on_control* itself is None, the bus receives
        no commands.
    :param patience: Seconds without any answer from the broker after which a
        batch is given up.
    :param capacity: Maximum number of batches that wait to be sent.
    """

    def __init__(self, endpoint: Endpoint, *,
                 on_report: Callable[[list[Report]], None],
                 on_unsent: Callable[[Batch, str], None],
                 on_sent: Callable[[Batch], None],
                 on_notice: Callable[[Sequence[str]], None] = lambda ids: None,
                 on_control: OnControl | None = None,
                 patience: float = 5.0, capacity: int = 1000):
        group = endpoint.group
        super().__init__(
            endpoint, queue_names.reports_topic(group), on_control=on_control,
            hears=[f'{queue_names.notices_topic(group)}.{queue_names.ALL}'])
        self._on_notice = on_notice
        self._on_report = on_report
        self._on_unsent = on_unsent
        self._on_sent = on_sent
        self._patience = patience
        self._capacity = capacity
        self._outbox: BatchOutbox | None = None

    def send(self, batch: Batch) -> None:
        """Send *batch*; see :meth:`distperiodic.ports.WorkBus.send`."""
        reason = self._unusable()
        if reason is None and self._outbox is not None:
            self._outbox.put(batch)
        else:
            self._on_unsent(batch, reason or 'the bus is not started')

    def _begin(self, connection: Carrier) -> None:
        def publish(batch: Batch) -> None:
            connection.cast(
                queue_names.work_topic(self._group, batch.partition),
                _server(batch.worker),
                message.encode_batch(batch, self._keys))

        self._outbox = BatchOutbox(
            publish, self._on_sent, self._on_unsent, capacity=self._capacity,
            patience=self._patience, monotonic=self._monotonic)
        self._outbox.start()

    def _take(self, received: Batch | Reports | Notice) -> None:
        if isinstance(received, Notice):
            self._on_notice(received.tasks)
        elif not isinstance(received, Reports):
            self._drops.note(received.sender, 'a batch, sent to a scheduler')
        elif member.process_of(
                received.to) != member.process_of(self.me):
            # Only the process must match. Accept a report to an earlier term
            # of this process, because the scheduler may still wait for the
            # outcome of the batch. The fence decides whether the report
            # counts.
            self._drops.note(received.reports[0].worker,
                             'reports for another process', logging.INFO)
        else:
            self._on_report(received.reports)


class MessagingReportBus(_Bus):
    """The worker's side of the bus: receives batches and sends reports.

    The thread that receives messages calls *on_batch*, which must not block.

    :param endpoint: The worker's endpoint.
    :param partition: Partition of this worker.
    :param on_control: See :class:`MessagingWorkBus`.
    :param patience: Seconds after which a report is given up when an attempt
        to send it fails.
    :param capacity: Maximum number of reported objects that wait to be sent.
    """

    def __init__(self, endpoint: Endpoint, *, partition: str,
                 on_batch: Callable[[Batch], None],
                 on_control: OnControl | None = None,
                 patience: float = 60.0, capacity: int = 200_000):
        super().__init__(
            endpoint, queue_names.work_topic(endpoint.group, partition),
            on_control=on_control)
        self._on_batch = on_batch
        self._patience = patience
        self._capacity = capacity
        self._outbox: ReportOutbox | None = None

    def report(self, report: Report, to_entry: str) -> None:
        """Send *report* to the scheduler with this entry.

        The call never blocks.

        :raises BusUnavailable: the bus was not started in this process.
        """
        if (self._connection is None and self._outbox is not None
                and self._pid == os.getpid()):
            # A handler may return after its worker has stopped waiting for the
            # handler.
            self._lost(report, to_entry, 'the bus is closed')
            return
        reason = self._unusable()
        if reason is not None or self._outbox is None:
            raise BusUnavailable(reason or 'the bus is not started')
        self._outbox.put(report, to_entry)

    def forget(self, to_entry: str) -> None:
        """Drop the waiting reports to a scheduler that is gone."""
        if self._outbox is not None:
            self._outbox.forget(to_entry)

    def _begin(self, connection: Carrier) -> None:
        def publish(to_entry: str, reports: list[Report]) -> None:
            connection.cast(
                queue_names.reports_topic(self._group), _server(to_entry),
                message.encode_reports(
                    reports, to=to_entry, keys=self._keys))

        self._outbox = ReportOutbox(
            publish, self._lost, patience=self._patience,
            capacity=self._capacity, monotonic=self._monotonic)
        self._outbox.start()

    def _lost(self, report: Report, to_entry: str, reason: str) -> None:
        self._drops.note(f'this worker, to {to_entry}',
                         f'report not sent: {reason}')

    def _take(self, received: Batch | Reports | Notice) -> None:
        if isinstance(received, Notice):
            self._drops.note('an unknown sender', 'a notice, sent to a worker')
        elif not isinstance(received, Batch):
            self._drops.note(received.reports[0].worker,
                             'reports, sent to a worker')
        elif member.process_of(
                received.worker) != member.process_of(self.me):
            # Only the process must match. Pass on a batch for an earlier
            # tenure of this process. The code that starts the batch compares
            # the tenures. If they differ, it rejects the batch and reports
            # this to the sender of the batch.
            self._drops.note(received.sender, 'a batch for another process',
                             logging.INFO)
        else:
            self._on_batch(received)
