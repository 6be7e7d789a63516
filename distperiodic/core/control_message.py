# SPDX-License-Identifier: Apache-2.0
"""Format of operators' commands and of the replies on the bus.

An operator's process sends a :class:`ControlRequest` to all members of a
group. With a store the request is a hint: each member reads its row in the
store at once, and obeys the row. Without a store each member that the request
names obeys the request itself, and sends a :class:`ControlReply`.

A command that a member obeys names the processes that must obey it. So a copy
of a signed command has no effect: the process has received its id before, and
a later process of the same member has another name.

Limits: a copy of a hint, or of a request for the state, can be sent to a
process that starts within :data:`MAX_AGE` seconds after it was sent. If
requests are not signed, any program that can write to the broker can send a
request.
"""

import dataclasses
import json
import re
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from distperiodic.core import values
from distperiodic.core.control import Verb
from distperiodic.core.schedule import LAST_INSTANT
from distperiodic.core.schedule import SECOND
from distperiodic.core.schedule import Instant
from distperiodic.core.wire import FIRST_INSTANT
from distperiodic.core.wire import MAX_INT
from distperiodic.core.wire import MAX_NAME
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
from distperiodic.exceptions import InvalidMessage

#: Maximum number of members that a request names.
MAX_MEMBERS = 10_000
#: Maximum number of characters of a reason and of an outcome.
MAX_REASON = 1_000
#: Maximum number of characters of the state of a member, as JSON.
MAX_STATE = 100_000
#: Maximum age of a request in seconds. The clocks of the operator and of a
#: member may also differ by up to this number of seconds.
MAX_AGE = 60
#: Maximum number of requests that a member accepts in 2 * MAX_AGE seconds.
MAX_REQUESTS = 10_000

#: Commands that are not in :class:`~distperiodic.core.control.Verb`, and that
#: a member with a store treats as hints.
HINTS = frozenset(('partition promote',))
_KNOWN = HINTS | {str(verb) for verb in Verb}

_MOST_ARGUMENTS = 10
_ID = re.compile(r'[0-9a-f]{32}')
_WORD = re.compile(r'[0-9a-z]{0,32}')
_REQUEST_FIELDS = frozenset((
    'v', 'kind', 'id', 'group', 'verb', 'arguments', 'members', 'sender',
    'why', 'sent', 'reply'))
_RUN_FIELDS: Mapping[str, tuple[type, ...]] = {
    'job': (str,), 'object': (str,), 'tick': (int,), 'attempt': (int,),
    'age_s': (int, float), 'progress': (str, type(None))}
_REPLY_FIELDS = frozenset((
    'v', 'kind', 'request', 'part', 'name', 'process', 'done', 'outcome',
    'state'))


@dataclasses.dataclass(frozen=True, slots=True)
class ControlRequest:
    """A command of an operator to members of one group."""

    id: str
    group: str
    #: The text of a :class:`~distperiodic.core.control.Verb`, one of
    #: :data:`HINTS`, or a command that this release does not know.
    verb: str
    arguments: Mapping[str, Any]
    #: Partition, name and process of each member that must obey. An empty
    #: partition means a scheduler, and an empty process means any process. An
    #: empty sequence means all members.
    members: Sequence[tuple[str, str, str]]
    sender: str  # user@host
    why: str
    sent: Instant
    #: Last part of the name of the queue for replies. Empty means that the
    #: request is only a hint.
    reply: str = ''

    def names(self, part: str, name: str) -> bool:
        """Return whether the request names this member or all members."""
        return not self.members or any(
            (part, name) == one[:2] for one in self.members)

    def commands(self, part: str, name: str, process: str) -> bool:
        """Return whether this process of a member may obey the request.

        Any process may report its state. For all other commands, the request
        must name the process.
        """
        return (self.verb == Verb.SHOW
                or (part, name, process) in self.members)


@dataclasses.dataclass(frozen=True, slots=True)
class ControlReply:
    """The reply of one member to a request."""

    request: str
    part: str
    name: str
    process: str
    done: bool
    outcome: str
    #: Current state of the member, as JSON. Empty means that the state was not
    #: requested.
    state: str = ''


def encode_request(request: ControlRequest,
                   keys: Sequence[Key] = ()) -> dict[str, Any]:
    """Return *request* as a JSON object.

    :param keys: The first key, if there is one, signs the message.
    :raises InvalidMessage: Every reader would reject the message.
    """
    message = {
        'v': VERSION, 'kind': 'control', 'id': request.id,
        'group': request.group, 'verb': str(request.verb),
        'arguments': dict(request.arguments),
        'members': [list(one) for one in request.members],
        'sender': clean(request.sender, MAX_NAME),
        'why': clean(request.why, MAX_REASON), 'sent': request.sent,
        'reply': request.reply}
    check_request(message)
    return sign(message, keys)


def encode_reply(reply: ControlReply,
                 keys: Sequence[Key] = ()) -> dict[str, Any]:
    """Return *reply* as a JSON object.

    :param keys: The first key, if there is one, signs the message.
    :raises InvalidMessage: Every reader would reject the message.
    """
    message = {
        'v': VERSION, 'kind': 'reply', 'request': reply.request,
        'part': reply.part, 'name': reply.name, 'process': reply.process,
        'done': reply.done, 'outcome': clean(reply.outcome, MAX_REASON),
        'state': reply.state}
    check_reply(message)
    return sign(message, keys)


def check_request(message: Mapping[str, Any]) -> None:
    """Check the shape of a request; :class:`RequestFilter` checks its content.

    :raises InvalidMessage: The shape is wrong.
    """
    check_fields(message, _REQUEST_FIELDS)
    for field in ('group', 'verb', 'sender'):
        check_name(field, message[field])
    _check_pattern('id', message['id'], _ID)
    _check_pattern('reply', message['reply'], _WORD)
    _check_length('why', message['why'], MAX_REASON)
    check_int('sent', message['sent'], FIRST_INSTANT, LAST_INSTANT)
    arguments = message['arguments']
    if type(arguments) is not dict:
        raise InvalidMessage(
            f'arguments is {kind_of(arguments)}, not an object')
    if len(arguments) > _MOST_ARGUMENTS:
        raise InvalidMessage(f'{len(arguments)} arguments; the limit is '
                             f'{_MOST_ARGUMENTS}')
    for name, value in arguments.items():
        check_name('arguments', name)
        if type(value) is int:
            check_int('arguments', value, -MAX_INT, MAX_INT)
        elif value is not None:
            _check_length('arguments', value, MAX_NAME)
    members = message['members']
    check_list('members', members, list)
    if len(members) > MAX_MEMBERS:
        raise InvalidMessage(f'{len(members)} members in one request; the '
                             f'limit is {MAX_MEMBERS}')
    for member in members:
        check_list('members', member, str)
        if len(member) != 3:
            raise InvalidMessage(
                'members holds something other than [partition, name, '
                'process]')
        _check_length('members', member[0], MAX_NAME)
        check_name('members', member[1])
        _check_length('members', member[2], MAX_NAME)


def check_reply(message: Mapping[str, Any]) -> None:
    """Check the shape of a reply.

    :raises InvalidMessage: The shape is wrong.
    """
    check_fields(message, _REPLY_FIELDS)
    _check_pattern('request', message['request'], _ID)
    for field in ('name', 'process'):
        check_name(field, message[field])
    _check_length('part', message['part'], MAX_NAME)
    _check_length('outcome', message['outcome'], MAX_REASON)
    if type(message['done']) is not bool:
        raise InvalidMessage(
            f'done is {kind_of(message["done"])}, not true or false')
    _check_length('state', message['state'], MAX_STATE)
    state_of(message['state'])


def request_of(message: Mapping[str, Any]) -> ControlRequest:
    """Return the request in a *message* that passed :func:`check_request`."""
    return ControlRequest(
        message['id'], message['group'], message['verb'],
        message['arguments'],
        [(part, name, process)
         for part, name, process in message['members']],
        message['sender'], message['why'], message['sent'], message['reply'])


def reply_of(message: Mapping[str, Any]) -> ControlReply:
    """Return the reply in a *message* that passed :func:`check_reply`."""
    return ControlReply(**{name: value for name, value in message.items()
                           if name not in ('v', 'kind')})


def state_of(text: str) -> dict[str, Any]:
    """Return the state in a reply. If the text is empty, so is the state.

    :raises InvalidMessage: The text is not the state of a member.
    """
    try:
        state = json.loads(text or '{}')
        values.json_text(state, 2 * MAX_STATE)
    except (ValueError, RecursionError):
        raise InvalidMessage('state is not JSON, or too large') from None
    if not isinstance(state, dict):
        raise InvalidMessage(f'state is {kind_of(state)}, not an object')
    pools = state.get('pools', {})
    if type(pools) is not dict or not all(
            type(pool) is dict and type(pool.get('busy')) is int
            and type(pool.get('queued', 0)) is int
            for pool in pools.values()):
        raise InvalidMessage('pools in state is not an object of valid pools')
    runs = state.get('runs', [])
    if type(runs) is not list or not all(map(_is_run, runs)):
        raise InvalidMessage('runs in state is not a list of valid runs')
    return state


def _is_run(run: Any) -> bool:
    return type(run) is dict and all(
        type(run.get(name)) in kinds for name, kinds in _RUN_FIELDS.items()
        ) and 0 <= run['age_s'] <= MAX_INT


def _check_length(field: str, value: Any, most: int) -> None:
    if type(value) is not str:
        raise InvalidMessage(f'{field} is {kind_of(value)}, not text')
    if len(value) > most:
        raise InvalidMessage(
            f'{field} has {len(value)} characters; the limit is {most}')
    check_text(field, value)


def _check_pattern(field: str, value: Any, pattern: re.Pattern[str]) -> None:
    if type(value) is not str or not pattern.fullmatch(value):
        raise InvalidMessage(f'{field} is not {pattern.pattern}')


class RequestFilter:
    """Filter that rejects invalid and repeated requests to one process.

    :param group: Group of the process.
    """

    def __init__(self, group: str):
        self._group = group
        #: Instant at which each received request becomes too old, by id.
        self._seen: dict[str, Instant] = {}

    def refusal(self, request: ControlRequest, now: Instant) -> str | None:
        """Return the reason to reject *request*, or None if it is valid.

        The call records the id of a valid request, and rejects a later request
        with the same id.

        :param now: Time by the clock of this process.
        """
        if request.group != self._group:
            return f'a command to another group, {shown(request.group)}'
        if request.verb not in _KNOWN:
            return f'an unknown command, {shown(request.verb)}'
        expires = request.sent + MAX_AGE * SECOND
        if expires < now:
            return f'a command that is older than {MAX_AGE} s'
        if request.sent - MAX_AGE * SECOND > now:
            return (f'a command from more than {MAX_AGE} s in the future; '
                    'compare the clocks')
        if request.id in self._seen:
            return 'a command that was received before'
        if len(self._seen) >= MAX_REQUESTS:
            self._seen = {one: end for one, end in self._seen.items()
                          if end >= now}
        if len(self._seen) >= MAX_REQUESTS:
            return f'a command beyond {MAX_REQUESTS} in {2 * MAX_AGE} s'
        self._seen[request.id] = expires
        return None
