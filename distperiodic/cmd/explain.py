# SPDX-License-Identifier: Apache-2.0
"""``distperiodic ring explain``: the owner of an object, and its last outcome.

The ring determines which member owns the object, and the store records the
outcome of the object's runs. Without a store there are no records, and without
``backend_url`` one process owns all objects; the rows of the missing source
are omitted.
"""

import argparse
import collections
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cliff import show

from distperiodic import exceptions
from distperiodic.cmd import answers
from distperiodic.cmd import configured
from distperiodic.cmd import display
from distperiodic.cmd import listed
from distperiodic.cmd import ring as ring_cmd
from distperiodic.core.reason import FINE
from distperiodic.core.reason import Reason

if TYPE_CHECKING:
    from distperiodic import opts
    from distperiodic import periodic
    from distperiodic.core.job import Job
    from distperiodic.core.member import Member
    from distperiodic.operator.live_group import Group


class Explained(display.Display, show.ShowOne):
    """Base class of commands about one object of a job."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument('job', metavar='JOB', help='the name of the job')
        parser.add_argument('object', metavar='OBJECT', nargs='?',
                            help='the id of the object')
        listed.add_option(
            parser, 'its schedules and catalogues determine the ticks that '
            'were due')
        return parser

    def run(self, parsed: argparse.Namespace) -> int:
        self.code = configured.FINE
        return super().run(parsed) or self.code

    def begin(self, parsed: argparse.Namespace
              ) -> 'tuple[str, periodic.PeriodicTasks | None]':
        """Return the key of the object's claim, and the tasks of --tasks.

        :raises ConfigError: the job has objects but the user named no object,
            or the job has no objects but the user named an object.
        """
        from distperiodic.core import catalogue
        tasks = listed.load(self, parsed)
        if tasks is not None and parsed.job in tasks.jobs:
            _check_object(tasks.jobs[parsed.job], parsed.object)
        return catalogue.id_of(
            parsed.job if parsed.object is None else parsed.object), tasks

    def answer(self, case: answers.Case) -> list[tuple[str, object]]:
        """Return rows that show whether the object ran for its last tick."""
        return self.judged(*answers.rows(case))

    def judged(self, reason: Reason,
               rows: list[tuple[str, object]]) -> list[tuple[str, object]]:
        """Set the exit code for *reason*, and return *rows*."""
        if reason is Reason.JOB_UNKNOWN:
            self.code = configured.UNUSABLE
        elif reason not in FINE:
            self.code = configured.FINDING
        return rows


class RingExplain(ring_cmd.OfMembers, Explained):
    """Show which member owns an object and why, and whether the object ran.

    If the object did not run, the command shows the reason. Omit OBJECT for a
    job of scope 'group': the name of the job itself has a position on the
    ring. An object has the same position for every job. Exit code 1: the
    object did not run for its last tick; 2: there is no such job.
    """

    def take_action(self, parsed: argparse.Namespace
                    ) -> tuple[Sequence[str], Sequence[object]]:
        from distperiodic import opts
        settings = opts.settings(self.configuration(parsed))
        key, tasks = self.begin(parsed)
        group: Group | None = None
        rows: list[tuple[str, object]] = [
            ('job', parsed.job), ('object', parsed.object or
                                  '(the job itself)')]
        ring: list[tuple[str, object]]
        if _is_of_members(tasks, parsed.job):
            ring = [('owner', 'every member: each runs the job for itself')]
        elif parsed.members is not None:
            ring = placed(key, self.named(parsed))
        elif settings.backend_url or not settings.connection:
            group, ring = self._placed(parsed, key, settings)
        else:
            ring = [('owner', 'the only process: backend_url is empty')]
        if settings.connection and parsed.members is None:
            from distperiodic.operator.queries import StoreQueries
            with self.store(parsed, StoreQueries) as queries:
                found = queries.object(parsed.job, key)
            rows += self.answer(answers.Case(
                parsed.job, key, found, tasks, group, settings))
        rows += ring
        return tuple(name for name, _ in rows), tuple(
            value for _, value in rows)

    def _placed(self, parsed: argparse.Namespace, key: str,
                settings: 'opts.Settings') -> tuple[
                    'Group | None', list[tuple[str, object]]]:
        """Return the group, and the rows about the ring.

        With a store, an empty or unknown group is not an error, because the
        store still has the outcome of the object.

        :raises CoordinationUnavailable: the group is unknown, and there is no
            store.
        """
        try:
            group, _ = ring_cmd.group_of(self, parsed)
        except exceptions.CoordinationUnavailable as exc:
            if not settings.connection:
                raise
            return None, [('owner', f'unknown: {configured.one_line(exc)}')]
        if settings.connection and not any(m.points for m in group.members):
            return group, []
        members = ring_cmd.on_ring(group, settings)
        schedule = ''
        if settings.connection:
            from distperiodic.operator.queries import StoreQueries
            with self.store(parsed, StoreQueries) as queries:
                schedule = next((one.schedule for one in queries.group.jobs()
                                 if one.name == parsed.job), '')
        ring = group.ring_of(parsed.job, schedule)
        having = tuple(m for m in members if m.identity in ring.members)
        if not having:
            return group, [('owner', 'none: no member on the ring has this '
                            'job')]
        rows = placed(key, having)
        if len(having) < len(members):
            rows.insert(1, ('ring', (
                f'{len(having)} of {configured.plural(len(members), "member")}'
                ' on the ring, which have this job and its schedule in '
                f'force: {configured.listed([m.identity for m in having])}')))
        return group, rows


def _is_of_members(tasks: 'periodic.PeriodicTasks | None', job: str) -> bool:
    """Return True if *tasks* define the job with the scope ``member``."""
    from distperiodic.core.job import Scope
    return (tasks is not None and job in tasks.jobs
            and tasks.jobs[job].scope is Scope.MEMBER)


def _check_object(job: 'Job', key: str | None) -> None:
    """Check that an object is named if, and only if, the job has objects.

    :raises ConfigError: an object is named for a job without objects, or no
        object is named for a job with objects.
    """
    from distperiodic.core.job import Scope
    if job.scope is Scope.GROUP and key is not None:
        raise exceptions.ConfigError(
            f'job {job.name!r} has no objects, so {key!r} is not one of '
            f'them; omit it: distperiodic ring explain {job.name}')
    if job.objects is not None and key is None:
        raise exceptions.ConfigError(
            f'job {job.name!r} has objects; name one of them: distperiodic '
            f'ring explain {job.name} OBJECT')


def placed(key: str, members: 'tuple[Member, ...]'
           ) -> list[tuple[str, object]]:
    """Return rows with the owner of *key* among *members*, and the reason."""
    from distperiodic.core.member import ring_members
    from distperiodic.core.ring import Ring
    from distperiodic.core.ring import points_of
    from distperiodic.core.ring import position_of
    points = ring_members(members)
    ring = Ring(points)
    position = position_of(key)
    succession = list(ring.succession(position))
    point, owner = succession[0]
    number = list(points_of(owner, points[owner])).index(point)
    around = (' around the end of the ring'
              if _digits(point) < _digits(position) else '')
    after = [name for _, name in succession[1:]]
    return [
        ('owner', owner),
        ('position', _digits(position)),
        ('point', _digits(point)),
        ('because',
         f'md5({key!r}) begins with {_digits(position)}; the next '
         f'point clockwise{around} is {_digits(point)}, the '
         f'beginning of md5(\'{owner}:{number}\'): number {number} '
         f'of the {points[owner]} points of {owner} (counted from 0)'),
        ('successors',
         'none: it is the only member' if not after else
         f'{configured.listed(after)}, {"in this order, " * (len(after) > 1)}'
         f'if {owner} is gone for its session timeout'),
        ('agreement', _agreement(members))]


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
