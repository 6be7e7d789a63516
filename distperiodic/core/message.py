# SPDX-License-Identifier: Apache-2.0
"""Messages between members, and their format on the wire.

There are three kinds of message. A scheduler sends a :class:`Batch`, objects
of one job and tick, to one worker. A worker sends :class:`Reports`, the
outcomes of batches, to one scheduler. A process that submits tasks sends a
:class:`Notice` to all schedulers::

    scheduler                                     worker
        |--- run    {lease, job, tick, objects} --->|
        |<-- report {done, failed, refused...} -----|
        |<-- notice {tasks} ------ any process

A message is a hint and carries no authority. The claim decides what may run,
and the jobs registered at the worker decide what code runs. So a message that
deviates from this format is rejected as a whole.

On the wire a message is a flat JSON object with lists. ``v`` is the version of
the format, and ``kind`` is the kind of the message. If others can write to the
broker, messages should be signed: ``mac`` is then the HMAC-SHA256 of the rest,
as JSON with sorted keys and without whitespace.

Limit: a signature does not prevent a replay. The address prevents most
replays, because it names one term of one process. The fence prevents all.

The file is long because it holds the writer and the reader of each format side
by side.
"""

import dataclasses
import hashlib
import hmac
import json
import math
import re
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from distperiodic import exceptions
from distperiodic.core import catalogue
from distperiodic.core.claim import Authority
from distperiodic.core.refusal import Refusal
from distperiodic.core.refusal import parse_refusal
from distperiodic.core.schedule import LAST_INSTANT
from distperiodic.core.schedule import Instant
from distperiodic.core.workflow import StepInput

VERSION = 1

#: Maximum number of objects in a batch. It bounds the work of the reader, and
#: is larger than any pool.
MAX_OBJECTS = 10_000
#: Maximum characters of a batch id, a job name and a membership entry.
MAX_NAME = 512
#: Maximum characters of an error. Longer errors are cut when sent.
MAX_REASON = 1_000
#: Maximum characters of all errors in one message. If there are more, each
#: error is cut.
MAX_REASONS = 1_000_000

_MAX_INT = 2 ** 63 - 1
# First instant that a datetime can represent, in the year 1.
_FIRST_INSTANT = -62_135_596_800_000_000
_TOKEN_LENGTH = 45
_TOKEN = re.compile(rf'[A-Za-z0-9.-]{{1,{_TOKEN_LENGTH}}}')
_MAC = re.compile(r'[0-9a-f]{64}\Z')

_BATCH_FIELDS = frozenset((
    'v', 'kind', 'id', 'lease', 'job', 'tick', 'objects', 'fences',
    'attempts', 'sender', 'worker', 'partition', 'priority', 'expires'))
_REPORTS_FIELDS = frozenset(('v', 'kind', 'to', 'reports'))
_NOTICE_FIELDS = frozenset(('v', 'kind', 'tasks'))
_REPORT_FIELDS = frozenset((
    'batch', 'worker', 'done', 'failed', 'retried', 'refused', 'lost',
    'seconds'))

Key = str | bytes

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
    partition: str = 'default'  # the partition of the worker
    priority: int = 0  # higher first
    expires: Instant | None = None  # None: never too late to run
    #: Progress of earlier attempts, as JSON by object. Never sent: the process
    #: that runs the batch reads it from the store. None means no progress.
    progress: dict[str, str] | None = None
    #: What the runs of a command receive, by task. Never sent, as with
    #: *progress*. None means that the job is no command.
    steps: Mapping[str, StepInput] | None = None
    #: Authority that grants the runs. Never sent: a worker uses its store, if
    #: it has one.
    authority: Authority = Authority.STORE


@dataclasses.dataclass(slots=True)
class Report:
    """Outcome of a batch, or of a part of it.

    A report refers to objects by their index in the batch, to each object at
    most once.
    """

    batch: str
    worker: str  # the worker's membership entry
    done: list[int] = dataclasses.field(default_factory=list)
    failed: list[tuple[int, str]] = dataclasses.field(default_factory=list)
    #: Failed; they wait for their next attempt.
    retried: list[tuple[int, str]] = dataclasses.field(default_factory=list)
    #: Not started.
    refused: list[tuple[int, Refusal]] = dataclasses.field(
        default_factory=list)
    #: Not granted: their claims have changed or have another holder.
    lost: list[int] = dataclasses.field(default_factory=list)
    seconds: float = 0.0  # total time in the handlers
    #: Progress of runs, as JSON. Never sent: the reporting process writes it
    #: to its store.
    progress: list[tuple[int, str]] = dataclasses.field(default_factory=list)
    #: Tracebacks of failed runs. Never sent, as with *progress*.
    tracebacks: dict[int, str] = dataclasses.field(default_factory=dict)
    #: What commands returned, as JSON. Never sent, as with *progress*.
    results: dict[int, str] = dataclasses.field(default_factory=dict)

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
    """Tasks that were submitted or changed, so that a scheduler looks at them
    at once and not at its next sweep.
    """

    tasks: list[str]


def encode_notice(notice: Notice, keys: Sequence[Key] = ()) -> dict[str, Any]:
    """Return *notice* as a JSON object.

    :param keys: If not empty, the first key signs the message.
    :raises InvalidMessage: Every reader would reject the message.
    """
    message = {'v': VERSION, 'kind': 'notice', 'tasks': notice.tasks}
    _check_notice(message)
    return _signed(message, keys)


def encode_batch(batch: Batch, keys: Sequence[Key] = ()) -> dict[str, Any]:
    """Return *batch* as a JSON object.

    :param keys: If not empty, the first key signs the message.
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
        'partition': batch.partition,
        'priority': batch.priority,
        'expires': batch.expires,
    }
    _check_batch(message)
    return _signed(message, keys)


def encode_reports(reports: Sequence[Report], *, to: str,
                   keys: Sequence[Key] = ()) -> dict[str, Any]:
    """Return *reports* to the scheduler *to* as a JSON object.

    Errors are cut to :data:`MAX_REASON` characters, or fewer if there are many
    errors. Invalid characters in them are escaped, so that a malformed error
    of a handler cannot prevent its report.

    :param keys: If not empty, the first key signs the message.
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
            'failed': [[i, _clean(why, room)] for i, why in report.failed],
            'retried': [[i, _clean(why, room)] for i, why in report.retried],
            'refused': [[i, code.value] for i, code in report.refused],
            'lost': report.lost,
            'seconds': report.seconds,
        } for report in reports],
    }
    _check_reports(message)
    return _signed(message, keys)


def decode(message: Any, keys: Collection[Key] = ()
           ) -> Batch | Reports | Notice:
    """Return the batch, the reports or the notice in *message*.

    :param message: Parsed JSON.
    :param keys: If not empty, one of the keys must have signed the message.
    :raises UnknownVersion: The message has another version of the format.
    :raises InvalidMessage: The message is invalid in any other way.
    """
    if type(message) is not dict:
        raise _Invalid(
            'a message must be a JSON object, but this is '
            f'{_kind_of(message)}')
    version = message.get('v')
    if type(version) is not int:
        raise _Invalid(
            f'the version (field v) is {_kind_of(version)}, not an integer')
    if version != VERSION:
        shown = version if 0 <= version < 1_000_000 else '(unknown)'
        raise exceptions.UnknownVersion(
            f'the message has version {shown}, but this release supports '
            f'version {VERSION}; upgrade the older side')
    mac = None
    if 'mac' in message:
        message = dict(message)
        mac = message.pop('mac')
    match message.get('kind'):
        case 'run':
            _check_batch(message)
        case 'report':
            _check_reports(message)
        case 'notice':
            _check_notice(message)
        case unknown:
            raise _Invalid(f'unknown kind {_shown(unknown)}')
    # Check the shape before the signature. A valid message is flat and has
    # only finite numbers, so writing it as JSON for the signature cannot fail.
    if keys:
        _verify(message, mac, keys)
    if message['kind'] == 'notice':
        return Notice(message['tasks'])
    if message['kind'] == 'run':
        return Batch(
            message['id'], message['job'], message['tick'],
            message['objects'], message['fences'], message['attempts'],
            message['sender'], message['worker'], message['lease'],
            message['partition'],
            message['priority'], message['expires'])
    return Reports(message['to'], [
        Report(r['batch'], r['worker'], r['done'],
               [(i, why) for i, why in r['failed']],
               [(i, why) for i, why in r['retried']],
               [(i, code) for i, text in r['refused']
                if (code := parse_refusal(text)) is not None], r['lost'],
               float(r['seconds']))
        for r in message['reports']])


def _check_batch(message: Mapping[str, Any]) -> None:
    _check_fields(message, _BATCH_FIELDS)
    for field in ('job', 'sender', 'worker', 'partition'):
        _check_name(field, message[field])
    for field in ('id', 'lease'):
        # Both become part of the name of a lease in the store.
        _check_name(field, message[field])
        if not _TOKEN.fullmatch(message[field]):
            raise _Invalid(f'{field} is not 1 to {_TOKEN_LENGTH} of A-Z a-z '
                           '0-9 . -')
    _check_int('tick', message['tick'], _FIRST_INSTANT, LAST_INSTANT)
    _check_int('priority', message['priority'], -_MAX_INT, _MAX_INT)
    if message['expires'] is not None:
        _check_int('expires', message['expires'],
                   _FIRST_INSTANT, LAST_INSTANT)
    objects = message['objects']
    _check_list('objects', objects, str)
    if not 0 < len(objects) <= MAX_OBJECTS:
        raise _Invalid(f'{len(objects)} objects in one batch; it holds '
                             f'1 to {MAX_OBJECTS}')
    lengths = list(map(len, objects))
    if not min(lengths) or max(lengths) > catalogue.MAX_ID_LENGTH:
        wrong = max(lengths) if min(lengths) else 0
        raise _Invalid(f'an object id of {wrong} characters; it has 1 '
                             f'to {catalogue.MAX_ID_LENGTH}')
    if len(set(objects)) != len(objects):
        raise _Invalid('an object occurs twice in one batch')
    _check_text('objects', ''.join(objects))
    for field in ('fences', 'attempts'):
        numbers = message[field]
        _check_list(field, numbers, int)
        if len(numbers) != len(objects):
            raise _Invalid(
                f'{len(numbers)} {field} for {len(objects)} objects')
        _check_int(field, min(numbers), 0, _MAX_INT)
        _check_int(field, max(numbers), 0, _MAX_INT)


def _check_notice(message: Mapping[str, Any]) -> None:
    _check_fields(message, _NOTICE_FIELDS)
    tasks = message['tasks']
    _check_list('tasks', tasks, str)
    if not 0 < len(tasks) <= MAX_OBJECTS:
        raise _Invalid(f'{len(tasks)} tasks in one notice; it holds 1 to '
                       f'{MAX_OBJECTS}')
    for task in tasks:
        _check_name('tasks', task)


def _check_reports(message: Mapping[str, Any]) -> None:
    _check_fields(message, _REPORTS_FIELDS)
    _check_name('to', message['to'])
    reports = message['reports']
    _check_list('reports', reports, dict)
    if not 0 < len(reports) <= MAX_OBJECTS:
        raise _Invalid(f'{len(reports)} reports in one message; it '
                             f'holds 1 to {MAX_OBJECTS}')
    total = 0
    for report in reports:
        _check_fields(report, _REPORT_FIELDS)
        _check_name('batch', report['batch'])
        _check_name('worker', report['worker'])
        seconds = report['seconds']
        if (type(seconds) not in (int, float)
                or not 0 <= seconds <= _MAX_INT):
            raise _Invalid(
                f'seconds is {_kind_of(seconds)}, not a duration')
        seen: list[int] = []
        for field in ('done', 'lost'):
            _check_list(field, report[field], int)
            seen += report[field]
        for field in ('failed', 'retried', 'refused'):
            pairs = report[field]
            _check_list(field, pairs, list)
            for pair in pairs:
                if (len(pair) != 2 or type(pair[0]) is not int
                        or type(pair[1]) is not str):
                    raise _Invalid(
                        f'{field} holds something other than [index, reason]')
                if len(pair[1]) > MAX_REASON:
                    raise _Invalid(
                        f'a reason of {len(pair[1])} characters; the limit '
                        f'is {MAX_REASON}')
                _check_text(field, pair[1])
                if (field == 'refused'
                    and parse_refusal(pair[1]) is None):
                    raise _Invalid(f'unknown refusal {_shown(pair[1])}')
                seen.append(pair[0])
        if seen:
            _check_int('index', min(seen), 0, MAX_OBJECTS - 1)
            _check_int('index', max(seen), 0, MAX_OBJECTS - 1)
            if len(set(seen)) != len(seen):
                raise _Invalid('an object is reported twice')
        total += len(seen)
    if total > 10 * MAX_OBJECTS:
        raise _Invalid(f'{total} objects in one message of reports; '
                             f'the limit is {10 * MAX_OBJECTS}')


def _check_fields(message: Mapping[str, Any], fields: frozenset[str]) -> None:
    if message.keys() != fields:
        missing = sorted(fields - message.keys())
        unknown = [_shown(k) for k in message if k not in fields][:3]
        raise _Invalid(
            f'fields missing: {", ".join(missing) or "none"}; fields unknown: '
            f'{", ".join(unknown) or "none"}')


def _check_list(field: str, values: Any, kind: type) -> None:
    if type(values) is not list:
        raise _Invalid(f'{field} is {_kind_of(values)}, not a list')
    # This runs in C, and is exact: isinstance() accepts True as an int.
    if values and set(map(type, values)) != {kind}:
        strange = next(v for v in values if type(v) is not kind)
        raise _Invalid(f'{field} holds {_kind_of(strange)}, not only '
                             f'{_KINDS[kind]}')


def _check_int(field: str, value: Any, least: int, most: int) -> None:
    if type(value) is not int:
        raise _Invalid(f'{field} is {_kind_of(value)}, not an integer')
    if not least <= value <= most:
        raise _Invalid(f'{field} is outside {least} to {most}')


def _check_name(field: str, value: Any) -> None:
    if type(value) is not str:
        raise _Invalid(f'{field} is {_kind_of(value)}, not text')
    if not 0 < len(value) <= MAX_NAME:
        raise _Invalid(f'{field} has {len(value)} characters; it has '
                             f'1 to {MAX_NAME}')
    _check_text(field, value)


def _check_text(field: str, text: str) -> None:
    # JSON can encode half of a surrogate pair, but neither the log nor the
    # store can write it.
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as exc:
            raise _Invalid(
                f'{field} holds invalid Unicode ({exc.reason})') from None


def _clean(reason: str, room: int) -> str:
    text = str(reason)[:room]
    try:
        text.encode()
    except UnicodeEncodeError:
        text = text.encode(errors='backslashreplace').decode()[:room]
    return text


_KINDS = {str: 'text', int: 'an integer', list: 'a list', dict: 'an object',
          float: 'a float', bool: 'true or false', type(None): 'nothing'}


def _kind_of(value: Any) -> str:
    """Return the kind of *value*, never its content: it may be a secret."""
    if type(value) is float and not math.isfinite(value):
        return str(value)
    return _KINDS.get(type(value), type(value).__name__)


def _shown(word: Any) -> str:
    return f'{word!r:.40}' if type(word) is str else _kind_of(word)


def _mac(message: Mapping[str, Any], key: Key) -> str:
    text = json.dumps(message, sort_keys=True, separators=(',', ':'),
                      allow_nan=False)
    secret = key.encode() if isinstance(key, str) else key
    return hmac.new(secret, text.encode(), hashlib.sha256).hexdigest()


def _signed(message: dict[str, Any],
            keys: Sequence[Key]) -> dict[str, Any]:
    if keys:
        message['mac'] = _mac(message, keys[0])
    return message


def _verify(message: Mapping[str, Any], mac: Any,
            keys: Collection[Key]) -> None:
    if mac is None:
        raise _Invalid('the message is not signed, but this process has '
                       'signing keys; configure them on both sides')
    if type(mac) is not str or not _MAC.match(mac):
        raise _Invalid('mac is not a signature')
    # Try every key, so that the duration does not reveal which key matches.
    matches = [hmac.compare_digest(_mac(message, key), mac) for key in keys]
    if not any(matches):
        raise _Invalid('wrong signature: no configured key matches')
