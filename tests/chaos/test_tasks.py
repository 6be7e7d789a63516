# SPDX-License-Identifier: Apache-2.0
"""The records of tasks are read correctly.

Errors in a history are covered by the tests of the oracle in
:mod:`tests.simulation`.
"""

import json
import types

from distperiodic.adapters.sql.column_types import STATE_CODES
from distperiodic.core.claim import State
from distperiodic.core.workflow import CODES
from distperiodic.core.workflow import Status
from tests import checker
from tests.chaos import jobs
from tests.chaos import tasks

SECOND = checker.SECOND


class Books:
    """Records of the ledger, the journal and the client for one task of three
    steps.
    """

    def __init__(self):
        self.now = 0
        self.told, self.rows, self.moves, self.stalls = [], [], [], []
        self.parameters = {'n': 1}
        self.client = types.SimpleNamespace(
            submissions={'t': tasks.oracle.Submission(
                't', [tasks.rules(step) for step in
                      tasks.WORKFLOWS['three']], {'n': 1}, 'key-1', None)},
            requests=[], unanswered=[])
        self.row(Status.WAITING)

    def row(self, status, step=0, back=False):
        self.now += SECOND
        self.rows.append(types.SimpleNamespace(
            n=len(self.rows), task='t', status=CODES[status], step=step,
            back=int(back), cursor=step, queue=None, created=1,
            cancelling=False, parameters=json.dumps(self.parameters),
            due=None, committed=self.now))

    def grant(self, fence, step):
        self.now += SECOND
        self.moves.append(types.SimpleNamespace(
            job=f'default.{step}', object='t', fence=fence,
            state=STATE_CODES[State.RUNNING], committed=self.now))

    def tell(self, what, fence, pid=1, **about):
        self.now += SECOND
        self.told.append({
            'what': what, 'pid': pid, 'host': 'w1', 'object': 't',
            'job': 'task:default.do', 'tick': 0, 'fence': fence,
            'attempt': 1, 'at': self.now, **about})

    def run(self, fence, step, pid=1):
        self.grant(fence, step)
        self.tell('step', fence, pid, step=step, rollback=False,
                  parameters=dict(self.parameters))
        result = {str(step): fence}
        self.tell('step end', fence, pid, outcome='done', result=result)
        self.parameters |= result

    def kinds(self):
        _, found = tasks.judge(self.client, self.told, self.rows, self.moves,
                               self.stalls, 0, self.now, 100 * SECOND)
        return {one.kind for one in found}


def whole():
    books = Books()
    books.row(Status.RUNNING)
    books.run(1, 0)
    books.row(Status.RUNNING, 1)
    books.run(2, 1)
    books.row(Status.RUNNING, 2)
    books.run(3, 2)
    books.row(Status.SUCCEEDED, 2)
    return books


def test_a_task_that_ran_step_by_step_is_right():
    assert whole().kinds() == set()


def test_a_run_that_was_killed_does_not_move_its_task():
    books = whole()
    books.told[3] = {'what': 'gone', 'pid': 1, 'host': 'w1',
                     'at': books.told[3]['at']}

    assert 'order' in books.kinds()


def test_a_step_that_ran_after_the_end_of_its_task_is_found():
    books = whole()
    books.run(4, 2)

    assert 'astray' in books.kinds()


def test_a_step_that_begins_late_in_a_process_that_was_stopped_is_excused():
    books = whole()
    books.tell('step', 2, 7, step=1, rollback=False, parameters={'n': 1})
    books.tell('step end', 2, 7, outcome='failed', result={})
    books.stalls.append(checker.Stall(
        '7', books.now - 4 * SECOND, books.now - SECOND, 'stopped'))

    assert books.kinds() == set()

    books.stalls.clear()

    assert 'fence' in books.kinds()


def test_a_submission_without_an_answer_is_found():
    books = whole()
    books.client.unanswered.append('key-2')

    assert books.kinds() == {'unanswered'}


def test_the_commands_of_all_workflows_are_there():
    made = jobs.make_tasks(None, None)
    wanted = {f'{half["module"]}.{half["command"]}'
              for steps in tasks.WORKFLOWS.values() for step in steps
              for half in step.values()}

    assert {name.removeprefix('task:') for name in made.commands} == wanted
