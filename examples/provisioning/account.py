# SPDX-License-Identifier: Apache-2.0
"""Checks of the tasks against the platform and the journal of all runs."""

import collections
import dataclasses
import itertools


@dataclasses.dataclass
class Run:
    """A run of a command. Its begin and its end are line numbers of the
    journal.
    """

    pid: int
    step: int
    command: str
    fence: int
    begin: int
    end: float = float('inf')
    outcome: str = 'none'

    @property
    def name(self):
        return self.step, self.command


def read(lines):
    """Read the journal.

    :returns: The runs of each task, in the order in which they began, and the
        pids of the killed processes. If a process is killed, its runs end.
    """
    runs, killed = collections.defaultdict(list), set()
    for number, line in enumerate(lines):
        event, pid, *rest = line.split()
        if event == 'killed':
            killed.add(int(pid))
            ended = [run for found in runs.values() for run in found
                     if run.pid == int(pid) and run.outcome == 'none']
        elif event == 'begin':
            task, step, command, fence = rest
            runs[task].append(
                Run(int(pid), int(step), command, int(fence), number))
            continue
        else:
            task, _, _, fence = rest
            ended = [run for run in runs[task] if run.fence == int(fence)]
        for run in ended:
            run.end, run.outcome = number, event
    return runs, killed


def commands(steps, fails):
    """Return (step, command) of each command that a task runs.

    :param steps: Number of steps of the task.
    :param fails: Index of the step that fails. None means that no step fails.
    """
    if fails is None:
        return [(step, 'normal') for step in range(steps)]
    return ([(step, 'normal') for step in range(fails + 1)]
            + [(step, 'rollback') for step in range(fails, -1, -1)])


def faults_of_runs(runs, killed, expected):
    """Return the faults in the runs of one task.

    :param expected: (step, command) of each command that the task runs.
    """
    faults, ran = [], []
    for run, following in itertools.pairwise([*runs, None]):
        if ran[-1:] != [run.name]:
            ran.append(run.name)
        if following is None:
            if run.outcome != 'done':
                faults.append(f'the outcome of {run.name} is {run.outcome}, '
                              'but nothing ran after it')
            continue
        if following.begin < run.end:
            faults.append(f'{following.name} began before {run.name} ended')
        if following.fence <= run.fence:
            faults.append(f'{following.name} has fence {following.fence} '
                          f'after {run.fence}')
        if following.name == run.name:
            if run.outcome == 'done' and run.pid not in killed:
                faults.append(f'{run.name} ran again after it was done')
        elif run.outcome == 'killed':
            faults.append(f'{run.name} was killed, and did not run again')
        elif run.outcome == 'failed' and (
                following.name != (run.step, 'rollback')):
            faults.append(f'{run.name} failed, but {following.name} followed')
    if ran != expected:
        faults.append(f'ran {ran} instead of {expected}')
    return faults


def faults(tasks, fails, quota, cloud, journal):
    """Return the faults, as a list of sentences.

    :param fails: Dict from the id of a task to the index of the step that
        fails.
    :param quota: Free storage before the first task.
    :param cloud: The platform after the last task.
    :param journal: Lines of the journal.
    """
    found = []
    runs, killed = read(journal)
    for task in tasks:
        step = fails[task.id]
        name, status = task.parameters['Name'], (
            'succeeded' if step is None else 'failed')
        if task.status != status:
            found.append(f'{name} is {task.status}, not {status}')
        found += [f'{name}: {fault}' for fault in faults_of_runs(
            runs[task.id], killed, commands(len(task.steps), step))]
    made = {task.parameters['Name']: task.parameters['Storage']
            for task in tasks if task.status == 'succeeded'}
    exist = set(cloud.column('SELECT name FROM instance'))
    if exist != made.keys():
        found.append('the instances are not those of the succeeded tasks: '
                     f'{sorted(exist ^ made.keys())}')
    [free] = cloud.column('SELECT free FROM quota')
    if free != quota - sum(made.values()):
        found.append(f'{free} GB are free instead of '
                     f'{quota - sum(made.values())} GB')
    events = sorted(cloud.column('SELECT text FROM event'))
    expected = sorted(f'{task.parameters["Name"]} was not created'
                      for task in tasks if task.status == 'failed')
    if events != expected:
        found.append(f'the events are {events} instead of {expected}')
    return found
