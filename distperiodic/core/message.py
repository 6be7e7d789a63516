# SPDX-License-Identifier: Apache-2.0
"""Messages between members, and their format on the wire.

There are five kinds of message. A scheduler sends a :class:`Batch` to a
worker: objects of one job and tick, to run. A worker sends :class:`Reports` to
a scheduler: the outcomes of batches. A process that submits or changes tasks
sends a :class:`Notice` to all schedulers::

    scheduler                                     worker
        |--- run    {lease, job, tick, objects} --->|
        |<-- report {done, failed, refused...} -----|
        |<-- notice {tasks} ------ any process
        |<-- control {command} -- an operator ----->|
        |--- reply {outcome} ---> the operator <----|

The last two kinds are in :mod:`distperiodic.core.control_message`.

If a worker shares a store with the schedulers, a message alone does not permit
a run: the worker runs an object only if the store grants the run. Without a
shared store, a scheduler grants the runs in its own memory before it sends a
batch, and the worker runs the batch without another check of the claims. A
worker runs only jobs that are registered in it. A message that deviates from
this format is rejected as a whole.

On the wire a message is a flat JSON object with lists. The field ``v`` is the
version of the format, and ``kind`` is the kind of the message. Messages should
be signed if other programs can write to the broker. The field ``mac`` is then
the HMAC-SHA256 of the other fields, as JSON with sorted keys and without
whitespace.

Limit: a signature does not prevent a replay. A process rejects batches and
reports that are addressed to another process, such as its predecessor of the
same name. A worker also drops a batch whose id it remembers. With a shared
store, no replayed batch starts a run, because its claims were already granted.
A replayed notice only makes schedulers check its tasks again.
"""

import dataclasses
import re
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

from distperiodic import exceptions
from distperiodic.core import catalogue
from distperiodic.core import control_message
from distperiodic.core.claim import Authority
from distperiodic.core.control_message import ControlReply
from distperiodic.core.control_message import ControlRequest
from distperiodic.core.refusal import Refusal
from distperiodic.core.schedule import LAST_INSTANT
from distperiodic.core.schedule import Instant
from distperiodic.core.trace_context import parse_trace
from distperiodic.core.wire import FIRST_INSTANT
from distperiodic.core.wire import MAX_INT
from distperiodic.core.wire import VERSION
from distperiodic.core.wire import Key
from distperiodic.core.wire import check_fields
from distperiodic.core.wire import check_int
from distperiodic.core.wire import check_list
from distperiodic.core.wire import check_name
from distperiodic.core.wire import check_text
from distperiodic.core.wire import clean
from distperiodic.core.wire import kind_of
from distperiodic.core.wire import shown
from distperiodic.core.wire import sign
from distperiodic.core.wire import verify
from distperiodic.core.workflow import StepInput

#: Maximum number of objects in a batch. It limits the work of the process that
#: reads the message. No worker has more threads than this.
MAX_OBJECTS = 10_000
#: Batch id of a report that concerns no batch. No batch has this id.
NO_BATCH = '0'
#: Maximum number of characters of an error. Longer errors are truncated when
#: they are sent.
MAX_REASON = 1_000
#: Maximum number of characters of all errors in one message. The limit of each
#: error is lower if a message has many errors.
MAX_REASONS = 1_000_000

_TOKEN_LENGTH = 45
_TOKEN = re.compile(rf'[A-Za-z0-9.-]{{1,{_TOKEN_LENGTH}}}')

_BATCH_FIELDS = frozenset((
    'v', 'kind', 'id', 'lease', 'job', 'tick', 'objects', 'fences',
    'attempts', 'sender', 'worker', 'priority', 'waiting'))
_TRACEPARENT = 'traceparent'
_OPTIONAL_BATCH_FIELDS = frozenset((_TRACEPARENT,))
_REPORTS_FIELDS = frozenset(('v', 'kind', 'to', 'reports'))
_NOTICE_FIELDS = frozenset(('v', 'kind', 'tasks'))
_REPORT_FIELDS = frozenset((
    'batch', 'worker', 'done', 'failed', 'retried', 'refused', 'lost',
    'seconds', 'others'))

_REFUSALS = frozenset(Refusal)

_Invalid = exceptions.InvalidMessage


@dataclasses.dataclass(slots=True)
class Batch:
    """Objects of one job and tick, for one worker to run."""

    id: str
    job: str
    tick: Instant
    objects: list[str]
    fences: list[int]  # fences of the claims, one per object
    attempts: list[int]  # numbers of the attempts, one per object
    sender: str  # the scheduler's membership entry
    worker: str  # the worker's membership entry
    lease: str  # the lease in which the claims wait
    #: The partition of the worker. It is not part of the message: the queue of
    #: a worker belongs to one partition.
    partition: str = 'default'
    priority: int = 0  # higher first
    #: Number of claims that wait at the sender for a worker of the partition.
    waiting: int = 0
    #: Trace context of the span that sends the batch; see
    #: :mod:`distperiodic.core.trace_context`. None means that there is no
    #: span, or that the worker does not know this field.
    trace: str | None = None
    #: Progress of earlier attempts, as JSON by object. None means no progress.
    #: The progress is not part of the message: the worker reads it from the
    #: store.
    progress: dict[str, str] | None = None
    #: Inputs of the runs of a command, by task. None means that the job is not
    #: a command, or that the inputs have not been read yet. The inputs are not
    #: part of the message: the worker reads them from the store.
    steps: Mapping[str, StepInput] | None = None
    #: Authority that grants the runs. The authority is not part of the
    #: message: a worker that shares a store always uses this store.
    authority: Authority = Authority.STORE


class Timing(NamedTuple):
    """When one run began and how long it lasted, or several short runs.

    Several runs are those of one thread, one after the other, and of objects
    that follow each other in the batch.
    """

    #: Index of the first of these objects in the batch.
    at: int
    #: Number of first attempts among these runs.
    first: int
    #: Number of runs.
    runs: int
    #: Monotonic time at which the first of these runs began, in seconds.
    began: float
    #: Total duration of these runs, in seconds.
    seconds: float


@dataclasses.dataclass(slots=True)
class Report:
    """Outcome of a batch, or of a part of it.

    A report names an object by its index in the batch. A report names each
    object at most once.
    """

    batch: str
    worker: str  # the worker's membership entry
    done: list[int] = dataclasses.field(default_factory=list)
    failed: list[tuple[int, str]] = dataclasses.field(default_factory=list)
    #: Objects whose run failed and will be retried.
    retried: list[tuple[int, str]] = dataclasses.field(default_factory=list)
    #: Objects whose run was not started.
    refused: list[tuple[int, Refusal]] = dataclasses.field(
        default_factory=list)
    #: Objects that were not granted, or whose results the store has rejected,
    #: because their claims have changed or are in another lease.
    lost: list[int] = dataclasses.field(default_factory=list)
    seconds: float = 0.0  # total time in the handlers
    #: Progress of runs, as JSON. The progress is not part of the message: the
    #: worker writes it to the store.
    progress: list[tuple[int, str]] = dataclasses.field(default_factory=list)
    #: Tracebacks of failed runs. The tracebacks are not part of the message:
    #: the worker writes them to the store.
    tracebacks: dict[int, str] = dataclasses.field(default_factory=dict)
    #: Return values of commands, as JSON. The values are not part of the
    #: message: the worker writes them to the store.
    results: dict[int, str] = dataclasses.field(default_factory=dict)
    #: Times of the runs. They are not part of the message: only the process
    #: that ran the handlers can compare the times of its monotonic clock.
    timings: Sequence[Timing] = ()
    #: Number of runs that the worker has held recently for other senders:
    #: those that run, and those that wait for a slot. None means unknown.
    others: int | None = None

    @property
    def size(self) -> int:
        """Number of objects in the report."""
        return (len(self.done) + len(self.failed) + len(self.retried)
                + len(self.refused) + len(self.lost))


@dataclasses.dataclass(slots=True)
class Reports:
    """Reports to one scheduler, in one message."""

    to: str  # the scheduler's membership entry
    reports: list[Report]


@dataclasses.dataclass(slots=True)
class Notice:
    """Ids of tasks that were submitted or changed.

    A scheduler that receives a notice checks these tasks at once, and does not
    wait for its next sweep.
    """

    tasks: list[str]


def encode_notice(notice: Notice, keys: Sequence[Key] = ()) -> dict[str, Any]:
    """Return *notice* as a JSON object.

    :param keys: The first key, if there is one, signs the message.
    :raises InvalidMessage: Every reader would reject the message.
    """
    message = {'v': VERSION, 'kind': 'notice', 'tasks': notice.tasks}
    _check_notice(message)
    return sign(message, keys)


def encode_batch(batch: Batch, keys: Sequence[Key] = ()) -> dict[str, Any]:
    """Return *batch* as a JSON object.

    :param keys: The first key, if there is one, signs the message.
    :raises InvalidMessage: Every reader would reject the message.
    """
    message = {
        'v': VERSION,
        'kind': 'run',
        'id': batch.id,
        'lease': batch.lease,
        'job': batch.job,
        'tick': batch.tick,
        'objects': batch.objects,
        'fences': batch.fences,
        'attempts': batch.attempts,
        'sender': batch.sender,
        'worker': batch.worker,
        'priority': batch.priority,
        'waiting': batch.waiting,
    }
    if batch.trace is not None:
        message[_TRACEPARENT] = batch.trace
    _check_batch(message)
    return sign(message, keys)


def encode_reports(reports: Sequence[Report], *, to: str,
                   keys: Sequence[Key] = ()) -> dict[str, Any]:
    """Return *reports* as a JSON object.

    Each error is truncated to :data:`MAX_REASON` characters, or to fewer if
    there are many errors. Invalid characters in an error are escaped.
    Otherwise an exception with malformed text could not be reported.

    :param to: Membership entry of the scheduler that receives the reports.
    :param keys: The first key, if there is one, signs the message.
    :raises InvalidMessage: Every reader would reject the message.
    """
    number = sum(len(report.failed) + len(report.retried)
                 for report in reports)
    room = min(MAX_REASON, MAX_REASONS // max(1, number))
    message = {
        'v': VERSION,
        'kind': 'report',
        'to': to,
        'reports': [{
            'batch': report.batch,
            'worker': report.worker,
            'done': report.done,
            'failed': [[i, clean(why, room)] for i, why in report.failed],
            'retried': [[i, clean(why, room)] for i, why in report.retried],
            'refused': [[i, code.value] for i, code in report.refused],
            'lost': report.lost,
            'seconds': report.seconds,
            'others': report.others,
        } for report in reports],
    }
    _check_reports(message)
    return sign(message, keys)


#: Any message.
Message = Batch | Reports | Notice | ControlRequest | ControlReply


def decode(message: Any, keys: Collection[Key] = ()) -> Message:
    """Return the content of *message*.

    :param message: Parsed JSON.
    :param keys: If there are keys, one of them must have signed the message.
    :raises UnknownVersion: The message has another version of the format.
    :raises InvalidMessage: The message is invalid in any other way.
    """
    if type(message) is not dict:
        raise _Invalid(
            'a message must be a JSON object, but this is '
            f'{kind_of(message)}')
    version = message.get('v')
    if type(version) is not int:
        raise _Invalid(
            f'the version (field v) is {kind_of(version)}, not an integer')
    if version != VERSION:
        found = version if 0 <= version < 1_000_000 else '(unknown)'
        raise exceptions.UnknownVersion(
            f'the message has version {found}, but this release supports '
            f'version {VERSION}; upgrade the older side')
    mac = None
    if 'mac' in message:
        message = dict(message)
        mac = message.pop('mac')
    match message.get('kind'):
        case 'run':
            if type(message.get(_TRACEPARENT, '')) is not str:
                # A trace must not prevent a run. But only text can certainly
                # be written as JSON, to check the signature.
                message = {name: value for name, value in message.items()
                           if name != _TRACEPARENT}
            _check_batch(message)
        case 'report':
            _check_reports(message)
        case 'notice':
            _check_notice(message)
        case 'control':
            control_message.check_request(message)
        case 'reply':
            control_message.check_reply(message)
        case unknown:
            raise _Invalid(f'unknown kind {shown(unknown)}')
    # Check the format before the signature. The signature is computed from the
    # message as JSON. A message in the correct format can always be written as
    # JSON, because the message is flat and has only finite numbers.
    if keys:
        verify(message, mac, keys)
    if message['kind'] == 'notice':
        return Notice(message['tasks'])
    if message['kind'] == 'control':
        return control_message.request_of(message)
    if message['kind'] == 'reply':
        return control_message.reply_of(message)
    if message['kind'] == 'run':
        return Batch(
            message['id'], message['job'], message['tick'],
            message['objects'], message['fences'], message['attempts'],
            message['sender'], message['worker'], message['lease'],
            priority=message['priority'], waiting=message['waiting'],
            trace=parse_trace(message.get(_TRACEPARENT)))
    return Reports(message['to'], [
        Report(r['batch'], r['worker'], r['done'],
               [(i, why) for i, why in r['failed']],
               [(i, why) for i, why in r['retried']],
               [(i, Refusal(code)) for i, code in r['refused']], r['lost'],
               float(r['seconds']), others=r['others'])
        for r in message['reports']])


def _check_batch(message: Mapping[str, Any]) -> None:
    check_fields(message, _BATCH_FIELDS, _OPTIONAL_BATCH_FIELDS)
    for field in ('job', 'sender', 'worker'):
        check_name(field, message[field])
    for field in ('id', 'lease'):
        # The id and the lease become part of the name of a lease in the store.
        check_name(field, message[field])
        if not _TOKEN.fullmatch(message[field]):
            raise _Invalid(f'{field} is not 1 to {_TOKEN_LENGTH} of A-Z a-z '
                           '0-9 . -')
    check_int('tick', message['tick'], FIRST_INSTANT, LAST_INSTANT)
    check_int('priority', message['priority'], -MAX_INT, MAX_INT)
    check_int('waiting', message['waiting'], 0, MAX_INT)
    objects = message['objects']
    check_list('objects', objects, str)
    if not 0 < len(objects) <= MAX_OBJECTS:
        raise _Invalid(f'a batch has {len(objects)} objects; it must have 1 '
                       f'to {MAX_OBJECTS}')
    lengths = list(map(len, objects))
    if not min(lengths) or max(lengths) > catalogue.MAX_ID_LENGTH:
        wrong = max(lengths) if min(lengths) else 0
        raise _Invalid(f'an object id has {wrong} characters; it must have 1 '
                       f'to {catalogue.MAX_ID_LENGTH}')
    if len(set(objects)) != len(objects):
        raise _Invalid('an object occurs twice in one batch')
    check_text('objects', ''.join(objects))
    for field in ('fences', 'attempts'):
        numbers = message[field]
        check_list(field, numbers, int)
        if len(numbers) != len(objects):
            raise _Invalid(
                f'{len(numbers)} {field} for {len(objects)} objects')
        check_int(field, min(numbers), 0, MAX_INT)
        check_int(field, max(numbers), 0, MAX_INT)


def _check_notice(message: Mapping[str, Any]) -> None:
    check_fields(message, _NOTICE_FIELDS)
    tasks = message['tasks']
    check_list('tasks', tasks, str)
    if not 0 < len(tasks) <= MAX_OBJECTS:
        raise _Invalid(f'a notice has {len(tasks)} tasks; it must have 1 to '
                       f'{MAX_OBJECTS}')
    for task in tasks:
        check_name('tasks', task)


def _check_reports(message: Mapping[str, Any]) -> None:
    check_fields(message, _REPORTS_FIELDS)
    check_name('to', message['to'])
    reports = message['reports']
    check_list('reports', reports, dict)
    if not 0 < len(reports) <= MAX_OBJECTS:
        raise _Invalid(f'a message has {len(reports)} reports; it must have 1 '
                       f'to {MAX_OBJECTS}')
    total = 0
    for report in reports:
        check_fields(report, _REPORT_FIELDS)
        check_name('batch', report['batch'])
        check_name('worker', report['worker'])
        seconds = report['seconds']
        if (type(seconds) not in (int, float)
                or not 0 <= seconds <= MAX_INT):
            raise _Invalid(
                f'seconds is {kind_of(seconds)}; it must be a number from '
                f'0 to {MAX_INT}')
        if report['others'] is not None:
            check_int('others', report['others'], 0, MAX_INT)
        seen: list[int] = []
        for field in ('done', 'lost'):
            check_list(field, report[field], int)
            seen += report[field]
        for field in ('failed', 'retried', 'refused'):
            pairs = report[field]
            check_list(field, pairs, list)
            for pair in pairs:
                if (len(pair) != 2 or type(pair[0]) is not int
                        or type(pair[1]) is not str):
                    raise _Invalid(
                        f'{field} holds something other than [index, reason]')
                if len(pair[1]) > MAX_REASON:
                    raise _Invalid(
                        f'a reason of {len(pair[1])} characters; the limit '
                        f'is {MAX_REASON}')
                check_text(field, pair[1])
                if field == 'refused' and pair[1] not in _REFUSALS:
                    raise _Invalid(f'unknown refusal {shown(pair[1])}')
                seen.append(pair[0])
        if seen:
            check_int('index', min(seen), 0, MAX_OBJECTS - 1)
            check_int('index', max(seen), 0, MAX_OBJECTS - 1)
            if len(set(seen)) != len(seen):
                raise _Invalid('an object is reported twice')
        total += len(seen)
    if total > 10 * MAX_OBJECTS:
        raise _Invalid(f'{total} objects in one message of reports; '
                             f'the limit is {10 * MAX_OBJECTS}')
