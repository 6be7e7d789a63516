# SPDX-License-Identifier: Apache-2.0
"""Base classes of commands on jobs, which schedulers carry out and answer.

With a store, the command is written there first, so that it outlives the
processes. Without a store, the schedulers receive the command over the bus.
"""

import abc
import argparse
import contextlib
from typing import TYPE_CHECKING

from cliff import command

from distperiodic import exceptions
from distperiodic.cmd import acting
from distperiodic.cmd import awaiting
from distperiodic.cmd import configured
from distperiodic.cmd import of_members
from distperiodic.core.control import Verb

if TYPE_CHECKING:
    from distperiodic import opts
    from distperiodic.operator.admin import StoreAdmin
    from distperiodic.operator.auditing import Record
    from distperiodic.operator.group_reader import GroupReader
    from distperiodic.operator.group_reader import Job
    from distperiodic.operator.member_rows import MemberRow
    from distperiodic.operator.members import MemberAdmin

_LOGGED = ('the command is not recorded; each scheduler that answered has '
           'logged the operator and the reason')
#: Note on the consequences of a command without a store.
VOLATILE = (
    'note: without a store ([distperiodic] connection) each scheduler forgets '
    'this command when its process ends, a scheduler that starts later does '
    f'not know it, and {_LOGGED}')
ONCE = ('note: without a store ([distperiodic] connection) each scheduler '
        f'runs only the objects that it owns now, once, and {_LOGGED}')


class JobOrder(of_members.OfMembers, awaiting.Awaiting, acting.Acting,
               command.Command):
    """Base class of commands on jobs."""

    verb: Verb
    #: Note on the consequences of the command without a store.
    note = VOLATILE

    def take_action(self, parsed: argparse.Namespace) -> int:
        _, settings = self.configured(parsed)
        if settings.connection:
            return self.write(parsed)
        return self._send(parsed, settings)

    @abc.abstractmethod
    def write(self, parsed: argparse.Namespace) -> int:
        """Write the command to the store, and return the exit code."""

    @abc.abstractmethod
    def arguments(self, parsed: argparse.Namespace,
                  settings: 'opts.Settings') -> dict[str, object]:
        """Return the arguments of the command, for a group without a store.

        :raises ConfigError: The command needs a store.
        """

    def _send(self, parsed: argparse.Namespace,
              settings: 'opts.Settings') -> int:
        """Send the command over the bus, and return the exit code."""
        arguments = {name: value for name, value in self.arguments(
            parsed, settings).items() if value is not None}
        with self.members_of(parsed, parsed.why) as admin:
            found = [one for one in admin.members() if not one.part]
            self.print_problems(admin)
            if not found:
                raise exceptions.ConfigError(
                    'no scheduler of this group was reached; check '
                    '[distperiodic] group, and see: distperiodic member list')
            action = admin.order(self.verb, found, '', **arguments)
            code = self.wait(
                admin, {action: awaiting.Sent()}, parsed, settings)
            self.print_problems(admin)
            self.print(self.note)
            return code

    def admin(self, parsed: argparse.Namespace) -> 'MemberAdmin':
        """Return access to the rows of the members in the store."""
        from distperiodic.operator.members import MemberAdmin
        settings = self.database(parsed)
        return MemberAdmin(settings.connection, namespace=settings.group,
                           actor=self.actor(parsed))

    def await_schedulers(self, admin: 'MemberAdmin',
                         schedulers: 'list[MemberRow]',
                         records: 'dict[str, Record]',
                         parsed: argparse.Namespace) -> int:
        """Wait for the answers of schedulers, and return the exit code.

        :param records: The record of each job's action.
        """
        if not schedulers:
            self.print('note: no scheduler of this group is running; '
                       'schedulers that start later read the store')
            return configured.FINE
        _, settings = self.configured(parsed)
        return self.wait(admin, {
            record.id: awaiting.Sent(job, f'{record.outcome}; ')
            for job, record in records.items()}, parsed, settings)


def schedulers_of(members: 'list[MemberRow]') -> 'list[MemberRow]':
    """Return the schedulers whose processes have not stopped."""
    return [one for one in members if not (one.part or one.stopped)]


class JobsOrder(JobOrder):
    """Base class of commands on one job, the jobs of a partition, or all jobs.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        which = parser.add_mutually_exclusive_group(required=True)
        which.add_argument(
            'job', metavar='JOB', nargs='?', help='name of the job')
        which.add_argument(
            '--partition', metavar='NAME',
            help='all jobs of this partition (the jobs with its topic)')
        which.add_argument(
            '--all', action='store_true',
            help='all jobs of this group in the database; without a store, '
                 'all jobs of its schedulers')
        return parser

    def arguments(self, parsed: argparse.Namespace,
                  settings: 'opts.Settings') -> dict[str, object]:
        return {'job': parsed.job, 'topic': None
                if parsed.partition is None
                else settings.topic_of(parsed.partition)}

    def write(self, parsed: argparse.Namespace) -> int:
        from distperiodic.operator.admin import StoreAdmin
        records: dict[str, Record] = {}
        with (contextlib.closing(self.admin(parsed)) as members,
              self.store(parsed, StoreAdmin) as admin):
            rows = members.members()
            schedulers = schedulers_of(rows)
            jobs = self.select(parsed, admin.group, rows)
            hint = self.prepare_hint(parsed)
            for job in jobs:
                with self.audited(parsed, job.name) as record:
                    changed = self.change(admin, job, record, parsed)
                    members.request_answers(record, schedulers)
                records[job.name] = record
                self.print(changed)
            hint(self.verb)
            return self.await_schedulers(members, schedulers, records, parsed)

    @abc.abstractmethod
    def change(self, admin: 'StoreAdmin', job: 'Job', record: 'Record',
               parsed: argparse.Namespace) -> str:
        """Change a job in the store, and return the text to print.

        :param record: Record of this action.
        """

    def select(self, parsed: argparse.Namespace, group: 'GroupReader',
               members: 'list[MemberRow]') -> 'list[Job]':
        """Return the jobs that the command line names.

        :raises ConfigError: the store has no such job.
        """
        names = set(group.names(parsed.job).values())
        if not names:
            raise exceptions.ConfigError(
                'no scheduler of this group has recorded a job yet, so the '
                'group has no jobs; check [distperiodic] group')
        if parsed.partition is not None:
            _, settings = self.configured(parsed)
            names &= _jobs_of(parsed.partition, settings, members)
            if not names:
                raise exceptions.ConfigError(
                    f'the jobs of partition {parsed.partition!r} are not in '
                    'the store yet; try again when a scheduler has recorded '
                    'them')
        return [job for job in group.jobs() if job.name in names]


def _jobs_of(partition: str, settings: 'opts.Settings',
             members: 'list[MemberRow]') -> set[str]:
    """Return the jobs of a partition, as schedulers have reported them.

    :raises ConfigError: no scheduler has reported such a job.
    """
    topics: dict[str, set[str]] = {}
    for member in members:
        for topic, jobs in (member.state.get('topics') or {}).items():
            topics.setdefault(topic, set()).update(jobs)
    found = topics.get(settings.topic_of(partition))
    if found is None:
        raise exceptions.ConfigError(
            f'no scheduler has reported a job of partition {partition!r}; '
            + (f'there are jobs of {configured.listed(sorted(topics), 9)}'
               if topics else 'none has reported its jobs yet'))
    return found
