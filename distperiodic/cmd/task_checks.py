# SPDX-License-Identifier: Apache-2.0
"""The checks of ``distperiodic doctor`` that concern tasks.

As in checks.py, each check is a function, and the operator sees its docstring.
No check changes a row.
"""

import contextlib
from typing import TYPE_CHECKING

from distperiodic import exceptions
from distperiodic.cmd import configured
from distperiodic.cmd import of_tasks
from distperiodic.cmd.case import Case
from distperiodic.cmd.check import check
from distperiodic.cmd.findings import Finding
from distperiodic.cmd.findings import fail
from distperiodic.cmd.findings import ok
from distperiodic.cmd.findings import skip
from distperiodic.cmd.findings import warn
from distperiodic.core import definitions
from distperiodic.core.job import COMMAND_PREFIX

if TYPE_CHECKING:
    from distperiodic.operator.task_queries import TaskQueries


def _queries(case: Case) -> 'contextlib.closing[TaskQueries]':
    """Return queries on the tasks.

    :raises NotNow: No store is configured, or it cannot be used.
    """
    from distperiodic.operator.task_queries import TaskQueries
    assert case.store  # If the store does not answer, the check is skipped.
    return contextlib.closing(TaskQueries(
        case.settings.connection, namespace=case.settings.group))


@check('tasks', offline=True)
def task_workflows(case: Case) -> Finding:
    """The file of the workflows can be read, and --tasks has the commands of
    its steps.
    """
    path = case.settings.workflows
    if not path:
        return skip('[distperiodic] workflows is empty')
    from distperiodic.adapters.local.workflow_file import read_workflows
    try:
        workflows = read_workflows(path)
    except exceptions.InvalidWorkflow as exc:
        return fail(configured.one_line(exc),
                    'correct the file, or [distperiodic] workflows')
    types = configured.plural(len(workflows), 'type')
    if case.tasks is None:
        return ok(f'{path}: {types}')
    unknown = [
        f'{name} ({configured.listed(needed)})' for name, needed
        in sorted(definitions.types_by_command(workflows).items())
        if COMMAND_PREFIX + name not in case.tasks.commands]
    if unknown:
        return warn(
            f'not in --tasks: {configured.listed(unknown)}',
            'correct the file, add the commands, or start schedulers and '
            'workers with the class that has them')
    return ok(f'{path}: {types}, and --tasks has all their commands')


@check('tasks')
def task_modules(case: Case) -> Finding:
    """Each module whose commands tasks need now has a live worker."""
    with _queries(case) as queries:
        needs = queries.needs()
    if case.settings.dispatcher != 'messaging':
        return skip('dispatcher = local: schedulers run the commands')
    needed: dict[str, int] = {}
    for need in needs:
        needed[need.module] = needed.get(need.module, 0) + need.tasks
    if not needed:
        return ok('no task needs a worker now')
    workers = case.group.workers
    missing = [
        f'{module} ({of_tasks.tasks_text(number)} waiting)'
        for module, number in needed.items() if not workers.get(module)]
    if missing:
        return warn(
            f'no live worker: {configured.listed(missing)}',
            'start distperiodic worker --partition MODULE for each of them')
    return ok(f'workers of {configured.listed(list(needed))}')


@check('tasks')
def task_commands(case: Case) -> Finding:
    """--tasks has each command that a task in the store needs now."""
    if case.tasks is None:
        return skip('--tasks is not given')
    with _queries(case) as queries:
        needs = queries.needs()
    unknown = [
        f'{need.name} ({of_tasks.tasks_text(need.tasks)})'
        for need in needs if COMMAND_PREFIX + need.name
        not in case.tasks.commands]
    if unknown:
        return warn(
            f'not in --tasks: {configured.listed(unknown)}',
            'if another class has these commands, start schedulers and '
            'workers with that class; otherwise add the commands, or: '
            'distperiodic task cancel ID')
    return ok('--tasks has all commands that tasks need now')


@check('tasks')
def task_stuck(case: Case) -> Finding:
    """No task is stuck. A stuck task needs an operator."""
    with _queries(case) as queries:
        stuck = queries.stuck()
    if not stuck.number:
        return ok('no task is stuck')
    return warn(
        f'{configured.plural(stuck.number, "task")} stuck, the first is '
        f'{stuck.first}',
        'list them: distperiodic task list --stuck; correct the cause; then '
        'for each: distperiodic task retry ID, or distperiodic task cancel '
        'ID')


@check('tasks')
def task_queues(case: Case) -> Finding:
    """No ordered queue is halted."""
    with _queries(case) as queries:
        halted = queries.halted()
    if not halted:
        return ok('no queue is halted')
    return warn(
        'halted: ' + configured.listed([
            f'{queue.name} since {configured.second(queue.since)} ('
            + (f'task {queue.by}: ' if queue.by else '')
            + f'{queue.why or "no reason"}; '
            f'{of_tasks.tasks_text(queue.waiting)} waiting)'
            for queue in halted]),
        'find the cause with distperiodic task show ID; then: distperiodic '
        'queue resume NAME')
