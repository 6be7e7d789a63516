# SPDX-License-Identifier: Apache-2.0
"""The checks of ``distperiodic doctor`` that concern tasks.

As in checks.py, each check is a function, and the operator sees its docstring.
No check changes a row.
"""

from collections.abc import Mapping

from distperiodic import exceptions
from distperiodic.adapters.local.workflow_file import read_workflows
from distperiodic.cmd import configured
from distperiodic.cmd.check import check
from distperiodic.cmd.doctor_facts import DoctorFacts
from distperiodic.cmd.findings import CheckResult
from distperiodic.cmd.findings import NotNow
from distperiodic.cmd.findings import fail
from distperiodic.cmd.findings import ok
from distperiodic.cmd.findings import skip
from distperiodic.cmd.findings import warn
from distperiodic.core import definitions
from distperiodic.core.job import COMMAND_PREFIX
from distperiodic.core.live import Lack
from distperiodic.core.waiting import tasks_text
from distperiodic.core.workflow import Definition

# Number of sweep intervals after which a ready step has waited for too long.
_SWEEPS = 5
# Reasons why a step stays ready; {} stands for the kind of the process.
_TEXTS = {
    Lack.NO_SCHEDULER: 'no live {}', Lack.NO_WORKER: 'no live {}',
    Lack.NO_COMMAND: 'no live {} has it',
    Lack.DRAINED: 'all live {}s that may have it are drained'}


def _workflows(facts: DoctorFacts) -> Mapping[str, Definition]:
    """Return the workflows of the configured file, by type.

    :raises NotNow: No file is configured.
    :raises InvalidWorkflow: The file cannot be used.
    """
    if not facts.settings.workflows:
        raise NotNow('[distperiodic] workflows is empty')
    return read_workflows(facts.settings.workflows)


@check('tasks', offline=True)
def task_workflows(facts: DoctorFacts) -> CheckResult:
    """The file of the workflows can be read."""
    try:
        workflows = _workflows(facts)
    except exceptions.InvalidWorkflow as exc:
        return fail(configured.one_line(exc),
                    'correct the file, or [distperiodic] workflows')
    return ok(f'{facts.settings.workflows}: '
              f'{configured.plural(len(workflows), "type")}')


@check('tasks', offline=True)
def workflow_commands(facts: DoctorFacts) -> CheckResult:
    """The commands of the workflows exist: --tasks has them, or without
    --tasks the live schedulers and workers have them.
    """
    try:
        needed = definitions.types_by_command(_workflows(facts))
    except exceptions.InvalidWorkflow:
        return skip('see task_workflows')
    if facts.tasks is not None:
        where = '--tasks'
        unknown = [name for name in needed
                   if COMMAND_PREFIX + name not in facts.tasks.commands]
    elif facts.offline:
        return skip('--offline, and --tasks is not given')
    elif not facts.live.published:
        return skip('--tasks is not given, and no live scheduler has reported '
                    'which commands it has')
    else:
        where = 'the live schedulers and workers'
        unknown = [name for name in needed if Lack.NO_COMMAND in {
            lack for lack, _ in facts.live.lacks(*name.split('.', 1))}]
    if unknown:
        listed = configured.listed(
            [f'{name} ({configured.listed(needed[name])})'
             for name in sorted(unknown)])
        return warn(
            f'not in {where}: {listed}',
            'correct the file, add the commands, or start schedulers and '
            'workers with the class that has them')
    return ok(f'{where} {"has" if facts.tasks else "have"} '
              f'{configured.plural(len(needed), "command")}')


@check('tasks')
def task_commands(facts: DoctorFacts) -> CheckResult:
    """--tasks has each command that a task in the store needs now."""
    if facts.tasks is None:
        return skip('--tasks is not given')
    from distperiodic.operator import task_queries
    unknown = [
        f'{need.name} ({tasks_text(need.tasks)})'
        for need in task_queries.needs(facts.store)
        if COMMAND_PREFIX + need.name not in facts.tasks.commands]
    if unknown:
        return warn(
            f'not in --tasks: {configured.listed(unknown)}',
            'if another class has these commands, start schedulers and '
            'workers with that class; otherwise add the commands, or: '
            'distperiodic task cancel ID')
    return ok('--tasks has all commands that tasks need now')
