# SPDX-License-Identifier: Apache-2.0
"""Tasks of a task dispenser: their keys, their order, and their checks.

A task is a str or an int. The store identifies a task by a text, its key. The
key begins with a letter for the type, so 1 and '1' are different tasks. The
order of the keys is the order of the tasks: first all ints by value, then all
strs by code point.
"""

import dataclasses
import math
import numbers
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import NamedTuple

from distperiodic import exceptions
from distperiodic.core.values import shown

Task = str | int
#: Score of each task.
Scores = Mapping[str, float] | Mapping[int, float] | Mapping[Task, float]

#: Maximum length of a task that is a str, of a worker's name, and of the name
#: of a pool, in characters.
LONGEST_TASK, LONGEST_WORKER, LONGEST_POOL = 255, 255, 200
#: Maximum number of digits of a task that is an int.
_DIGITS = 250
#: Maximum length of the key of a task.
LONGEST_KEY = 256
#: Maximum number of tasks in a bucket. A larger *limit* has the same effect as
#: this number.
MOST = 2 ** 31 - 1

_TEXT, _NUMBER = 's', 'i'
# Characters for the sign of a number. Negative numbers sort first.
_MINUS, _PLUS = '0', '1'
_COMPLEMENT = str.maketrans('0123456789', '9876543210')


class Recreated(NamedTuple):
    """Result of recreating a pool: the number of tasks by outcome."""

    #: Tasks of the call that were not in the pool before, and were added.
    added: int
    #: Tasks of the call that were already in the pool.
    kept: int
    #: Tasks that were removed from the pool, because the call did not list
    #: them.
    removed: int
    #: Tasks of the call that were not put into the pool, because they are in a
    #: bucket.
    assigned: int
    #: Tasks of the call that were not put into the pool, because they are
    #: done.
    done: int


@dataclasses.dataclass(frozen=True, slots=True)
class Stats:
    """Numbers of the tasks of a pool at one moment."""

    #: Tasks in the pool, which can be assigned to workers.
    free: int
    #: Tasks in buckets.
    assigned: int
    #: Tasks that the store records as done.
    done: int
    #: Number of tasks by worker, for each bucket that has not expired.
    buckets: Mapping[str, int]


def key_of(task: Task) -> str:
    """Return the text that identifies *task* in the store.

    :raises InvalidPoolRequest: *task* is neither a str nor an int, is too
        long, or has a character that a database cannot store.
    """
    if isinstance(task, str):
        task = str.__str__(task)
        _check_text('task', task, LONGEST_TASK, empty=True)
        return _TEXT + task
    if isinstance(task, int) and not isinstance(task, bool):
        task = int.__pos__(task)
        # Check the size first: str() raises ValueError for an int of several
        # thousand digits.
        digits = str(abs(task)) if abs(task) < 10 ** _DIGITS else ''
        if not digits:
            raise exceptions.InvalidPoolRequest(
                f'a task that is an int has more than {_DIGITS} digits; give '
                f'an int of at most {_DIGITS} digits, or a str')
        if task < 0:
            return (f'{_NUMBER}{_MINUS}{999 - len(digits):03}'
                    f'{digits.translate(_COMPLEMENT)}')
        return f'{_NUMBER}{_PLUS}{len(digits):03}{digits}'
    raise exceptions.InvalidPoolRequest(
        f'task {shown(task, 100)} is a {type(task).__name__}; give a str '
        'or an int')


def task_of(key: str) -> Task:
    """Return the task that *key* identifies."""
    if key[0] == _TEXT:
        return key[1:]
    digits = key[5:]
    if key[1] == _MINUS:
        return -int(digits.translate(_COMPLEMENT))
    return int(digits)


def keys_of(tasks: Iterable[Task]) -> list[str]:
    """Return the keys of *tasks* without duplicates.

    :raises InvalidPoolRequest: *tasks* is not a collection, or one of the
        tasks is invalid; see :func:`key_of`.
    """
    if isinstance(tasks, (str, bytes, int)):
        raise exceptions.InvalidPoolRequest(
            f'the tasks are a {type(tasks).__name__}, {shown(tasks, 100)}; '
            'give a list, even of one task')
    try:
        found = list(tasks)
    except TypeError:
        raise exceptions.InvalidPoolRequest(
            f'the tasks are a {type(tasks).__name__}; give a list'
        ) from None
    return list(dict.fromkeys(map(key_of, found)))


def places_of(scores: Scores) -> dict[str, float]:
    """Return the place of each task in its pool, by key.

    The place is the negative score. Tasks with a lower place are assigned
    first.

    :param scores: Score of each task.
    :raises InvalidPoolRequest: *scores* is not a mapping, a task is invalid,
        or a score is not a finite number.
    """
    if not isinstance(scores, Mapping):
        raise exceptions.InvalidPoolRequest(
            f'the tasks are a {type(scores).__name__}; give a dict '
            '{task: score}')
    return {key_of(task): _place_of(task, score)
            for task, score in scores.items()}


def _place_of(task: Task, score: float) -> float:
    if type(score) is not float and (
            isinstance(score, bool) or not isinstance(score, numbers.Real)):
        raise exceptions.InvalidPoolRequest(
            f'the score of task {shown(task, 100)} is {shown(score, 100)}; '
            'give an int or a float')
    try:
        number = float(score)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise exceptions.InvalidPoolRequest(
            f'the score of task {shown(task, 100)} is {number}, which has no '
            'place in an order; give a finite number')
    # Do not use -number, which would be -0.0 for a score of 0.
    return 0.0 - number


def score_of(place: float) -> float:
    """Return the score of a task with this place."""
    return 0.0 - place


def check_limit(limit: int) -> int:
    """Check *limit*, and return the number of tasks that a bucket may hold.

    :raises InvalidPoolRequest: *limit* is not a whole number above 0.
    """
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise exceptions.InvalidPoolRequest(
            f'the limit is {shown(limit, 100)}; give a whole number above '
            '0; to empty a bucket, call give_back()')
    return min(limit, MOST)


def check_worker(worker: str) -> str:
    """Check the name of a worker, and return it.

    :raises InvalidPoolRequest: The name is empty, not a str, too long, or has
        a character that a database cannot store.
    """
    return _check_name("worker's name", worker, LONGEST_WORKER)


def check_pool(pool: str) -> str:
    """Check the name of a pool, and return it.

    :raises InvalidPoolRequest: The name is empty, not a str, too long, or has
        a character that a database cannot store.
    """
    return _check_name("pool's name", pool, LONGEST_POOL)


def _check_name(what: str, name: str, longest: int) -> str:
    if not isinstance(name, str):
        raise exceptions.InvalidPoolRequest(
            f'the {what} is {shown(name, 100)}, a {type(name).__name__}; '
            'give a str')
    text = str.__str__(name)
    _check_text(what, text, longest)
    return text


def _check_text(what: str, text: str, longest: int,
                empty: bool = False) -> None:
    if len(text) > longest or not (text or empty):
        raise exceptions.InvalidPoolRequest(
            f'the {what} {text[:100]!r} has {len(text)} characters; give '
            f'{0 if empty else 1} to {longest}')
    if '\0' in text or not text.isascii() and not _encodes(text):
        raise exceptions.InvalidPoolRequest(
            f'the {what} {text[:100]!r} contains a NUL or is not valid '
            'Unicode, so a database cannot store it; remove that character')


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def tasks_of(keys: Sequence[str]) -> list[Task]:
    """Return the tasks that *keys* identify, in the same order."""
    return [task_of(key) for key in keys]
