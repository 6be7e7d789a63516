# SPDX-License-Identifier: Apache-2.0
"""Tasks on real servers run each step under one claim, also when processes
die.

ZooKeeper, RabbitMQ, PostgreSQL and the signals are real. The commands record
their runs.
"""

import collections
import json
import os
import pathlib
import re
import signal
import statistics
import time
import uuid

import psutil
import pytest
import sqlalchemy as sa
from oslo_config import cfg

from distperiodic import service
from distperiodic import tasks
from distperiodic.adapters.sql import database
from distperiodic.adapters.sql import schema
from distperiodic.adapters.sql import tables
from tests import forks
from tests import programs
from tests import waiting
from tests.functional import commands
from tests.functional import modules
from tests.pauses import Pauses

SOON = 60.0


class Group:
    """Schedulers and workers that run the commands of
    :mod:`tests.functional.modules`.
    """

    def __init__(self, place, sections=(), **options):
        sections = dict(sections)
        self.place = place
        self.record = place / 'record.jsonl'
        self.record.touch()
        self.programs = []
        self.options = {
            'group': f'test-{uuid.uuid4().hex[:8]}', 'session_timeout': 2,
            'late_claim_after': 1, 'pool_size': 4, 'lease': 5,
            'state_path': place / 'state', **options}
        default = {}
        if 'transport_url' in options:
            default['transport_url'] = self.options.pop('transport_url')
        self.config = programs.write_config(
            place / 'service.conf', DEFAULT=default,
            distperiodic=self.options, **sections)
        conf = cfg.ConfigOpts()
        conf(['--config-file', str(self.config)])
        self.client = tasks.Client(conf, workflows=modules.WORKFLOWS)

    def start(self, kind, *argv):
        program = forks.Program(
            [*programs.PYTHON, '-m', 'distperiodic.cmd.shell', kind,
             '--tasks', 'tests.functional.modules:Modules',
             '--config-file', self.config, *argv],
            self.place / f'{kind}-{len(self.programs)}.log',
            env={**commands.ENVIRONMENT, 'RECORD': str(self.record)})
        self.programs.append(program)
        return program

    def start_all(self):
        """Start two schedulers, and two workers of each module.

        Wait until they have joined, so that no test measures their start.
        """
        started = ([self.start('scheduler') for _ in range(2)],
                   [self.start('worker', '--partition', module)
                    for module in 'abab'])
        self.wait_joined()
        return started

    def wait_joined(self):
        """Wait until each program is a member of its group."""
        waiting.wait_until(lambda: all(
            ' joined: ' in program.said() for program in self.programs),
            programs.STARTING, interval=0.1)

    def submit(self, type_='five', **parameters):
        return self.client.submit(type_, parameters)

    def runs(self, event='start'):
        return [line for line in programs.records(self.record)
                if line['event'] == event]

    def ended(self, task, status='succeeded', timeout=SOON):
        found = self.client.wait(task, timeout)
        assert found.status == status, (found, self.logs())
        return found

    def logs(self):
        return ''.join(program.said()[-3000:] for program in self.programs)

    def close(self):
        for program in self.programs:
            program.kill()
        self.client.close()


@pytest.fixture
def group(tmp_path, zookeeper, rabbitmq, postgresql):
    schema.sync(postgresql.url)
    made = Group(tmp_path, backend_url=zookeeper.url,
                 transport_url=rabbitmq.url, dispatcher='messaging',
                 connection=postgresql.url)
    yield made
    made.close()


@pytest.fixture
def alone(tmp_path):
    """Return the embedded default: one process with a file, and no server."""
    made = Group(tmp_path)
    yield made
    made.close()


@pytest.fixture
def isolated(tmp_path):
    """Return the embedded default, in which the commands of module b run in
    separate processes.
    """
    made = Group(tmp_path, {'partition:b': {'executor': 'process'}})
    yield made
    made.close()


def check(group, ids, dead=()):
    """Check the runs of some tasks.

    No step was skipped. The steps of a task never ran at the same time or in
    the wrong order. Each run has a higher fence than the run before, and only
    runs of dead processes have no end. The database rejected no call.
    """
    assert not any('store call failed: ' in program.said()
                   for program in group.programs)
    ends = {(r['task'], r['step'], r['back'], r['fence']): r['at']
            for r in group.runs('end')}
    by_task = collections.defaultdict(list)
    for run in group.runs():
        by_task[run['task']].append(run)
    for id_ in ids:
        task = group.client.get(id_)
        runs = sorted(by_task[id_], key=lambda run: run['fence'])
        assert [r['at'] for r in runs] == sorted(r['at'] for r in runs), runs
        assert len({r['fence'] for r in runs}) == len(runs)
        for one, other in zip(runs, runs[1:], strict=False):
            end = ends.get((id_, one['step'], one['back'], one['fence']))
            assert one['pid'] in dead or (
                end is not None and end <= other['at']), (one, other)
        order = [(r['back'], -r['step'] if r['back'] else r['step'])
                 for r in runs]
        assert order == sorted(order), order
        forward = {r['step'] for r in runs if not r['back']}
        assert forward == set(range(task.cursor + 1))
        if task.status == 'succeeded':
            assert forward == set(range(len(task.steps)))
            assert not any(r['back'] for r in runs)
        if task.status == 'failed':
            assert {r['step'] for r in runs if r['back']} == {
                index for index in range(task.cursor + 1)
                if task.steps[index].rollback}


def test_the_steps_of_a_task_run_in_order_and_share_their_results(group):
    group.start_all()

    task = group.ended(group.submit(n=1))

    assert task.code == 0
    assert task.cursor == 4
    assert task.parameters == {
        'n': 1, **{f'done-{step}': True for step in range(5)}}
    assert task.created_at <= task.started_at <= task.ended_at
    for step in task.steps:
        assert (step.normal.code, step.normal.attempts) == (0, 1)
        assert step.normal.started_at <= step.normal.ended_at
        assert step.rollback.code is None
    check(group, [task.id])


def test_a_step_that_fails_is_rolled_back_with_those_before_it(alone):
    alone.start('scheduler')

    task = alone.ended(alone.submit('three', behaves={'1': 'fail'}),
                       'failed')

    assert task.cursor == 1
    assert task.message == 'b.run: RuntimeError: step 1 fails'
    assert [s.normal.code for s in task.steps] == [0, 4, 1]
    assert task.steps[1].normal.attempts == 2
    assert [(s.rollback.code, s.rollback.attempts)
            for s in task.steps[:2]] == [(0, 1), (0, 1)]
    assert [(r['step'], r['back']) for r in alone.runs()] == [
        (0, False), (1, False), (1, False), (1, True), (0, True)]
    assert len({r['key'] for r in alone.runs()}) == 4


def test_a_process_counts_the_tasks_that_it_ends(tmp_path, monkeypatch):
    monkeypatch.setenv('RECORD', str(tmp_path / 'record.jsonl'))
    group = Group(tmp_path)
    conf = cfg.ConfigOpts()
    conf(['--config-file', str(group.config)])
    scheduler = service.SchedulerService(conf, modules.Modules(conf))
    scheduler.start()
    try:
        group.ended(group.submit('single'))
        group.ended(group.submit('single', behaves={'0': 'fail'}), 'failed')
        group.ended(group.submit(
            'three', behaves={'1': 'fail', '1r': 'fail'}), 'stuck')

        def counted():
            return scheduler.status()['tasks'] == {
                'cancelled': 0, 'failed': 1, 'succeeded': 1, 'stuck': 1}
        assert waiting.wait_until(counted)
    finally:
        scheduler.stop()
        scheduler.wait()
        group.close()


def test_a_rollback_that_fails_leaves_the_task_stuck_until_a_retry(alone):
    alone.start('scheduler')
    id_ = alone.submit('three', behaves={'1': 'fail', '1r': 'fail'})

    task = alone.ended(id_, 'stuck')

    assert task.code not in (0, 1, 2, 3)
    assert task.steps[1].rollback.message == 'RuntimeError: step 1 fails'
    alone.client.retry(id_)
    assert alone.ended(id_, 'stuck').steps[1].rollback.attempts == 1
    alone.client.cancel(id_, 'the host is gone')
    alone.ended(id_, 'cancelled')
    assert [(r['step'], r['back']) for r in alone.runs()][-1] == (0, True)


@pytest.mark.parametrize(('behaviour', 'message'), [
    ('junk', "the command returned ['not', 'a', 'dictionary']"),
    ('unserialisable', 'cannot be written as JSON'),
    ('hoard', 'the limit is 1000000'),
])
def test_an_invalid_return_value_of_a_command_fails_its_step(
        alone, behaviour, message):
    alone.start('scheduler')

    task = alone.ended(alone.submit(
        'single', behaves={'0': behaviour}), 'failed')

    assert message in task.message
    assert '\n' not in task.message


def test_an_attempt_goes_on_from_the_progress_of_the_one_before(alone):
    alone.start('scheduler')

    task = alone.ended(alone.submit('three', behaves={'1': 'continue'}))

    assert task.parameters['progress'] == {'half': True}
    assert task.steps[1].normal.attempts == 2


def test_nothing_runs_beside_a_step_that_goes_on_after_its_timeout(group):
    group.start_all()
    group.client.set_queue('q', on_failure='go_on')
    first = group.client.submit(
        'short', {'behaves': {'1': 'late'}, 'late': 2.5}, queue='q')
    second = group.client.submit('single', {}, queue='q')

    task = group.ended(first, 'failed')
    group.ended(second)

    assert task.message == 'b.run: timeout after 0.5 s'
    assert task.parameters['late'] == 2.5
    check(group, [first, second])
    over = [r['at'] for r in group.runs('end') if r['task'] == first]
    [began] = [r['at'] for r in group.runs() if r['task'] == second]
    assert max(over) <= began


def test_a_worker_that_dies_while_it_waits_for_a_step_leaves_it_to_others(
        group):
    _, workers = group.start_all()
    id_ = group.submit('short', behaves={'1': 'hang'})
    first = waiting.wait_until(
        lambda: [r for r in group.runs() if r['step'] == 1], SOON)[0]
    worker = next(one for one in workers if first['pid'] in {
        child.pid for child in one.family()})
    waiting.wait_until(lambda: 'run timed out' in worker.said(), SOON)

    dead = [*worker.kill(), worker.process.pid]

    task = group.ended(id_, 'failed')
    assert task.message == 'b.run: timeout after 0.5 s'
    runs = [r for r in group.runs() if r['step'] == 1]
    assert [r['back'] for r in runs] == [False, False, True]
    assert runs[2]['at'] - runs[1]['at'] >= 0.5 + group.options['lease']
    assert first['pid'] in dead


def test_a_retry_waits_for_the_attempt_that_goes_on_after_its_timeout(alone):
    alone.start('scheduler')

    task = alone.ended(alone.submit(
        'hasty', behaves={'0': 'late'}, late=2))

    assert task.parameters['attempt'] == task.steps[0].normal.attempts == 2
    assert task.parameters['late'] == 2
    check(alone, [task.id])


def test_the_rollback_of_a_step_that_hangs_waits_for_its_lease(alone):
    alone.start('scheduler')

    task = alone.ended(alone.submit('short', behaves={'1': 'hang'}),
                       'failed')

    began, back = (next(
        r['at'] for r in alone.runs() if (r['step'], r['back']) == (1, which))
        for which in (False, True))
    assert task.message == 'b.run: timeout after 0.5 s'
    assert back - began >= 0.5 + alone.options['lease']


def test_a_command_has_the_same_effect_in_a_process_as_in_a_thread(isolated):
    isolated.start('scheduler')

    task = isolated.ended(isolated.submit(n=1))

    assert task.parameters == {
        'n': 1, **{f'done-{step}': True for step in range(5)}}
    of_a, of_b = ({r['pid'] for r in isolated.runs()
                   if r['step'] % 2 == rest} for rest in (0, 1))
    assert not of_a & of_b
    check(isolated, [task.id])


@pytest.mark.parametrize(('behaviour', 'message'), [
    ('hang', 'b.run: TimeoutError: timeout after 2 s; its process was killed'),
    ('exit', 'b.run: ChildProcessError: its process ended with exit code 3'),
    ('fail', 'b.run: RuntimeError: step 1 fails'),
    ('junk', "b.run: InvalidTask: the command returned ['not', 'a', "
     "'dictionary']; return a dictionary, to merge into the parameters of "
     'later steps, or None'),
])
def test_a_command_in_a_process_fails_alone(isolated, behaviour, message):
    program = isolated.start('scheduler')

    task = isolated.ended(isolated.submit(
        'killed', behaves={'1': behaviour}), 'failed')

    assert task.message == message
    [run] = [r for r in isolated.runs() if r['step'] == 1 and not r['back']]
    assert psutil.pid_exists(run['pid']) is (behaviour in ('fail', 'junk'))
    assert program.running
    isolated.ended(isolated.submit('killed'))


@pytest.mark.parametrize(('type_', 'behaviour'), [
    ('three', 'continue'), ('repeated', 'continue_after_timeout')])
def test_a_command_in_a_process_hands_its_progress_to_the_next_attempt(
        isolated, type_, behaviour):
    isolated.start('scheduler')

    task = isolated.ended(isolated.submit(
        type_, behaves={'1' if type_ == 'three' else '0': behaviour}))

    assert task.parameters['progress'] == {'half': True}


def test_a_command_in_a_process_ends_with_its_lease(isolated):
    program = isolated.start('scheduler')
    gate = isolated.place / 'gate'
    id_ = isolated.submit('patient', behaves={'0': 'watch'}, gate=str(gate))
    [run] = waiting.wait_until(isolated.runs, SOON)
    service_ = psutil.Process(run['pid']).parent()

    with Pauses() as pauses:
        service_.suspend()
        waiting.wait_until(lambda: programs.is_over(run['pid']), SOON)
        ended = time.time()
    service_.resume()

    assert pauses.seconds(run['at'], ended) < isolated.options['lease'] + 1
    isolated.ended(id_)
    assert [r['attempt'] for r in isolated.runs()] == [1, 2]
    assert program.running
    assert 'run ended with its lease' in isolated.logs()


def test_no_process_of_a_frozen_worker_goes_on_beside_its_successor(
        tmp_path, zookeeper, rabbitmq, postgresql):
    schema.sync(postgresql.url)
    group = Group(tmp_path, {'partition:b': {'executor': 'process'}},
                  backend_url=zookeeper.url, transport_url=rabbitmq.url,
                  dispatcher='messaging', connection=postgresql.url)
    try:
        group.start('scheduler')
        for _ in range(2):
            group.start('worker', '--partition', 'b')
        group.wait_joined()
        gate = group.place / 'gate'
        id_ = group.submit('endless', behaves={'0': 'tick'}, gate=str(gate))
        [run] = waiting.wait_until(group.runs, SOON)
        service_ = psutil.Process(run['pid']).parent()
        # The leases must have been renewed at least once by then.
        waiting.wait_until(lambda: gate.exists() and (
            gate.stat().st_mtime
            > run['at'] + group.options['lease'] + 1), SOON)
        assert not programs.is_over(run['pid'])

        service_.suspend()
        again = waiting.wait_until(
            lambda: [r for r in group.runs() if r['attempt'] == 2], SOON)[0]
        assert programs.is_over(run['pid'])
        service_.resume()

        assert again['pid'] != run['pid']
        assert gate.stat().st_mtime < again['at']
        group.ended(id_)
    finally:
        group.close()


def test_the_processes_of_a_service_that_is_killed_end_with_it(isolated):
    program = isolated.start('scheduler')
    isolated.submit('killed', behaves={'1': 'hang'})
    run = waiting.wait_until(
        lambda: [r for r in isolated.runs() if r['step'] == 1], SOON)[0]
    launched = [one for one in program.family() if one.pid != run['pid']]

    for one in launched:
        one.kill()

    waiting.wait_until(lambda: not psutil.pid_exists(run['pid']))


def test_a_step_whose_worker_dies_runs_again(group):
    group.start_all()

    task = group.ended(group.submit(behaves={'1': 'exit_once'}))

    killed = task.steps[1].normal
    assert (killed.attempts, killed.losses, killed.code) == (2, 1, 0)
    first, second = (r['at'] for r in group.runs() if r['step'] == 1)
    assert killed.started_at.timestamp() <= first + 1
    assert killed.ended_at.timestamp() >= second - 1
    check(group, [task.id], dead={r['pid'] for r in group.runs()
                                  if r['step'] == 1})


def test_a_step_that_runs_at_most_once_fails_with_its_worker(group):
    group.start_all()

    task = group.ended(group.submit('once', behaves={'1': 'exit'}),
                       'failed')

    assert [r['step'] for r in group.runs() if not r['back']] == [0, 1]
    assert 'its worker was lost' in task.message


def test_a_task_survives_the_death_of_any_process_at_any_time(group):
    schedulers, workers = group.start_all()
    ids = [group.submit(takes=0.05, n=n) for n in range(16)]
    bad = [group.submit(takes=0.05, behaves={'3': 'fail'})
           for n in range(10)]
    dead = set()
    started = [schedulers, workers]
    kinds = [('scheduler',), ('worker', '--partition', 'a'),
             ('worker', '--partition', 'b')]
    before = 0
    for kind in kinds * 2:
        # Kill the process during the work, neither before nor after it.
        ids += [group.submit(takes=0.05, n=n) for n in range(6)]
        waiting.wait_until(
            lambda enough=before + 15: len(group.runs()) > enough, SOON)
        before = len(group.runs())
        victim = next(program for programs_ in started
                      for program in programs_ if program.running
                      and kind[-1] in program.process.args
                      and kind[0] in program.process.args)
        dead.update([*victim.kill(), victim.process.pid])
        started[kind[0] == 'worker'].append(group.start(*kind))

    for tasks_, status in ((ids, 'succeeded'), (bad, 'failed')):
        assert {group.client.wait(id_, SOON).status
                for id_ in tasks_} == {status}
    check(group, ids + bad, dead)


def test_tasks_of_a_queue_run_one_at_a_time_and_in_order(group):
    schedulers, workers = group.start_all()
    ids = [group.client.submit('three', {'takes': 0.05}, queue='oracle')
           for n in range(10)]
    other = [group.client.submit('single', {}, queue='mysql')
             for n in range(5)]
    waiting.wait_until(lambda: len(group.runs()) > 10, SOON)
    dead = set(workers[0].kill() + [workers[0].process.pid])
    dead.update([*schedulers[0].kill(), schedulers[0].process.pid])

    for id_ in ids + other:
        group.ended(id_)

    check(group, ids, dead)
    for queue in (ids, other):
        runs = sorted((r for r in group.runs() if r['task'] in queue),
                      key=lambda r: r['at'])
        order = list(dict.fromkeys(r['task'] for r in runs))
        assert order == queue
        last = {}
        for at, run in enumerate(runs):
            last[run['task']] = at
        assert all(runs[at + 1]['at'] >= runs[at]['at']
                   and order.index(runs[at + 1]['task'])
                   == order.index(task) + 1
                   for task, at in last.items() if at + 1 < len(runs))


def test_a_queue_waits_for_the_successor_of_a_frozen_handler_in_a_thread(
        group):
    """The frozen handler wakes up, and then runs at the same time as the next
    attempt and the next task. A thread cannot be ended.
    """
    group.start_all()
    gate = group.place / 'gate'
    first = group.client.submit(
        'single', {'behaves': {'0': 'until_of_attempt'}, 'gate': str(gate)},
        queue='q')
    second = group.client.submit('single', {}, queue='q')
    [run] = waiting.wait_until(group.runs, SOON)
    os.kill(run['pid'], signal.SIGSTOP)
    [again] = waiting.wait_until(
        lambda: [r for r in group.runs() if r['pid'] != run['pid']], SOON)
    os.kill(run['pid'], signal.SIGCONT)
    # The handler has run code since it woke up.
    pathlib.Path(f'{gate}-1.beat').unlink(missing_ok=True)
    waiting.wait_until(pathlib.Path(f'{gate}-1.beat').exists, SOON)
    assert [r['task'] for r in group.runs()] == [first, first]

    pathlib.Path(f'{gate}-2').touch()

    done = group.ended(first)
    group.ended(second)
    # The frozen handler is still running. It delays no other run.
    assert [(r['task'], r['attempt']) for r in group.runs('end')] == [
        (first, 2), (second, 1)]
    pathlib.Path(f'{gate}-1').touch()
    waiting.wait_until(lambda: len(group.runs('end')) == 3, SOON)
    assert again['fence'] > run['fence']
    assert [(r['task'], r['attempt']) for r in group.runs()] == [
        (first, 1), (first, 2), (second, 1)]
    [ended] = [r['at'] for r in group.runs('end')
               if (r['task'], r['attempt']) == (first, 2)]
    [began] = [r['at'] for r in group.runs() if r['task'] == second]
    assert ended <= began
    # The result of the frozen handler does not count.
    assert group.client.get(first) == done
    assert done.parameters['attempt'] == 2


@pytest.fixture
def in_processes(tmp_path, zookeeper, rabbitmq, postgresql):
    """Return a group in which the commands of module b run in separate
    processes. A scheduler and two workers of this module run.
    """
    schema.sync(postgresql.url)
    made = Group(tmp_path, {'partition:b': {'executor': 'process'}},
                 backend_url=zookeeper.url, transport_url=rabbitmq.url,
                 dispatcher='messaging', connection=postgresql.url)
    made.start('scheduler')
    for _ in range(2):
        made.start('worker', '--partition', 'b')
    made.wait_joined()
    yield made
    made.close()


def start_a_queue(group):
    """Submit two tasks to a queue. The first attempt of the first task runs
    until its process ends.

    :returns: The tasks, the run of the first task, and its beat file.
    """
    beat = group.place / 'beat'
    first = group.client.submit(
        'endless', {'behaves': {'0': 'tick'}, 'gate': str(beat)}, queue='q')
    second = group.client.submit('endless', {}, queue='q')
    [run] = waiting.wait_until(group.runs, SOON)
    # The lease must have been renewed at least once by then.
    waiting.wait_until(lambda: beat.exists() and (
        beat.stat().st_mtime > run['at'] + group.options['lease'] + 1), SOON)
    assert not programs.is_over(run['pid'])
    return first, second, run, beat


def check_queue(group, first, second, run):
    """Check that only the frozen handler has no end, and that the other runs
    of the queue followed each other.
    """
    runs = group.runs()
    assert [(r['task'], r['attempt']) for r in runs] == [
        (first, 1), (first, 2), (second, 1)]
    ends = group.runs('end')
    assert [(r['task'], r['attempt']) for r in ends] == [
        (first, 2), (second, 1)]
    assert runs[1]['at'] <= ends[0]['at'] <= runs[2]['at'] <= ends[1]['at']
    assert run['pid'] not in {r['pid'] for r in runs[1:]}


def test_no_two_tasks_of_a_queue_are_at_work_while_a_worker_freezes_and_wakes(
        in_processes):
    """The handler's process ends before the lease expires, although its worker
    is suspended.
    """
    group = in_processes
    first, second, run, beat = start_a_queue(group)
    worker = psutil.Process(run['pid']).parent()

    worker.suspend()
    again = waiting.wait_until(
        lambda: [r for r in group.runs() if r['attempt'] == 2], SOON)[0]
    assert programs.is_over(run['pid'])
    group.ended(second)
    worker.resume()
    waiting.wait_until(
        lambda: 'run ended with its lease' in group.logs(), SOON)

    group.ended(first)
    check_queue(group, first, second, run)
    assert beat.stat().st_mtime < again['at']


def test_a_frozen_handler_in_a_process_ends_when_it_wakes(in_processes):
    """The worker and the processes of its handlers are suspended, like all
    processes of a machine that is suspended.
    """
    group = in_processes
    first, second, run, beat = start_a_queue(group)
    worker = psutil.Process(run['pid']).parent()
    family = [worker, *worker.children(recursive=True)]

    for one in family:
        one.suspend()
    group.ended(second)
    assert not programs.is_over(run['pid'])
    with Pauses() as pauses:
        before = time.time()
        for one in family:
            one.resume()
        waiting.wait_until(lambda: programs.is_over(run['pid']), SOON)
    # It may have run some lines before its process ended.
    assert pauses.seconds(before, beat.stat().st_mtime) < 1

    group.ended(first)
    check_queue(group, first, second, run)


def test_a_queue_halts_after_a_failure_until_it_is_resumed(alone):
    alone.start('scheduler')
    bad = alone.client.submit(
        'single', {'behaves': {'0': 'fail'}}, queue='q')
    good = alone.client.submit('single', {}, queue='q')
    alone.ended(bad, 'failed')

    [queue] = alone.client.queues()

    assert (queue.name, queue.halted_by, queue.waiting) == ('q', bad, 1)
    assert alone.client.get(good).status == 'waiting'
    alone.client.resume_queue('q')
    alone.ended(good)


@pytest.fixture
def slow_sweeps(tmp_path, zookeeper, rabbitmq, postgresql):
    """Return a group whose schedulers sweep only once a minute."""
    schema.sync(postgresql.url)
    made = Group(tmp_path, backend_url=zookeeper.url,
                 transport_url=rabbitmq.url, dispatcher='messaging',
                 connection=postgresql.url, session_timeout=120, lease=200,
                 sweep_interval=60)
    yield made
    made.close()


@pytest.mark.parametrize('types, queue', [
    (['forth'], None), (['single', 'single', 'other'], 'q')],
    ids=['steps', 'queue'])
def test_no_step_on_another_worker_waits_for_a_sweep(
        slow_sweeps, types, queue):
    """A worker runs the second step at once, without a scheduler. So no
    scheduler receives a report of its end. The third step runs on a worker of
    another module.
    """
    group = slow_sweeps
    group.start_all()
    # Wait until the schedulers know the workers of both modules.
    group.ended(group.submit('three'))

    # Steps that take some time end after the report on the first step.
    began = time.monotonic()
    for id_ in group.client.submit_many([
            {'type': type_, 'queue': queue, 'parameters': {'takes': 0.5}}
            for type_ in types]):
        group.ended(id_)

    assert time.monotonic() - began < group.options['sweep_interval'] / 4


def test_a_step_that_waits_for_a_worker_runs_when_the_worker_joins(
        slow_sweeps):
    group = slow_sweeps
    group.start('scheduler')
    group.start('worker', '--partition', 'b')
    group.wait_joined()
    group.ended(group.submit('other'))
    waits = group.submit('single')
    # The scheduler handles the notices in order.
    group.ended(group.submit('other'))

    began = time.monotonic()
    group.start('worker', '--partition', 'a')
    group.ended(waits)

    assert time.monotonic() - began < group.options['sweep_interval'] / 3


def test_one_member_serves_a_queue_and_the_queues_spread(tmp_path, zookeeper):
    """The sweep interval is long. So a task that starts soon was started by a
    notice. There is a slot for each queue: a member that had no slot for its
    own tasks would then take any ready task.
    """
    connection = f'sqlite:///{tmp_path}/tasks.sqlite'
    schema.sync(connection)
    group = Group(tmp_path, backend_url=zookeeper.url, connection=connection,
                  session_timeout=40, lease=70, sweep_interval=20,
                  pool_size=20)
    try:
        members = [group.start('scheduler') for _ in range(2)]
        group.wait_joined()
        waiting.wait_until(lambda: all(
            re.search(r'view: .* members=2 ', program.said())
            for program in members), SOON)
        # So many queues that each member serves some, whatever its name.
        queues = [f'q-{number}' for number in range(20)]
        ids = {}
        for _ in range(3):
            for name in queues:
                id_ = group.client.submit('single', {}, queue=name)
                ids[id_] = name
                group.ended(id_)
        shown = {row['queue']: row['member'] for row in json.loads(
            commands.call('queue', 'list', '-f', 'json', '--config-file',
                          group.config).stdout)}

        # The command names the member that ran the tasks of the queue.
        ran = collections.defaultdict(collections.Counter)
        for run in group.runs():
            ran[shown[ids[run['task']]]][run['pid']] += 1
        (one, of_one), (other, of_other) = (
            pids.most_common(1)[0] for pids in ran.values())
        assert one != other
        # On a busy machine, the other member may find a task first.
        assert of_one + of_other > 0.8 * len(ids)
    finally:
        group.close()


def test_schedulers_share_a_burst_and_an_urgent_task_goes_first(tmp_path):
    """The first burst comes before any run was measured, the second one
    afterwards.
    """
    connection = f'sqlite:///{tmp_path}/tasks.sqlite'
    schema.sync(connection)
    group = Group(tmp_path, backend_url=f'file://{tmp_path}/members',
                  connection=connection, session_timeout=10, lease=20)
    try:
        members = [group.start('scheduler') for _ in range(3)]
        waiting.wait_until(lambda: all(
            re.search(r'view: .* members=3 ', program.said())
            for program in members), SOON)
        for _ in range(2):
            before = len(group.runs())
            burst = group.client.submit_many(
                {'type': 'single', 'parameters': {'takes': 0.7}}
                for _ in range(24))
            waiting.wait_until(
                lambda before=before: len(group.runs()) >= before + 12, SOON)
            urgent = group.client.submit('single', priority=100)
            urgent = group.ended(urgent)
            started = [group.ended(id_).started_at for id_ in burst]
            by_member = collections.Counter(
                run['pid'] for run in group.runs() if run['task'] in burst)
            waited = [at for at in started if at > urgent.created_at]

            assert len(by_member) == 3
            assert max(by_member.values()) <= 12, by_member
            assert len(waited) >= 8
            assert min(waited) >= urgent.started_at
    finally:
        group.close()


def test_several_schedulers_use_all_slots_and_no_more(
        tmp_path, zookeeper, rabbitmq, postgresql):
    """Each end of a run is followed by a start, and nothing waits at a worker
    while another worker has free slots. Also if one of the schedulers is
    frozen, the others use all slots.
    """
    schema.sync(postgresql.url)
    group = Group(tmp_path, backend_url=zookeeper.url,
                  transport_url=rabbitmq.url, dispatcher='messaging',
                  connection=postgresql.url, session_timeout=60, lease=60,
                  late_claim_after=5)
    slots, takes = 8, 2.0
    try:
        schedulers = [group.start('scheduler') for _ in range(3)]
        for _ in range(slots // group.options['pool_size']):
            group.start('worker', '--partition', 'a')
        group.wait_joined()
        waiting.wait_until(lambda: all(
            re.search(r'view: .* members=3 ', program.said())
            for program in schedulers), SOON)

        burst = group.client.submit_many(
            {'type': 'single', 'parameters': {'takes': takes}}
            for _ in range(4 * slots))
        for id_ in burst:
            group.ended(id_)
        starts, ends = (sorted(
            run['at'] for run in group.runs(event))
            for event in ('start', 'end'))
        pauses = [start - end for start, end in zip(
            starts[slots:], ends, strict=False)]
        assert sum(pause > takes / 2 for pause in pauses) <= 1, pauses

        frozen = psutil.Process(schedulers[0].process.pid)
        frozen = [frozen, *frozen.children(recursive=True)]
        for process in frozen:
            process.suspend()
        gate = tmp_path / 'gate'
        before = len(group.runs())
        held = group.client.submit_many(
            {'type': 'single', 'parameters': {
                'behaves': {'0': 'until'}, 'gate': str(gate)}}
            for _ in range(3 * slots))
        # Its session has not ended: the server grants 40 s.
        waiting.within(30, lambda: len(group.runs()) == before + slots)
        granted = sum(group.client.get(id_).started_at is not None
                      for id_ in held)
        # A scheduler that sends later than the other one may use its part, at
        # most half of the slots of a worker.
        assert granted <= 1.5 * slots
        gate.touch()
        for process in frozen:
            process.resume()
        for id_ in held:
            group.ended(id_)
    finally:
        group.close()


def test_a_process_claims_as_many_steps_as_its_pool_has_threads(alone):
    """All other steps wait in the store, also after a change of the pool."""
    alone.start('scheduler')
    gate = alone.place / 'gate'
    tasks_ = alone.client.submit_many(
        {'type': 'single', 'parameters': {
            'behaves': {'0': 'until'}, 'gate': str(gate)}} for _ in range(9))

    for size in (4, 6):
        if size != alone.options['pool_size']:
            commands.call('member', 'set', 'pool_size', str(size), '--all',
                          '--config-file', alone.config)
        waiting.wait_until(
            lambda size=size: len(alone.runs()) == size, SOON)
        assert sum(alone.client.get(id_).started_at is not None
                   for id_ in tasks_) == size
    gate.touch()
    for id_ in tasks_:
        alone.ended(id_)


def test_a_task_exists_only_if_its_submitter_commits(group):
    group.start_all()
    engine = database.make_engine(group.options['connection'], bounded=False)
    with engine.connect() as connection:
        rolled_back = group.client.submit('single', session=connection)
        connection.rollback()
        committed = group.client.submit('single', session=connection)
        connection.commit()
    engine.dispose()

    group.ended(committed)

    with pytest.raises(LookupError):
        group.client.get(rolled_back)


def test_a_task_of_one_process_runs_in_the_next_one_that_serves_it(alone):
    id_ = alone.submit(n=1)
    alone.client.close()

    alone.start('scheduler')

    alone.ended(id_)
    check(alone, [id_])


def test_a_killed_process_leaves_its_tasks_to_the_next_one(alone):
    first = alone.start('scheduler')
    ids = [alone.submit(takes=0.02) for _ in range(20)]
    waiting.wait_until(lambda: len(alone.runs()) > 10, SOON)

    dead = [*first.kill(), first.process.pid]
    alone.start('scheduler')

    for id_ in ids:
        alone.ended(id_)
    check(alone, ids, dead)


def test_a_waiting_task_is_cancelled_at_once_and_a_running_one_after_its_step(
        group):
    waits = group.submit()
    group.client.cancel(waits)
    assert group.client.get(waits).status == 'cancelled'
    group.start_all()
    gate = group.place / 'gate'
    runs = group.submit(behaves={'1': 'until'}, gate=str(gate))
    waiting.wait_until(
        lambda: [r for r in group.runs() if r['step'] == 1], SOON)

    group.client.cancel(runs, 'not needed')
    gate.touch()

    task = group.ended(runs, 'cancelled')
    assert [(r['step'], r['back']) for r in group.runs()] == [
        (0, False), (1, False), (1, True), (0, True)]
    assert task.cursor == 1


@pytest.mark.parametrize('step', [0, 1], ids=['thread', 'process'])
def test_a_handler_learns_that_its_task_is_cancelled(isolated, step):
    isolated.start('scheduler')
    id_ = isolated.submit(behaves={str(step): 'until_cancelled'})
    waiting.wait_until(
        lambda: [r for r in isolated.runs() if r['step'] == step], SOON)

    isolated.client.cancel(id_)

    assert isolated.ended(id_, 'cancelled').cursor == step


def test_a_notice_reaches_a_scheduler_long_before_its_sweep(
        tmp_path, zookeeper, rabbitmq, postgresql):
    schema.sync(postgresql.url)
    group = Group(tmp_path, backend_url=zookeeper.url,
                  transport_url=rabbitmq.url, dispatcher='messaging',
                  connection=postgresql.url, session_timeout=20, lease=60,
                  late_claim_after=5, sweep_interval=9)
    try:
        group.start('scheduler')
        group.start('worker', '--partition', 'a')
        group.wait_joined()
        group.ended(group.submit('single'))
        group.ended(group.submit('single'))
        waits = []
        for _ in range(5):
            task = group.ended(group.submit('single'))
            waits.append((task.started_at - task.created_at).total_seconds())
    finally:
        group.close()

    assert sorted(waits)[2] < 3


def test_a_submission_into_a_queue_does_not_wait_for_the_sweep(
        tmp_path, zookeeper, rabbitmq, postgresql):
    """The group is idle, and one of its members serves the queue.

    The bound is far below the sweep interval, but far above the usual delay:
    the test shows that a notice starts the task, and not the sweep.
    tests/benchmarks/test_tasks.py measures the delay, with two schedulers, two
    workers and a queue.
    """
    sweep = 20
    schema.sync(postgresql.url)
    group = Group(tmp_path, backend_url=zookeeper.url,
                  transport_url=rabbitmq.url, dispatcher='messaging',
                  connection=postgresql.url, session_timeout=2 * sweep,
                  lease=4 * sweep, sweep_interval=sweep)
    try:
        members = [group.start('scheduler') for _ in range(2)]
        for _ in range(2):
            group.start('worker', '--partition', 'a')
        group.wait_joined()
        waiting.wait_until(lambda: all(
            re.search(r'view: .* members=2 ', program.said())
            for program in members), SOON)
        waits = []
        for number in range(18):
            queue = f'q-{number % 4}'
            before = time.time()
            id_ = group.client.submit('single', {}, queue=queue)
            group.ended(id_)
            [began] = [r['at'] for r in group.runs() if r['task'] == id_]
            waits.append(began - before)
    finally:
        group.close()

    # A single task may be found by a sweep that happens to be due.
    assert statistics.median(waits) < sweep / 20, waits
    assert sorted(waits)[len(waits) * 3 // 4] < sweep / 4, waits


def test_without_a_broker_a_task_of_another_process_waits_for_the_sweep(
        tmp_path, zookeeper, postgresql):
    schema.sync(postgresql.url)
    sweep = 5
    group = Group(tmp_path, backend_url=zookeeper.url,
                  connection=postgresql.url, session_timeout=2 * sweep,
                  lease=4 * sweep, sweep_interval=sweep)
    try:
        group.start('scheduler')
        group.wait_joined()
        group.ended(group.submit('single'))
        waits = []
        for _ in range(4):
            task = group.ended(group.submit('single'))
            waits.append((task.started_at - task.created_at).total_seconds())
    finally:
        group.close()

    assert max(waits) < 2 * sweep, waits


def test_a_submission_wakes_the_process_that_shares_the_file(tmp_path):
    group = Group(tmp_path, session_timeout=20, lease=60,
                  late_claim_after=5, sweep_interval=9)
    try:
        group.start('scheduler')
        group.ended(group.submit('single'))
        waits = []
        for _ in range(7):
            task = group.ended(group.submit('single'))
            waits.append((task.started_at - task.created_at).total_seconds())
    finally:
        group.close()

    assert sorted(waits)[3] < 1


def test_a_lost_notice_is_made_good_by_the_sweep(group, monkeypatch):
    group.start_all()
    group.ended(group.submit('single'))
    monkeypatch.setattr(group.client, '_notify', lambda tasks: None)

    group.ended(group.submit('single'), timeout=10)


def test_steps_wait_for_a_worker_of_their_module(group):
    group.start('scheduler')
    group.start('worker', '--partition', 'a')
    group.wait_joined()
    id_ = group.submit()
    waiting.wait_until(
        lambda: group.client.get(id_).steps[0].normal.code == 0, SOON)
    assert group.client.get(id_).steps[1].normal.code == 1

    group.start('worker', '--partition', 'b')

    group.ended(id_)


def test_a_task_that_has_ended_has_no_ready_step(group):
    group.start_all()
    task = group.ended(group.submit())
    engine = database.make_engine(group.options['connection'])
    # The database also contains the groups of other tests.
    ready = sa.select(sa.func.count()).where(tables.ready.c.task == task.id)

    with engine.connect() as connection:
        assert waiting.wait_until(lambda: connection.scalar(ready) == 0)
    engine.dispose()
