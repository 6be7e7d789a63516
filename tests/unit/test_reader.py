# SPDX-License-Identifier: Apache-2.0
"""Catalogue methods, read in threads of the scheduler's process."""

import queue
import threading
import time
import types

import pytest

from distperiodic.adapters.local import reader
from distperiodic.adapters.local.reader import ThreadReader
from distperiodic.core import ring
from distperiodic.core import schedule
from distperiodic.core.attributes import Attributes
from distperiodic.core.catalogue import Catalogue
from tests.kept import kept
from tests.logged import lines
from tests.unit.world import job
from tests.unit.world import thing

LIMIT = 20.0
LOCAL = 'distperiodic.adapters.local.reader'
ARCS = (ring.Arc(ring.MIN_POSITION, 0),)


class Reading:
    """A reader whose methods are given by the name of the job."""

    def __init__(self, **methods):
        self.answers = queue.SimpleQueue()
        self.reader = ThreadReader(
            methods.get, lambda *answer: self.answers.put(answer))
        self.tickets = iter(range(1, 10 ** 6))

    def ask(self, name='poll', **options):
        ticket = next(self.tickets)
        self.reader.read(
            job(name, objects=True, **options), 60_000_000, ticket, ARCS)
        return ticket

    def read(self, name='poll', **options):
        """Read; return the exception or (catalogue, attributes, partial)."""
        ticket = self.ask(name, **options)
        answer = self.answers.get(timeout=LIMIT)
        assert answer[:2] == (name, ticket)
        return answer[2]


def gives(*objects):
    return Reading(poll=lambda context: list(objects))


def test_a_catalogue_is_read_in_a_thread_of_its_own():
    threads = []
    reading = Reading(poll=lambda context: [
        threads.append(threading.current_thread()) or 'a'])

    found, own, partial = reading.read()

    assert found.ids == ['a']
    assert (own, partial) == ({}, False)
    assert threads[0] is not threading.current_thread()
    assert threads[0].daemon


def test_a_thread_without_work_ends_and_another_one_reads(monkeypatch):
    monkeypatch.setattr(reader, '_IDLE', 0.05)
    threads = []
    reading = Reading(poll=lambda context: threads.append(
        threading.current_thread()) or [])

    for _ in range(2):
        reading.read()
        threads[-1].join(LIMIT)
        assert not threads[-1].is_alive()

    assert len(set(threads)) == 2


def test_no_request_is_lost_while_threads_end(monkeypatch):
    """A thread waits too long just after it was chosen for a request."""
    class Slow(queue.SimpleQueue):
        def put(self, item):
            time.sleep(0.01)
            super().put(item)
    monkeypatch.setattr(reader, '_IDLE', 0.004)
    monkeypatch.setattr(reader, 'queue', types.SimpleNamespace(
        SimpleQueue=Slow, Empty=queue.Empty))
    reading = Reading(poll=lambda context: [])

    for _ in range(50):
        assert reading.read()[0].ids == []


def test_the_method_gets_the_job_and_the_tick():
    seen = []
    reading = Reading(poll=lambda context: seen.append(context) or [])

    reading.read()

    assert seen[0].job == 'poll'
    assert seen[0].tick == schedule.datetime_of(60_000_000)


def test_a_method_that_takes_arcs_gets_the_part_of_this_member():
    def poll(context, arcs):
        return [f'{arcs}']
    found, _, partial = Reading(poll=poll).read()

    assert found.ids == [f'{ARCS}']
    assert partial


@pytest.mark.parametrize('given', [
    ['a', 'b'], ('a', 'b'), {'a': 1, 'b': 2}, iter(['a', 'b']),
    (key for key in 'ab'), [thing('a'), thing('b')]])
def test_a_method_may_yield_its_objects_in_any_way(given):
    found, _, _ = Reading(poll=lambda context: given).read()

    assert found.ids == ['a', 'b']


@pytest.mark.parametrize('given', [None, 'node-1', b'node-1', 7, object()])
def test_an_answer_that_is_not_a_list_of_objects_is_an_error(given):
    answer = Reading(poll=lambda context: given).read()

    assert isinstance(answer, Exception)
    if given is None:
        assert str(answer) == (
            'list_poll returned None; return a list of objects, an empty '
            'one if there are none')


@pytest.mark.parametrize('error', [
    RuntimeError('no database'), SystemExit(3), KeyboardInterrupt(),
    GeneratorExit()])
def test_any_error_of_a_method_is_returned(error):
    def poll(context):
        raise error
    reading = Reading(poll=poll)

    answer = reading.read()

    assert isinstance(answer, Exception)
    assert type(error).__name__ in f'{type(answer).__name__}: {answer}'
    # The exception does not end the thread.
    assert isinstance(reading.read(), Exception)


def test_an_exception_without_a_text_is_an_answer_too():
    class Wordless(Exception):
        def __str__(self):
            raise RuntimeError('no text')

    def poll(context):
        raise Wordless

    answer = Reading(poll=poll).read()

    assert str(answer) == 'Wordless: an exception without a text'


def test_a_generator_that_fails_half_way_is_an_error():
    def poll(context):
        yield 'a'
        raise ConnectionError('gone')

    assert isinstance(Reading(poll=poll).read(), ConnectionError)


def test_a_method_that_never_returns_keeps_no_other_waiting():
    forever = threading.Event()
    reading = Reading(hangs=lambda context: forever.wait(LIMIT) and [],
                      poll=lambda context: ['a'])

    for _ in range(3):
        reading.ask('hangs')
    found, _, _ = reading.read()

    assert found.ids == ['a']
    forever.set()


def test_a_thread_that_is_free_reads_the_next_catalogue():
    before = threading.active_count()
    reading = gives('a')

    for _ in range(50):
        reading.read()

    # A thread is not idle until shortly after its answer, so a second thread
    # may start.
    assert threading.active_count() <= before + 2


def test_where_no_thread_can_be_started_the_read_has_failed(monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")
    monkeypatch.setattr(threading.Thread, 'start', refuse)

    answer = gives('a').read()

    assert str(answer) == "can't start new thread"


def test_an_unchanged_list_is_the_same_catalogue():
    objects = [f'object-{n}' for n in range(100)]
    reading = Reading(poll=lambda context: list(objects))

    first, _, _ = reading.read()
    second, _, _ = reading.read()
    objects.append('another')
    third, _, _ = reading.read()

    assert first is second
    assert third is not first
    assert len(third) == 101


def test_a_reader_keeps_one_catalogue_of_each_job():
    reading = Reading(poll=lambda context: [next(numbers)])
    numbers = iter(range(10 ** 6))

    for _ in range(20):
        reading.read()

    assert kept(reading.reader, Catalogue) == 1


def test_the_order_of_a_spread_job_is_made_in_the_readers_thread(
        monkeypatch):
    threads = set()
    phase_us = schedule.phase_us

    def noted(*args):
        threads.add(threading.current_thread())
        return phase_us(*args)
    monkeypatch.setattr(schedule, 'phase_us', noted)
    found, _, _ = gives('a', 'b').read(spread=True)

    assert len(found.by_phase(60_000_000)[0]) == 2
    assert threads and threading.current_thread() not in threads


def test_objects_bring_their_own_schedules():
    found, own, _ = gives(
        thing('quick', spacing=5.0), thing('plain', spacing=None),
        thing('nightly', cron='0 2 * * *', timezone='Europe/Berlin'),
        thing(7, spacing=5.0)).read()

    assert found.ids == ['quick', 'plain', 'nightly', '7']
    assert own == {
        'quick': Attributes('every 5000000'),
        '7': Attributes('every 5000000'),
        'nightly': Attributes('cron Europe/Berlin 0 2 * * *')}


def test_a_schedule_that_changes_under_an_unchanged_id_is_seen():
    objects = [thing('a', spacing=5.0)]
    reading = Reading(poll=lambda context: objects)
    first, before, _ = reading.read()

    objects[0] = thing('a', spacing=7.0)
    second, after, _ = reading.read()

    assert first is second
    assert before['a'] != after['a']


def test_two_objects_with_one_id_are_logged_once(caplog):
    reading = gives('a', 'b', 'a')

    for _ in range(5):
        found, _, _ = reading.read()

    assert lines(caplog, 'duplicate id') == [
        {'job': 'poll', 'method': 'list_poll', 'id': "'a'"}]


class _Broken:
    """An object whose attributes cannot be read at the moment."""

    def __init__(self, broken='id', error=OSError):
        self._broken, self._error = broken, error

    def __getattr__(self, name):
        if name == self._broken:
            raise self._error('lazy loading failed')
        if name == 'id':
            return 'lazy'
        raise AttributeError(name)

    def __repr__(self):
        raise OSError('lazy loading failed')


def _ends_early(context):
    yield 'one'
    raise OSError('the second page cannot be read')


@pytest.mark.parametrize('bad', [
    object(), thing(''), thing('x' * 2000), thing(b'bytes'), thing(True),
    thing('\ud800'), thing('a', spacing=0), thing('a', cron='never'),
    thing('a', spacing=1, cron='* * * * *'), None, {'id': 'a'}, 1.5],
    ids=lambda bad: type(bad).__name__)
def test_an_object_that_cannot_be_used_is_left_out_and_logged_once(
        caplog, bad):
    reading = gives(thing('one'), bad, thing('two', spacing=5.0))

    for _ in range(5):
        found, own, _ = reading.read()

    assert found.ids == ['one', 'two']
    assert list(own) == ['two']
    [line] = lines(caplog, 'objects left out')
    assert line.has(job='poll', method='list_poll', objects=1)
    assert 'first' in line


@pytest.mark.parametrize('good', [[], [thing('one')], ['one', 'two']],
                         ids=['alone', 'objects', 'texts'])
@pytest.mark.parametrize(('bad', 'error'), [
    (_Broken(), 'OSError'), (_Broken(error=AttributeError), 'AttributeError'),
    (_Broken('spacing'), 'OSError'), (_Broken('cron'), 'OSError'),
    (types.SimpleNamespace(name='its id was not loaded'), 'AttributeError')],
    ids=['id', 'id not loaded', 'spacing', 'cron', 'no id'])
def test_an_object_that_cannot_be_read_fails_the_whole_catalogue(
        caplog, good, bad, error):
    """A catalogue without such objects would seem to have lost them. An
    object with an invalid id changes nothing in this.
    """
    for objects in ([*good, bad], [bad, *good], [*good, thing(''), bad]):
        assert type(gives(*objects).read()).__name__ == error

    assert lines(caplog, 'objects left out') == []


def test_an_object_that_cannot_be_shown_is_left_out_all_the_same(caplog):
    bad = _Broken('nothing')
    bad.id = b'bytes'

    found, _, _ = gives('one', bad).read()

    assert found.ids == ['one']
    assert 'bytes' in caplog.text


@pytest.mark.parametrize('given', [
    [None], [{'id': 'a'}, {'id': 'b'}], [thing('')], _ends_early, None, 7],
    ids=['None', 'equal ids', 'empty id', 'ends early', 'nothing', 'number'])
def test_a_catalogue_of_which_nothing_can_be_used_is_not_an_empty_one(given):
    read = Reading(poll=given if callable(given) else lambda context: given)

    assert isinstance(read.read(), Exception)


def test_an_object_that_is_left_out_again_is_logged_again(caplog):
    objects = ['one', thing('')]
    reading = Reading(poll=lambda context: objects)
    reading.read()

    objects[1] = 'two'
    found, _, _ = reading.read()
    assert found.ids == ['one', 'two']
    objects[1] = thing('')
    reading.read()

    assert [(line.event, line.level) for line in lines(caplog)] == 2 * [
        ('objects left out', 'ERROR')]
