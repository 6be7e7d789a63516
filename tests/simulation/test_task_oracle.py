# SPDX-License-Identifier: Apache-2.0
"""The oracle of tasks accepts correct records, and finds the errors in
incorrect ones.
"""

import dataclasses
import itertools

import pytest

from tests.checker import SECOND
from tests.oracle import tasks
from tests.oracle.tasks import Act

UNDONE = tasks.Step(Act(), Act())


class History:
    """A record of tasks in which each event takes one second."""

    def __init__(self):
        self.submissions = {}
        self.answers, self.rows, self.runs = [], [], []
        self.grants, self.recoveries, self.requests = [], [], []
        self._now = itertools.count(1)
        self._fences = itertools.count(1)
        self._created = itertools.count(1)

    def submit(self, task='t', steps=(UNDONE, UNDONE), queue=None, key=None,
               **options):
        self.submissions[task] = tasks.Submission(
            task, steps, {}, key, queue)
        self.answers.append((task, task))
        self.move(task, 'waiting', created=next(self._created), **options)

    def move(self, task, status, step=0, back=False, **options):
        before = next((row for row in reversed(self.rows)
                       if row.task == task), None)
        default = dict(
            cursor=max(step, before.cursor if before else 0),
            created=before.created if before else 0,
            cancelling=before.cancelling if before else False,
            parameters=before.parameters if before else '{}', due=None)
        self.rows.append(tasks.Row(
            next(self._now) * SECOND, task, status, step, back,
            queue=self.submissions[task].queue, **{**default, **options}))

    def run(self, task='t', step=0, back=False, outcome='done', **options):
        begin, fence = next(self._now) * SECOND, next(self._fences)
        self.grants.append((task, begin - 1, fence))
        self.runs.append(tasks.CommandRun(
            'task:m.c', task, 0, options.pop('fence', fence), 1, 'w~1',
            begin, next(self._now) * SECOND, outcome, step=step, back=back,
            **options))

    def recover(self, task='t'):
        """Record that a step was claimed again, because its run was lost or
        returned.
        """
        self.recoveries.append((task, next(self._now) * SECOND))

    def ask(self, what, of='t'):
        """Record a request at the instant of the next row."""
        now = next(self._now)
        self._now = itertools.count(now)
        self.requests.append(tasks.Request(now * SECOND, of, what))

    def kinds(self, patience=1000):
        now = next(self._now) * SECOND
        return {finding.kind for finding in tasks.judge(tasks.TaskFacts(
            0, now, now, patience * SECOND, self.submissions, self.answers,
            self.rows, self.runs, self.grants, self.recoveries,
            self.requests, []))}


@pytest.fixture
def history():
    return History()


def test_a_task_that_runs_step_by_step_is_right(history):
    history.submit()
    history.move('t', 'running')
    history.run(result='{"0": 1}')
    history.move('t', 'running', 1, parameters='{"0": 1}')
    history.run(step=1, parameters='{"0": 1}')
    history.move('t', 'succeeded', 1)

    assert history.kinds() == set()


def test_a_step_that_fails_is_rolled_back_with_those_before(history):
    history.submit()
    history.move('t', 'running')
    history.run()
    history.move('t', 'running', 1)
    history.run(step=1, outcome='failed')
    history.move('t', 'rolling_back', 1, True)
    history.run(step=1, back=True)
    history.move('t', 'rolling_back', 0, True)
    history.run(back=True)
    history.move('t', 'failed', 0, True)

    assert history.kinds() == set()


@pytest.mark.parametrize(('status', 'step', 'back'), [
    ('running', 1, False), ('succeeded', 0, False), ('failed', 0, False),
    ('rolling_back', 0, True), ('stuck', 0, False), ('cancelled', 0, False)])
def test_a_task_does_not_move_without_a_reason(history, status, step, back):
    history.submit()
    history.move('t', 'running')
    history.run(outcome='killed')
    history.move('t', status, step, back)

    assert 'order' in history.kinds()


def test_a_rollback_that_is_passed_over_is_found(history):
    history.submit()
    history.move('t', 'running')
    history.run()
    history.move('t', 'running', 1)
    history.run(step=1, outcome='failed')
    history.move('t', 'rolling_back', 0, True)

    assert history.kinds() == {'order'}


def test_a_failure_with_retries_left_does_not_roll_back(history):
    history.submit(steps=[tasks.Step(Act(retry=1), Act())])
    history.move('t', 'running')
    history.run(outcome='failed')
    history.move('t', 'rolling_back', 0, True)

    assert history.kinds() == {'order'}


def test_a_command_that_runs_where_its_task_is_not_is_found(history):
    history.submit()
    history.move('t', 'running')
    history.run(step=1)

    assert history.kinds() == {'astray'}


def test_a_run_after_the_end_of_its_task_is_found(history):
    history.submit(steps=[UNDONE])
    history.move('t', 'running')
    history.run()
    history.move('t', 'succeeded')
    history.run()

    assert 'astray' in history.kinds()


def test_a_run_under_an_old_fence_is_found(history):
    history.submit()
    history.move('t', 'running')
    history.run(outcome='killed', fence=9)
    history.run(fence=8)

    assert history.kinds() == {'fence'}


def test_two_live_runs_of_one_task_are_found(history):
    history.submit()
    history.move('t', 'running')
    history.run()
    history.runs.append(dataclasses.replace(
        history.runs[0], fence=2, process='w~2',
        start=history.runs[0].start + 1))

    assert 'overlap' in history.kinds()


def test_the_values_of_a_result_that_did_not_count_are_found(history):
    history.submit(steps=[tasks.Step(Act(retry=1), Act())])
    history.move('t', 'running')
    history.run(outcome='failed', result='{"0": 1}')
    history.move('t', 'running', parameters='{"0": 1}')

    assert 'late result' in history.kinds()


def fail_in_the_middle(history, stuck=None):
    """Let step 0 end with a result, step 1 fail, and the task roll back.

    :param stuck: Step whose rollback fails, too.
    """
    history.submit()
    history.move('t', 'running')
    history.run(result='{"0": 1}')
    history.move('t', 'running', 1, parameters='{"0": 1}')
    history.run(step=1, outcome='failed', parameters='{"0": 1}')
    history.move('t', 'rolling_back', 1, True)
    if stuck == 1:
        history.run(step=1, back=True, parameters='{"0": 1}', outcome='failed')
        history.move('t', 'stuck', 1, True)
        return
    history.run(step=1, back=True, parameters='{"0": 1}',
                result='{"0": 3, "1r": 2}')
    history.move('t', 'rolling_back', 0, True, parameters='{"0": 3, "1r": 2}')
    history.run(back=True, parameters='{"0": 3, "1r": 2}',
                outcome='failed' if stuck == 0 else 'done')
    history.move('t', 'failed' if stuck is None else 'stuck', 0, True)


@pytest.mark.parametrize(('parameters', 'kinds'), [
    ('{}', set()), ('{"0": 1}', {'late result'}),
    ('{"0": 3, "1r": 2}', {'late result'})])
def test_a_task_that_is_retried_has_the_parameters_of_its_submission(
        history, parameters, kinds):
    fail_in_the_middle(history)
    history.ask('retry')
    history.move('t', 'waiting', cursor=0, parameters=parameters)

    assert history.kinds() == kinds


@pytest.mark.parametrize(('stuck', 'parameters', 'kinds'), [
    (0, '{}', set()), (0, '{"0": 1}', {'late result'}),
    (0, '{"0": 3, "1r": 2}', {'late result'}),
    (1, '{"0": 1}', set()), (1, '{}', {'late result'})])
def test_a_task_that_runs_forward_again_has_the_results_before_its_step(
        history, stuck, parameters, kinds):
    fail_in_the_middle(history, stuck)
    history.ask('retry')
    history.move('t', 'running', stuck, parameters=parameters)

    assert history.kinds() == kinds


def test_a_step_that_does_not_receive_earlier_results_is_found(history):
    history.submit()
    history.move('t', 'running')
    history.run(result='{"0": 1}')
    history.move('t', 'running', 1, parameters='{"0": 1}')
    history.run(step=1)

    assert history.kinds() == {'parameters'}


def test_a_step_that_runs_twice_though_at_most_once_is_found(history):
    history.submit(steps=[tasks.Step(Act(once=True))])
    history.move('t', 'running')
    history.run(outcome='killed')
    history.run()
    history.move('t', 'succeeded')

    assert history.kinds() == {'attempts'}


def test_a_run_before_the_earliest_start_is_found(history):
    history.submit()
    history.move('t', 'running')
    history.run(early=True)

    assert history.kinds() == {'early'}


def test_a_cancelled_task_is_rolled_back_from_its_present_step(history):
    history.submit()
    history.move('t', 'running')
    history.run()
    history.move('t', 'running', cancelling=True)
    history.move('t', 'rolling_back', 0, True)
    history.run(back=True)
    history.move('t', 'cancelled', 0, True)

    assert history.kinds() == set()


def test_a_task_that_waits_is_cancelled_at_once(history):
    history.submit()
    history.ask('cancel')
    history.move('t', 'cancelled', cancelling=True)

    assert history.kinds() == set()


@pytest.mark.parametrize(('began', 'to', 'found'), [
    (False, ('cancelled', 0, False), set()),
    (False, ('rolling_back', 0, True), set()),
    (True, ('rolling_back', 0, True), set()),
    (True, ('cancelled', 0, False), {'order'})])
def test_a_lost_step_is_undone_at_once_if_it_began_and_is_cancelled(
        history, began, to, found):
    history.submit()
    history.move('t', 'running')
    if began:
        history.run(outcome='killed')
    history.recover()
    history.ask('cancel')
    history.move('t', *to, cancelling=True)

    assert history.kinds() == found


def test_a_step_that_runs_is_not_cancelled_at_once(history):
    history.submit()
    history.move('t', 'running')
    history.recover()
    history.run(outcome=None)
    history.ask('cancel')
    history.move('t', 'rolling_back', 0, True, cancelling=True)

    assert history.kinds() == {'order'}


def in_queue(history, *names):
    for name in names:
        history.submit(name, steps=[UNDONE], queue='q')


def test_two_tasks_of_a_queue_at_work_are_found(history):
    in_queue(history, 'a', 'b')
    history.move('a', 'running')
    history.move('b', 'running')

    assert history.kinds() == {'two at work'}


def test_a_cancel_and_the_next_task_of_a_queue_may_be_one_transaction(
        history):
    in_queue(history, 'a', 'b')
    history.move('a', 'running')
    history.recover('a')
    history.ask('cancel', 'a')
    history.move('a', 'running', cancelling=True)
    history.move('a', 'cancelled', back=True, cancelling=True)
    history.move('b', 'running')
    *_, first, second, third = history.rows
    history.rows[-2:] = [row._replace(at=first.at)
                         for row in (second, third)]

    assert history.kinds() == set()


def test_a_task_that_is_stuck_holds_its_queue(history):
    in_queue(history, 'a', 'b')
    history.move('a', 'running')
    history.run('a', outcome='failed')
    history.move('a', 'rolling_back', 0, True)
    history.run('a', back=True, outcome='failed')
    history.move('a', 'stuck', 0, True)

    assert history.kinds(patience=0) == set()

    history.move('b', 'running')

    assert history.kinds() == {'two at work'}


def test_a_task_that_overtakes_another_in_its_queue_is_found(history):
    in_queue(history, 'a', 'b')
    history.move('b', 'running')

    assert history.kinds() == {'overtaken'}


@pytest.mark.parametrize(('asked', 'found'), [
    (None, {'halt'}), ('resume', set())])
def test_a_queue_halts_after_a_failure_until_it_is_resumed(
        history, asked, found):
    history.submit('a', steps=[tasks.Step(Act())], queue='q')
    in_queue(history, 'b')
    history.move('a', 'running')
    history.run('a', outcome='failed')
    history.move('a', 'failed', 0, True)
    if asked:
        history.ask(asked, 'q')
    history.move('b', 'running')

    assert history.kinds() == found


def test_a_task_that_was_never_submitted_is_found(history):
    history.submit()
    del history.submissions['t']
    history.answers.clear()

    assert history.kinds() == {'invented'}


def test_a_task_that_a_client_was_given_and_is_not_there_is_found(history):
    history.submit()
    history.rows.clear()

    assert history.kinds() == {'lost'}


def test_two_tasks_with_one_key_are_found(history):
    history.submit('a', key='k')
    history.submit('b', key='k')

    assert history.kinds() == {'doubled'}


def test_a_task_that_never_ends_is_found(history):
    history.submit()
    history.move('t', 'running')

    assert history.kinds(patience=0) == {'unended'}


def test_a_task_that_is_not_due_is_not_late(history):
    history.submit(due=10 ** 6 * SECOND)

    assert history.kinds(patience=0) == set()
