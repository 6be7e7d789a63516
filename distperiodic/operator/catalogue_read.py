# SPDX-License-Identifier: Apache-2.0
"""The objects that a job lists now, read as a scheduler reads them."""

import queue
from collections.abc import Mapping
from typing import TYPE_CHECKING
from typing import Any
from typing import NamedTuple

from distperiodic.core import due
from distperiodic.core import ring
from distperiodic.core import schedule
from distperiodic.core import wording
from distperiodic.core.attributes import PLAIN
from distperiodic.core.attributes import Attributes
from distperiodic.core.job import Job
from distperiodic.core.job import Scope
from distperiodic.core.job import schedule_named

if TYPE_CHECKING:
    from distperiodic import periodic
    from distperiodic.operator.group_reader import GroupReader
    from distperiodic.ports import ClaimStore

#: Maximum seconds that a catalogue method may take.
_PATIENCE = 60.0
# Number of objects that are written to the listing in one transaction.
_AT_A_TIME = 1000


class ListedObjects(NamedTuple):
    """The objects of a job."""

    ids: frozenset[str]
    #: Attributes of the objects that have attributes of their own, by id.
    own: Mapping[str, Attributes]

    def schedule_of(self, key: str) -> 'schedule.Schedule | None':
        """Return the own schedule of the object *key*, if it has one."""
        rule = self.own.get(key, PLAIN).rule
        return schedule_named(rule) if rule else None


def record(store: 'GroupReader', claims: 'ClaimStore', job: 'Job',
           found: ListedObjects, only: str | None = None) -> None:
    """Write a job's objects to the store's listing, like a scheduler.

    Existing rows of the job and of its objects do not change.

    :param only: The only object to write. None means all objects.
    """
    from distperiodic import ports
    from distperiodic.operator import queries
    if job.name not in store.names().values():
        claims.adopt({job.name: job.schedule_text()})
    at = claims.now()

    def new(key: str) -> ports.Listed:
        settled = at - 1
        if not job.run_immediately:
            settled = job.plan(own=found.schedule_of(key)).floor(
                due.ALWAYS, at, ring.position_of(key))
        return ports.Listed(key, found.own.get(key, PLAIN), settled)
    keys = sorted(queries.not_listed(
        store, job.name, found.ids if only is None else {only}))
    for begin in range(0, len(keys), _AT_A_TIME):
        claims.sync(
            job.name, [new(key) for key in keys[begin:begin + _AT_A_TIME]],
            [], readings=[at])


def read(tasks: 'periodic.PeriodicTasks', job: 'Job',
         now: int) -> ListedObjects | str:
    """Return the objects that a job lists now.

    :param now: Microseconds since the epoch.
    :return: The objects, or text with the reason why they are unknown.
    """
    from distperiodic.adapters.local.reader import ThreadReader
    if job.scope is Scope.GROUP:
        return ListedObjects(frozenset([job.name]), {})
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    reader = ThreadReader(
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
                f'{wording.one_line(found)}')
    catalogue, own, _ = found
    return ListedObjects(frozenset(catalogue.ids), own)
