# SPDX-License-Identifier: Apache-2.0
"""Commands over the bus: a valid message is decoded unchanged, and any other
message is rejected.
"""

import copy
import dataclasses
import json

import hypothesis
import pytest
from hypothesis import strategies as st

from distperiodic import exceptions
from distperiodic.core import message
from distperiodic.core.control import Verb
from distperiodic.core.control_message import HINTS
from distperiodic.core.control_message import MAX_MEMBERS
from distperiodic.core.control_message import MAX_REASON
from distperiodic.core.control_message import MAX_REQUESTS
from distperiodic.core.control_message import ControlReply
from distperiodic.core.control_message import ControlRequest
from distperiodic.core.control_message import RequestFilter
from distperiodic.core.control_message import encode_reply
from distperiodic.core.control_message import encode_request

NOW = 1_700_000_000_000_000
SECOND = 1_000_000
ID = '0123456789abcdef' * 2
RUN = {'job': 'beat', 'object': 'group', 'tick': NOW, 'attempt': 1,
       'age_s': 2.5, 'progress': '{"page": 7}'}


def a_request(**changes):
    request = ControlRequest(
        ID, 'cloud', Verb.SET, {'pool_size': 4},
        [('', 'api-1', 'api-1~1'), ('default', 'api-1', '')],
        'ops@host', 'new kernel', NOW, 'w0rd')
    return dataclasses.replace(request, **changes)


def a_reply(**changes):
    reply = ControlReply(
        ID, 'default', 'api-1', 'api-1~00c0ffee', True, 'drained; 7 in flight',
        json.dumps({'pools': {'default': {'size': 4, 'busy': 1, 'queued': 9}},
                    'runs': [RUN]}))
    return dataclasses.replace(reply, **changes)


def over_the_wire(value):
    return json.loads(json.dumps(value))


def an_encoded(kind, keys=()):
    return over_the_wire(
        encode_request(a_request(), keys) if kind == 'control'
        else encode_reply(a_reply(), keys))


kinds = pytest.mark.parametrize('kind', ['control', 'reply'])
names = st.text(st.characters(exclude_categories=['Cs']), min_size=1,
                max_size=60)
ids = st.from_regex(r'[0-9a-f]{32}', fullmatch=True)
requests = st.builds(
    ControlRequest, ids, names, names, st.dictionaries(
        names, st.none() | st.integers(-2 ** 63 + 1, 2 ** 63 - 1) | names,
        max_size=5),
    st.lists(st.tuples(st.just('') | names, names, st.just('') | names),
             max_size=5), names,
    st.just('') | names, st.integers(0, 10 ** 17),
    st.from_regex(r'[0-9a-z]{0,32}', fullmatch=True))
replies = st.builds(
    ControlReply, ids, st.just('') | names, names, names, st.booleans(),
    st.just('') | names, st.just('') | st.just('{"pid": 1}'))


@hypothesis.given(requests, st.lists(names, max_size=2))
def test_a_command_comes_back_as_it_was_sent(request, keys):
    encoded = over_the_wire(encode_request(request, keys))

    assert message.decode(encoded, keys) == request


@hypothesis.given(replies, st.lists(names, max_size=2))
def test_a_reply_comes_back_as_it_was_sent(reply, keys):
    encoded = over_the_wire(encode_reply(reply, keys))

    assert message.decode(encoded, keys) == reply


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text()
    | st.just('\ud800') | st.integers(10 ** 5000, 10 ** 5001),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20)


@hypothesis.given(st.sampled_from(['control', 'reply']),
                  st.sampled_from([(), ('k',)]), st.data())
def test_a_message_that_was_changed_is_refused_and_nothing_else_is_raised(
        kind, keys, data):
    encoded = an_encoded(kind, keys)
    field = data.draw(st.sampled_from(sorted(encoded)))
    encoded[field] = data.draw(json_values)

    try:
        decoded = message.decode(encoded, keys)
    except exceptions.InvalidMessage as exc:
        assert '\n' not in str(exc)
        assert len(str(exc)) < 500
    else:
        # With keys, only the original message has a valid signature.
        assert not keys or encoded == an_encoded(kind, keys)
        assert isinstance(decoded, (ControlRequest, ControlReply))


@kinds
def test_each_field_is_needed_and_no_other_is_known(kind):
    for field in an_encoded(kind):
        encoded = an_encoded(kind)
        del encoded[field]
        with pytest.raises(exceptions.InvalidMessage):
            message.decode(encoded)
    with pytest.raises(exceptions.InvalidMessage):
        message.decode(an_encoded(kind) | {'also': 1})


@kinds
def test_each_field_is_signed(kind):
    encoded = an_encoded(kind, ['key'])
    for field in sorted(encoded.keys() - {'v', 'kind', 'mac'}):
        changed = copy.deepcopy(encoded)
        other = changed[field]
        changed[field] = (
            {} if isinstance(other, dict) else [] if isinstance(other, list)
            else not other if isinstance(other, bool)
            else other + 1 if isinstance(other, int)
            else 'f' * 32 if field in ('id', 'request')
            else '' if field == 'state' else f'{other}x')
        with pytest.raises(exceptions.InvalidMessage, match='signature'):
            message.decode(changed, ['key'])


@kinds
def test_a_message_without_a_signature_is_refused_where_keys_are_set(kind):
    with pytest.raises(exceptions.InvalidMessage, match='not signed'):
        message.decode(an_encoded(kind), ['key'])


@pytest.mark.parametrize('changes', [
    {'id': 'a'}, {'id': ID + '0'}, {'reply': 'A.b'}, {'reply': '#'},
    {'reply': 'x' * 33}, {'group': ''}, {'sender': ''}, {'sent': 1.5},
    {'sent': True}, {'verb': 'x' * 513}, {'arguments': []},
    {'arguments': {'a': 1.5}}, {'arguments': {'a': True}},
    {'arguments': {'a': []}}, {'arguments': {'a': 2 ** 63}},
    {'arguments': {'a': 'x' * 513}}, {'arguments': {'': 1}},
    {'arguments': {str(n): n for n in range(11)}},
    {'members': ['ab']}, {'members': [['a']]}, {'members': [['', '', 'c']]},
    {'members': [['a', 'b']]}, {'members': [[1, 'b', 'c']]},
    {'members': {}}, {'why': 'x' * (MAX_REASON + 1)}, {'why': '\ud800'},
    {'members': [['', 'a', '']] * (MAX_MEMBERS + 1)},
])
def test_a_command_that_cannot_be_is_refused(changes):
    with pytest.raises(exceptions.InvalidMessage):
        message.decode(an_encoded('control') | changes)


@pytest.mark.parametrize('changes', [
    {'request': 'a'}, {'done': 1}, {'done': None}, {'name': ''},
    {'process': ''}, {'part': 1}, {'outcome': 'x' * (MAX_REASON + 1)},
    {'state': 'x'}, {'state': '[]'}, {'state': '{"pools": 1}'},
    {'state': '{"pools": {"a": {}}}'}, {'state': '[' * 90_000},
    {'state': '{"pools": {"a": {"busy": 1, "queued": "x"}}}'},
    {'state': '{"runs": {}}'}, {'state': '{"runs": ["x"]}'},
    {'state': '{"runs": [{"job": "a"}]}'},
    *({'state': json.dumps({'runs': [RUN | wrong]})} for wrong in (
        {'age_s': float('nan')}, {'age_s': -1}, {'object': 1},
        {'progress': {}}, {'tick': '0'})),
    {'state': '{"a": "' + 'x' * 100_000 + '"}'},
])
def test_a_reply_that_cannot_be_is_refused(changes):
    with pytest.raises(exceptions.InvalidMessage):
        message.decode(an_encoded('reply') | changes)


def test_a_long_reason_is_cut_and_an_invalid_one_is_escaped():
    encoded = encode_request(a_request(why='\ud800' * MAX_REASON * 2))

    assert len(message.decode(encoded).why) == MAX_REASON


# Rejected commands.

def refusal(now=NOW, **changes):
    return RequestFilter('cloud').refusal(a_request(**changes), now)


@pytest.mark.parametrize('verb', [*Verb, *sorted(HINTS)])
def test_a_command_that_is_known_counts(verb):
    assert refusal(verb=verb) is None


@pytest.mark.parametrize('changes, said', [
    ({'verb': 'member paint'}, "unknown command, 'member paint'"),
    ({'group': 'clouds'}, "another group, 'clouds'"),
    ({'now': NOW + 61 * SECOND}, 'older than 60 s'),
    ({'now': NOW - 61 * SECOND}, '60 s in the future'),
])
def test_a_command_that_must_not_be_obeyed_is_refused(changes, said):
    assert said in refusal(**changes)


@pytest.mark.parametrize('seconds', [-59, 59])
def test_clocks_may_differ_by_less_than_a_minute(seconds):
    assert refusal(now=NOW + seconds * SECOND) is None


@pytest.mark.parametrize('first', [-59, 0, 59])
def test_a_command_counts_once_as_long_as_it_may_count_at_all(first):
    kept = RequestFilter('cloud')
    assert kept.refusal(a_request(), NOW + first * SECOND) is None

    for seconds in range(first, 65):
        # The filter must remember the command in spite of many others.
        kept.refusal(a_request(id=f'{seconds + 100:032x}',
                               sent=NOW + seconds * SECOND),
                     NOW + seconds * SECOND)
        assert kept.refusal(a_request(), NOW + seconds * SECOND), seconds


def test_a_flood_of_commands_is_refused_until_it_is_over():
    flooded = RequestFilter('cloud')
    for number in range(MAX_REQUESTS + 1):
        said = flooded.refusal(a_request(id=f'{number:032x}'), NOW)

    assert f'beyond {MAX_REQUESTS}' in said
    later = NOW + 61 * SECOND
    assert flooded.refusal(a_request(id='f' * 32, sent=later), later) is None


@pytest.mark.parametrize('members, named', [
    ([], True), ([('', 'api-1')], True), ([('default', 'api-1')], False),
    ([('', 'api-2'), ('', 'api-1')], True), ([('', 'api-2')], False)])
def test_a_command_is_for_those_that_it_names_or_for_all(members, named):
    assert a_request(members=members).names('', 'api-1') is named
