# SPDX-License-Identifier: Apache-2.0
"""Judge the tasks of a world: the order of their commands, and their ends.

The rules are those of the pages ``explanation/task``, ``howto/rollback`` and
``howto/queues``. They are implemented here independently of the product's own
state machine. The evidence is the record of the commands, and each committed
version of a row::

    rows of a task ── visits: it stays at one command ──┐
    runs of commands, grants of the store ───────────────┼─► findings
    submissions, requests of operators ──────────────────┘

A visit of a task to a command must end for a reason: a run of the command,
its grants, or a request of an operator.
"""

import collections
import dataclasses
import json
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

from tests import checker
from tests.checker import Finding

#: Number of lost workers after which the command that they ran is given up.
MOST_LOST = 6
ENDED = frozenset(['succeeded', 'failed', 'cancelled'])
ACTIVE = frozenset(['running', 'rolling_back', 'stuck'])


class Act(NamedTuple):
    """A command of a step."""

    retry: int = 0
    once: bool = False


class Step(NamedTuple):
    """A step of a workflow."""

    normal: Act
    rollback: Act | None = None


class Submission(NamedTuple):
    """A task that a client has tried to submit."""

    task: str
    steps: Sequence[Step]
    parameters: Mapping[str, Any]
    key: str | None = None
    queue: str | None = None


class Row(NamedTuple):
    """A committed version of the row of a task."""

    at: int
    task: str
    status: str
    step: int
    back: bool
    cursor: int
    queue: str | None
    created: int
    #: Whether an operator has requested to cancel the task.
    cancelling: bool
    #: JSON text.
    parameters: str
    #: Earliest start by the store's clock. None means at once.
    due: int | None


class Request(NamedTuple):
    """A request of an operator that was granted."""

    at: int
    #: Id of a task, or name of a queue.
    of: str
    #: cancel, retry, halt, resume, go_on
    what: str


@dataclasses.dataclass(slots=True)
class CommandRun(checker.Run):
    """One call of a command, as the command saw it.

    The outcome is *unknown* if the command tried to commit its own end and
    received no answer.
    """

    step: int = 0
    back: bool = False
    #: JSON texts of the parameters and of the result of the command.
    parameters: str = '{}'
    result: str | None = None
    #: Whether the command began before its task was due.
    early: bool = False


@dataclasses.dataclass
class TaskFacts:
    """The record of the tasks; times are microseconds of true time."""

    begin: int
    end: int
    #: Time by the store's clock at *end*.
    store_end: int
    #: Microseconds within which a task that may run must make progress.
    patience: int
    submissions: Mapping[str, Submission]
    #: For each answer to a client: the id that the client had chosen, and the
    #: id that it received.
    answers: Sequence[tuple[str, str]]
    #: Committed versions of the rows, in the order of their commits.
    rows: Sequence[Row]
    runs: Sequence[CommandRun]
    #: Task, instant and fence of each run that the store granted, in order.
    grants: Sequence[tuple[str, int, int]]
    #: Task and instant of each claim that was acquired again, because its run
    #: was lost or returned, or because a retry was due. No run of the new
    #: claim had been granted at that instant.
    recoveries: Sequence[tuple[str, int]]
    requests: Sequence[Request]
    stalls: Sequence[checker.Stall]


@dataclasses.dataclass
class _Visit:
    """The interval in which a task is at one command."""

    rows: list[Row]
    end: int
    runs: list[CommandRun] = dataclasses.field(default_factory=list)
    grants: int = 0
    #: Whether the claim of the command was reclaimed after the last grant.
    recovered: bool = False

    @property
    def begin(self) -> int:
        return self.rows[0].at


#: Status, step and direction. A task that has ended has only its status.
_Place = tuple[str, int, bool]


def judge(facts: TaskFacts) -> list[Finding]:
    """Return all errors in the record of the tasks."""
    histories = _by_task(facts.rows)
    runs = _by_task(facts.runs)
    grants: dict[str, list[int]] = collections.defaultdict(list)
    for task, at, _ in facts.grants:
        grants[task].append(at)
    recoveries: dict[str, list[int]] = collections.defaultdict(list)
    for task, at in facts.recoveries:
        recoveries[task].append(at)
    requests = collections.defaultdict(list)
    for request in facts.requests:
        requests[request.of, request.at].append(request.what)
    queues = _Queues(facts)
    found = [*_submitted(facts, histories), *_together(facts),
             *_fences(runs), *queues.findings,
             *_unended(facts, queues, histories, runs)]
    for task, rows in histories.items():
        submission = facts.submissions.get(task)
        if submission is not None:
            found += _judge_task(
                facts, submission, rows, runs.get(task, []), grants[task],
                recoveries[task], requests)
    return found


def _by_task(found: Sequence[Any]) -> dict[str, list[Any]]:
    by_task: dict[str, list[Any]] = {}
    for one in found:
        task = one.task if isinstance(one, Row) else one.object
        by_task.setdefault(task, []).append(one)
    return by_task


# -- one task

def _judge_task(facts: TaskFacts, submission: Submission,
                rows: list[Row], runs: list[CommandRun], grants: list[int],
                recoveries: list[int],
                requests: Mapping[tuple[str, int], list[str]]
                ) -> Iterator[Finding]:
    visits = list(_visits(rows, facts.end))
    for run in runs:
        if run.early:
            yield _finding(facts, 'early', run.object, run.start,
                           f'{_told(run)} began before the task was due')
        visit = next((one for one in reversed(visits)
                      if one.begin <= run.start), visits[0])
        row = [one for one in visit.rows if one.at <= run.start][-1:]
        if not row or row[0].status not in ('running', 'rolling_back') or (
                (run.step, run.back) != (row[0].step, row[0].back)):
            yield _finding(
                facts, 'astray', run.object, run.start,
                f'{_told(run)} began while the task was at '
                f'{_place(row[0]) if row else "no step"}')
            continue
        visit.runs.append(run)
    for visit in visits:
        granted, recovered = (
            [at for at in instants if visit.begin <= at < visit.end]
            for instants in (grants, recoveries))
        visit.grants = len(granted)
        visit.recovered = bool(recovered) and (
            not granted or recovered[-1] > granted[-1])
        yield from _attempts(facts, submission, visit)
    known = dict(submission.parameters)
    # The parameters at the newest normal visit to each step.
    given: dict[int, dict[str, Any]] = {}
    for visit, following in zip(visits, [*visits[1:], None], strict=True):
        if visit.rows[0].status in ('waiting', 'running'):
            given[visit.rows[0].step] = dict(known)
        yield from _received(facts, visit, known)
        yield from _within(facts, visit, known)
        if following is not None:
            row = following.rows[0]
            yield from _left(facts, submission, visit, row, known, given,
                             requests.get((row.task, row.at), []))


def _visits(rows: Sequence[Row], end: int) -> Iterator[_Visit]:
    """Divide the history of a task into visits, one for each command."""
    visit: _Visit | None = None
    for row in rows:
        before = None if visit is None else visit.rows[-1]
        if visit is not None and before is not None and (
                _place(before) == _place(row)
                or (before.status, row.status) == ('waiting', 'running')
                and (before.step, before.back) == (row.step, row.back)):
            visit.rows.append(row)
            continue
        if visit is not None:
            visit.end = row.at
            yield visit
        visit = _Visit([row], end + 1)
    if visit is not None:
        yield visit


def _place(row: Row) -> _Place:
    if row.status in ENDED:
        return row.status, 0, False
    return row.status, row.step, row.back


def _act(submission: Submission, visit: _Visit) -> Act:
    row = visit.rows[-1]
    step = submission.steps[row.step]
    return (step.rollback or Act()) if row.back else step.normal


def _attempts(facts: TaskFacts, submission: Submission, visit: _Visit
              ) -> Iterator[Finding]:
    """Find commands that ran more often than allowed."""
    act, runs = _act(submission, visit), visit.runs
    most = 1 if act.once else act.retry + MOST_LOST
    if len(runs) > most:
        yield _finding(facts, 'attempts', submission.task, runs[-1].start,
                       f'{len(runs)} runs of one command, at most {most}')


def _received(facts: TaskFacts, visit: _Visit, known: Mapping[str, Any]
              ) -> Iterator[Finding]:
    """Find runs that did not receive the results of the earlier steps."""
    for run in visit.runs:
        if json.loads(run.parameters) != known:
            yield _finding(
                facts, 'parameters', run.object, run.start,
                f'{_told(run)} received {run.parameters}, expected '
                f'{json.dumps(known)}')


def _within(facts: TaskFacts, visit: _Visit, known: Mapping[str, Any]
            ) -> Iterator[Finding]:
    """Find results that were added although the task stayed at the same
    command.
    """
    for row in visit.rows:
        if json.loads(row.parameters) != known:
            yield _finding(
                facts, 'late result', row.task, row.at,
                f'the parameters are {row.parameters}, expected '
                f'{json.dumps(known)}')


def _left(facts: TaskFacts, submission: Submission, visit: _Visit,
          row: Row, known: dict[str, Any],
          given: Mapping[int, Mapping[str, Any]], asked: Sequence[str]
          ) -> Iterator[Finding]:
    """Find transitions that no reason explains. Update *known* with the result
    of the transition.

    :param given: The parameters of the newest normal command of each step.
    """
    before, last = visit.rows[-1], _newest(visit.runs)
    steps, step, back = submission.steps, before.step, before.back
    act = _act(submission, visit)
    cancelling = before.cancelling
    after_done = _after_done(steps, step, back, cancelling)
    after_failed: _Place = ('stuck', step, back)
    if not back:
        after_failed = _down(steps, step, cancelling)
    done = last is not None and last.outcome in ('done', 'unknown')
    failures = sum(run.outcome in ('failed', 'unknown')
                   for run in visit.runs)
    reasons: list[_Place] = []
    if before.status not in ENDED and before.status != 'stuck':
        if done:
            reasons.append(after_done)
        if last is not None and last.outcome in ('failed', 'unknown') and (
                failures > act.retry or act.once or (
                    cancelling and not back)):
            reasons.append(after_failed)
        if act.once and visit.grants:
            reasons.append(after_failed)
        if visit.grants >= MOST_LOST:
            reasons.append(('stuck', step, back))
    if 'cancel' in asked:
        reasons += _cancelled(steps, before, visit)
    if 'retry' in asked:
        if before.status == 'stuck':
            reasons.append(('running', step, False))
            reasons.append(_down(steps, step, cancelling))
        elif before.status in ENDED and before.status != 'succeeded':
            reasons.append(('waiting', 0, False))
    place = _place(row)
    if place not in reasons:
        yield _finding(
            facts, 'order', row.task, row.at,
            f'moved from {_place(before)} to {place} after '
            f'{", ".join(map(_told, visit.runs)) or "no run"} and '
            f'{visit.grants} grants; expected one of {reasons}')
    if row.cursor < before.cursor and row.status != 'waiting':
        yield _finding(facts, 'cursor', row.task, row.at,
                       f'went back from {before.cursor} to {row.cursor}')
    found = json.loads(row.parameters)
    merged = {**known, **json.loads((done and last and last.result) or '{}')}
    legal = [merged] if done and place == after_done and (
        reasons.count(place) == 1) else [known]
    if done and reasons.count(place) > 1:
        legal = [known, merged]
    if 'retry' in asked and place in reasons and not place[2]:
        # The effects of the steps that run again were undone, so their results
        # are removed.
        legal = [given.get(place[1], known)]
    if found not in legal:
        yield _finding(
            facts, 'late result', row.task, row.at,
            f'the parameters became {row.parameters}, expected '
            f'{json.dumps(legal)}')
    known.clear()
    known.update(found)


def _newest(runs: Sequence[CommandRun]) -> CommandRun | None:
    return max(runs, key=lambda run: run.fence, default=None)


def _after_done(steps: Sequence[Step], step: int, back: bool,
                cancelling: bool) -> _Place:
    if back:
        return _down(steps, step - 1, cancelling)
    if cancelling:
        return _down(steps, step, True)
    if step + 1 < len(steps):
        return 'running', step + 1, False
    return 'succeeded', 0, False


def _down(steps: Sequence[Step], last: int, cancelling: bool) -> _Place:
    """Return the next place of a rollback, from step *last* downwards."""
    for step in range(last, -1, -1):
        if steps[step].rollback is not None:
            return 'rolling_back', step, True
    return 'cancelled' if cancelling else 'failed', 0, False


def _cancelled(steps: Sequence[Step], before: Row, visit: _Visit
               ) -> list[_Place]:
    """Return the places to which a request to cancel may move a task at
    once.
    """
    if before.status == 'waiting':
        return [('cancelled', 0, False)]
    if before.status == 'stuck':
        return [_down(steps, before.step - before.back, True)]
    if before.back:
        return []
    unstarted = _down(steps, before.step - 1, True)
    begun = _down(steps, before.step, True)
    if visit.recovered:
        # No worker has started the new attempt. The store may not know whether
        # an earlier attempt began. So both places are allowed, unless a run is
        # recorded.
        return [begun] if visit.runs else [unstarted, begun]
    if not visit.grants:
        return [unstarted]
    # The command is waiting for a retry.
    last = _newest(visit.runs)
    if last is not None and last.outcome in ('failed', 'unknown'):
        return [begun]
    return []


# -- all tasks

def _submitted(facts: TaskFacts, histories: Mapping[str, Sequence[Row]]
               ) -> Iterator[Finding]:
    """Find tasks that were lost, stored twice, or never submitted."""
    for task in histories:
        if task not in facts.submissions:
            yield Finding('invented', f'task {task} was never submitted')
    by_key: dict[str, set[str]] = collections.defaultdict(set)
    for task, one in facts.submissions.items():
        if one.key is not None and task in histories:
            by_key[one.key].add(task)
    for key, tasks in by_key.items():
        if len(tasks) > 1:
            yield Finding('doubled', f'tasks {sorted(tasks)} have one key, '
                          f'{key}')
    for wanted, given in facts.answers:
        key = facts.submissions[wanted].key
        if given not in histories:
            yield Finding('lost', f'a client was given task {given}, which '
                          'does not exist')
        elif given != wanted and (
                key is None or facts.submissions[given].key != key):
            yield Finding('doubled', f'the client that submitted {wanted} '
                          f'was given {given}')


def _together(facts: TaskFacts) -> Iterator[Finding]:
    """Find concurrent live runs of one task, or of one queue."""
    queue = {row.task: row.queue for row in facts.rows}
    for kind, of in (('task', lambda run: run.object),
                     ('queue', lambda run: queue.get(run.object))):
        renamed = [dataclasses.replace(run, job=kind, object=of(run))
                   for run in facts.runs if of(run) is not None]
        yield from checker.overlaps(renamed, facts.stalls)


def _fences(runs: Mapping[str, Sequence[CommandRun]]) -> Iterator[Finding]:
    """Find runs of a task whose fence is not greater than the fence of the run
    before.
    """
    for task, some in runs.items():
        newest: CommandRun | None = None
        for run in sorted(some, key=lambda run: run.start):
            if newest is not None and run.fence <= newest.fence:
                yield Finding('fence', f'task {task}: {_told(run)} after '
                              f'{_told(newest)}')
            newest = run


class _Queues:
    """Replay of the ordered queues. It finds tasks that overlapped, overtook
    an earlier task, or started while their queue was halted.
    """

    def __init__(self, facts: TaskFacts):
        self._facts = facts
        self.findings: list[Finding] = []
        self.halted: set[str] = set()
        self._goes_on: set[str] = set()
        #: The newest version of each task, by queue.
        self.tasks: dict[str, dict[str, Row]] = collections.defaultdict(dict)
        requests = sorted(facts.requests, reverse=True)
        # One transaction ends a task and starts the next task of its queue.
        # The record has the rows of the transaction in the order of the task
        # ids. So process the tasks that it ends before the task that it
        # starts. If it writes several versions of a task, keep their order.
        last = {(row.at, row.task): row.status for row in facts.rows}
        for row in sorted(facts.rows, key=lambda row: (
                row.at, last[row.at, row.task] in ACTIVE)):
            while requests and requests[-1].at <= row.at:
                self._request(requests.pop())
            if row.queue is not None:
                self._change(row, self.tasks[row.queue])
        while requests:
            self._request(requests.pop())

    def _request(self, request: Request) -> None:
        name = request.of
        match request.what:
            case 'halt':
                self.halted.add(name)
            case 'resume':
                self.halted.discard(name)
            case 'go_on':
                self._goes_on.add(name)

    def _change(self, row: Row, tasks: dict[str, Row]) -> None:
        assert row.queue is not None
        before = tasks.get(row.task)
        tasks[row.task] = row
        was_active = before is not None and before.status in ACTIVE
        if was_active and row.status == 'failed' and (
                row.queue not in self._goes_on):
            self.halted.add(row.queue)
        if was_active or row.status not in ACTIVE:
            return
        for one in tasks.values():
            if one is row:
                continue
            if one.status in ACTIVE:
                self._find('two at work', row, f'began while task {one.task} '
                           f'of its queue is {one.status}')
            elif one.status == 'waiting' and _place_in_line(
                    one) < _place_in_line(row):
                self._find('overtaken', row, 'began before task '
                           f'{one.task}, which waits in its queue')
        if row.queue in self.halted:
            self._find('halt', row, 'began while its queue was halted')

    def _find(self, kind: str, row: Row, text: str) -> None:
        self.findings.append(_finding(
            self._facts, kind, row.task, row.at, f'{text} ({row.queue})'))

    def excuses(self, row: Row, since: int) -> bool:
        """Return whether a task may wait because its queue is halted or busy.

        :param since: a change of another task of the queue after this instant
            also counts as busy.
        """
        if row.queue is None:
            return False
        others = [one for one in self.tasks[row.queue].values()
                  if one.task != row.task]
        return row.queue in self.halted or any(
            one.at > since or one.status in ACTIVE
            or one.status == 'waiting' and _place_in_line(
                one) < _place_in_line(row) for one in others)


def _place_in_line(row: Row) -> tuple[int, str]:
    return row.created, row.task


def _unended(facts: TaskFacts, queues: _Queues,
             histories: Mapping[str, Sequence[Row]],
             runs: Mapping[str, Sequence[CommandRun]]) -> Iterator[Finding]:
    """Find tasks that had enough time but have not ended, and have no reason
    to wait.
    """
    since = facts.end - facts.patience
    for task, rows in histories.items():
        row = rows[-1]
        if row.status in ENDED or row.status == 'stuck':
            continue
        seen = max([row.at, *(run.end or run.start
                              for run in runs.get(task, ()))])
        if seen > since:
            continue
        if row.status == 'waiting' and (
                queues.excuses(row, since) or row.due is not None
                and row.due > facts.store_end - facts.patience):
            continue
        yield _finding(facts, 'unended', task, row.at,
                       f'at {_place(row)} since then')


def _finding(facts: TaskFacts, kind: str, task: str, at: int, text: str
             ) -> Finding:
    return Finding(kind, f'task {task} at '
                   f'{(at - facts.begin) / checker.SECOND:.4f}: {text}')


def _told(run: CommandRun) -> str:
    end = 'now' if run.end is None else f'{run.end / checker.SECOND:.4f}'
    return (f'[step {run.step}{"r" if run.back else ""} fence {run.fence} '
            f'attempt {run.attempt} on {run.process} from '
            f'{run.start / checker.SECOND:.4f} to {end}: '
            f'{run.outcome or "no end"}]')
