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
            **self._commands, **self._runs()}

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
