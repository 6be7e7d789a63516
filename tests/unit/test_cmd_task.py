# SPDX-License-Identifier: Apache-2.0
"""Commands about tasks: their input, and the sentences that they print."""

import argparse
import dataclasses
import datetime
import types

import pytest

from distperiodic.cmd import task_show
from distperiodic.cmd import task_submit
from distperiodic.core import definitions
from distperiodic.core import waiting
from distperiodic.core.task import Step
from distperiodic.core.task import Task
from distperiodic.core.task import command_of
from distperiodic.core.waiting import Wait
from distperiodic.core.waiting import Waiting
from distperiodic.core.workflow import Position
from distperiodic.core.workflow import Status
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
def test_what_is_no_start_is_refused(text):
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


SETTINGS = types.SimpleNamespace(group='nodes', dispatcher='messaging')


@pytest.mark.parametrize('wait', Wait, ids=str)
def test_each_reason_of_a_wait_has_its_sentence(wait):
    told = task_show.sentence(seen(), Waiting(
        wait, 'a', 'run', 1_000_000, 'api-1:2~00112233~t1', 'id-0',
        Status.ROLLING_BACK, 3, 2_000_000, 'Umzug', 'id-9'), SETTINGS)

    assert '{' not in told
    assert 'None' not in told
    # A sentence names the cause of the wait, unless the cause is a queue.
    assert any(name in told for name in ('a.run', 'my queue', 'nodes', 'Z'))


def test_a_step_without_a_rollback_says_so():
    [definition] = definitions.parse_workflows({'two': [
        {'normal': {'module': 'a', 'command': 'run'},
         'rollback': {'module': 'a', 'command': 'undo'}},
        {'normal': {'module': 'a', 'command': 'end'}}]}).values()
    task = dataclasses.replace(seen(Status.ROLLING_BACK, 1), steps=tuple(
        Step(command_of(step.normal, None, True),
             step.rollback and command_of(step.rollback, None, False))
        for step in definition))

    rows = list(task_show.drawn(types.SimpleNamespace(
        task=task, position=Position(Status.ROLLING_BACK, 1, 0, True),
        waiting=None)))

    assert [row[2] for row in rows] == [
        'a.run', 'a.end (no rollback)', 'undo: a.undo']


def test_a_queue_is_quoted_where_a_shell_reads_it():
    told = task_show.sentence(seen(), Waiting(
        Wait.QUEUE_HALTED, 'a', 'run', halted=0), SETTINGS)

    assert "queue resume 'my queue'" in told


@pytest.mark.parametrize(('wait', 'schedulers', 'workers', 'found'), [
    (Wait.READY, 1, 0, Wait.NO_WORKER),
    (Wait.CLAIMED, 1, 0, Wait.NO_WORKER),
    (Wait.READY, 1, 1, Wait.READY),
    (Wait.READY, 1, None, Wait.READY),
    (Wait.READY, 0, 0, Wait.NO_SCHEDULER),
    (Wait.RETRY, 1, 0, Wait.RETRY),
    (Wait.RETRY, 0, 1, Wait.NO_SCHEDULER),
    (Wait.DELAYED, 1, 0, Wait.DELAYED),
    (Wait.BEHIND, 0, 0, Wait.BEHIND),
    (Wait.QUEUE_HALTED, 0, 0, Wait.QUEUE_HALTED),
    (Wait.STUCK, 0, 0, Wait.STUCK)])
def test_a_missing_process_is_a_reason_where_it_would_help(
        wait, schedulers, workers, found):
    told = waiting.with_processes(
        Waiting(wait, 'a', 'run'), schedulers, workers)

    assert told.wait is found


def test_every_reason_of_a_wait_is_documented():

    page = (SOURCE / 'reference' / 'command-line.rst').read_text()

    assert [wait for wait in Wait if f'- *{wait}*: ' not in page] == []
