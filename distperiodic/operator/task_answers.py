# SPDX-License-Identifier: Apache-2.0
"""The facts about a task: its steps, its position, and why it waits."""

import contextlib
import json
import shlex
from collections.abc import Iterator
from collections.abc import Sequence
from typing import TYPE_CHECKING

from distperiodic import exceptions
from distperiodic.core import schedule
from distperiodic.core import waiting as core_waiting
from distperiodic.core import wording
from distperiodic.core.waiting import Wait
from distperiodic.core.waiting import WaitReason
from distperiodic.core.workflow import Position
from distperiodic.core.workflow import Status
from distperiodic.operator import cells
from distperiodic.operator import live_processes
from distperiodic.operator.sources import Sources

if TYPE_CHECKING:
    from distperiodic import opts
    from distperiodic import tasks
    from distperiodic.operator.task_queries import Look

# Maximum number of characters of the parameters in the output for people.
_SHOWN = 500
_WAITING = {Wait.GRANTED: 'granted', Wait.RETRY: 'waits for retry'}
_STATES = {0: 'done', 1: 'waiting', 2: 'running', 4: 'failed'}

#: Templates of the sentence for each reason why a task waits.
SENTENCES = {
    Wait.QUEUE_HALTED:
        'queue {queue!r} has been halted since {halted}{halted_by}: '
        '{halted_why}; to resume it: distperiodic queue resume {quoted}',
    Wait.BEHIND:
        'it waits for {ahead} before it in queue {queue!r}; the first of '
        'them is {ahead_id} ({ahead_status})',
    Wait.NEXT_IN_QUEUE:
        'it is the next task of queue {queue!r}; the next sweep of a '
        'scheduler makes it ready',
    Wait.DELAYED: 'it is delayed until {until}',
    Wait.READY:
        '{command} has been ready since {since}; a scheduler claims it at its '
        'next sweep',
    Wait.CLAIMED:
        'scheduler {holder} has claimed {command}, which waits for a free '
        'slot of {runner}',
    Wait.GRANTED:
        '{command} was granted to {holder}, where it waits for a free slot; '
        'to see what runs: distperiodic running',
    Wait.RETRY: '{command} failed; its next attempt is due at {until}',
    Wait.LEASE_ENDED:
        'the lease of {holder} on {command} ended at {until}: the next sweep '
        'of a scheduler takes it over',
    Wait.STUCK:
        '{command} has failed or was lost too often, and an operator must '
        'decide how the task continues; run one of: "distperiodic task retry '
        '{id} --forward", "distperiodic task retry {id} --back", '
        '"distperiodic task cancel {id}"',
    Wait.NO_WORKER:
        '{command} needs a worker of module {module!r}, but group {group!r} '
        'has none; start one: distperiodic worker --partition {module} '
        '--tasks MODULE:CLASS',
    Wait.NO_SCHEDULER:
        'group {group!r} has no live scheduler that could claim {command}; '
        'start one: distperiodic scheduler --tasks MODULE:CLASS',
    Wait.NO_COMMAND:
        'no live {process} has the command {command}; start one whose --tasks '
        'has it, or, if the name is wrong: distperiodic task cancel {id}',
    Wait.DRAINED:
        'each live {process} that may have the command {command} is drained; '
        'to undrain them: distperiodic member undrain {members}',
    Wait.BUSY:
        '{command} waits, because each live {process} that may run it has no '
        'free slot; to see what runs: distperiodic running',
}


def answer(sources: Sources, task: str) -> 'Look':
    """Return a task, and the reason why it waits.

    :raises UnknownTask: No task of the group has this id.
    """
    from distperiodic.operator import task_queries
    found = task_queries.look(sources.store, task)
    if found.waiting is not None or found.runner:
        found = _with_processes(sources, found)
    return found


def facts(look: 'Look', settings: 'opts.Settings',
          people: bool) -> dict[str, object]:
    """Return the facts about a task, except its steps, by name.

    :param people: True for the facts that people read.
    """
    waiting = look.waiting
    return dict(_fields(look, people)) | {
        'reason': '' if waiting is None else waiting.wait.value,
        'why': '' if waiting is None else sentence(
            look.task, waiting, settings)}


def steps(task: 'tasks.Task') -> list[dict[str, object]]:
    """Return the steps of a task, for programs."""
    return [
        {name: None if command is None else _data(command)
         for name, command in (('normal', step.normal),
                               ('rollback', step.rollback))}
        for step in task.steps]


def _with_processes(sources: Sources, look: 'Look') -> 'Look':
    """Return the task, given the current processes.

    If no live process can claim or run the task now, the task waits for this
    reason. A granted run that waits for a thread has not begun.
    """
    from distperiodic.operator import members
    now = sources.store.now()
    rows = members.members(sources.store)
    if look.waiting is None:
        position = look.position
        step = look.task.steps[position.step]
        command = step.rollback if position.back else step.normal
        assert command is not None
        if look.queued is None or not live_processes.queued(
                rows, look, command.module, now):
            return look
        return look._replace(task=look.queued, waiting=WaitReason(
            Wait.GRANTED, command.module, command.command,
            holder=look.runner))
    group = None
    if sources.settings.backend_url:
        with contextlib.suppress(exceptions.CoordinationUnavailable):
            group = sources.group
    return look._replace(waiting=core_waiting.with_processes(
        look.waiting, live_processes.of_rows(rows, sources.settings, group)))


def _fields(look: 'Look', people: bool) -> 'Iterator[tuple[str, object]]':
    """Yield the facts about a task, except its steps, by name."""
    task, position = look.task, look.position
    total = len(task.steps)
    yield 'id', task.id
    yield 'type', task.type
    yield 'key', task.key or ''
    yield 'status', task.status.value
    if people:
        yield 'position', _position(look)
    else:
        yield 'code', task.code
        yield 'cursor', task.cursor
        yield 'step', position.step
        yield 'direction', 'back' if position.back else 'forward'
        yield 'number_of_steps', total
    yield 'message', wording.one_line(task.message or '')
    yield 'queue', task.queue or ''
    yield 'priority', task.priority
    for name in ('created_at', 'due_at', 'started_at', 'ended_at'):
        at = cells.time_of(getattr(task, name))
        yield name, at.for_people if people else at.for_programs
    yield 'cancelled_by', look.cancelled_by or ''
    if people:
        text = json.dumps(dict(task.parameters), ensure_ascii=False)
        yield 'parameters', text if len(text) <= _SHOWN else (
            f'{text[:_SHOWN]}... ({len(text):,} characters; -f json shows '
            'all)')
    else:
        yield 'parameters', dict(task.parameters)


def _position(look: 'Look') -> str:
    """Describe the position of a task for people. Steps count from 1."""
    task, position = look.task, look.position
    total = len(task.steps)
    furthest = f'step {task.cursor + 1} of {total}'
    if task.ended:
        return f'ended; the furthest step was {furthest}'
    if position.back:
        return (f'back at step {position.step + 1} of {total}; the furthest '
                f'step was {furthest}')
    return f'forward at step {position.step + 1} of {total}'


def _data(command: 'tasks.Command') -> dict[str, object]:
    """Return a command of a step, for programs."""
    return {
        'module': command.module, 'command': command.command,
        'timeout_s': command.timeout, 'retry': command.retry,
        'code': command.code, 'message': command.message,
        'attempts': command.attempts, 'losses': command.losses,
        **{name: cells.time_of(getattr(command, name)).for_programs or None
           for name in ('started_at', 'ended_at')},
        'worker': command.worker}


#: Titles of the rows of the steps.
STEPS = ('', 'Step', 'Command', 'State', 'Attempts', 'Started', 'Took',
         'Worker', 'Error')


def drawn(look: 'Look') -> 'Iterator[Sequence[object]]':
    """Yield a row for each command, in the order in which they run.

    The commands of the steps come first. The rollback commands that have run
    or will run follow them.
    """
    task, position = look.task, look.position
    for index, step in enumerate(task.steps):
        yield _row(look, Position(
            position.status, step=index), step.normal)
    for index in reversed(range(len(task.steps))):
        command = task.steps[index].rollback
        if command is None:
            continue
        to_do = position.back and not task.ended and index <= position.step
        if command.code is not None or to_do:
            yield _row(look, Position(
                position.status, step=index, back=True), command)


def _row(look: 'Look', at: Position,
         command: 'tasks.Command') -> Sequence[object]:
    """Return the row of *command*, which is at position *at* of its task."""
    task, position = look.task, look.position
    here = (at.step, at.back) == (position.step, position.back) and (
        not task.ended)
    name = f'{command.module}.{command.command}'
    if task.steps[at.step].rollback is None:
        name += ' (no rollback)'
    took = ''
    if command.started_at is not None and command.ended_at is not None:
        took = wording.age(max(0.0, (
            command.ended_at - command.started_at).total_seconds()))
    return (
        '>' if here else '', f'{at.step + 1} of {len(task.steps)}',
        f'undo: {name}' if at.back else name, _state(look, at, command, here),
        _attempts(command),
        cells.time_of(command.started_at).for_people, took,
        command.worker or '', wording.one_line(command.message or ''))


def _attempts(command: 'tasks.Command') -> str:
    """Return the number of runs and of lost runs, as text."""
    if command.losses:
        return f'{command.attempts}, {command.losses} lost'
    most = command.retry + 1
    return (f'{command.attempts} of {most}' if command.attempts <= most
            else str(command.attempts))


def _state(look: 'Look', at: Position, command: 'tasks.Command',
           here: bool) -> str:
    """Return the state of a command in a few words."""
    if here and look.position.status is Status.STUCK:
        return 'stuck'
    if here and look.waiting is not None:
        return _WAITING.get(look.waiting.wait, 'waiting')
    if command.code == 1 and (look.task.ended or look.position.back):
        return 'not run'
    return _STATES[1 if command.code is None else command.code]


def sentence(task: 'tasks.Task', waiting: WaitReason,
             settings: 'opts.Settings') -> str:
    """Return the sentence with the reason why a task waits."""
    remote = settings.dispatcher == 'messaging'
    more = waiting.number_ahead
    of_workers = remote and waiting.of_runners
    text = SENTENCES[waiting.wait].format(
        id=task.id, queue=task.queue, quoted=shlex.quote(task.queue or ''),
        group=settings.group,
        module=waiting.module,
        command=f'{waiting.module}.{waiting.command}',
        process=f'worker of module {waiting.module!r}' if of_workers
        else 'scheduler',
        members='--partition ' + shlex.quote(waiting.module) if of_workers
        else '--schedulers',
        runner=f'a worker of module {waiting.module!r}' if remote
        else 'its pool',
        holder=wording.identity(waiting.holder) or 'an unknown process',
        until=_moment(waiting.until), since=_moment(waiting.since),
        halted=_moment(waiting.halted),
        halted_why=waiting.halted_why or 'no reason was given',
        halted_by=f' by task {waiting.halted_by}' if waiting.halted_by
        else '',
        ahead=core_waiting.tasks_text(more), ahead_id=waiting.ahead,
        ahead_status=(waiting.ahead_status or '').replace('_', ' '))
    if waiting.wait is Wait.QUEUE_HALTED and waiting.ahead:
        text += (f'; {core_waiting.tasks_text(more)} of the queue '
                 f'{"is" if more == 1 else "are"} before it')
    return text


def _moment(micros: 'schedule.Instant | None') -> str:
    return '' if micros is None else wording.second(micros)
