# SPDX-License-Identifier: Apache-2.0
"""Keys of tasks, the task dispenser's interface, and commands about pools."""

import json
import os
import threading

import hypothesis
import pytest
from hypothesis import strategies as st

import distperiodic
from distperiodic.cmd import shell
from distperiodic.core import task_pool
from tests import dispensed
from tests.configured import configuration

TASKS = st.one_of(
    st.integers(-10**40, 10**40),
    st.text(st.characters(exclude_characters='\0',
                          exclude_categories=['Cs']), max_size=20))


@hypothesis.given(st.lists(TASKS, unique_by=lambda task: (type(task), task)))
def test_keys_sort_like_the_tasks_and_lead_back_to_them(tasks):
    keys = sorted(map(task_pool.key_of, tasks))

    found = task_pool.tasks_of(keys)

    assert found == sorted(tasks, key=lambda task: dispensed.order((task, 0)))
    assert list(map(task_pool.key_of, found)) == keys


@pytest.mark.parametrize('task', [
    'x' * 255, '\U0001f600' * 255, 10**250 - 1, 1 - 10**250])
def test_the_longest_tasks_fit_their_column(task):
    key = task_pool.key_of(task)

    assert len(key) <= task_pool.LONGEST_KEY
    assert task_pool.task_of(key) == task


# -- the dispenser's interface


def test_without_configuration_the_pool_is_in_the_embedded_store(tmp_path):
    conf = configuration(state_path=str(tmp_path / 'state'))
    one = distperiodic.TaskDispenser(conf, 'pool')
    assert not (tmp_path / 'state').exists()

    one.recreate_task_pool({'a': 1})

    assert one.assign_tasks(1, 'ann') == ['a']
    assert (tmp_path / 'state' / 'distperiodic.sqlite').exists()
    one.close()
    assert one.check_tasks('ann', ['a'])
    one.close()


@pytest.mark.parametrize('options', [
    {'connection': 'none'}, {'backend_url': 'file:///tmp/nobody'}])
def test_a_pool_without_a_store_is_one_clear_line(tmp_path, options):
    one = distperiodic.TaskDispenser(configuration(**options), 'pool')

    with pytest.raises(distperiodic.ConfigError) as refused:
        one.stats()

    assert 'connection' in str(refused.value)
    assert '\n' not in str(refused.value)


def test_threads_share_a_dispenser(tmp_path):
    one = dispensed.dispenser(f'sqlite:///{tmp_path}/pools', 'pool',
                              state_path=str(tmp_path))
    from distperiodic.adapters.sql import schema
    schema.sync(f'sqlite:///{tmp_path}/pools')
    one.recreate_task_pool({number: 1 for number in range(40)})
    found = []

    def pull(worker):
        for limit in range(1, 11):
            one.assign_tasks(limit, worker)
        found.extend(one.assign_tasks(10, worker))
    threads = [threading.Thread(target=pull, args=(f'w{number}',))
               for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(found) == list(range(40))
    one.close()


def test_a_forked_child_uses_its_own_connection(tmp_path):
    url = f'sqlite:///{tmp_path}/pools'
    from distperiodic.adapters.sql import schema
    schema.sync(url)
    one = dispensed.dispenser(url, 'pool')
    one.recreate_task_pool({'a': 2, 'b': 1})

    child = os.fork()
    if child == 0:
        os._exit(one.assign_tasks(1, 'child') != ['a'])

    assert os.waitpid(child, 0)[1] == 0
    assert one.assign_tasks(2, 'parent') == ['b']
    one.close()


# -- the commands


@pytest.fixture
def command(tmp_path, capsys, monkeypatch):
    """Return a function that runs a command and returns its exit code, its
    output and its errors.
    """
    from distperiodic.adapters.sql import schema
    monkeypatch.setenv('COLUMNS', '200')
    url = f'sqlite:///{tmp_path}/pools'
    schema.sync(url)
    path = tmp_path / 'pools.conf'
    path.write_text(f'[distperiodic]\nconnection = {url}\n')

    def run(*argv):
        code = shell.main([*argv, '--config-file', str(path)])
        return (code, *capsys.readouterr())
    run.dispenser = lambda name: dispensed.dispenser(url, name)
    return run


@pytest.fixture
def pool(command):
    """A pool with three tasks: one is free, one is assigned, and one is done.
    """
    made = command.dispenser('documents')
    made.recreate_task_pool({1: 2.5, '1': 3, 'a': 1})
    made.tasks_done('ann', made.assign_tasks(1, 'ann'))
    made.assign_tasks(1, 'ann')
    yield made
    made.close()


def rows(output):
    return json.loads(output)


def test_without_pools_the_list_explains_how_to_make_one(command):
    code, told, _ = command('pool', 'list')

    assert code == 0
    assert 'recreate_task_pool()' in told


def test_the_list_has_the_numbers_of_each_pool(command, pool):
    code, told, _ = command('pool', 'list', '-f', 'json')

    [row] = rows(told)
    assert code == 0
    assert row.pop('last_recreated').endswith('Z')
    assert row == {'pool': 'documents', 'free': 1, 'assigned': 1,
                   'workers': 1, 'done': 1}


def test_a_pool_shows_its_buckets_and_tasks(command, pool):
    _, buckets, _ = command('pool', 'show', 'documents', '-f', 'json')
    _, tasks, _ = command('pool', 'show', 'documents', '--tasks', '-f',
                          'json')
    _, own, _ = command('pool', 'show', 'documents', '--worker', 'ann', '-f',
                        'json')

    assert [(row['worker'], row['tasks']) for row in rows(buckets)] == [
        ('ann', 1)]
    of_ann = {'task': 1, 'type': 'int', 'score': 2.5, 'worker': 'ann'}
    assert rows(tasks) == [
        of_ann, {'task': 'a', 'type': 'str', 'score': 1.0, 'worker': None}]
    assert rows(own) == [of_ann]


def test_a_pool_shows_no_more_than_the_limit(command, pool):
    _, told, _ = command('pool', 'show', 'documents', '--tasks', '--limit',
                         '1')

    assert 'The first 1; see --limit.' in told


@pytest.mark.parametrize('more', [[], ['--worker', 'bob']])
def test_an_empty_bucket_is_a_sentence(command, pool, more):
    pool.give_back('ann', [1])

    code, told, _ = command('pool', 'show', 'documents', *more)

    assert code == 0
    assert 'task' in told.splitlines()[0]


def test_a_reset_asks_for_yes_and_then_empties_the_pool(command, pool):
    code, told, error = command('pool', 'reset', 'documents')
    assert (code, told, error.count('\n')) == (2, '', 1)
    assert '--yes' in error
    assert pool.check_tasks('ann', [1])

    code, told, _ = command('pool', 'reset', 'documents', '--yes')

    assert (code, told) == (0, 'deleted 3 tasks of pool documents\n')
    assert pool.check_tasks('ann', [])
    assert not pool.tasks_done('ann', [1])
    assert pool.assign_tasks(9, 'ann') == []
    pool.recreate_task_pool({'1': 1})
    assert pool.assign_tasks(9, 'ann') == ['1']


@pytest.mark.parametrize('argv', [
    ['show', 'dokuments'], ['reset', 'dokuments', '--yes']])
def test_an_unknown_pool_is_one_line(command, pool, argv):
    code, told, error = command('pool', *argv)

    assert (code, told, error.count('\n')) == (2, '', 1)
    assert "no pool 'dokuments'" in error
    assert "'documents'" in error
