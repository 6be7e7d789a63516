# SPDX-License-Identifier: Apache-2.0
"""Commands of operators whose transaction is repeated, in every database.

A transaction that was aborted has changed nothing. A transaction whose answer
was lost may have been committed.
"""

import contextlib
import uuid

import pytest
import sqlalchemy as sa
from oslo_db import exception as db_exception

from distperiodic import exceptions
from distperiodic import tasks
from distperiodic.adapters.sql import database
from distperiodic.adapters.sql.dialects.dialect import READ_ONLY
from distperiodic.adapters.sql.store import SqlClaimStore
from distperiodic.core.workflow import Status
from distperiodic.operator import admin
from distperiodic.operator.group_reader import GroupStore
from tests import claiming
from tests.configured import configuration

WORKFLOWS = {'one': [{'normal': {'module': 'a', 'command': 'run'}}]}


class World:
    """One group in a database, and two operators."""

    def __init__(self, url):
        self.group = f'tests-{uuid.uuid4().hex[:8]}'
        self.store = SqlClaimStore(url, namespace=self.group)
        self.clients = [tasks.Client(
            configuration(connection=url, group=self.group),
            workflows=WORKFLOWS) for _ in range(2)]
        self.operators = [GroupStore(url, self.group) for _ in range(2)]

    def close(self):
        for one in (*self.clients, *self.operators):
            one.close()
        self.store.forget()
        self.store.close()


@pytest.fixture
def world(database_url):
    made = World(database_url)
    # Connect, so that the next transaction of each connection is the one that
    # is repeated.
    for one in made.clients:
        one.submit('one', {})
    for one in made.operators:
        one.now()
    yield made
    made.close()


@contextlib.contextmanager
def first_commit(monkeypatch, *, aborted, meanwhile=lambda: None):
    """Abort the first transaction that writes, or commit it and lose the
    answer. Then call *meanwhile*, before the transaction is repeated.
    """
    failed = []

    def fail(connection):
        if failed or connection.info[READ_ONLY]:
            return
        failed.append(connection)
        driver = connection.connection.dbapi_connection
        if aborted:
            driver.rollback()
            raise db_exception.DBDeadlock(Exception('deadlock'))
        driver.commit()
        raise db_exception.DBConnectionError(Exception('connection lost'))
    monkeypatch.setattr(
        database, 'wait_for_others', lambda attempt: meanwhile())
    sa.event.listen(sa.Engine, 'commit', fail)
    try:
        yield
    finally:
        sa.event.remove(sa.Engine, 'commit', fail)
    assert failed != []


def test_a_task_that_another_operator_cancels_meanwhile_is_not_ours(
        world, monkeypatch):
    one, other = world.clients
    task = one.submit('one', {})

    with first_commit(monkeypatch, aborted=True,
                      meanwhile=lambda: other.cancel(task, by='me')):
        with pytest.raises(exceptions.InvalidTask, match='has ended'):
            one.cancel(task, by='me')


def test_a_task_that_was_cancelled_by_a_lost_answer_is_ours(
        world, monkeypatch):
    one = world.clients[0]
    task = one.submit('one', {})

    with first_commit(monkeypatch, aborted=False):
        assert one.cancel(task, by='me') is Status.CANCELLED


def test_tasks_that_were_retried_by_a_lost_answer_are_ours(
        world, monkeypatch):
    one = world.clients[0]
    ids = [one.submit('one', {}) for _ in range(2)]
    one.cancel_many(ids, by='me')

    with first_commit(monkeypatch, aborted=False):
        assert set(one.retry_many(ids).values()) == {Status.WAITING}


@pytest.mark.parametrize('aborted', [False, True])
def test_a_task_that_is_submitted_again_is_submitted_once(
        world, monkeypatch, aborted):
    one = world.clients[0]

    with first_commit(monkeypatch, aborted=aborted):
        task = one.submit('one', {}, key='k')

    assert one.submit('one', {}, key='k') == task
    assert one.get(task).status is Status.WAITING


@pytest.mark.parametrize('aborted, resumed', [
    (True, ['b']), (False, ['a', 'b'])])
def test_an_object_that_another_operator_resumes_meanwhile_is_not_ours(
        world, monkeypatch, aborted, resumed):
    one, other = world.operators
    claiming.claim(world.store, 'poll', world.store.now(), ['a', 'b'],
                   lease='l', holder='api-1', seconds=60.0, supersede=False)
    admin.pause_objects(other, 'poll', ['a', 'b'], by='me', why='')

    with first_commit(monkeypatch, aborted=aborted,
                      meanwhile=lambda: admin.resume_objects(
                          other, 'poll', ['a'])):
        found = admin.resume_objects(one, 'poll')

    assert found == resumed
    assert world.store.attend({'poll': 60.0}, {})['poll'].paused_objects == {}


def test_a_connection_that_is_lost_before_the_commit_repeats_nothing(
        world, monkeypatch):
    """The objects that the first try has read are not those that it resumed.
    """
    one, other = world.operators
    claiming.claim(world.store, 'poll', world.store.now(), ['a', 'b'],
                   lease='l', holder='api-1', seconds=60.0, supersede=False)
    admin.pause_objects(other, 'poll', ['a', 'b'], by='me', why='')
    lost = []

    def lose(connection, cursor, statement, *more):
        if statement.startswith('DELETE') and not lost:
            lost.append(statement)
            connection.connection.dbapi_connection.rollback()
            admin.resume_objects(other, 'poll', ['a'])
            raise db_exception.DBConnectionError(Exception('connection lost'))
    sa.event.listen(sa.Engine, 'before_cursor_execute', lose)
    try:
        found = admin.resume_objects(one, 'poll')
    finally:
        sa.event.remove(sa.Engine, 'before_cursor_execute', lose)

    assert (found, len(lost)) == (['b'], 1)
