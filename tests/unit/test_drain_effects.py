# SPDX-License-Identifier: Apache-2.0
"""Warnings before a drain: the work that no member is left to do."""

import pytest

from distperiodic.operator.drain_effects import left_without
from distperiodic.operator.member_rows import MemberRow

NO_SCHEDULER = (
    'no scheduler is left that is running and not drained; nothing is claimed '
    'until another scheduler is started, or one is undrained')
NO_WORKER = (
    'no worker of partition vm is left that is running and not drained; none '
    'of its jobs runs until another worker of partition vm is started, or one '
    'is undrained')


def member(name, part='', jobs=None, commands=(), **more):
    state = {} if jobs is None else {
        'topics': {'default': jobs}, 'commands': list(commands)}
    return MemberRow(part, name, f'{name}~1', 0, state, False, None, '', '',
                     None)._replace(**more)


@pytest.mark.parametrize('other', [
    None, member('b', drained=True), member('b', process=''),
    member('b', age=11_000_000), member('b', age=None),
    member('b', part='vm')])
def test_the_last_scheduler_is_named(other):
    last = member('a', jobs=['ping'])

    assert left_without([last, *filter(None, [other])], [last], 10.0) == [
        NO_SCHEDULER]


def test_a_worker_that_is_left_is_enough():
    rows = [member('a', 'vm'), member('b', 'vm'), member('a'), member('b')]

    assert left_without(rows, [rows[0], rows[2]], 10.0) == []


def test_each_partition_without_a_worker_is_named():
    rows = [member('a', 'db'), member('a', 'vm'), member('b', 'db'),
            member('a')]

    assert left_without(rows, rows[:2], 10.0) == [NO_WORKER]
    assert left_without(rows, rows[1:2] + rows[3:], 10.0) == [
        NO_SCHEDULER, NO_WORKER]


@pytest.mark.parametrize('chosen', [
    member('a', drained=True), member('a', process=''),
    member('a', age=11_000_000), member('a', 'vm', drained=True)])
def test_a_member_that_does_no_work_ends_none(chosen):
    assert left_without([chosen], [chosen], 10.0) == []


def test_a_job_that_only_the_drained_scheduler_has_is_named():
    rows = [member('a', jobs=['new', 'ping']), member('b', jobs=['ping']),
            member('c', jobs=['gone'], process='')]

    assert left_without(rows, [rows[0], rows[2]], 10.0) == [
        'no scheduler with job new is left that is running and not drained; '
        'this job is not claimed until another scheduler with job new is '
        'started, or one is undrained']
    assert left_without(rows, [rows[1]], 10.0) == []


def test_a_command_that_only_the_drained_scheduler_has_is_named():
    rows = [member('a', jobs=[], commands=['vm.move', 'vm.stop', 'vm.wipe']),
            member('b', jobs=[], commands=['vm.stop'])]

    assert left_without(rows, [rows[0]], 10.0) == [
        'no scheduler with command vm.move, vm.wipe is left that is running '
        'and not drained; these commands are not claimed until another '
        'scheduler with command vm.move, vm.wipe is started, or one is '
        'undrained']
    assert left_without(rows, [rows[1]], 10.0) == []


def test_the_jobs_of_schedulers_that_do_not_report_them_are_unknown():
    rows = [member('a', jobs=['new']), member('b')]

    [clause] = left_without(rows, [rows[0]], 10.0)
    assert clause.startswith(
        'the jobs of scheduler b are unknown; if they do not include job new, '
        'no scheduler with job new is left')


def test_the_commands_that_a_report_omits_are_unknown():
    rows = [member('a', jobs=[], commands=['vm.move']),
            member('b', state={'topics': {}, 'commands': ['vm.a'],
                               'more_commands': 1})]

    [clause] = left_without(rows, [rows[0]], 10.0)
    assert clause.startswith('the commands of scheduler b are unknown')


@pytest.mark.parametrize('state', [
    {'topics': ['x'], 'commands': 5}, {'topics': {'default': 5}},
    {'topics': {'default': [['x'], {}, 5]}, 'commands': [['x'], {}, 5]}])
def test_a_report_with_other_types_names_no_job(state):
    rows = [member('a', state=state), member('b', state=state)]

    assert left_without(rows, rows[:1], 10.0) == []
