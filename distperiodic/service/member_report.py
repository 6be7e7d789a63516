# SPDX-License-Identifier: Apache-2.0
"""Reports of a member's current activity, for operators.

The store keeps the newest report in the row of the member. A member also sends
a report over the bus, as the reply to a request for its state.
"""

import functools
import importlib.metadata
import itertools
import json
import os
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

from distperiodic.adapters.local.process_slot import host_name
from distperiodic.core.claim import Authority
from distperiodic.core.job import COMMAND_PREFIX
from distperiodic.flow.worker import runs

# Maximum number of runs and of running tasks in a report to operators, and
# maximum number of characters of the progress of one run, and of all commands
# as JSON. A report is one row or one message, so its size must be limited.
_REPORTED_RUNS, _REPORTED_TASKS = 20, 100
_REPORTED_PROGRESS, _REPORTED_COMMANDS = 200, 10_000
# Maximum number of hanging runs of one partition in a report.
_REPORTED_HANGING = 5


@functools.cache
def _version() -> str:
    return importlib.metadata.version('distperiodic')


class MemberReports:
    """Reports of one member.

    :param kind: Kind of the member: scheduler or worker.
    :param executor: Executor of the member's handlers.
    :param commands: Names of the commands that the member claims or runs.
    :param stored: True if there is a store. The reports omit the runs that are
        in the store.
    """

    def __init__(self, kind: str, executor: runs.Executor,
                 commands: Iterable[str], *, stored: bool):
        self._kind = kind
        self._commands = reported_commands(commands)
        self._executor = executor
        self._stored = stored

    def current(self, status: Mapping[str, Any], *, open_runs: int,
                drained: bool) -> dict[str, Any]:
        """Return a report of the current activity.

        :param status: State of the process for a health check.
        :param open_runs: Number of objects that were acquired and have not
            ended.
        :param drained: True if the member acquires no new work.
        """
        return {
            'kind': self._kind, 'version': _version(), 'pid': os.getpid(),
            'host': host_name(), 'healthy': status['healthy'],
            'problem': status['problem'], 'pools': status['pools'],
            'in_flight': open_runs, 'drained': drained,
            'slots': self._slots(), **self._commands, **self._runs()}

    def _slots(self) -> dict[str, Any]:
        """Return the oldest and the hanging runs, by partition.

        Partitions in which no handler runs are left out.
        """
        found: dict[str, Any] = {}
        for run in self._executor.in_progress():
            found.setdefault(run.topic, {}).setdefault('oldest', _run(run))
        for run in self._executor.hanging_runs():
            slots = found.setdefault(run.topic, {})
            slots['hanging'] = slots.get('hanging', 0) + 1
            runs_ = slots.setdefault('hanging_runs', [])
            if len(runs_) < _REPORTED_HANGING:
                runs_.append(_run(run))
        return found

    def _runs(self) -> dict[str, Any]:
        """Return the longest runs in progress that are not in the store, and
        the ids of the tasks whose commands run in a thread.
        """
        running = self._executor.in_progress()
        found = [run for run in running
                 if not (self._stored and run.authority is Authority.STORE)]
        tasks = [run.object for run in running
                 if run.job.startswith(COMMAND_PREFIX)]
        reported = [{
            'job': run.job, 'object': run.object, 'tick': run.tick,
            'attempt': run.attempt, 'age_s': round(run.age, 3),
            'progress': run.progress if run.progress is None or len(
                run.progress) <= _REPORTED_PROGRESS else '"(too long)"'}
            for run in found[:_REPORTED_RUNS]]
        return {'runs': reported, 'more_runs': len(found) - len(reported),
                'tasks': tasks[:_REPORTED_TASKS],
                'more_tasks': max(0, len(tasks) - _REPORTED_TASKS)}


def _run(run: runs.InProgress) -> dict[str, Any]:
    """Return the form in which a report contains a
    :class:`~distperiodic.core.member_facts.RunFact`.
    """
    return {'job': run.job, 'object': run.object, 'tick': run.tick,
            'age_s': round(run.age, 3), 'timeout_s': run.timeout}


def reported_commands(names: Iterable[str]) -> dict[str, Any]:
    """Return the part of a report with the commands of the member.

    ``commands`` has the first names in alphabetical order. ``more_commands``
    is the number of the other names, if there are any.
    """
    commands = sorted(names)
    sizes = itertools.accumulate(len(json.dumps(one)) + 2 for one in commands)
    kept = sum(size <= _REPORTED_COMMANDS for size in sizes)
    found: dict[str, Any] = {'commands': commands[:kept]}
    if kept < len(commands):
        found['more_commands'] = len(commands) - kept
    return found
