# SPDX-License-Identifier: Apache-2.0
"""Workers of a task pool that make random calls, and a judge of these calls.

A worker is a process that runs this file::

    python -m tests.functional.pulling URL POOL WORKER SEED FILE

It writes a line before and after each call, so a killed worker leaves a call
without an end. The state of the tasks in such a call is uncertain, because the
database may still execute the call.

The judge reads only these lines. All processes read the same clock, which
never goes back. A worker certainly has a task in this interval::

    call        |---------|
    certain               |================|
                          end of a call    start of the next call that may
                          that returned    release the task, or the start of
                          the task         the last call plus bucket_timeout
"""

import collections
import itertools
import json
import os
import pathlib
import random
import sys
import time
from typing import NamedTuple

from distperiodic import exceptions
from tests import dispensed

#: Seconds until the bucket of a silent worker expires.
TIMEOUT = 1.0
#: Number of tasks that a recreation of the pool names at the start of the
#: test, and the number by which this number grows per second.
FIRST, MORE = 1500, 100
#: Share of each kind of call, in percent.
_KINDS = {'assign': 40, 'done': 30, 'back': 10, 'check': 14, 'recreate': 5,
          'silent': 1}
#: Seconds by which the judge shortens an interval, because the clock of the
#: workers and that of the store may differ in rate.
_MARGIN = 0.01


class Journal:
    """The lines of one worker."""

    def __init__(self, path):
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, **line):
        os.write(self._file, json.dumps(
            {**line, 'at': time.monotonic()}).encode() + b'\n')


def task_of(number):
    """Return the task with this number. Every second task is an int. The other
    tasks are strings that look like an int.
    """
    return number if number % 2 else str(number - 1)


def named(seconds):
    """Return the tasks that a recreation names, *seconds* after the start of
    the test.
    """
    return {task_of(number): number * 7919 % 1000
            for number in range(FIRST + int(MORE * seconds))}


def work(url, pool, worker, seed, path):
    """Make random calls until this process is killed."""
    draws = random.Random(seed)
    journal = Journal(path)
    one = dispensed.dispenser(url, pool, bucket_timeout=TIMEOUT)
    held, begin = [], float(os.environ['BEGIN'])
    # Tasks that this worker no longer has. They may be with other workers.
    former = collections.deque(maxlen=10)
    for number in itertools.count():
        [kind] = draws.choices(list(_KINDS), list(_KINDS.values()))
        if kind == 'silent':
            time.sleep(draws.uniform(0, 2 * TIMEOUT))
            continue
        some = draws.sample(held, draws.randint(0, len(held)))
        if former and not draws.randrange(4):
            some = [*some, draws.choice(former)]
        limit = draws.randint(1, 8)
        calls = {
            'assign': lambda limit=limit: one.assign_tasks(limit, worker),
            'done': lambda some=some: one.tasks_done(worker, some),
            'back': lambda some=some: one.give_back(worker, some),
            'check': lambda held=held: one.check_tasks(worker, held),
            'recreate': lambda: one.recreate_task_pool(
                named(time.monotonic() - begin))}
        journal.write(call=number, kind=kind, limit=limit,
                      tasks=held if kind == 'check' else some)
        try:
            answer = calls[kind]()
        except exceptions.StoreUnavailable as exc:
            journal.write(end=number, error=str(exc))
            continue
        journal.write(end=number, answer=answer)
        if kind == 'assign':
            held = answer
        elif kind in ('done', 'back'):
            former.extend(some)
            held = [task for task in held if task not in some]


class Call(NamedTuple):
    worker: str
    kind: str
    limit: int
    tasks: list
    start: float
    #: None if the worker was killed or the store did not answer.
    end: float | None
    answer: object
    error: str | None


class Certain(NamedTuple):
    """An interval in which a worker certainly had a task."""

    start: float
    end: float
    worker: str


def read(paths):
    """Return the calls of all workers. The calls of one worker are in order.
    """
    calls = []
    for path in map(pathlib.Path, paths):
        lines = [json.loads(line) for line in path.read_bytes().split(b'\n')
                 if line.endswith(b'}')]
        ends = {line['end']: line for line in lines if 'end' in line}
        for line in lines:
            if 'call' not in line:
                continue
            end = ends.get(line['call'], {})
            answered = 'answer' in end
            calls.append(Call(
                path.stem.partition('@')[0], line['kind'], line['limit'],
                line['tasks'], line['at'], end['at'] if answered else None,
                end.get('answer'), end.get('error')))
    return calls


def judge(calls, left, total):
    """Return the errors in a history.

    :param calls: all calls; the calls of one worker are in order.
    :param left: tasks that could be assigned after all workers had ended.
    :param total: number of all tasks that recreations named.
    """
    certain = collections.defaultdict(list)
    for _, own in itertools.groupby(
            sorted(calls, key=lambda call: (call.worker, call.start)),
            key=lambda call: call.worker):
        _possessions(list(own), certain)
    return [*_in_two_buckets(certain), *_taken_from_another(calls, certain),
            *_back_after_done(calls, left), *_lost(calls, left, total)]


def _possessions(calls, certain):
    """Add the intervals in which one worker certainly had tasks."""
    had, until, doubtful = {}, 0.0, set()
    for call in calls:
        expired = (call.end or call.start) > until
        keeps = _kept(call, had)
        if call.end is None:
            doubtful |= set(had) - keeps
            doubtful |= set(call.tasks)
        for task in list(had):
            if expired or task not in keeps:
                begin = had.pop(task)
                end = min(call.start, until)
                if end > begin:
                    certain[task].append(Certain(begin, end, call.worker))
        if call.end is None:
            continue
        if call.kind != 'recreate':
            until = call.start + TIMEOUT - _MARGIN
        shown = (call.answer if call.kind == 'assign' else
                 call.tasks if call.kind == 'check' and call.answer else ())
        for task in set(shown) - doubtful:
            had.setdefault(task, call.end)
    for task, begin in had.items():
        if until > begin:
            certain[task].append(Certain(begin, until, calls[-1].worker))


def _kept(call, had):
    """Return the tasks that certainly stay in the bucket during a call."""
    if call.kind == 'assign' and call.end is None:
        return set() if call.limit < len(had) else set(had)
    if call.kind == 'assign':
        return set(had) & set(call.answer)
    if call.kind in ('done', 'back'):
        return set(had) - set(call.tasks)
    return set(had)


def _in_two_buckets(certain):
    for task, intervals in certain.items():
        intervals.sort()
        for one, other in itertools.pairwise(intervals):
            if other.start < one.end and one.worker != other.worker:
                yield f'in two buckets: {task!r} {one} {other}'


def _taken_from_another(calls, certain):
    """Find calls in which a worker receives, completes or returns a task that
    another worker certainly has.
    """
    for call in calls:
        if call.end is None or not call.answer:
            continue
        tasks = {'assign': call.answer, 'recreate': ()}.get(
            call.kind, call.tasks)
        for task in tasks:
            for one in certain[task]:
                if one.worker != call.worker and (
                        one.start < call.start and call.end < one.end):
                    yield f'of another worker: {task!r} {call} {one}'


def _back_after_done(calls, left):
    #: The first call that ended each task. The worker may repeat it.
    done = {}
    for call in sorted(calls, key=lambda call: call.start):
        if call.kind == 'done' and call.answer:
            for task in set(call.tasks):
                first = done.setdefault(task, call)
                if first.worker != call.worker:
                    yield f'done twice: {task!r} {call} {first}'
    for call in calls:
        if call.kind == 'assign' and call.end is not None:
            for task in call.answer:
                if task in done and call.start > done[task].end:
                    yield f'back after done: {task!r} {call} {done[task]}'
    yield from (f'back after done, at the end: {task!r} {done[task]}'
                for task in left if task in done)


def _lost(calls, left, total):
    ended = {task for call in calls if call.kind == 'done'
             for task in call.tasks}
    if len(set(left)) != len(left):
        yield 'assigned twice in one answer'
    yield from (f'lost: {task!r}' for task in map(task_of, range(total))
                if task not in ended and task not in left)


if __name__ == '__main__':
    work(*sys.argv[1:4], int(sys.argv[4]), sys.argv[5])
