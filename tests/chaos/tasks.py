# SPDX-License-Identifier: Apache-2.0
"""Tasks of the cluster: a client that submits the tasks, and a judge of the
records of the tasks.

The client is not part of the cluster. It connects to the servers directly. It
submits each task with a key, and repeats the submission until it receives an
answer. Every second task is in one ordered queue.
"""

import collections
import json
import random
import threading
import time

from oslo_config import cfg

from distperiodic import exceptions
from distperiodic import opts
from distperiodic import tasks
from distperiodic.adapters.sql.column_types import STATE_CODES
from distperiodic.core.claim import State
from distperiodic.core.workflow import CODES
from tests import checker
from tests.chaos import journal
from tests.chaos import pace
from tests.chaos.cluster import ALONE
from tests.chaos.pace import PACE
from tests.oracle import tasks as oracle

#: The commands of each module. The workers of the partition with the name of
#: the module run them.
COMMANDS = {'default': ('do', 'act', 'undo', 'revert'),
            ALONE: ('use', 'free')}
_MODULES = {name: module for module, names in COMMANDS.items()
            for name in names}
QUEUE = 'line'
#: Seconds between two submissions.
PAUSE = 1.0 * PACE
# Seconds until a submission is repeated.
_AGAIN = 0.3 * PACE
# Seconds for which the client repeats a submission after a request to stop.
_LAST = 60.0 * PACE


def _step(command, rollback=None, **options):
    found = {'normal': {'module': _MODULES[command], 'command': command,
                        **options}}
    if rollback:
        found['rollback'] = {'module': _MODULES[rollback],
                             'command': rollback, 'retry': 5}
    return found


WORKFLOWS = {
    'one': [_step('do', retry=1)],
    'three': [_step('do', 'undo', retry=2), _step('act', retry=2),
              _step('do', 'revert', retry=2)],
    'five': [_step('do', 'undo'), _step('do', 'undo'), _step('act', 'revert'),
             _step('act', 'undo'), _step('do', 'revert')],
    'charged': [_step('do', 'undo'),
                _step('act', 'revert', delivery='at_most_once'),
                _step('do', 'undo')],
    'guarded': [_step('do', 'undo'), _step('use', 'free', retry=2),
                _step('use', 'undo')],
}


class Client:
    """Submits tasks in a thread, until it is stopped."""

    def __init__(self, cluster, seed):
        self._random = random.Random(f'tasks {seed}')
        conf = cfg.ConfigOpts()
        opts.register_opts(conf)
        conf(['--config-file', str(cluster.client_config)])
        self._client = tasks.Client(conf, workflows=WORKFLOWS)
        self._stopped = threading.Event()
        #: Monotonic time in seconds after which the client repeats no
        #: submission.
        self._over = float('inf')
        self._thread = threading.Thread(target=self._run, daemon=True)
        #: Submissions by task.
        self.submissions = {}
        self.requests = []
        #: Keys of submissions that received no answer.
        self.unanswered = []

    def start(self):
        self._client.set_queue(QUEUE, on_failure='go_on')
        self.requests.append(oracle.Request(0, QUEUE, 'go_on'))
        self._thread.start()

    def stop(self):
        """Submit no more tasks. Return when each submission is answered or
        abandoned.
        """
        self._over = time.monotonic() + _LAST
        self._stopped.set()
        self._thread.join()
        self._client.close()

    def _run(self):
        number = 0
        while not self._stopped.wait(PAUSE):
            number += 1
            self._submit(number)

    def _submit(self, number):
        type_ = self._random.choice(sorted(WORKFLOWS))
        steps = WORKFLOWS[type_]
        parameters = {'n': number}
        if self._random.random() < 0.3:
            parameters['fails'] = self._random.randrange(len(steps))
        queue = QUEUE if number % 2 else None
        while True:
            try:
                task = self._client.submit(
                    type_, parameters, key=f'key-{number}', queue=queue)
            except exceptions.StoreUnavailable:
                if time.monotonic() > self._over:
                    self.unanswered.append(f'key-{number}')
                    return
                time.sleep(_AGAIN)
                continue
            self.submissions[task] = oracle.Submission(
                task, [rules(step) for step in steps], parameters,
                f'key-{number}', queue)
            return


def rules(step):
    """Return the oracle's description of a step."""
    return oracle.Step(*(half and oracle.Act(
        half.get('retry', 0), 'delivery' in half)
        for half in (step['normal'], step.get('rollback'))))


def runs(told):
    """Return the runs of commands, from the records that the commands made.
    The runs of a process that died have ended, too.
    """
    made = []
    going = collections.defaultdict(dict)
    for line in told:
        pid = line['pid']
        if line['what'] == 'step':
            run = oracle.CommandRun(
                line['job'], line['object'], line['tick'], line['fence'],
                line['attempt'], str(pid), line['at'], step=line['step'],
                back=line['rollback'],
                parameters=json.dumps(line['parameters']))
            going[pid][run.object, run.fence] = run
            made.append(run)
        elif line['what'] == 'step end':
            run = going[pid].pop((line['object'], line['fence']))
            run.end, run.outcome = line['at'], line['outcome']
            run.result = json.dumps(line['result'])
        elif line['what'] == 'gone':
            for run in going.pop(pid, {}).values():
                run.end, run.outcome = line['at'], 'killed'
    return made


def excuse(all_runs, stalls):
    """Remove runs with an old fence that a stopped process began when it
    continued.

    Such a process was stopped just before it began a command. During the stop,
    the step may have received a new fence. The process detects this at its
    next check.
    """
    newest = {}
    for run in sorted(all_runs, key=lambda run: run.start):
        before = newest.get(run.object, -1)
        newest[run.object] = max(before, run.fence)
        if run.fence < before and any(
                stall.process == run.process and stall.begin < run.start
                and run.start < stall.end + pace.SECOND
                for stall in stalls):
            all_runs.remove(run)


def judge(client, told, rows, moves, stalls, begin, end, patience):
    """Return the input of the oracle, and its findings.

    :param rows: see :func:`tests.chaos.journal.tasks`.
    :param moves: transitions of claims of commands; see
        :func:`tests.chaos.journal.read`.
    :param end: end of the record. Everything after it is ignored, because the
        ledger is read later than the store.
    :param patience: microseconds within which a task must make progress.
    """
    all_runs = [run for run in runs(told) if run.start <= end]
    rows = [row for row in rows if row.committed <= end]
    moves = [row for row in moves if row.committed <= end]
    excuse(all_runs, stalls)
    facts = oracle.TaskFacts(
        begin, end, end, patience, client.submissions,
        [(task, task) for task in client.submissions],
        [_row(row) for row in sorted(
            rows, key=lambda row: (row.committed, row.n))],
        all_runs, list(_grants(moves)), list(_recoveries(moves)),
        client.requests, stalls)
    return facts, [*oracle.judge(facts), *(
        checker.Finding('unanswered', f'{key} could not be submitted for '
                        f'{_LAST:.0f} s after the last fault')
        for key in client.unanswered)]


_STATUSES = {code: str(status) for status, code in CODES.items()}


def _row(row):
    return oracle.Row(
        row.committed, row.task, _STATUSES[row.status], row.step,
        bool(row.back), row.cursor, row.queue, row.created, row.cancelling,
        row.parameters, row.due)


def _grants(moves):
    """Yield the task, the instant and the fence of each run that was granted.
    """
    last = {}
    running = journal.STATES[STATE_CODES[State.RUNNING]]
    for row in moves:
        pair = row.job, row.object
        now = journal.STATES[row.state], row.fence
        if now[0] == running and last.get(pair) != now:
            yield row.object, row.committed, row.fence
        last[pair] = now


def _recoveries(moves):
    """Yield the task and the instant of each claim that was acquired again."""
    last = {}
    claimed, *others = (journal.STATES[STATE_CODES[state]] for state in (
        State.CLAIMED, State.RUNNING, State.RETRY))
    for row in moves:
        pair = row.job, row.object
        now = journal.STATES[row.state], row.fence
        before = last.get(pair)
        if now[0] == claimed and before is not None and before != now and (
                before[0] in (claimed, *others)):
            yield row.object, row.committed
        last[pair] = now
