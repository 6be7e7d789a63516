# SPDX-License-Identifier: Apache-2.0
"""Tools of operators: queries cannot write, and no tool claims objects."""

import inspect

import pytest
import sqlalchemy as sa

from distperiodic.adapters.sql import schema
from distperiodic.adapters.sql.database import Database
from distperiodic.adapters.sql.store import SqlClaimStore
from distperiodic.operator import activity
from distperiodic.operator import admin
from distperiodic.operator import auditing
from distperiodic.operator import bulk
from distperiodic.operator import bulk_tasks
from distperiodic.operator import dead_objects
from distperiodic.operator import health_queries
from distperiodic.operator import members
from distperiodic.operator import partitions
from distperiodic.operator import queries
from distperiodic.operator import task_pools
from distperiodic.operator import task_queries
from distperiodic.operator import waiting
from distperiodic.operator.group_reader import GroupReader
from distperiodic.operator.group_reader import GroupStore

_MODULES = (
    activity, admin, auditing, bulk, bulk_tasks, dead_objects, health_queries,
    members, partitions, queries, task_pools, task_queries, waiting)
# The commands. All other public functions of these modules are queries.
_COMMANDS = {
    admin.pause, admin.pause_objects, admin.prune, admin.resume,
    admin.resume_objects, admin.trigger,
    auditing.recorded, bulk.recorded, bulk_tasks.cancel, bulk_tasks.retry,
    dead_objects.requeue, members.request_answers, partitions.promote,
    task_pools.reset}


@pytest.fixture
def store(tmp_path):
    url = f'sqlite:///{tmp_path}/claims'
    schema.sync(url)
    made = GroupStore(url, 'tests')
    yield made
    made.close()


def test_an_operator_is_no_claim_store(store):
    assert not {'claim', 'start', 'finish', 'sync'} & set(dir(store))
    assert not isinstance(store, SqlClaimStore)


def test_an_action_on_many_rows_takes_at_most_the_rows_that_were_shown():
    tally = bulk.BulkTally('task', 3)
    chunks = iter(('ab', 'cd', 'ef'))
    taken = []
    for some in tally.within(chunks):
        taken += some
        tally.add(len(some), len(some))

    assert taken == ['a', 'b', 'c']
    assert list(tally.within(['gh'])) == []
    # It reads no more than it needs.
    assert list(chunks) == ['ef']
    assert tally.result.text == (
        '3 of 3 tasks; more match now and were left unchanged')


def test_an_action_on_exactly_the_rows_that_were_shown_leaves_none():
    tally = bulk.BulkTally('task', 2)
    for some in tally.within(['a', 'b']):
        tally.add(len(some), len(some))

    assert tally.result.text == '2 of 2 tasks'


def test_a_query_takes_a_reader_and_a_command_takes_a_store():
    taken = {
        function: inspect.signature(function).parameters['store'].annotation
        for module in _MODULES
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if not name.startswith('_') and function.__module__ == module.__name__
        and 'store' in inspect.signature(function).parameters}

    assert {function for function, kind in taken.items()
            if kind is GroupStore} == _COMMANDS
    assert {kind for function, kind in taken.items()
            if function not in _COMMANDS} == {GroupReader}


def test_a_reader_has_no_way_to_write(store):
    reader = GroupReader(store.database, 'tests')

    assert not hasattr(reader, 'write')
    assert not any(isinstance(held, Database)
                   for held in vars(reader).values())


def test_shared_reads_are_one_transaction(store):
    def transactions(reader):
        return [reader.read(sa.Connection.get_transaction),
                *reader.share(lambda shared: [
                    shared.read(sa.Connection.get_transaction),
                    shared.read_snapshot(sa.Connection.get_transaction)])]
    alone, first, second = transactions(store)

    assert alone is not first
    assert first is second
