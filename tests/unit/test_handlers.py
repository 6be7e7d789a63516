# SPDX-License-Identifier: Apache-2.0
"""Handlers in threads that raise or return what nobody expects."""

import pytest

from distperiodic import PeriodicTasks
from distperiodic import opts
from distperiodic import periodic_task
from distperiodic.adapters.local.clock import SystemClock
from distperiodic.core.message import Batch
from distperiodic.flow.worker.runs import RunCallbacks
from distperiodic.service.handlers import Handlers
from tests.configured import configuration
from tests.waiting import wait_until


class Word(str):
    """Text whose methods fail."""

    def __getitem__(self, key):
        raise SystemError

    __len__ = __iter__ = __format__ = isprintable = __getitem__


class Worded(Exception):

    def __str__(self):
        return Word('words')


class Wordless(BaseException):

    def __str__(self):
        raise SystemExit(3)

    __repr__ = __reduce__ = __str__


def chained():
    """Return an exception with a cause for each of its causes."""
    error = None
    for _ in range(3_000):
        following = ValueError('one of many')
        following.__cause__ = error
        error = following
    return error


def recurse():
    return recurse()


def throw(error):
    raise error



_ODD = {
    'exit': lambda: throw(SystemExit(0)),
    'interrupt': lambda: throw(KeyboardInterrupt()),
    'generator': lambda: throw(GeneratorExit()),
    'stop': lambda: throw(StopIteration()),
    'worded': lambda: throw(Worded()),
    'wordless': lambda: throw(Wordless()),
    'surrogate': lambda: throw(ValueError('\ud800\0\x1b[31m')),
    'long': lambda: throw(ValueError('x' * 5_000_000)),
    'name': lambda: throw(type('a\n\ud83d b'.encode(
        'ascii', 'replace').decode(), (BaseException,), {})()),
    'group': lambda: throw(BaseExceptionGroup('many', [Wordless()])),
    'chain': lambda: throw(chained()),
    'deep': recurse,
    'memory': lambda: throw(MemoryError()),
}


class Odd(PeriodicTasks):

    def listed(self, context):
        return []

    @periodic_task(spacing=60, objects='listed')
    def ping(self, context, object_id):
        if object_id in _ODD:
            _ODD[object_id]()


@pytest.mark.parametrize('name', _ODD)
def test_any_error_of_a_handler_fails_one_run_alone(name):
    odd, conf, reports = Odd(None), configuration(), []
    handlers = Handlers(
        {'ping': (odd.jobs['ping'], odd.handler('ping'))}, {'default': odd},
        conf=conf, settings=opts.settings(conf), clock=SystemClock(),
        callbacks=RunCallbacks(
            report=lambda report, entry: reports.append(report),
            may_start=lambda batch: None),
        grants=lambda: None)
    try:
        handlers.executor.accept(Batch(
            'b1', 'ping', 0, ['a', name, 'b'], [1] * 3, [1] * 3, 'sender',
            'worker', 'l'))
        wait_until(lambda: sum(one.size for one in reports) == 3)
    finally:
        handlers.stop_threads()

    assert sorted(sum((one.done for one in reports), [])) == [0, 2]
    [(index, error)] = sum((one.failed for one in reports), [])
    assert index == 1
    assert error.isprintable()
    assert len(error) <= 1_000
