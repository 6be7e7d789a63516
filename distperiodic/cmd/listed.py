# SPDX-License-Identifier: Apache-2.0
"""What the jobs of a service list now, read as a scheduler reads it."""

import argparse
import queue
from collections.abc import Mapping
from typing import TYPE_CHECKING
from typing import Any
from typing import NamedTuple

from distperiodic.cmd import configured

if TYPE_CHECKING:
    from distperiodic import periodic
    from distperiodic.core import job as job_
    from distperiodic.core import schedule

#: Seconds that a catalogue method may take.
_PATIENCE = 60.0


class Listed(NamedTuple):
    """The objects of a job."""

    ids: frozenset[str]
    #: Those with a schedule of their own.
    own: 'Mapping[str, schedule.Schedule]'


def add_option(parser: argparse.ArgumentParser, what: str) -> None:
    """The option that names the tasks, for what it is needed for."""
    parser.add_argument(
        '--tasks', metavar='MODULE:CLASS',
        help='the PeriodicTasks class of the service, as schedulers have it: '
             f'{what}')


def load(command: configured.Configured, parsed: argparse.Namespace
         ) -> 'periodic.PeriodicTasks | None':
    """The tasks that are named; None: none are.

    :raises ConfigError: they cannot be loaded.
    """
    if parsed.tasks is None:
        return None
    from distperiodic.cmd import serve
    return serve.load_tasks(parsed.tasks, command.configuration(parsed))


def read(tasks: 'periodic.PeriodicTasks', job: 'job_.Job',
         now: int) -> Listed | str:
    """The objects that a job lists now; or why nobody can say.

    :param now: microseconds since the epoch.
    """
    from distperiodic.adapters import local
    from distperiodic.core import job as job_
    from distperiodic.core import ring
    if job.scope is job_.Scope.GROUP:
        return Listed(frozenset([job.name]), {})
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    reader = local.ThreadReader(
        tasks.catalogue, lambda name, ticket, found: answers.put(found),
        sort=False)
    reader.read(job, job.schedule.at_or_before(now) or now, 1,
                ring.Ring({'all': 1}).arcs('all'))
    try:
        found = answers.get(timeout=_PATIENCE)
    except queue.Empty:
        return f'{job.objects} did not return within {_PATIENCE:g} s'
    if isinstance(found, Exception):
        return (f'{job.objects} raised {type(found).__name__}: '
                f'{configured.one_line(found)}')
    catalogue, own, _ = found
    return Listed(frozenset(catalogue.ids), own)
