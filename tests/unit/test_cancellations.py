# SPDX-License-Identifier: Apache-2.0
"""Handlers of tasks that are cancelled while a step runs."""

import threading

import pytest

from distperiodic.core.claim import Authority
from distperiodic.core.job import command_job
from distperiodic.core.message import Batch
from distperiodic.core.workflow import StepInput
from distperiodic.flow.worker.cancellations import EVERY
from distperiodic.flow.worker.cancellations import Cancellations
from distperiodic.flow.worker.runs import Executor
from distperiodic.flow.worker.runs import Handled
from distperiodic.flow.worker.runs import RunCallbacks
from distperiodic.testing.clock import FrozenClock
from tests.threadless_pool import ThreadlessPool

JOB = command_job('m', 'run', 'here')


class Store:
    """A store of tasks, and the queue of its calls."""

    def __init__(self):
        self.steps = self
        self.recorded = set()
        self.reads = []
        self.answers = True
        self.failed = []

    def cancelled(self, tasks):
        self.reads.append(tasks)
        return self.recorded & {*tasks}

    def submit(self, call, then, failed):
        answer = call(self)
        if self.answers:
            then(answer)
        else:
            self.failed.append(failed)


class Worker:

    def __init__(self, *, rollback=False):
        self.clock, self.store, self.pool = (
            FrozenClock(), Store(), ThreadlessPool())
        self.contexts, self.errors = [], []
        self.act = lambda context: None
        self.executor = Executor(
            {JOB.name: Handled(JOB, self._handle)}, clock=self.clock,
            pool=self.pool, callbacks=RunCallbacks(
                report=lambda report, entry: None,
                may_start=lambda batch: None))
        self.cancellations = Cancellations(
            self.executor, self.store, self.clock)
        self.rollback = rollback

    def _handle(self, context, parameters):
        self.contexts.append(context)
        try:
            self.act(context)
        except AssertionError as exc:
            self.errors.append(exc)

    def run(self, *tasks):
        self.executor.accept(Batch(
            tasks[0], JOB.name, 0, [*tasks], [1] * len(tasks),
            [1] * len(tasks),
            's', 'w', 'l', authority=Authority.STORE, steps={
                task: StepInput(task, 0, self.rollback, 600.0, {})
                for task in tasks}))
        while self.pool.queue:
            self.pool.run_one()
        for error in self.errors:
            raise error

    def sweep(self, seconds=EVERY):
        self.clock.advance(seconds)
        self.cancellations.sweep()


def test_a_handler_learns_within_seconds_that_its_task_is_cancelled():
    worker = Worker()

    def act(context):
        worker.sweep()
        assert not context.cancelled
        worker.store.recorded.add('t1')
        worker.sweep(EVERY / 2)
        assert not context.cancelled
        worker.sweep(EVERY / 2)
        assert context.cancelled is (context.object == 't1')
        assert context.is_current() is (context.object != 't1')
    worker.act = act

    worker.run('t1')
    worker.run('t2')

    assert [c.object for c in worker.contexts] == ['t1', 't2']


def test_a_rollback_is_not_cancelled():
    worker = Worker(rollback=True)
    worker.store.recorded.add('t1')

    def act(context):
        worker.sweep()
        assert not context.cancelled
    worker.act = act

    worker.run('t1')

    assert len(worker.contexts) == 1


def test_nothing_is_read_without_a_step_that_runs():
    worker = Worker()
    worker.sweep()
    assert worker.store.reads == []


@pytest.mark.parametrize('fails', [False, True])
def test_a_store_that_does_not_answer_gets_one_request(fails):
    worker = Worker()
    worker.store.answers = False
    done = threading.Event()

    def act(context):
        for _ in range(3):
            worker.sweep()
        assert len(worker.store.reads) == 1
        if fails:
            worker.store.failed[0]()
            worker.sweep()
            assert len(worker.store.reads) == 2
        done.set()
    worker.act = act

    worker.run('t1')

    assert done.is_set()
