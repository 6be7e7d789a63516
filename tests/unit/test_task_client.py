# SPDX-License-Identifier: Apache-2.0
"""Arguments of the task client, with the embedded default store."""

import contextlib
import datetime
import math

import pytest
import sqlalchemy as sa

from distperiodic import exceptions
from distperiodic import tasks
from tests.configured import configuration

UTC = datetime.UTC
FIRST = datetime.datetime.min.replace(tzinfo=UTC)
LAST = datetime.datetime.max.replace(tzinfo=UTC)


@pytest.fixture
def conf(tmp_path):
    return configuration(state_path=tmp_path)


@pytest.fixture
def client(conf):
    with contextlib.closing(tasks.Client(conf)) as made:
        yield made


@pytest.fixture(scope='module')
def empty_client(tmp_path_factory):
    """A client of a group that no test adds a task to."""
    with contextlib.closing(tasks.Client(configuration(
            state_path=tmp_path_factory.mktemp('empty')))) as made:
        yield made


@pytest.mark.parametrize(('call', 'told'), [
    (lambda c: c.submit('m.ok', session=5), 'session is 5; give'),
    (lambda c: c.submit('m.ok', session=sa.create_engine('sqlite://')),
     'session is .*Connection'),
    (lambda c: c.submit('m.ok', queue='\ud800'), 'queue is .*; give 1 to 200'),
    (lambda c: c.submit('m.ok', key=5), 'key is 5; give 1 to 255'),
    (lambda c: c.submit_many(None), 'tasks are None; give a list'),
    (lambda c: c.submit_many(5), 'tasks are 5; give a list'),
    (lambda c: c.submit_many([{'type': 'm.ok'}, 5]),
     'task 1 is 5; give a dictionary'),
    (lambda c: c.submit_many({'type': 'm.ok'}),
     "task 0 is 'type'; give a dictionary"),
    (lambda c: c.wait('x', timeout='a'), "timeout is 'a'; give a number"),
    (lambda c: c.wait('x', timeout=True), 'timeout is True; give a number'),
    (lambda c: c.wait('x', timeout=math.nan), 'timeout is nan; give a number'),
    (lambda c: c.list(limit=10 ** 30), 'limit is 10+; give a whole number'),
    (lambda c: c.list(limit=True), 'limit is True; give a whole number'),
    (lambda c: c.list(limit=0), 'limit is 0; give a whole number'),
    (lambda c: c.list(type=5), 'type is 5; give 1 to 200'),
    (lambda c: c.list(queue=['q']), r"queue is \['q'\]; give 1 to 200"),
    (lambda c: c.list(status=5), 'status is 5; give one of'),
    (lambda c: c.queues(5), 'queue is 5; give .* or None'),
    (lambda c: c.resume_queue(5), 'queue is 5; give 1 to 200'),
    (lambda c: c.resume_queue('\ud800'), r"queue is '\\ud800'; give"),
    (lambda c: c.resume_queue('a\0'), 'queue is .* without NUL'),
    (lambda c: c.halt_queue(['a']), r"queue is \['a'\]; give 1 to 200"),
    (lambda c: c.halt_queue('q', why=5), 'why is 5; give text'),
    (lambda c: c.halt_queue('q', why='\ud800'), 'why is .*; give text'),
    (lambda c: c.set_queue('', on_failure='halt'), "queue is ''; give 1"),
    (lambda c: c.set_queue('q', on_failure=[]), 'on_failure is .* go_on'),
    (lambda c: c.cancel('x', why=5), 'why is 5; give text'),
    (lambda c: c.retry('x', back='forward'), "back is 'forward'; give True"),
    (lambda c: c.retry('x', back=0), 'back is 0; give True'),
])
def test_an_argument_that_cannot_be_used_is_refused_with_its_remedy(
        empty_client, call, told):
    with pytest.raises(exceptions.InvalidTask, match=told) as caught:
        call(empty_client)

    assert '\n' not in str(caught.value)
    assert empty_client.list() == []


@pytest.mark.parametrize(('type_', 'told'), [
    ('м.ок', "the module is 'м'; give 1 to 90 characters from A-Z a-z 0-9"),
    ('m.', "the command is ''; give 1 to 90 characters that are printable"),
    ('m.o\nk', r"the command is 'o\\nk'; give 1 to 90 characters that are pr"),
    ('m.ok ', "the command is 'ok ', which begins or ends with a space"),
    (' m.ok', "the module is ' m'; give 1 to 90 characters from A-Z"),
    ('m', 'the type has no full stop'), (5, 'the type is not text')])
def test_a_type_is_refused_with_the_part_that_cannot_be_used(
        client, type_, told):
    with pytest.raises(exceptions.InvalidWorkflow, match=told) as caught:
        client.submit(type_)

    assert 'MODULE.COMMAND' in str(caught.value)
    assert str(caught.value).isprintable()
    assert client.list() == []


@pytest.mark.parametrize('call', [
    lambda c: c.get(5), lambda c: c.wait('\ud800'), lambda c: c.cancel(None),
    lambda c: c.retry(['x']), lambda c: c.list(after='a\0')])
def test_a_text_that_cannot_be_an_id_is_the_id_of_no_task(client, call):
    with pytest.raises(exceptions.UnknownTask, match='task list'):
        call(client)


def test_a_wait_may_have_any_length(client):
    task = client.submit('m.ok')
    client.cancel(task, why='größe')

    for timeout in (None, 0, -1, 0.5, math.inf):
        assert client.wait(task, timeout).status == 'cancelled'
    assert client.list(limit=2 ** 63 - 1)[0].id == task


def zone(hours):
    return datetime.timezone(datetime.timedelta(hours=hours))


class Vague(datetime.tzinfo):
    """A zone without an offset."""

    def utcoffset(self, at):
        return None


@pytest.mark.parametrize('at', [
    datetime.datetime.max.replace(tzinfo=zone(-5)),
    datetime.datetime.min.replace(tzinfo=zone(5)),
    datetime.datetime(2026, 1, 31, tzinfo=Vague()),
    datetime.datetime(2026, 1, 31), datetime.date(2026, 1, 31), '2026', 5],
    ids=str)
def test_a_start_that_is_no_instant_in_utc_is_refused(client, at):
    with pytest.raises(exceptions.InvalidTask, match='^at is .*; give '):
        client.submit('m.ok', at=at)

    assert client.list() == []


@pytest.mark.parametrize('at', [FIRST, LAST], ids=['first', 'last'])
def test_a_task_may_start_at_any_instant_of_a_datetime(client, at):
    task = client.submit('m.ok', at=at)

    assert client.get(task).due_at == at
