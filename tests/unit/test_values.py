# SPDX-License-Identifier: Apache-2.0
"""Values from outside: what passes the check can be used without an error."""

import collections.abc
import copy
import datetime
import enum
import json
import math
import pickle
import sys
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distperiodic import exceptions
from distperiodic.adapters.sql import task_arguments
from distperiodic.core import definitions
from distperiodic.core import message
from distperiodic.core import task_pool
from distperiodic.core import task_values
from distperiodic.core import values
from distperiodic.core.context import Context
from distperiodic.core.context import RunInput


class Unpleasant:

    def __repr__(self):
        raise RuntimeError('no text')

    __str__ = __hash__ = __repr__


class Sneaky(dict):
    """A dictionary that looks harmless at first."""

    def items(self):
        raise RuntimeError('no items')

    __iter__ = keys = __len__ = items


class Hostile(collections.abc.Mapping):

    def __getitem__(self, key):
        raise SystemError

    __len__ = __iter__ = __getitem__


class Word(str):

    def __str__(self):
        raise RuntimeError('no text')

    __len__ = isascii = encode = __str__


class Colour(enum.StrEnum):
    RED = 'red'


class Number(enum.IntEnum):
    ONE = 1


def nested(depth, kind=list):
    found = 1
    for _ in range(depth):
        found = [found] if kind is list else {'a': found}
    return found


def cyclic():
    found = {}
    found['self'] = [found]
    return found


def bomb():
    found = ['x' * 100]
    for _ in range(50):
        found = [found, found]
    return found


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text()
    | st.sampled_from(['\0', '\ud800', '\udfff\ud800', '\U0001f600',
                       'a' * 99]),
    lambda inner: st.lists(inner) | st.tuples(inner, inner)
    | st.dictionaries(st.text() | st.integers() | st.none(), inner),
    max_leaves=20)
_ODD = {
    'bytes': lambda: b'bytes', 'set': lambda: {1, 'a'}, 'frozen': frozenset,
    'date': lambda: datetime.datetime(2026, 1, 1), 'object': object,
    'complex': lambda: 1j, 'nan': lambda: math.nan, 'inf': lambda: math.inf,
    'large': lambda: 10 ** 300, 'huge': lambda: -10 ** 5000,
    'deep': lambda: nested(100), 'deeper': lambda: nested(101),
    'found': lambda: nested(500, dict), 'nearly': lambda: nested(980),
    'deepest': lambda: nested(50_000), 'bomb': bomb, 'cyclic': cyclic,
    'unpleasant': Unpleasant, 'sneaky': lambda: Sneaky(a=1),
    'key': lambda: {Word('k'): Sneaky()}, 'word': lambda: Word('w'),
    'surrogate': lambda: Word('\ud800'), 'colour': lambda: Colour.RED,
    'number': lambda: Number.ONE, 'long': lambda: 'x' * 2_000_000,
    'proxy': lambda: types.MappingProxyType({'a': 1}),
    'mixed': lambda: {'a': {1: 2, 'b': 3}}, 'range': lambda: range(3),
    'iterator': lambda: iter([]), 'type': lambda: type, 'dots': lambda: ...,
    'wide': lambda: dict.fromkeys(map(str, range(50_000))),
    'hostile': Hostile,
}


def use(text):
    """Use a checked value as the product does."""
    found = json.loads(text)
    assert json.loads(json.dumps(
        found, sort_keys=True, allow_nan=False)) == found
    assert pickle.loads(pickle.dumps(found)) == found  # noqa: S301
    assert copy.deepcopy(found) == found
    repr(found)
    text.encode()


def check(value):
    """Give a value to everything that takes one from outside."""
    context = Context(RunInput('job', 'object', 0, 1, 1))
    for take, error in (
            (lambda value: values.json_text(value, 1_000_000),
             values.InvalidValue),
            (task_arguments.parameters_text, exceptions.InvalidTask),
            (lambda value: task_arguments.parameters_text({'a': value}),
             exceptions.InvalidTask),
            (task_values.result_text, exceptions.InvalidTask),
            (lambda value: setattr(context, 'progress', value),
             exceptions.InvalidProgress),
            (definitions.parse_workflows, exceptions.InvalidWorkflow),
            (lambda value: definitions.parse_workflows({'a': [value]}),
             exceptions.InvalidWorkflow),
            (lambda value: definitions.parse_workflows({'a': [{'normal': {
                'module': 'm', 'command': value, 'timeout': value,
                'retry': value}}]}), exceptions.InvalidWorkflow),
            (message.decode, exceptions.InvalidMessage),
            (lambda value: message.decode(
                {'v': 1, 'kind': value, 'tasks': value}),
             exceptions.InvalidMessage),
            (lambda value: message.decode(
                {'v': 1, 'kind': 'notice', 'tasks': [value]}),
             exceptions.InvalidMessage),
            (task_pool.key_of, exceptions.InvalidPoolRequest),
            (task_pool.check_limit, exceptions.InvalidPoolRequest),
            (task_pool.check_worker, exceptions.InvalidPoolRequest),
            (lambda value: task_pool.places_of({'a': value}),
             exceptions.InvalidPoolRequest),
            (lambda value: task_pool.keys_of([value]),
             exceptions.InvalidPoolRequest)):
        try:
            text = take(value)
        except error as exc:
            # One short line says what is wrong.
            assert 0 < len(str(exc)) < 700
            str(exc).encode()
            continue
        if isinstance(text, str) and error is not (
                exceptions.InvalidPoolRequest):
            use(text)
    unsaved = context.take_unsaved()
    if unsaved is not None:
        use(unsaved)
    assert len(values.shown(value, 60)) <= 60


@given(_JSON)
def test_a_value_is_refused_or_can_be_used_ever_after(value):
    check(value)


@pytest.mark.parametrize('name', [
    pytest.param(name, marks=pytest.mark.full if name == 'wide' else ())
    for name in _ODD])
def test_an_odd_value_is_refused_or_can_be_used_ever_after(name):
    check(_ODD[name]())


@pytest.mark.parametrize('kind', [list, dict])
def test_each_kind_of_level_counts(kind):
    deepest = nested(values.MAX_DEPTH, kind)
    assert values.json_text(deepest, 10_000)

    with pytest.raises(values.InvalidValue, match='deep'):
        values.json_text(nested(values.MAX_DEPTH + 1, kind), 10_000)


def test_a_value_is_refused_as_well_with_little_room_on_the_stack():
    def deep(left):
        return deep(left - 1) if left else values.json_text(
            nested(90), 1_000_000)
    frame, used = sys._getframe(), 0
    while frame is not None:
        frame, used = frame.f_back, used + 1

    with pytest.raises(values.InvalidValue, match='deep'):
        deep(sys.getrecursionlimit() - used - 50)


@pytest.mark.parametrize('value, place', [
    ({'a': [{'b': {1: 2}}]}, 'a[0].b: the key 1 '),
    ({1: 2, 'a': 3}, 'the key 1 '),
    ({'a': {None: 1, 'b': 1}}, 'a: the key None '),
    ({'a': [0, math.nan]}, 'a[1]: JSON has no number nan'),
    ({'a': {'b': b'x'}}, "a.b: JSON has no bytes, b'x'"),
    ({'a': {'b\ud800': 1}}, 'a: the text '),
    ({'a': ['\ud800']}, 'a[0]: the text '),
    ({'a': 10 ** 300}, 'a: the number has more than 300 digits'),
])
def test_an_error_names_the_place_of_the_value(value, place):
    with pytest.raises(exceptions.InvalidTask, match='^parameters ') as caught:
        task_arguments.parameters_text(value)

    assert f'JSON: {place}' in str(caught.value)


def test_a_subclass_becomes_the_type_of_json():
    text = values.json_text(
        [Colour.RED, Number.ONE, Word('w'), Sneaky(a=-0.0)], 100)

    assert text == '["red", 1, "w", {"a": -0.0}]'


def test_the_size_is_exact_if_it_is_not_extreme():
    assert len(values.json_text('x' * 98, 100)) == 100
    with pytest.raises(values.InvalidValue, match=' 101 characters'):
        values.json_text('x' * 99, 100)
    with pytest.raises(values.InvalidValue, match='more than 400 characters'):
        values.json_text('x' * 9_999, 100)


def test_a_value_that_refers_to_itself_often_takes_no_time():
    with pytest.raises(values.InvalidValue, match='characters'):
        values.json_text(bomb(), 1_000_000)
