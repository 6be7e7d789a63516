# SPDX-License-Identifier: Apache-2.0
"""Children that handlers and catalogue methods fork."""

import os
import signal

import pytest

from distperiodic import PeriodicTasks
from distperiodic import opts
from distperiodic import periodic_task
from distperiodic.adapters.local.clock import SystemClock
from distperiodic.adapters.local.forks import ends_forked
from distperiodic.adapters.local.reader import CatalogueMethods
from distperiodic.core.context import Context
from distperiodic.core.context import RunInput
from distperiodic.core.message import Batch
from distperiodic.flow.worker.runs import RunCallbacks
from distperiodic.service.handlers import Handlers
from tests.configured import configuration
from tests.waiting import wait_until

# Exit code of a child that runs more than its handler.
_WENT_ON = 99


class Unprintable(BaseException):

    def __str__(self):
        raise SystemExit(_WENT_ON)

    __repr__ = __str__


class Forks(PeriodicTasks):
    """A handler and a catalogue method that fork.

    :param ends: Called in the child.
    """

    def __init__(self, ends):
        super().__init__(None)
        self._ends = ends
        self.child = 0

    def _fork(self):
        self.child = os.fork()
        if not self.child:
            self._ends()
        return []

    def listed(self, context):
        return self._fork()

    def lazily_listed(self, context):
        yield from self._fork()

    @periodic_task(spacing=60, objects='listed')
    def ping(self, context, object_id):
        self._fork()

    @periodic_task(spacing=60, objects='lazily_listed')
    def lazy(self, context, object_id):
        self._fork()


def leave(code):
    raise SystemExit(code)


def fail():
    raise RuntimeError('failed in the child')


def fail_without_text():
    raise Unprintable


def stop():
    raise GeneratorExit


@pytest.mark.parametrize('what', ['handler', 'listed', 'lazily_listed'])
@pytest.mark.parametrize('ends, code', [
    (lambda: None, 0),
    (lambda: leave(0), 0),
    (lambda: leave(None), 0),
    (lambda: leave(7), 7),
    (lambda: leave('text'), 1),
    (fail, 1),
    (fail_without_text, 1),
    (stop, 1),
    (lambda: os._exit(5), 5),
    (lambda: os.kill(os.getpid(), signal.SIGKILL), -signal.SIGKILL),
])
def test_a_child_ends_when_it_leaves_the_method_that_forked_it(
        what, ends, code, capfd):
    forks, process = Forks(ends), os.getpid()
    job = forks.jobs['lazy' if what == 'lazily_listed' else 'ping']
    try:
        if what == 'handler':
            ends_forked(forks.handler('ping'))(
                Context(RunInput('ping', 'a', 0, 1, 1)), 'a')
        else:
            CatalogueMethods(forks.catalogue).read(job, 0, [])
    finally:
        if os.getpid() != process:
            os._exit(_WENT_ON)

    _, status = os.waitpid(forks.child, 0)
    assert os.waitstatus_to_exitcode(status) == code
    assert ('failed in the child' in capfd.readouterr().err) is (ends is fail)


def test_a_loop_of_the_host_runs_nothing_else_in_a_child():
    class Loop(Forks):

        @periodic_task(spacing=60, run_immediately=True)
        def alone(self, context):
            self._fork()

    loop, process = Loop(fail), os.getpid()
    try:
        loop.run_periodic_tasks(None)
    finally:
        if os.getpid() != process:
            os._exit(_WENT_ON)

    _, status = os.waitpid(loop.child, 0)
    assert os.waitstatus_to_exitcode(status) == 1


@pytest.mark.parametrize('ends', [lambda: None, lambda: leave(0), fail])
def test_a_child_of_a_thread_runs_nothing_else_of_its_batch(ends, tmp_path):
    class Many(Forks):

        @periodic_task(spacing=60, objects='listed')
        def note(self, context, object_id):
            with open(tmp_path / 'begun', 'a') as file:
                file.write(f'{object_id}\n')
            if object_id == 'a':
                self._fork()

    many, conf, reports = Many(ends), configuration(), []
    job = many.jobs['note']
    handlers = Handlers(
        {'note': (job, many.handler('note'))}, {'default': many}, conf=conf,
        settings=opts.settings(conf), clock=SystemClock(),
        callbacks=RunCallbacks(
            report=lambda report, entry: reports.append(report),
            may_start=lambda batch: None),
        grants=lambda: None)
    objects = ['a', 'b', 'c']
    handlers.executor.accept(Batch(
        'b1', 'note', 0, objects, [1] * 3, [1] * 3, 'sender', 'worker', 'l'))
    try:
        wait_until(lambda: sum(len(one.done) for one in reports) == 3)
        # A child that goes on never ends.
        wait_until(lambda: os.waitpid(many.child, os.WNOHANG)[0])
        many.child = 0
    finally:
        handlers.stop_threads()
        if many.child:
            os.kill(many.child, signal.SIGKILL)

    assert sorted((tmp_path / 'begun').read_text().split()) == objects
