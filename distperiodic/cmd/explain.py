# SPDX-License-Identifier: Apache-2.0
"""``distperiodic ring explain``: the owner of an object, and its last outcome.

The ring determines which member owns the object, and the store records the
outcome of the object's runs. Without a store there are no records, and without
``backend_url`` one process owns all objects; the rows of the missing source
are omitted.
"""

import argparse
import collections
from collections.abc import Mapping
from collections.abc import Sequence
from typing import TYPE_CHECKING

from distperiodic import exceptions
from distperiodic.cmd import configured
from distperiodic.cmd import display
from distperiodic.cmd.session import Session
from distperiodic.core import catalogue
from distperiodic.core.job import Job
from distperiodic.core.job import Scope
from distperiodic.core.member import Member
from distperiodic.core.member import ring_members
from distperiodic.core.reason import FINE
from distperiodic.core.reason import Reason
from distperiodic.core.ring import Ring
from distperiodic.core.ring import points_of
from distperiodic.core.ring import position_of
from distperiodic.operator.lists import ring_list
from distperiodic.operator.live_group import Group
from distperiodic.operator.object_answers import ObjectSources
from distperiodic.operator.object_answers import facts_of

if TYPE_CHECKING:
    from distperiodic import periodic


class Explained(display.Details):
    """Base class of commands about one object of a job."""

    for_people = ('table',)

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument('job', metavar='JOB', help='the name of the job')
        parser.add_argument('object', metavar='OBJECT', nargs='?',
                            help='the id of the object')
        configured.add_tasks(
            parser, 'its schedules and catalogues determine the ticks that '
            'were due')

    def key_of(self, session: Session) -> str:
        """Return the key of the object's claim.

        :raises ConfigError: the job has objects but the user named no object,
            or the job has no objects but the user named an object.
        """
        tasks, job, key = (
            session.tasks, session.parsed.job, session.parsed.object)
        if tasks is not None and job in tasks.jobs:
            _check_object(tasks.jobs[job], key)
        return catalogue.id_of(job if key is None else key)

    def judged(self, reason: Reason,
               facts: Mapping[str, object]) -> Mapping[str, object]:
        """Set the exit code for *reason*, and return *facts*."""
        if reason is Reason.JOB_UNKNOWN:
            self.code = configured.UNUSABLE
        elif reason not in FINE:
            self.code = configured.FINDING
        return facts


def names(session: Session) -> dict[str, object]:
    """Return the facts that name the object."""
    return {'job': session.parsed.job,
            'object': session.parsed.object or '(the job itself)'}


class RingExplain(Explained):
    """Show which member owns an object and why, and whether the object ran.

    If the object did not run, the command shows the reason. Omit OBJECT for a
    job of scope 'group': the name of the job itself has a position on the
    ring. An object has the same position for every job. Exit code 1: the
    object did not run for its last tick; 2: there is no such job.
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        ring_list.add_members(parser)

    def facts(self, session: Session) -> Mapping[str, object]:
        settings, parsed = session.settings, session.parsed
        key, job = self.key_of(session), session.parsed.job
        group: Group | None = None
        if _is_of_members(session.tasks, job):
            place: Mapping[str, object] = {
                'owner': 'every member: each runs the job for itself'}
        elif parsed.members is not None:
            place = placed(key, ring_list.named(parsed.members, settings))
        elif settings.backend_url or not settings.connection:
            group, place = _placed(session, key)
        else:
            place = {'owner': 'the only process: backend_url is empty'}
        found: Mapping[str, object] = {}
        if settings.connection and parsed.members is None:
            from distperiodic.operator import queries
            found = self.judged(*facts_of(ObjectSources(
                job, key, queries.object_of(session.store, job, key),
                session.tasks, group, settings)))
        return {**names(session), **found, **place}


def _placed(session: Session, key: str
            ) -> tuple['Group | None', Mapping[str, object]]:
    """Return the group, and the facts about the ring.

    With a store, an empty or unknown group is not an error, because the store
    still has the outcome of the object.

    :raises CoordinationUnavailable: the group is unknown, and there is no
        store.
    """
    stored = bool(session.settings.connection)
    try:
        group = session.group
    except exceptions.CoordinationUnavailable as exc:
        if not stored:
            raise
        return None, {'owner': f'unknown: {configured.one_line(exc)}'}
    if stored and not group.on_ring:
        return group, {}
    members = ring_list.on_ring(session)
    schedule = ''
    if stored:
        schedule = next((one.schedule for one in session.store.jobs()
                         if one.name == session.parsed.job), '')
    of_job = group.ring_of(session.parsed.job, schedule)
    having = tuple(m for m in members if m.identity in of_job.members)
    if not having:
        return group, {'owner': 'none: no member on the ring has this job'}
    rows = placed(key, having)
    if len(having) < len(members):
        rows = {'owner': rows['owner'], 'ring': (
            f'{len(having)} of {configured.plural(len(members), "member")}'
            ' on the ring, which have this job and its schedule in '
            f'force: {configured.listed([m.identity for m in having])}'),
            **rows}
    return group, rows


def _is_of_members(tasks: 'periodic.PeriodicTasks | None', job: str) -> bool:
    """Return True if *tasks* define the job with the scope ``member``."""
    return (tasks is not None and job in tasks.jobs
            and tasks.jobs[job].scope is Scope.MEMBER)


def _check_object(job: 'Job', key: str | None) -> None:
    """Check that an object is named if, and only if, the job has objects.

    :raises ConfigError: an object is named for a job without objects, or no
        object is named for a job with objects.
    """
    if job.scope is Scope.GROUP and key is not None:
        raise exceptions.ConfigError(
            f'job {job.name!r} has no objects, so {key!r} is not one of '
            f'them; omit it: distperiodic ring explain {job.name}')
    if job.objects is not None and key is None:
        raise exceptions.ConfigError(
            f'job {job.name!r} has objects; name one of them: distperiodic '
            f'ring explain {job.name} OBJECT')


def placed(key: str, members: 'tuple[Member, ...]') -> dict[str, object]:
    """Return facts with the owner of *key* among *members*, and the reason."""
    points = ring_members(members)
    position = position_of(key)
    succession = list(Ring(points).succession(position))
    point, owner = succession[0]
    number = list(points_of(owner, points[owner])).index(point)
    around = (' around the end of the ring'
              if _digits(point) < _digits(position) else '')
    after = [name for _, name in succession[1:]]
    return {
        'owner': owner,
        'position': _digits(position),
        'point': _digits(point),
        'because':
            f'md5({key!r}) begins with {_digits(position)}; the next '
            f'point clockwise{around} is {_digits(point)}, the '
            f'beginning of md5(\'{owner}:{number}\'): number {number} '
            f'of the {points[owner]} points of {owner} (counted from 0)',
        'successors':
            'none: it is the only member' if not after else
            f'{configured.listed(after)}, '
            f'{"in this order, " * (len(after) > 1)}'
            f'if {owner} is gone for its session timeout',
        'agreement': _agreement(members)}


def _digits(position: int) -> str:
    """Return a position as the hex digits with which the digest begins."""
    return f'{position % 2**64:016x}'


def _agreement(members: 'Sequence[Member]') -> str:
    formats = collections.Counter(m.ring_format for m in members)
    if len(formats) == 1:
        return (f'all {len(members)} members offer ring format '
                f'{next(iter(formats))}' if len(members) > 1
                else f'one member, ring format {next(iter(formats))}')
    low = min(formats)
    newer = [m.identity for m in members if m.ring_format != low]
    return (f'all use ring format {low}, the lowest offered; '
            f'{configured.listed(newer)} could use a newer format')
