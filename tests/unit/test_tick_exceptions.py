# SPDX-License-Identifier: Apache-2.0
"""Records of the objects that did not run as planned."""

import pytest

from distperiodic.core import tick_exceptions

HOSTILE = ['', '"', '\\', ', ', '", "', '\n', 'a\nb', '\n"a"\n', '\x85\u2028',
           '\U0001f600' * 255, 'é', 'e\u0301', "'; DROP TABLE x --", 'a', 'aa']


def exception(keys, tick=600, after=599, outcome='dead'):
    return tick_exceptions.TickException(
        outcome, after, tick, 'api-1', 0, '', len(keys),
        tick_exceptions.packed(keys))


@pytest.mark.parametrize('key', HOSTILE)
def test_an_object_is_found_among_others_and_only_if_it_is_there(key):
    others = [one for one in HOSTILE if one != key]

    assert exception(HOSTILE).has(key)
    assert not exception(others).has(key)
    assert exception([key]).has(key)


def test_the_ids_are_read_as_they_were_written():
    assert exception(HOSTILE).keys() == HOSTILE


def test_an_id_needs_few_bytes():
    """A record of a million objects must stay small."""
    keys = [f'instance-{n:08x}' for n in range(500)]

    assert len(exception(keys).objects) < 5 * len(keys)


def test_an_exception_covers_the_ticks_that_its_objects_missed():
    one = exception(['a'], tick=600, after=300)

    assert [one.covers(tick) for tick in (300, 301, 600, 601)] == [
        False, True, True, False]


@pytest.mark.parametrize('length', [
    1, 2, 16, 17, 256, 257, 60_000_000, 2 ** 62])
def test_the_class_of_an_exception_is_the_first_that_is_long_enough(length):
    span = tick_exceptions.span_of(1000, 1000 + length)

    assert tick_exceptions.SPANS[span] >= length
    assert span == 0 or tick_exceptions.SPANS[span - 1] < length


def test_the_past_of_an_object_has_its_exceptions_and_the_unknown_ones():
    known = exception(['a', 'b'])
    later = exception(['a'], tick=700, after=500, outcome='by_lost')
    cut = known._replace(objects=None, number=7)
    found = [known, exception(['b']), exception(['a'], tick=500, after=499),
             later, cut, cut._replace(tick=500, after=499)]

    past = tick_exceptions.past_of(found, 'a', 600)

    assert list(past.own) == [known, later]
    assert past.unknown == {'dead': 7}
