# SPDX-License-Identifier: Apache-2.0
"""Tasks of a world: the clients, the operators and the commands.

Tasks have their own random generator, so that worlds without tasks do not
change. The oracle is :mod:`tests.oracle.tasks`.
"""

import dataclasses
import functools
import json
import random

from distperiodic import exceptions
from distperiodic.core import workflow
from distperiodic.core.job import command_job
from distperiodic.core.new_task import NewTask
from distperiodic.core.schedule import SECOND
from tests import checker
from tests.oracle import tasks as oracle

#: Of the worlds with the store in SQLite, the share that has tasks.
SHARE = 0.5
#: The partition of all workers of a world.
_MODULE = 'default'
_COMMANDS = 'c0', 'c1', 'c2'
_UNDOES = 'u0', 'u1'
_QUEUES = 'halts', 'goes on'
#: Timeout of a command in seconds, except in tasks with the fate 'long'. A
#: slow command exceeds it.
_TIMEOUT = 2.0

#: Fates that a step of a task may have.
FATES = ('well', 'fails once', 'fails', 'rollback fails', 'slow', 'long',
         'deadly')

#: Requests of operators.
STEERS = 'cancel', 'retry', 'halt', 'resume', 'go_on'


def commands():
    """Return the jobs of all commands, by name."""
    jobs = [command_job(_MODULE, name, '') for name in _COMMANDS + _UNDOES]
    return {job.name: job for job in jobs}


def have(seed):
    """Return whether the world of *seed* has tasks if the store of this world
    supports tasks.
    """
    # The number 8 is chosen so that the older seeds of seeds.txt have no
    # tasks. So these seeds still reproduce the errors that they found before
    # the simulation had tasks.
    return random.Random(f'tasks 8 in {seed}').random() < SHARE


@dataclasses.dataclass
class _Plan:
    """The fate of a task."""

    definition: workflow.Definition
    fate: str
    #: Index of the step that meets this fate.
    at: int
    #: Number of runs of the step that meet this fate.
    times: int


class Tasks:
    """The tasks of *cluster*."""

    def __init__(self, cluster, seed):
        self._cluster = cluster
        self._world = cluster.world
        self._random = random.Random(f'tasks of {seed}')
        self._plans = {}
        self._runs = []
        self._submissions = {}
        self._answers = []
        self._requests = []
        #: Current runs, by task and by queue.
        self._going = {}
        self._store = cluster.stores.tasks
        self._world.after(0.5, self._set_queues)
        life = cluster.setup.life
        for number in range(self._random.randint(8, 24)):
            self._world.after(
                self._random.uniform(1.0, life.faults_until - 10.0),
                self._draw_task, number)
        for _ in range(self._random.randint(2, 14)):
            self._world.after(
                self._random.uniform(5.0, life.faults_until), self._steer)

    # -- clients

    def _draw_task(self, number):
        random = self._random
        fate = random.choice(['well', 'well', 'long', *FATES])
        timeout = (2 * self._cluster.setup.lease if fate == 'long'
                   else _TIMEOUT)
        definition = tuple(self._draw_step(timeout) for _ in range(
            random.choice([1, 1, 3, 4, 5])))
        plan = _Plan(definition, fate, random.randrange(len(definition)),
                     random.randint(1, 7))
        due = None
        if random.random() < 0.15:
            due = self._cluster.clock.now() + int(
                random.uniform(1.0, 30.0) * SECOND)
        task = NewTask(
            '', fate, definition, json.dumps({'n': number}),
            f'k{number}' if random.random() < 0.5 else None,
            random.choice([None, None, *_QUEUES]), due,
            random.choice([0, 0, 1]))
        for client in range(
                2 if task.key and random.random() < 0.5 else 1):
            self._world.after(client * random.uniform(0.0, 5.0),
                              self._submit, task, plan)

    def _draw_step(self, timeout):
        random = self._random

        def action(names):
            once = random.random() < 0.1
            # A definition with retries of a command that runs at most once is
            # rejected.
            return workflow.Action(
                _MODULE, random.choice(names), timeout=timeout,
                retry=random.choice([0, 0, 1, 2]) * (not once),
                delivery=workflow.Delivery.AT_MOST_ONCE if once
                else workflow.Delivery.AT_LEAST_ONCE)
        return workflow.StepDefinition(
            action(_COMMANDS),
            action(_UNDOES) if random.random() < 0.7 else None)

    def _submit(self, task, plan, tries=20):
        """Submit *task* when the store is reachable. If the client receives no
        answer and the task has a key, submit it again.
        """
        world, random = self._world, self._random
        id_ = f't{len(self._submissions):03d}'
        again = functools.partial(self._submit, task, plan, tries - 1)
        if self._cluster.line.away:
            if tries:
                world.after(random.uniform(1.0, 10.0), again)
            return
        self._plans[id_] = dataclasses.replace(plan)
        self._submissions[id_] = oracle.Submission(
            id_, [oracle.Step(*(act and oracle.Act(
                act.retry, act.delivery is workflow.Delivery.AT_MOST_ONCE)
                for act in step)) for step in task.definition],
            json.loads(task.parameters), task.key, task.queue)
        try:
            [given] = self._store.submit([task._replace(id=id_)])
        except exceptions.StoreUnavailable:
            world.happened('submission failed')
            given = None
        if given is None or world.chance(self._cluster.line.lost):
            if task.key and tries:
                world.after(random.uniform(0.1, 5.0), again)
            return
        world.tell('SUBMIT %s -> %s %s', id_, given, task)
        self._answers.append((id_, given))
        self._notify(given)

    def _notify(self, task):
        for process in list(self._cluster.here.values()):
            if process is not None and process.identity[0] == 's':
                self._cluster.broker.notify(process, task)

    # -- operators

    def _set_queues(self):
        self._ask('goes on', 'go_on', self._store.set_goes_on, True)

    def _steer(self):
        """Make an operator act on a task or a queue."""
        random = self._random
        if self._cluster.line.away or not self._answers:
            return
        _, task = random.choice(self._answers)
        what = random.choice([
            'cancel', 'cancel', 'retry', 'retry', 'retry', 'halt', 'resume',
            'resume'])
        if what == 'cancel':
            self._ask(task, what, self._change(self._store.cancel), 'somebody')
        elif what == 'retry':
            self._ask(task, what, self._change(self._store.retry),
                      random.choice([None, None, True, False]))
        elif what == 'halt':
            self._ask(random.choice(_QUEUES), what, self._store.halt, '')
        else:
            self._ask(random.choice(_QUEUES), what, self._store.resume)

    @staticmethod
    def _change(call):
        def change(task, *arguments):
            [answer] = call([task], *arguments).values()
            if isinstance(answer, Exception):
                raise answer
            return answer
        return change

    def _ask(self, of, what, call, *arguments):
        try:
            with self._cluster.stores.no_trouble():
                answer = call(of, *arguments)
        except (exceptions.InvalidTask, exceptions.UnknownTask):
            # The state of the task does not allow the request.
            return
        self._world.tell('OPERATOR %s %s -> %s', what, of, answer)
        self._world.happened(f'operator: {what}')
        self._requests.append(oracle.Request(self._world.now, of, what))
        if what in ('cancel', 'retry'):
            self._notify(of)

    def heal(self):
        """Make operators resume all queues, in half of the worlds."""
        if self._random.random() < 0.5:
            for queue in _QUEUES:
                self._ask(queue, 'resume', self._store.resume)

    # -- commands

    def run_of(self, batch, index, process):
        """Return the run of a step that begins now."""
        step = batch.steps[batch.objects[index]]
        return oracle.CommandRun(
            batch.job, batch.objects[index], batch.tick, batch.fences[index],
            batch.attempts[index], process.name, self._world.now,
            step=step.step, back=step.rollback,
            parameters=json.dumps(step.parameters))

    def began(self, run):
        """Record that *run* begins. Record a stall for each concurrent run of
        its task or its queue whose process no longer trusts the lease of that
        run.
        """
        world, task = self._world, run.object
        run.stale = run.fence != self._cluster.stores.fence_of(run.job, task)
        due = self._cluster.stores.due_of(task)
        run.early = due is not None and due > self._cluster.clock.now()
        self._runs.append(run)
        submission = self._submissions.get(task)
        for name in [task, submission and submission.queue]:
            if name is None:
                continue
            going = self._going.setdefault(name, [])
            going[:] = [one for one in going if one.end is None]
            for other in going:
                process = world.processes[other.process]
                if not process.pool.trusts(other):
                    world.stalls.append(checker.Stall(
                        process.name, world.now, world.now, 'untrusted'))
            going.append(run)

    def behaviour(self, run):
        """Return the seconds that *run* takes, and whether it fails. Set the
        result of the run.
        """
        random, plan = self._random, self._plans[run.object]
        seconds = 0.01 + 0.1 * random.random()
        if self._cluster.slow and random.random() < 0.05:
            seconds = 0.9 * _TIMEOUT * random.random()
        fails = random.random() < self._cluster.fails
        if run.step == plan.at and plan.times > 0 and plan.fate != 'well':
            fate = plan.fate
            if run.back is (fate == 'rollback fails'):
                plan.times -= 1
                fails = fails or fate in (
                    'fails', 'fails once', 'rollback fails')
                if fate == 'fails once':
                    plan.times = 0
                elif fate == 'slow':
                    seconds = 2 * _TIMEOUT
                elif fate == 'long':
                    # The lease of the run may expire before its end.
                    seconds = 1.5 * random.random() * (
                        self._cluster.setup.lease)
                elif fate == 'deadly' and not self._cluster.healed:
                    process = self._world.processes[run.process]
                    process.later(0.005, self._cluster.faults.dies, process,
                                  stream='death')
            elif fate == 'rollback fails':
                fails = True
        timeout = plan.definition[run.step].normal.timeout
        if seconds >= timeout:
            seconds, fails = timeout, True
        run.result = None if fails else json.dumps(
            {f'{run.step}{"r" if run.back else ""}': run.fence})
        return seconds, fails

    # -- results

    def judge(self):
        """Return the findings of the checker and of the oracle."""
        cluster, stores = self._cluster, self._cluster.stores
        journal = stores.steps_journal
        record = checker.Record(
            self._world.begin, self._world.now,
            {name: checker.Policy(name) for name in cluster.commands},
            self._runs, journal.claims, [], self._world.stalls,
            cluster.patience)
        facts = oracle.TaskFacts(
            self._world.begin, self._world.now, cluster.clock.now(),
            cluster.patience, self._submissions, self._answers,
            stores.task_rows, self._runs, stores.grants, stores.recoveries,
            self._requests, self._world.stalls)
        return [*checker.check(record), *oracle.judge(facts)]

    def endings(self):
        """Return the last status of each task and, for each run, the fate of
        its task.
        """
        last = {row.task: row.status
                for row in self._cluster.stores.task_rows}
        return [*last.values(), *(
            f'fate: {self._plans[run.object].fate}' for run in self._runs)]
