# SPDX-License-Identifier: Apache-2.0
"""The wire format: a valid message is decoded unchanged, and any other message
is rejected.
"""

import copy
import dataclasses
import json

import hypothesis
import pytest
from hypothesis import strategies as st

from distperiodic import exceptions
from distperiodic import opts
from distperiodic.core import catalogue
from distperiodic.core import message
from distperiodic.core.refusal import Refusal
from distperiodic.ports import LONGEST_MESSAGE

SCHEDULER = 'api-1~9f2c41d07be3a655~2~f1.r40'
WORKER = 'worker-1~00c0ffee00c0ffee~1~f1.s10'
TRACE = '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01'


def a_batch(**changes):
    batch = message.Batch(
        id='b-1', job='poll', tick=1_700_000_000_000_000,
        objects=['a', 'b', 'ü'], fences=[1, 2, 3], attempts=[1, 1, 2],
        sender=SCHEDULER, worker=WORKER, lease='lease-1')
    return dataclasses.replace(batch, **changes)


def a_report(**changes):
    report = message.Report(
        batch='b-1', worker=WORKER, done=[0, 2], failed=[(1, 'boom')],
        retried=[(4, 'not yet')], refused=[(3, Refusal.LEASE_ENDED)],
        lost=[6, 5], seconds=1.5)
    return dataclasses.replace(report, **changes)


def over_the_wire(value):
    return json.loads(json.dumps(value))


def an_encoded(kind, keys=()):
    encoded = (message.encode_batch(a_batch(), keys) if kind == 'run' else
               message.encode_reports([a_report()], to=SCHEDULER, keys=keys))
    return over_the_wire(encoded)


kinds = pytest.mark.parametrize('kind', ['run', 'report'])
names = st.text(st.characters(exclude_categories=['Cs']), min_size=1,
                max_size=60)
#: Ids from which the store builds names of leases.
tokens = st.from_regex(r'[A-Za-z0-9.-]{1,45}', fullmatch=True)
instants = st.integers(-10 ** 15, 10 ** 17)


@st.composite
def batches(draw):
    objects = draw(st.lists(names, min_size=1, max_size=20, unique=True))
    counts = st.lists(st.integers(0, 2 ** 63 - 1), min_size=len(objects),
                      max_size=len(objects))
    return message.Batch(
        id=draw(tokens), job=draw(names), tick=draw(instants),
        objects=objects, fences=draw(counts), attempts=draw(counts),
        sender=draw(names), worker=draw(names), lease=draw(tokens),
        priority=draw(st.integers(-100, 100)),
        waiting=draw(st.integers(0, 2 ** 63 - 1)),
        trace=draw(st.sampled_from([None, TRACE])))


@st.composite
def some_reports(draw):
    indexes = draw(st.lists(st.integers(0, message.MAX_OBJECTS - 1),
                            unique=True, max_size=20))
    ends = draw(st.lists(
        st.sampled_from(['done', 'failed', 'retried', 'refused', 'lost']),
        min_size=len(indexes), max_size=len(indexes)))
    report = message.Report(
        batch=draw(names), worker=draw(names),
        seconds=draw(st.floats(0, 10 ** 9)))
    for index, end in zip(indexes, ends, strict=True):
        if end in ('done', 'lost'):
            getattr(report, end).append(index)
        else:
            said = st.sampled_from(Refusal) if end == 'refused' else names
            getattr(report, end).append((index, draw(said)))
    return report


@hypothesis.given(batches(), st.lists(names, max_size=2))
def test_a_batch_comes_back_as_it_was_sent(batch, keys):
    encoded = over_the_wire(message.encode_batch(batch, keys))
    assert message.decode(encoded, keys) == batch


@hypothesis.given(st.lists(some_reports(), min_size=1, max_size=5), names,
                  st.lists(names, max_size=2))
def test_reports_come_back_as_they_were_sent(reports, to, keys):
    encoded = over_the_wire(
        message.encode_reports(reports, to=to, keys=keys))
    assert message.decode(encoded, keys) == message.Reports(to, reports)


# Fuzz tests: the decoder returns a value or raises InvalidMessage.

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text()
    | st.just('\ud800') | st.integers(10 ** 5000, 10 ** 5001),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20)


def decoded_or_refused(value, keys=()):
    try:
        message.decode(value, keys)
    except exceptions.InvalidMessage as exc:
        assert '\n' not in str(exc)
        assert len(str(exc)) < 500


@hypothesis.given(json_values)
def test_garbage_is_refused_and_nothing_else_is_raised(value):
    decoded_or_refused(value)


@st.composite
def mutants(draw):
    """A valid message with some values replaced, added or removed."""
    value = an_encoded(draw(st.sampled_from(['run', 'report'])),
                       draw(st.sampled_from([(), ('k',)])))
    for _ in range(draw(st.integers(1, 3))):
        inside = value
        while True:
            keys = (list(inside) if isinstance(inside, dict) else
                    list(range(len(inside))))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            deeper = inside[key]
            if isinstance(deeper, (dict, list)) and draw(st.booleans()):
                inside = deeper
                continue
            if draw(st.booleans()):
                del inside[key]
            else:
                inside[key] = draw(json_values)
            break
        if isinstance(inside, dict) and draw(st.booleans()):
            inside[draw(st.text(max_size=8))] = draw(json_values)
    return value


@hypothesis.given(mutants(), st.sampled_from([(), ('k',)]))
def test_a_damaged_message_is_refused_or_still_whole(value, keys):
    decoded_or_refused(value, keys)


def test_a_message_nested_too_deep_for_the_parser_is_refused():
    deep = []
    for _ in range(100_000):
        deep = [deep]
    for value in (deep, an_encoded('run') | {'kind': deep},
                  an_encoded('run') | {'objects': [deep]},
                  an_encoded('run') | {'more': deep}):
        with pytest.raises(exceptions.InvalidMessage):
            message.decode(value, ['key'])
    # Free the lists from the outside in; the interpreter would recurse.
    while deep:
        deep = deep.pop()


def test_keys_that_are_not_text_are_refused():
    with pytest.raises(exceptions.InvalidMessage):
        message.decode({'v': 1, 'kind': 'run', 10 ** 5000: 1, (): 2})


# Versions and kinds.

@kinds
def test_an_unknown_version_is_named(kind):
    with pytest.raises(exceptions.UnknownVersion, match=r'version 2\b'):
        message.decode(an_encoded(kind) | {'v': 2})


@pytest.mark.parametrize('version', ['1', 1.0, True, None, [1]])
def test_a_version_is_an_integer(version):
    with pytest.raises(exceptions.InvalidMessage) as refusal:
        message.decode(an_encoded('run') | {'v': version})
    assert not isinstance(refusal.value, exceptions.UnknownVersion)


def test_a_newer_message_is_recognised_before_its_fields_are_read():
    with pytest.raises(exceptions.UnknownVersion):
        message.decode({'v': 7, 'anything': ['else']})


def test_an_unknown_kind_is_named():
    with pytest.raises(exceptions.InvalidMessage, match="kind 'exec'"):
        message.decode(an_encoded('run') | {'kind': 'exec'})


# Shapes.

@pytest.mark.parametrize(('change', 'why'), [
    ({'objects': []}, '0 objects'),
    ({'objects': ['a', 'b']}, '3 fences for 2 objects'),
    ({'attempts': [1]}, '1 attempts for 3 objects'),
    ({'objects': ['a', 'b', 'a']}, 'occurs twice'),
    ({'objects': ['a', 'b', 3]}, 'objects holds an integer'),
    ({'objects': ['a', 'b', '']}, 'id has 0 characters'),
    ({'objects': ['a', 'b', 'c' * 1025]}, 'id has 1025 characters'),
    ({'objects': ['a', 'b', '\ud800']}, 'invalid Unicode'),
    ({'objects': 'abc'}, 'objects is text'),
    ({'fences': [1, 2, True]}, 'fences holds true or false'),
    ({'fences': [1, 2, 3.0]}, 'fences holds a float'),
    ({'fences': [1, 2, -1]}, 'fences is outside'),
    ({'fences': [1, 2, 2 ** 63]}, 'fences is outside'),
    ({'tick': float('nan')}, 'tick is nan'),
    ({'tick': 10 ** 18}, 'tick is outside'),
    ({'priority': None}, 'priority is nothing'),
    ({'waiting': -1}, 'waiting is outside'),
    ({'id': ''}, 'id has 0 characters'),
    ({'lease': None}, 'lease is nothing'),
    ({'lease': ''}, 'lease has 0 characters'),
    ({'lease': 'l' * 513}, 'lease has 513 characters'),
    ({'lease': '\ud800'}, 'lease holds invalid Unicode'),
    ({'job': 'j' * 513}, 'job has 513 characters'),
    ({'worker': {}}, 'worker is an object'),
    ({'command': 'rm'}, "fields unknown: 'command'"),
])
def test_a_batch_with_a_wrong_field_is_refused(change, why):
    with pytest.raises(exceptions.InvalidMessage, match=why):
        message.decode(an_encoded('run') | change)


@pytest.mark.parametrize(('change', 'why'), [
    ({'done': [0, 0]}, 'reported twice'),
    ({'done': [1]}, 'reported twice'),
    ({'done': [-1]}, 'index is outside'),
    ({'done': [message.MAX_OBJECTS]}, 'index is outside'),
    ({'done': [False]}, 'done holds true or false'),
    ({'failed': [1]}, 'failed holds an integer'),
    ({'failed': [[1]]}, r'other than \[index, reason\]'),
    ({'failed': [[1, None]]}, r'other than \[index, reason\]'),
    ({'refused': [[1.5, 'no']]}, r'other than \[index, reason\]'),
    ({'refused': [[7, 'no time']]}, "unknown refusal 'no time'"),
    ({'retried': [7]}, 'retried holds an integer'),
    ({'retried': [[7, None]]}, r'other than \[index, reason\]'),
    ({'retried': [[1, 'no']]}, 'reported twice'),
    ({'retried': [[7, 'x' * 1001]]}, '1001 characters'),
    ({'lost': None}, 'lost is nothing'),
    ({'lost': [[7, 'gone']]}, 'lost holds a list'),
    ({'lost': [0]}, 'reported twice'),
    ({'lost': [7, 7]}, 'reported twice'),
    ({'lost': [message.MAX_OBJECTS]}, 'index is outside'),
    ({'failed': [[1, 'x' * 1001]]}, '1001 characters'),
    ({'failed': [[1, '\udfff']]}, 'invalid Unicode'),
    ({'seconds': float('nan')}, 'seconds is nan'),
    ({'seconds': float('inf')}, 'seconds is inf'),
    ({'seconds': -1.0}, 'seconds is a float'),
    ({'seconds': False}, 'seconds is true or false'),
    ({'others': -1}, 'others is outside'),
    ({'others': 1.0}, 'others is a float'),
    ({'batch': 3}, 'batch is an integer'),
    ({'more': 3}, "fields unknown: 'more'"),
])
def test_a_report_with_a_wrong_field_is_refused(change, why):
    encoded = an_encoded('report')
    encoded['reports'][0].update(change)
    with pytest.raises(exceptions.InvalidMessage, match=why):
        message.decode(encoded)


@kinds
def test_a_missing_field_is_named(kind):
    for field in an_encoded(kind):
        damaged = an_encoded(kind)
        del damaged[field]
        with pytest.raises(exceptions.InvalidMessage):
            message.decode(damaged)


def test_a_field_that_is_missing_from_a_report_is_named():
    for field in an_encoded('report')['reports'][0]:
        damaged = an_encoded('report')
        del damaged['reports'][0][field]
        with pytest.raises(exceptions.InvalidMessage,
                           match=f'fields missing: {field};'):
            message.decode(damaged)


def test_the_size_of_a_report_counts_each_object_in_the_report():
    assert message.Report('b-1', WORKER).size == 0
    assert a_report().size == 7
    assert a_report(lost=[], retried=[]).size == 4


def test_too_many_objects_are_refused_by_both_sides():
    many = message.MAX_OBJECTS + 1
    batch = a_batch(objects=['x'] * many, fences=[1] * many,
                    attempts=[1] * many)
    with pytest.raises(exceptions.InvalidMessage, match='10001 objects'):
        message.encode_batch(batch)
    with pytest.raises(exceptions.InvalidMessage, match='10001 objects'):
        message.decode(an_encoded('run') | {'objects': batch.objects})


def test_too_many_reports_are_refused():
    encoded = an_encoded('report')
    encoded['reports'] *= message.MAX_OBJECTS + 1
    with pytest.raises(exceptions.InvalidMessage, match='10001 reports'):
        message.decode(encoded)


def test_a_message_that_no_reader_would_accept_is_not_sent():
    with pytest.raises(exceptions.InvalidMessage, match='objects holds'):
        message.encode_batch(a_batch(objects=['a', 'b', 3]))
    with pytest.raises(exceptions.InvalidMessage, match='0 reports'):
        message.encode_reports([], to=SCHEDULER)


@pytest.mark.parametrize('field', ['failed', 'retried'])
def test_an_error_is_cut_and_made_valid_rather_than_the_report_lost(field):
    report = a_report(**{field: [(9, '\ud800' + 'x' * 5000)]})
    encoded = message.encode_reports([report], to=SCHEDULER)
    [[index, reason]] = getattr(message.decode(encoded).reports[0], field)
    assert index == 9
    assert reason.startswith(r'\ud800xxx')
    assert len(reason) == message.MAX_REASON


def test_a_refusal_is_sent_as_its_code_which_never_changes():
    report = a_report(done=[], failed=[], retried=[], lost=[],
                      refused=[*enumerate(Refusal)])
    encoded = over_the_wire(message.encode_reports([report], to=SCHEDULER))
    assert [code for _, code in encoded['reports'][0]['refused']] == [
        'unknown_job', 'draining', 'not_a_member', 'lease_ended',
        'job_limit', 'partition_limit', 'not_active']


def test_each_refusal_has_a_sentence_of_its_own():
    assert len({code.sentence for code in Refusal}) == len(Refusal)


# Signatures.

@kinds
def test_a_signed_message_is_read_with_any_of_the_keys(kind):
    """Operators can add a new key to the readers before the signer uses it."""
    encoded = an_encoded(kind, ['new', 'old'])
    assert message.decode(encoded, ['old', 'new'])
    assert message.decode(encoded, [b'new'])
    with pytest.raises(exceptions.InvalidMessage, match='no configured key'):
        message.decode(encoded, ['old'])


@kinds
def test_an_unsigned_message_is_refused_where_keys_are_configured(kind):
    with pytest.raises(exceptions.InvalidMessage, match='not signed'):
        message.decode(an_encoded(kind), ['key'])


@kinds
def test_a_signed_message_is_read_where_no_keys_are_configured(kind):
    assert message.decode(an_encoded(kind, ['key'])) == message.decode(
        an_encoded(kind))


@kinds
@pytest.mark.parametrize('mac', [1, [], 'ü' * 64, 'f' * 63, 'F' * 64])
def test_an_invalid_signature_is_refused(kind, mac):
    with pytest.raises(exceptions.InvalidMessage, match='not a signature'):
        message.decode(an_encoded(kind) | {'mac': mac}, ['key'])


@kinds
def test_a_signature_covers_every_field(kind):
    good = an_encoded(kind, ['key'])
    others = {'objects': ['a', 'b', 'c'], 'fences': [7, 8, 9],
              'attempts': [9, 9, 9], 'kind': None, 'v': None,
              'reports': [], 'tick': 1, 'priority': 1}
    for field in good.keys() - {'mac'}:
        forged = copy.deepcopy(good)
        forged[field] = others.get(field, 'other')
        with pytest.raises(exceptions.InvalidMessage):
            message.decode(forged, ['key'])


def test_decoding_does_not_change_the_message():
    encoded = an_encoded('run', ['key'])
    before = copy.deepcopy(encoded)
    message.decode(encoded, ['key'])
    assert encoded == before


def test_an_error_does_not_repeat_the_content_of_the_message():
    """The error is logged, and an untrusted message may contain a secret."""
    with pytest.raises(exceptions.InvalidMessage) as refusal:
        message.decode(an_encoded('run') | {'tick': 'hunter2'})
    assert 'hunter2' not in str(refusal.value)


# -- traces

def test_a_batch_without_a_trace_has_exactly_the_fields_of_the_first_release():
    assert set(message.encode_batch(a_batch())) == {
        'v', 'kind', 'id', 'lease', 'job', 'tick', 'objects', 'fences',
        'attempts', 'sender', 'worker', 'priority', 'waiting'}


@pytest.mark.parametrize('value', [
    '', 'x' * 100_000, TRACE.upper(), '\ud800', f'{TRACE}\nERROR forged',
    7, None, [[TRACE]], float('nan'), {'a': 10 ** 5000}])
def test_a_malformed_trace_is_ignored_and_its_batch_accepted(value):
    encoded = an_encoded('run') | {'traceparent': value}
    assert message.decode(encoded) == a_batch()


def test_a_signature_covers_the_trace():
    encoded = message.encode_batch(a_batch(trace=TRACE), ['key'])
    assert message.decode(encoded, ['key']).trace == TRACE
    for forged in (TRACE.replace('4', '5'), 'x', 7, float('nan')):
        with pytest.raises(exceptions.InvalidMessage):
            message.decode(encoded | {'traceparent': forged}, ['key'])
    del encoded['traceparent']
    with pytest.raises(exceptions.InvalidMessage):
        message.decode(encoded, ['key'])


def test_another_kind_of_message_has_no_trace():
    with pytest.raises(exceptions.InvalidMessage, match='traceparent'):
        message.decode(an_encoded('report') | {'traceparent': TRACE})


# -- maximum length

def on_the_wire(payload):
    """Serialize *payload* as oslo.messaging does."""
    return json.dumps({'oslo.version': '2.0', 'oslo.message': json.dumps(
        {'method': 'hear', 'args': {'message': payload}})})


def test_the_longest_batch_is_accepted():
    number = next(o.type.max for o in opts.OPTS
                  if o.dest == 'dispatch_batch_size')
    objects = [f'{n:04}' + '\U0001f600' * (catalogue.MAX_ID_LENGTH - 4)
               for n in range(number)]

    sent = message.encode_batch(a_batch(
        objects=objects, fences=[2 ** 62] * number,
        attempts=[1] * number), ['key'])

    assert len(on_the_wire(sent)) < LONGEST_MESSAGE
    assert message.decode(sent, ['key']).objects == objects


@pytest.mark.parametrize('number', [1, 500, message.MAX_OBJECTS])
def test_the_longest_reports_are_accepted(number):
    reports = [message.Report('b-1', WORKER, failed=[
        (n, '\U0001f600' * 5_000) for n in range(number)])]

    sent = message.encode_reports(reports, to=SCHEDULER, keys=['key'])

    assert len(on_the_wire(sent)) < LONGEST_MESSAGE
    told, = {len(why) for report in message.decode(sent, ['key']).reports
             for _, why in report.failed}
    assert told == min(1_000, 1_000_000 // number)
