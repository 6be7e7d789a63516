# SPDX-License-Identifier: Apache-2.0
"""Commands that show tasks and control them."""

import datetime
import json
import re
import subprocess

import pytest

from distperiodic.adapters.sql import schema
from distperiodic.adapters.sql import tables
from distperiodic.adapters.sql.steps import MOST_LOSSES
from distperiodic.core.waiting import MOST_COUNTED
from tests import waiting
from tests.functional import commands
from tests.functional import modules
from tests.functional.test_tasks import Group
from tests.pruned import pruned

MODULES = 'tests.functional.modules:Modules'


def test_a_task_is_submitted_and_shown_with_its_steps(desk):
    desk.serve('a.run', 'b.run')
    task = desk.submit(
        'three', '--param', 'Cpu=4', '--param', 'Name=größe', '--param',
        'Text="4"', '--param', 'Disks=[1, {"a": null}]', '--key', 'schlüssel',
        '--priority', '-3')

    found = desk.show(task)
    assert found['parameters'] == {
        'Cpu': 4, 'Name': 'größe', 'Text': '4', 'Disks': [1, {'a': None}]}
    assert (found['id'], found['type'], found['key'], found['priority']) == (
        task, 'three', 'schlüssel', -3)
    assert (found['status'], found['code'], found['reason']) == (
        'waiting', 1, 'not claimed yet')
    desk.run()
    desk.run('b', 'no room')
    found = desk.show(task)
    assert (found['status'], found['cursor'], found['direction']) == (
        'running', 1, 'forward')
    assert found['reason'] == 'waits for a retry'
    first, second, third = (step['normal'] for step in found['steps'])
    assert (first['code'], first['attempts'], first['worker']) == (
        0, 1, 'host-1:2')
    assert first['started_at'] <= first['ended_at']
    assert first['ended_at'].endswith('Z')
    assert (second['code'], second['attempts'], second['message']) == (
        2, 1, 'no room')
    assert (third['code'], third['worker']) == (1, None)
    assert found['steps'][2]['rollback'] is None
    drawn = desk.place.show('task', 'show', task)
    assert re.search(r'^\| +\| 1 of 3 +\| a\.run +\| done ', drawn, re.M)
    assert re.search(r'^\| +\| 3 of 3 +\| a\.run \(no rollback\) +\| waiting ',
                     drawn, re.M)
    assert re.search(r'^\| > +\| 2 of 3 +\| b\.run +\| waits for retry +'
                     r'\| 1 of 2 ', drawn, re.M)


def test_the_steps_are_drawn_in_the_order_in_which_they_run(desk_of_sqlite):
    desk = desk_of_sqlite
    task = desk.submit('five')
    desk.run()
    desk.run('b', 'no room')
    desk.run('b')

    drawn = desk.place.show('task', 'show', task)

    rows = [[cell.strip() for cell in line.split('|')[1:5]]
            for line in drawn.splitlines() if ' of 5 ' in line]
    assert [row for row in rows if row[1].startswith(tuple('12345'))] == [
        ['', '1 of 5', 'a.run', 'done'], ['', '2 of 5', 'b.run', 'failed'],
        ['', '3 of 5', 'a.run', 'not run'],
        ['', '4 of 5', 'b.run', 'not run'],
        ['', '5 of 5', 'a.run', 'not run'],
        ['', '2 of 5', 'undo: b.run', 'done'],
        ['>', '1 of 5', 'undo: a.run', 'waiting']]
    desk.run()
    found = desk.show(task)
    assert (found['status'], found['cursor'], found['reason']) == (
        'failed', 1, None)
    assert found['message'] == 'b.run: no room'


def test_the_reason_for_which_a_task_waits_is_shown(desk):
    desk.serve('a.run', 'b.run')
    delayed = desk.submit('single', '--at', '+2h')
    first = desk.submit('single', '--queue', 'knoten')
    second = desk.submit('single', '--queue', 'knoten')
    third = desk.submit('single', '--queue', 'knoten')

    found = desk.show(delayed)
    assert found['reason'] == 'delayed'
    assert found['due_at'][:19] in found['why']
    found = desk.show(third)
    assert found['reason'] == 'behind another task'
    assert first in found['why']
    assert commands.numbers(found['why'])[0] == 2
    [lease] = desk.take()
    assert desk.show(first)['reason'] == 'waits for a worker'
    assert 'api-1' in desk.show(first)['why']
    desk.start(lease)
    found = desk.show(first)
    assert (found['status'], found['reason']) == ('running', None)
    assert found['steps'][0]['normal']['worker'] == 'host-1:2'
    assert 'running' in desk.show(second)['why']
    desk.place.ask('queue', 'halt', 'knoten', '--why', 'Umzug')
    found = desk.show(second)
    assert found['reason'] == 'queue halted'
    assert 'Umzug' in found['why']
    assert 'queue resume knoten' in found['why']


def test_a_task_that_failed_is_named_where_its_queue_halts(desk):
    task = desk.submit('single', '--queue', 'q')
    other = desk.submit('single', '--queue', 'q')
    desk.run(error='no room')

    _, [row] = desk.place.tell('queue', 'list')

    assert row['member'] == 'unknown'
    assert 'members are unknown: backend_url is empty' in desk.place.above(
        'queue', 'list')
    assert (row['queue'], row['state'], row['waiting'], row['head']) == (
        'q', 'halted', 1, None)
    assert (row['on_failure'], row['by_task']) == ('halt', task)
    assert row['halted_at'].endswith('Z')
    assert task in desk.show(other)['why']
    desk.place.ask('queue', 'resume', 'q')
    _, queue = desk.place.tell('queue', 'show', 'q')
    assert (queue['state'], queue['head'], queue['head_status']) == (
        'open', other, 'waiting')
    assert queue['member'].startswith('unknown: backend_url is empty')
    assert [one['id'] for one in queue['tasks']] == [other]
    assert 'not halted' in desk.place.ask('queue', 'resume', 'q')
    desk.place.ask('queue', 'set', 'q', '--on-failure', 'go_on')
    desk.run(error='no room')
    _, [row] = desk.place.tell('queue', 'list')
    assert (row['state'], row['on_failure'], row['head']) == (
        'open', 'go_on', None)


def test_tasks_are_listed_by_status_type_and_queue_in_pages(desk_of_sqlite):
    desk = desk_of_sqlite
    first, second = desk.submit('single'), desk.submit('three')
    third = desk.submit('a.run', '--queue', 'q')
    desk.client.cancel(first)

    def listed(*argv):
        return [row['id'] for row in desk.place.tell(
            'task', 'list', *argv)[1]]
    assert listed() == [first, second, third]
    assert listed('--status', 'cancelled') == [first]
    assert listed('--type', 'three') == [second]
    assert listed('--queue', 'q') == [third]
    assert listed('--limit', '2') == [first, second]
    assert listed('--limit', '2', '--after', second) == [third]
    assert listed('--stuck') == []
    assert 'stuck' in desk.place.above('task', 'list', '--stuck')
    assert second in desk.place.above('task', 'list', '--limit', '2')
    _, [row] = desk.place.tell('task', 'list', '--type', 'three')
    assert (row['status'], row['code'], row['cursor'], row['steps']) == (
        'waiting', 1, 0, 3)


def test_a_stuck_task_is_found_and_follows_the_commands_of_an_operator(desk):
    desk.serve('a.run', 'b.run')
    task = desk.submit('short')
    desk.run()
    for _ in range(2):
        desk.run('b', 'no room')

    found = desk.show(task)
    assert (found['status'], found['reason']) == ('stuck', 'stuck')
    assert 'task retry' in found['why']
    [finding] = [row for row in desk.place.tell('doctor')[1]
                 if row['check'] == 'task-stuck']
    assert finding['result'] == 'fail'
    assert finding['finding'].startswith(f'task {task}: ')
    assert 'no room' in finding['finding']
    assert 'running' in desk.place.ask('task', 'retry', task, '--forward')
    assert desk.show(task)['reason'] == 'not claimed yet'
    for _ in range(2):
        desk.run('b', 'no room')
    assert 'rolling back' in desk.place.ask('task', 'retry', task, '--back')
    desk.run('b', 'no room')
    assert 'rolling back' in desk.place.ask(
        'task', 'cancel', task, '--why', 'der Rechner ist weg')
    desk.run()
    found = desk.show(task)
    assert found['status'] == 'cancelled'
    assert found['cancelled_by'].endswith('der Rechner ist weg')
    assert 'waiting' in desk.place.ask('task', 'retry', task)


def test_a_long_queue_is_counted_up_to_a_maximum(desk):
    many = MOST_COUNTED + 5
    ids = []
    for begin in range(0, many, 5000):
        ids += desk.client.submit_many(
            [{'type': 'single', 'queue': 'q'}] * min(5000, many - begin))
    assert 'for 10,000 tasks or more before it' in desk.show(ids[-1])['why']
    assert 'for 9,995 tasks before it' in desk.show(ids[9995])['why']

    desk.client.halt_queue('q')

    _, [row] = desk.place.tell('queue', 'list')
    assert row['waiting'] == MOST_COUNTED
    assert desk.client.queues('q')[0].waiting == MOST_COUNTED
    assert '10,000 or more' in desk.place.ask('queue', 'list')
    assert '10,000 tasks or more of the queue' in desk.show(ids[-1])['why']
    [finding] = [row['finding'] for row in desk.place.tell('doctor')[1]
                 if row['check'] == 'queue-halted']
    assert '10,000 tasks or more waiting' in finding
    # If a queue is shorter than the maximum, the count is exact.
    for id_ in ids[:6]:
        desk.client.cancel(id_)
    assert desk.client.queues('q')[0].waiting == MOST_COUNTED - 1


def test_a_step_that_was_lost_again_and_again_is_shown_with_its_runs(desk):
    task = desk.submit('single')
    for [lease] in (desk.take(), *([None] for _ in range(MOST_LOSSES))):
        lease = lease or desk.retake()[0]
        desk.start(lease, seconds=-1.0)
    assert desk.retake() == []

    found = desk.show(task)

    assert found['status'] == 'stuck'
    command = found['steps'][0]['normal']
    assert (command['attempts'], command['losses'], command['worker']) == (
        MOST_LOSSES + 1, MOST_LOSSES + 1, 'host-1:2')
    assert found['started_at'] <= command['started_at'] < command['ended_at']
    assert re.search(r'\| 6, 6 lost +\| .* host-1:2 ',
                     desk.place.show('task', 'show', task))


def test_a_task_without_a_live_process_is_explained(desk):
    task = desk.submit('c.grow')
    delayed = desk.submit('single', '--at', '+2h')

    assert desk.show(task)['reason'] == 'no scheduler'
    assert desk.show(delayed)['reason'] == 'delayed'
    desk.serve('a.run', 'b.run')
    found = desk.show(task)
    assert found['reason'] == 'no process with the command'
    assert 'no live scheduler has the command c.grow' in found['why']
    desk.serve('c.grow', name='api-2', more_commands=0,
               pools={'c': {'size': 1, 'busy': 0}})
    assert desk.show(task)['reason'] == 'not claimed yet'


def test_a_task_that_waits_for_a_slot_is_explained(desk_of_sqlite):
    desk = desk_of_sqlite
    task = desk.submit('single')
    desk.serve('a.run', pools={'a': {'size': 2, 'busy': 2}})

    found = desk.show(task)

    assert found['reason'] == 'slots busy'
    assert 'each live scheduler that may run it' in found['why']
    desk.place.show('member', 'drain', '--all', '--wait', '0.1')
    found = desk.show(task)
    assert found['reason'] == 'drained'
    assert 'member undrain --schedulers' in found['why']


def test_a_granted_run_that_waits_for_a_thread_has_a_reason(desk_of_sqlite):
    desk = desk_of_sqlite
    task = desk.submit('single')
    desk.start(*desk.take(), holder='host-1:2~1~2')
    assert desk.show(task)['reason'] is None
    desk.serve('a.run', name='host-1:2', part='a', tasks=['another'], pools={
        'a': {'size': 1, 'busy': 1, 'queued': 1}})

    found = desk.show(task)

    assert found['reason'] == 'waits for a thread'
    assert 'a.run was granted to host-1:2, where it waits' in found['why']
    assert re.search(r'> +\| 1 of 1 +\| a\.run .*\| granted ',
                     desk.place.ask('task', 'show', task))
    assert (found['status'], found['started_at']) == ('waiting', None)
    command, = (step['normal'] for step in found['steps'])
    assert (command['code'], command['attempts'], command['started_at']) == (
        1, 0, None)
    # The list and the client do not know of the thread.
    _, told = desk.place.tell('task', 'list')
    assert {told[0]['status'], desk.client.get(task).status} == {'running'}


def test_doctor_finds_halted_queues_and_unknown_commands(desk, monkeypatch):
    monkeypatch.setitem(commands.ENVIRONMENT, 'RECORD', '/dev/null')
    known = ('--tasks', MODULES)
    assert {result for result, _ in desk.findings(*known).values()} == {
        'ok', 'skip'}
    desk.submit('c.grow')
    desk.submit('single', '--queue', 'q')
    desk.place.ask('queue', 'halt', 'q', '--why', 'Umzug')

    found = desk.findings(*known)
    assert found['task_commands'][0] == 'warn'
    assert 'c.grow (1 task)' in found['task_commands'][1]
    assert 'a.run' not in found['task_commands'][1]
    assert found['queue-halted'][0] == 'fail'
    assert 'Umzug' in found['queue-halted'][1]
    assert desk.findings()['task_commands'][0] == 'skip'


def test_doctor_names_commands_that_no_live_process_has(desk):
    first = desk.submit('c.grow')
    desk.submit('c.grow')
    desk.submit('single')
    desk.submit('c.grow', '--at', '+2h')
    desk.wait_long()

    def unserved():
        return sorted(row['finding'] for row in desk.place.tell('doctor')[1]
                      if row['check'] == 'command-unserved')
    none = ' there is no live scheduler'
    of_run, of_grow = sorted(unserved(), key=lambda text: 'c.grow' in text)
    assert f'2 tasks ready for the command c.grow, such as {first}' in of_grow
    assert '1 task ready for the command a.run' in of_run
    assert of_run.endswith(none)
    assert of_grow.endswith(none)

    desk.serve('a.run')
    [of_grow] = unserved()
    assert f'2 tasks ready for the command c.grow, such as {first}' in of_grow
    assert of_grow.endswith('no live process has it')
    desk.serve('c.grow', name='api-2')
    assert unserved() == []


def test_doctor_reads_the_file_of_the_workflows(desk, monkeypatch):
    monkeypatch.setitem(commands.ENVIRONMENT, 'RECORD', '/dev/null')
    path = desk.place.config.parent / 'workflows.json'

    def of_file(*argv):
        found = desk.findings(*argv)
        return found['task_workflows'], found['workflow_commands']
    assert [result for result, _ in of_file(
        '--offline', '--tasks', MODULES)] == ['ok', 'ok']

    path.write_text('{"grow": [{"normal": {"module": "c", "command": "x"}}]}')
    read, defined = of_file('--tasks', MODULES)
    assert read[0] == 'ok'
    assert defined == ('warn', 'not in --tasks: c.x (grow)')
    assert of_file('--offline')[1][0] == 'skip'
    read, defined = of_file()
    assert (read[0], defined[0]) == ('ok', 'skip')
    assert 'no live scheduler' in defined[1]
    desk.serve('a.run', 'b.run')
    result, text = of_file()[1]
    assert (result, text) == (
        'warn', 'not in the live schedulers and workers: c.x (grow)')
    desk.serve('c.x', name='api-2')
    assert of_file()[1][0] == 'ok'

    path.write_text('{"grow": [\n  {"normall": {}}]}')
    (result, text), defined = of_file('--offline', '--tasks', MODULES)
    assert result == 'fail'
    assert f'{path}:2:15: ' in text
    assert defined[0] == 'skip'
    path.unlink()
    assert of_file()[0][0] == 'fail'


def test_only_old_tasks_that_have_ended_are_pruned_with_their_claims(desk):
    done, cancelled = desk.submit('single'), desk.submit('single')
    desk.client.cancel(cancelled)
    desk.run()
    failed = desk.submit('single', '--queue', 'q')
    desk.place.ask('queue', 'set', 'q', '--on-failure', 'go_on')
    desk.run(error='no room')
    stuck = desk.submit('short')
    desk.run()
    for _ in range(2):
        desk.run('b', 'no room')
    young = desk.submit('single')
    desk.run()
    waits = desk.submit('single', '--at', '+1h')
    for task in (done, cancelled, failed, stuck, waits):
        desk.age(task, 8)
    told = desk.place.ask('db', 'prune', '--tasks', '7')

    left = [row['id'] for row in desk.place.tell('task', 'list')[1]]
    assert sorted(left) == sorted([stuck, young, waits])
    assert told.split()[-1] == 'tasks=3'
    assert done in desk.place.refuse('task', 'show', done)
    # Only the claims of the three remaining tasks are left.
    assert desk.claims() == 3


def test_an_audit_counts_each_task_in_one_class(desk):
    """The test deletes rows by hand, so that no process finds the next step of
    some tasks.
    """
    for _ in 'ab':
        desk.submit('single')
    desk.run()
    desk.client.cancel(desk.submit('single'))
    old = desk.submit('single')
    desk.run()
    desk.age(old, 2)
    desk.submit('single', '--queue', 'q')
    desk.run(error='no room')
    for _ in 'abc':
        desk.submit('single', '--queue', 'q')
    desk.submit('short')
    desk.run()
    for _ in 'ab':
        desk.run('b', 'no room')
    desk.submit('single', '--queue', 'busy')
    desk.submit('single', '--queue', 'busy')
    desk.submit('hasty')
    desk.run('b', 'ill')
    [lease] = desk.take()
    desk.start(lease)
    desk.submit('five')
    desk.take()
    for _ in 'ab':
        desk.submit('single', '--at', '+1h')
    desk.submit('killed')
    lost = [desk.submit('lost.one'), desk.submit('lost.two')]

    code, rows = desk.place.tell('audit')

    assert code == 0
    told = {row['job']: {key: number for key, number in row.items()
                         if number and key != 'job'} for row in rows}
    assert told == {
        'task:single': {'due': 11, 'on_time': 2, 'cancelled': 1, 'dead': 1,
                        'pending': 7},
        'task:short': {'due': 1, 'dead': 1},
        'task:hasty': {'due': 1, 'pending': 1},
        'task:five': {'due': 1, 'pending': 1},
        'task:killed': {'due': 1, 'pending': 1},
        'task:lost.one': {'due': 1, 'pending': 1},
        'task:lost.two': {'due': 1, 'pending': 1}}
    said = ' '.join(desk.place.above('audit').split())
    assert re.search(
        r'17 tasks submitted in the last 24h or not ended: 2 succeeded, '
        r'1 failed, 1 stuck, 1 cancelled, 1 running, 3 queue halted, '
        r'1 behind another task, 2 delayed, 1 not claimed yet \(module a\), '
        r'2 not claimed yet \(module lost\), 1 waits for a worker '
        r'\(module a\), 1 waits for a retry\.', said), said
    desk.lose(lost[0], tables.ready)
    desk.lose(desk.client.list(type='five')[0].id, tables.claim)
    code, rows = desk.place.tell('audit')
    assert code == 1
    assert {row['job'] for row in rows if row['lost']} == {
        'task:lost.one', 'task:five'}
    assert '2 lost' in desk.place.above('audit')
    assert desk.place.tell('audit', '--ticks') == (1, [])


def test_an_audit_shows_a_task_whose_worker_is_gone(desk):
    desk.submit('single')
    [lease] = desk.take()
    desk.start(lease, seconds=-1.0)

    assert '1 lease ended (module a)' in desk.place.above('audit')
    assert desk.place.tell('audit')[0] == 0


def test_a_task_that_halted_its_queue_stays_until_the_queue_goes_on(desk):
    task = desk.submit('single', '--queue', 'q')
    desk.run(error='no room')
    desk.age(task, 8)

    assert 'tasks=0' in desk.place.ask('db', 'prune', '--tasks', '7')
    desk.place.ask('queue', 'resume', 'q')
    assert 'tasks=1' in desk.place.ask('db', 'prune', '--tasks', '7')


def test_a_scheduler_prunes_old_tasks(desk):
    old, young, stays = (desk.submit('single') for _ in range(3))
    desk.client.cancel(old)
    desk.client.cancel(young)
    desk.age(old, 8)
    desk.age(stays, 8)
    group, store = desk.place.group, desk.place.store

    assert pruned(store.database, group, tasks=7.0) == {'tasks': 1}
    assert not pruned(store.database, group, tasks=7.0)
    assert [task.id for task in desk.client.list()] == [stays, young]


@pytest.mark.parametrize(('argv', 'told'), [
    (['task', 'submit', 'thre'], 'single.*three'),
    (['task', 'submit', 'м.ок'], "the module is 'м'; give"),
    (['task', 'submit', 'm.ok '], "'ok ', which begins or ends with a space"),
    (['task', 'submit', 'three', '--at', 'soon'], "'soon'.*zone"),
    (['task', 'submit', 'three', '--at', '2026-01-31T06:00'], 'zone'),
    (['task', 'submit', 'three', '--at', '+10x'], r"'\+10x'"),
    (['task', 'submit', 'three', '--at', '9999-12-31T23:59-05:00'],
     "'9999-12-31T23:59-05:00'.*1 to 9999"),
    (['task', 'submit', 'three', '--at', '0001-01-01T00:00+05:00'],
     "'0001-01-01T00:00.05:00'.*1 to 9999"),
    (['task', 'submit', 'three', '--param', 'Host'], "'Host'.*KEY=VALUE"),
    (['task', 'submit', 'three', '--param', 'a=1', '--param', 'a=2'],
     "'a'.*more than once"),
    (['task', 'submit', 'three', '--json', 'none.json'], 'none.json'),
    (['task', 'submit', 'three', '--key', ''], 'key'),
    (['task', 'submit', 'three', '--queue', 'x' * 201], 'queue'),
    (['task', 'submit', 'three', '--priority', str(2 ** 31)], 'priority'),
    (['task', 'submit', 'three', '--priority', 'high'], "'high'"),
    (['task', 'submit', 'three', '--wait', '0'], "'0'"),
    (['task', 'show', 'nix'], "'nix'.*task list"),
    (['task', 'show', 'x' * 65], 'task list'),
    (['task', 'cancel', 'größe'], "'größe'"),
    (['task', 'retry', 'nix'], "'nix'"),
    (['task', 'retry', 'nix', '--forward', '--back'], 'not allowed'),
    (['task', 'list', '--status', 'ill'], "'ill'.*waiting.*stuck"),
    (['task', 'list', '--after', 'nix'], "'nix'"),
    (['task', 'list', '--queue', 'nix'], "'nix'.*queue list"),
    (['task', 'list', '--limit', '0'], "'0'"),
    (['queue', 'show', 'nix'], "'nix'.*queue list"),
    (['queue', 'resume', 'nix'], "'nix'"),
    (['queue', 'halt', 'nix'], "'nix'"),
    (['queue', 'set', 'q', '--on-failure', 'panic'], "'panic'.*halt"),
    (['db', 'prune', '--tasks', '0'], "'0'")], ids=' '.join)
def test_an_impossible_command_is_one_line(desk_of_sqlite, argv, told):
    assert re.search(told, desk_of_sqlite.place.refuse(*argv))


def test_a_task_that_has_ended_is_no_more_cancelled(desk_of_sqlite):
    desk = desk_of_sqlite
    task = desk.submit('single')
    assert 'not' not in desk.place.ask('task', 'cancel', task)

    assert 'ended' in desk.place.refuse('task', 'cancel', task)
    desk.place.ask('task', 'retry', task)
    assert 'waits' in desk.place.refuse('task', 'retry', task)


def test_a_key_names_one_task(desk_of_sqlite):
    desk = desk_of_sqlite
    task = desk.submit('single', '--key', 'k', '--param', 'a=1')

    assert desk.submit('single', '--param', 'a=1', '--key', 'k') == task
    assert task in desk.place.refuse(
        'task', 'submit', 'single', '--key', 'k', '--param', 'a=2')
    assert len(desk.client.list()) == 1


def test_a_start_in_the_past_is_at_once(desk_of_sqlite):
    desk = desk_of_sqlite
    desk.serve('a.run')
    task = desk.submit('single', '--at', '2001-01-31T06:00+02:00')

    found = desk.show(task)

    assert found['due_at'] == '2001-01-31T04:00:00Z'
    assert found['reason'] == 'not claimed yet'


@pytest.mark.parametrize(('text', 'told'), [
    ('{"a": 1,\n "b": }', ':2:7: '),
    ('[1]', 'a list.*dictionary'),
    ('"x"', 'a text'),
    ('{"a": NaN}', 'NaN'),
    ('{"a": 1, "a": 2}', "'a' is given twice"),
    ('', ':1:1: '),
    ('[' * 100_000, 'too deeply'),
    (b'{"a": "\xff"}', 'UTF-8')])
def test_a_file_that_is_no_dictionary_is_one_line(
        desk_of_sqlite, tmp_path, text, told):
    path = tmp_path / 'parameters.json'
    path.write_bytes(text if isinstance(text, bytes) else text.encode())

    said = desk_of_sqlite.place.refuse(
        'task', 'submit', 'single', '--json', path)

    assert 'parameters.json' in said
    assert re.search(told, said)


def test_parameters_come_from_a_file_or_standard_input(
        desk_of_sqlite, tmp_path):
    desk = desk_of_sqlite
    path = tmp_path / 'parameters.json'
    path.write_text('{"a": 1, "größe": "L"}', encoding='utf-8-sig')
    task = desk.submit('single', '--json', path, '--param', 'a=2')
    piped = subprocess.run(
        [*commands.PROGRAM, 'task', 'submit', 'single', '--json', '-',
         '--config-file', str(desk.place.config)],
        input=b'{"b": 3}', env=commands.ENVIRONMENT, capture_output=True,
        check=True)

    assert desk.show(task)['parameters'] == {'a': 2, 'größe': 'L'}
    assert desk.show(piped.stdout.decode().strip())['parameters'] == {'b': 3}


@pytest.fixture
def alone(tmp_path):
    """Return a scheduler with its embedded store."""
    path = tmp_path / 'workflows.json'
    path.write_text(json.dumps(modules.WORKFLOWS))
    made = Group(tmp_path, workflows=path)
    made.start('scheduler')
    yield made
    made.close()


def submit(group, *argv):
    """Run a command that submits a task. Return its exit code, the id and the
    error.
    """
    told = commands.call('task', 'submit', *argv, '--config-file',
                         group.config)
    return told.returncode, told.stdout.strip(), told.stderr


def test_the_exit_code_follows_from_the_end_of_a_task(alone):
    code, task, error = submit(alone, 'three', '--wait')
    assert (code, error) == (0, '')
    assert alone.client.get(task).status == 'succeeded'

    code, task, error = submit(
        alone, 'single', '--wait', '60', '--param', 'behaves={"0": "fail"}')
    assert code == 1
    assert f'{task} failed' in error
    assert 'step 0 fails' in error
    assert error.count('\n') == 1

    code, task, error = submit(
        alone, 'three', '--wait', '--param',
        'behaves={"1": "fail", "1r": "fail"}')
    assert (code, alone.client.get(task).status) == (1, 'stuck')
    assert 'stuck' in error

    gate = alone.place / 'gate'
    code, task, error = submit(
        alone, 'a.run', '--wait', '0.5', '--param', f'gate={gate}',
        '--param', 'behaves={"0": "until"}')
    assert code == 1
    assert '0.5 s' in error
    gate.touch()
    alone.ended(task)


def shown(group, task):
    return json.loads(commands.call(
        'task', 'show', task, '-f', 'json', '--config-file',
        group.config).stdout)


def test_a_single_process_reports_why_its_tasks_wait(alone):
    """The reports of the scheduler contain its commands and its number of
    threads.
    """
    def finding(check):
        told = commands.call('doctor', '-f', 'json', '--config-file',
                             alone.config)
        return next(((row['result'], row['finding'])
                     for row in json.loads(told.stdout)
                     if row['check'] == check), ('', ''))

    def reason(task, expected):
        return waiting.wait_until(
            lambda: shown(alone, task)['reason'] == expected, 60)
    _, unknown, _ = submit(alone, 'zz.nothing')
    assert reason(unknown, 'no process with the command')
    waiting.wait_until(lambda: finding('command-unserved')[0] == 'fail', 60)
    text = finding('command-unserved')[1]
    assert text.startswith(f'task {unknown}: 1 task ready for the command '
                           'zz.nothing')
    assert text.endswith('no live process has it')
    assert finding('workflow_commands')[0] == 'ok'
    gate = alone.place / 'gate'
    busy = [submit(alone, 'a.run', '--param', f'gate={gate}', '--param',
                   'behaves={"0": "until"}')[1] for _ in range(5)]
    assert reason(busy[-1], 'slots busy')
    assert shown(alone, busy[0])['reason'] is None
    gate.touch()
    for task in busy:
        alone.ended(task)

    [program] = alone.programs
    program.terminate()

    assert reason(unknown, 'no scheduler')
    assert finding('workflow_commands')[0] == 'skip'
    assert finding('no-scheduler')[0] == 'fail'


def test_only_the_number_of_processes_cannot_grow(tmp_path):
    group = Group(tmp_path, {'partition:b': {
        'executor': 'process', 'pool_size': 2}})
    try:
        group.start('scheduler')
        group.ended(group.submit('pair'))

        told = commands.call('member', 'set', 'pool_size', '9', '--all',
                             '--config-file', group.config)

        said = ' '.join((told.stdout + told.stderr).split())
        assert 'pool_size is 2, 9, not 9: the handlers of b run in processes' \
            in said
    finally:
        group.close()


@pytest.fixture
def group(tmp_path, zookeeper, rabbitmq, postgresql):
    schema.sync(postgresql.url)
    made = Group(tmp_path, backend_url=zookeeper.url,
                 transport_url=rabbitmq.url, dispatcher='messaging',
                 connection=postgresql.url)
    yield made
    made.close()


def test_a_module_without_a_live_worker_is_reported(group):
    def show(task):
        return shown(group, task)

    def findings():
        told = commands.call('status', '-f', 'json', '--config-file',
                             group.config)
        return {(row['code'], row['about']) for row in json.loads(told.stdout)
                if row['role'] == 'finding'}
    def member(queue):
        return json.loads(commands.call(
            'queue', 'show', queue, '-f', 'json', '--config-file',
            group.config).stdout)['member']
    task = group.submit('three')
    group.client.submit('single', {}, queue='q')
    assert show(task)['reason'] == 'no scheduler'
    assert re.fullmatch(
        "unknown: group '.*' has no scheduler on the ring", member('q'))
    assert any(code == 'no-scheduler' for code, _ in findings())

    group.start('scheduler')
    group.start('worker', '--partition', 'a')

    def waits_for_b():
        # Until its worker joins, module a has no worker either.
        found = show(task)
        return found['reason'] == 'no worker' and "'b'" in found['why']
    waiting.wait_until(waits_for_b, timeout=60)

    assert not member('q').startswith('unknown')
    waiting.wait_until(
        lambda: findings() == {('partition-unserved', 'partition b')}, 30)
    unknown = group.client.submit('a.nothing')
    waiting.wait_until(lambda: show(unknown)['reason'] == (
        'no process with the command'), timeout=60)
    assert 'no live scheduler' in show(unknown)['why']
    group.start('worker', '--partition', 'b')
    group.ended(task)
    group.client.cancel(unknown)
    waiting.wait_until(lambda: not findings(), 30)
    began = group.client.get(task).steps[1].normal.started_at
    assert began <= datetime.datetime.now(datetime.UTC)
