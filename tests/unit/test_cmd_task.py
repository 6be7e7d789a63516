# SPDX-License-Identifier: Apache-2.0
"""Commands about tasks: the input of the commands, and the sentences that they
print.
"""

import argparse
import dataclasses
import datetime
import json
import types

import pytest

from distperiodic import exceptions
from distperiodic.cmd import task_submit
from distperiodic.core import definitions
from distperiodic.core import waiting
from distperiodic.core.live import Live
from distperiodic.core.live import LiveProcess
from distperiodic.core.task import Step
from distperiodic.core.task import Task
from distperiodic.core.task import command_of
from distperiodic.core.waiting import Wait
from distperiodic.core.waiting import WaitReason
from distperiodic.core.workflow import Position
from distperiodic.core.workflow import Status
from distperiodic.operator import live_processes
from distperiodic.operator import task_answers
from distperiodic.operator.member_rows import MemberRow
from distperiodic.service import member_report
from tests.unit.test_documentation import SOURCE

UTC = datetime.UTC


@pytest.mark.parametrize(('text', 'found'), [
    ('Cpu=4', ('Cpu', 4)), ('Cpu="4"', ('Cpu', '4')),
    ('Name=größe', ('Name', 'größe')), ('Name=', ('Name', '')),
    ('a=b=c', ('a', 'b=c')), ('On=true', ('On', True)),
    ('None=null', ('None', None)), ('x=NaN', ('x', 'NaN')),
    ('Disks=[1, 2]', ('Disks', [1, 2])), ('x= 7 ', ('x', 7)),
    ('x={"a": 1, "a": 2}', ('x', '{"a": 1, "a": 2}')),
    ('x={', ('x', '{'))])
def test_a_parameter_is_json_where_it_can_be(text, found):
    assert task_submit.parameter(text) == found


@pytest.mark.parametrize('text', ['', 'Cpu', '=4'])
def test_a_parameter_without_a_key_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match='KEY=VALUE'):
        task_submit.parameter(text)


@pytest.mark.parametrize(('text', 'at'), [
    ('2026-01-31T06:00Z', (2026, 1, 31, 6)),
    ('2026-01-31T06:00+02:00', (2026, 1, 31, 4)),
    ('2026-01-31 06:00:00-01:00', (2026, 1, 31, 7)),
    ('9999-12-31T23:59Z', (9999, 12, 31, 23, 59)),
    ('0001-01-01T00:00Z', (1, 1, 1))])
def test_a_start_is_an_instant_with_its_zone(text, at):
    assert task_submit.start(text) == datetime.datetime(*at, tzinfo=UTC)


def test_a_start_may_be_a_time_from_now():
    early = task_submit.start('+10m')
    late = task_submit.start('+2h')

    assert datetime.timedelta(minutes=110) <= late - early < (
        datetime.timedelta(minutes=111))


@pytest.mark.parametrize('text', [
    '', '+', '+5', '+-5m', '10m', 'soon', '2026-01-31T06:00', '2026-01-31',
    '+99999999999d', '9999-12-31T23:59-05:00', '0001-01-01T00:00+05:00'])
def test_an_invalid_start_time_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError):
        task_submit.start(text)


def seen(status=Status.WAITING, cursor=0):
    """A task with three steps and no records."""
    [definition] = definitions.parse_workflows({'three': [{'normal': {
        'module': 'a', 'command': 'run'}}] * 3}).values()

    return Task(
        'id-1', 'three', None, status, None, cursor, 'my queue', 0, {},
        datetime.datetime(2026, 1, 31, tzinfo=UTC), None, None, None,
        tuple(Step(command_of(step.normal, None, True), None)
              for step in definition))


MEMBERS = types.SimpleNamespace(
    session_timeout=10.0, dispatcher='local', topic_of=lambda part: part)
SETTINGS = types.SimpleNamespace(group='nodes', dispatcher='messaging')


@pytest.mark.parametrize('wait', Wait, ids=str)
def test_each_reason_of_a_wait_has_its_sentence(wait):
    told = task_answers.sentence(seen(), WaitReason(
        wait, 'a', 'run', 1_000_000, 1_000_000, 'api-1:2~00112233~t1', 'id-0',
        Status.ROLLING_BACK, 3, 2_000_000, 'Umzug', 'id-9'), SETTINGS)

    assert '{' not in told
    assert 'None' not in told
    # A sentence names the cause of the wait, except when the cause is a queue.
    assert any(name in told for name in ('a.run', 'my queue', 'nodes', 'Z'))


def test_a_step_without_a_rollback_is_marked():
    [definition] = definitions.parse_workflows({'two': [
        {'normal': {'module': 'a', 'command': 'run'},
         'rollback': {'module': 'a', 'command': 'undo'}},
        {'normal': {'module': 'a', 'command': 'end'}}]}).values()
    task = dataclasses.replace(seen(Status.ROLLING_BACK, 1), steps=tuple(
        Step(command_of(step.normal, None, True),
             step.rollback and command_of(step.rollback, None, False))
        for step in definition))

    rows = list(task_answers.drawn(types.SimpleNamespace(
        task=task, position=Position(Status.ROLLING_BACK, 1, 0, True),
        waiting=None)))

    assert [row[2] for row in rows] == [
        'a.run', 'a.end (no rollback)', 'undo: a.undo']


def test_a_queue_is_quoted_where_a_shell_reads_it():
    told = task_answers.sentence(seen(), WaitReason(
        Wait.QUEUE_HALTED, 'a', 'run', halted=0), SETTINGS)

    assert "queue resume 'my queue'" in told


ABLE = LiveProcess(commands=frozenset({'a.run', 'a.undo'}))
OTHER = LiveProcess(commands=frozenset({'b.run'}))
UNKNOWN = LiveProcess(commands=None)
DRAINED = dataclasses.replace(ABLE, drained=True)
BUSY = dataclasses.replace(ABLE, busy={'a': True})


@pytest.mark.parametrize(('wait', 'schedulers', 'workers', 'found'), [
    (Wait.READY, [ABLE], [], Wait.NO_WORKER),
    (Wait.CLAIMED, [ABLE], [], Wait.NO_WORKER),
    (Wait.READY, [ABLE], [ABLE], Wait.READY),
    (Wait.READY, [ABLE], None, Wait.READY),
    (Wait.READY, [], [], Wait.NO_SCHEDULER),
    (Wait.RETRY, [ABLE], [], Wait.RETRY),
    (Wait.RETRY, [OTHER], [], Wait.RETRY),
    (Wait.RETRY, [], [ABLE], Wait.NO_SCHEDULER),
    (Wait.READY, [OTHER, OTHER], None, Wait.NO_COMMAND),
    (Wait.READY, [OTHER, ABLE], None, Wait.READY),
    (Wait.READY, [OTHER, UNKNOWN], None, Wait.READY),
    (Wait.READY, [ABLE], [OTHER], Wait.NO_COMMAND),
    (Wait.CLAIMED, [ABLE], [OTHER], Wait.NO_COMMAND),
    (Wait.CLAIMED, [OTHER], [ABLE], Wait.CLAIMED),
    (Wait.LEASE_ENDED, [OTHER], [ABLE], Wait.NO_COMMAND),
    (Wait.LEASE_ENDED, [ABLE], [], Wait.LEASE_ENDED),
    (Wait.READY, [DRAINED, OTHER], None, Wait.DRAINED),
    (Wait.READY, [DRAINED, ABLE], None, Wait.READY),
    (Wait.READY, [ABLE], [DRAINED], Wait.DRAINED),
    (Wait.READY, [BUSY, OTHER], None, Wait.BUSY),
    (Wait.CLAIMED, [BUSY], None, Wait.BUSY),
    (Wait.CLAIMED, [BUSY, ABLE], None, Wait.CLAIMED),
    (Wait.CLAIMED, [BUSY], [ABLE], Wait.CLAIMED),
    (Wait.CLAIMED, [ABLE], [BUSY], Wait.BUSY),
    (Wait.NEXT_IN_QUEUE, [], None, Wait.NO_SCHEDULER),
    (Wait.DELAYED, [], None, Wait.DELAYED),
    (Wait.BEHIND, [], [], Wait.BEHIND),
    (Wait.QUEUE_HALTED, [], [], Wait.QUEUE_HALTED),
    (Wait.STUCK, [], [], Wait.STUCK)])
def test_a_missing_process_is_a_reason_where_it_would_help(
        wait, schedulers, workers, found):
    told = waiting.with_processes(WaitReason(wait, 'a', 'run'), Live(
        schedulers, None if workers is None else {'a': workers}))

    assert told.wait is found


@pytest.mark.parametrize(('part', 'state', 'kept', 'found'), [
    ('', {'commands': ['a.run']}, 'api-1', 'slots free'),
    ('', {'commands': ['a.run'], 'more_commands': 3}, 'api-1', 'unknown'),
    ('', {}, 'api-1', 'unknown'),
    ('', {'commands': ['a.run']}, 'api-2', None),
    ('b', {'commands': ['b.run']}, 'api-1', 'only a worker')])
def test_the_group_decides_which_rows_of_members_are_of_live_processes(
        part, state, kept, found):
    """A member without a row is live, but its commands are unknown."""
    row = MemberRow(part, 'api-1', 'api-1~1', 0, state, False, None, '', '',
                    None)
    group = types.SimpleNamespace(
        members=[types.SimpleNamespace(identity=kept)], workers={})

    told = live_processes.of_rows([row], MEMBERS, group)

    assert told.schedulers == [LiveProcess(commands=None if found in (
        'unknown', None, 'only a worker') else frozenset({'a.run'}))]
    assert live_processes.of_rows([row], MEMBERS, None).schedulers == (
        [] if part else [LiveProcess(commands=None if found == 'unknown'
                                     else frozenset({'a.run'}))])


def test_silent_and_stopped_members_are_not_live():
    rows = [MemberRow('', 'api-1', process, age, {}, False, None, '', '', None)
            for process, age in (('api-1~1', 60_000_000), ('', 0))]

    assert live_processes.of_rows(rows, MEMBERS, None).schedulers == []


def test_the_commands_in_a_report_are_limited():
    names = [f'ä{number:04}.run' for number in range(2000)]

    told = member_report.reported_commands(reversed(names))

    number = len(told['commands'])
    assert told['commands'] == names[:number]
    assert told['more_commands'] == 2000 - number
    assert 9_000 < len(json.dumps(told['commands'])) <= 10_000


def test_every_reason_of_a_wait_is_documented():

    page = (SOURCE / 'reference' / 'command-line.rst').read_text()

    assert [wait for wait in Wait if f'- *{wait}*: ' not in page] == []


def test_parameters_from_a_file_without_an_end_are_refused():
    with pytest.raises(exceptions.ConfigError, match='longer than'):
        task_submit.read_json('/dev/zero')


def test_a_key_that_is_given_twice_is_found_at_once(tmp_path):
    path = tmp_path / 'parameters.json'
    numbers = ', '.join(
        f'"{n}": {n}' for n in range(100_000))
    path.write_text(f'{{{numbers}, "twice": 1, "twice": 2}}')

    with pytest.raises(exceptions.ConfigError, match="'twice' is given twice"):
        task_submit.read_json(str(path))
