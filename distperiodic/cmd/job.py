# SPDX-License-Identifier: Apache-2.0
"""``distperiodic job list|pause|resume|trigger``: the jobs in the store.

With a store, the commands change rows. Schedulers read these rows at their
next sweep, or at once if they receive a hint over the bus, and then answer.
"""

import abc
import argparse
import contextlib
from typing import TYPE_CHECKING

from distperiodic import exceptions
from distperiodic.cmd import configured
from distperiodic.cmd import display
from distperiodic.cmd import member_answers
from distperiodic.cmd.session import RecordedCommand
from distperiodic.cmd.session import Session
from distperiodic.core import job as core_job
from distperiodic.core import wording
from distperiodic.core.control import Verb
from distperiodic.core.job import Scope
from distperiodic.core.suggestion import did_you_mean
from distperiodic.operator import catalogue_read
from distperiodic.operator.lists import job_list
from distperiodic.operator.member_rows import MemberRow

if TYPE_CHECKING:
    from distperiodic import opts
    from distperiodic import periodic
    from distperiodic.operator.admin import Triggered
    from distperiodic.operator.auditing import ActionRecord
    from distperiodic.operator.group_reader import StoredJob

_LOGGED = ('the command is not recorded; each scheduler that answered has '
           'logged the operator and the reason')
#: Note on the consequences of a command without a store.
VOLATILE = (
    'note: without a store ([distperiodic] connection) each scheduler forgets '
    'this command when its process ends, a scheduler that starts later does '
    f'not know it, and {_LOGGED}')
ONCE = ('note: without a store ([distperiodic] connection) each scheduler '
        f'runs only the objects that it owns now, once, and {_LOGGED}')


class JobList(job_list.Jobs, display.List):

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        configured.add_tasks(parser, 'it provides the schedules')


def _moment(micros: int | None) -> str:
    return '' if micros is None else configured.moment(micros)


class _JobAction(RecordedCommand):
    """Base class of commands on jobs, which schedulers carry out and answer.

    With a store, the command is written there first, so that it outlives the
    processes. Without a store, the schedulers receive it over the bus.
    """

    verb: Verb
    #: Note on the consequences of the command without a store.
    note = VOLATILE
    #: Effect of the command on a scheduler that does not answer.
    effect = 'the command takes effect {}'

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        member_answers.add_wait(parser)

    def act(self, session: Session) -> int:
        if session.settings.connection:
            return self.write(session)
        arguments = {name: value for name, value in self.arguments(
            session.parsed, session.settings).items() if value is not None}
        members = session.members
        found = [one for one in members.members() if not one.part]
        member_answers.print_problems(session)
        if not found:
            raise exceptions.ConfigError(
                'no scheduler of this group was reached; check '
                '[distperiodic] group, and see: distperiodic member list')
        action = members.order(self.verb, found, '', (), **arguments)
        code = member_answers.wait(
            session, {action: member_answers.AwaitedAction()}, self.effect)
        member_answers.print_problems(session)
        session.print(self.note)
        return code

    @abc.abstractmethod
    def write(self, session: Session) -> int:
        """Write the command to the store, and return the exit code."""

    @abc.abstractmethod
    def arguments(self, parsed: argparse.Namespace,
                  settings: 'opts.Settings') -> dict[str, object]:
        """Return the arguments of the command, for a group without a store.

        :raises ConfigError: The command needs a store.
        """

    def await_schedulers(self, session: Session,
                         schedulers: 'list[MemberRow]',
                         records: 'dict[str, ActionRecord]') -> int:
        """Wait for the answers of schedulers, and return the exit code.

        :param records: The record of each job's action.
        """
        if not schedulers:
            session.print('note: no scheduler of this group is running; '
                          'schedulers that start later read the store')
            return configured.FINE
        return member_answers.wait(session, {
            record.id: member_answers.AwaitedAction(job, f'{record.outcome}; ')
            for job, record in records.items()}, self.effect)


class _JobsAction(_JobAction):
    """Base class of commands on one job, the jobs of a partition, or all jobs.
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
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
        parser.add_argument(
            '--object', dest='objects', action='append', metavar='OBJECT',
            help='only this object of JOB; may be repeated')

    def arguments(self, parsed: argparse.Namespace,
                  settings: 'opts.Settings') -> dict[str, object]:
        if parsed.objects or getattr(parsed, 'until', None) or getattr(
                parsed, 'all_objects', False):
            raise exceptions.ConfigError(
                'without a store, only whole jobs are paused, until they are '
                'resumed; give no --object and no --until, or set '
                '[distperiodic] connection')
        return {'job': parsed.job, 'topic': None
                if parsed.partition is None
                else settings.topic_of(parsed.partition)}

    def recorded_arguments(self, session: Session) -> dict[str, object]:
        """Return the arguments of the command for the record of the action.

        :raises ConfigError: the arguments contradict each other.
        """
        parsed = session.parsed
        if parsed.objects and parsed.job is None:
            raise exceptions.ConfigError(
                '--object needs the name of its job; give JOB, and omit --all '
                'and --partition')
        return {'objects': parsed.objects}

    def write(self, session: Session) -> int:
        from distperiodic.operator.members import request_answers
        arguments = self.recorded_arguments(session)
        rows = session.members.members()
        schedulers = _schedulers(rows)
        jobs = _select(session, rows)
        records: dict[str, ActionRecord] = {}
        hint = session.prepare_hint()
        for job in jobs:
            with session.recorded(job.name, **arguments) as record:
                changed = self.change(session, job, record)
                request_answers(session.store, record, schedulers,
                                **record.arguments)
            records[job.name] = record
            session.print(changed)
        hint(self.verb)
        return self.await_schedulers(session, schedulers, records)

    @abc.abstractmethod
    def change(self, session: Session, job: 'StoredJob',
               record: 'ActionRecord') -> str:
        """Change a job in the store, and return the text to print.

        :param record: Record of this action.
        """


def _schedulers(members: 'list[MemberRow]') -> 'list[MemberRow]':
    """Return the schedulers whose processes have not stopped."""
    return [one for one in members if not (one.part or one.stopped)]


def _select(session: Session, members: 'list[MemberRow]') -> 'list[StoredJob]':
    """Return the jobs that the command line names.

    :raises ConfigError: the store has no such job.
    """
    partition = session.parsed.partition
    names = set(session.store.names(session.parsed.job).values())
    if not names:
        raise exceptions.ConfigError(
            'no scheduler of this group has recorded a job yet, so the group '
            'has no jobs; check [distperiodic] group')
    if partition is not None:
        names &= _jobs_of(partition, session.settings, members)
        if not names:
            raise exceptions.ConfigError(
                f'the jobs of partition {partition!r} are not in the store '
                'yet; try again when a scheduler has recorded them')
    return [job for job in session.store.jobs() if job.name in names]


def _jobs_of(partition: str, settings: 'opts.Settings',
             members: 'list[MemberRow]') -> set[str]:
    """Return the jobs of a partition, as schedulers have reported them.

    :raises ConfigError: no scheduler has reported such a job.
    """
    from distperiodic.operator.member_rows import topics
    by_job = topics(members)
    topic = settings.topic_of(partition)
    found = {job for job, one in by_job.items() if one == topic}
    if not found:
        known = configured.listed(sorted(set(by_job.values())), 9)
        raise exceptions.ConfigError(
            f'no scheduler has reported a job of partition {partition!r}; '
            + (f'there are jobs of {known}' if by_job
               else 'none has reported its jobs yet'))
    return found


class JobPause(_JobsAction):
    """Skip the ticks of jobs or of objects until they are resumed.

    Claimed runs are finished. If a job or an object is already paused, the new
    reason and the new end replace the previous ones, and the command prints
    the previous pause of a job. With --until the pause ends by itself: ticks
    that are due at this time or later run. Each scheduler answers when it
    applies the pause. A job belongs to the group: to pause one member, drain
    it with "member drain".
    """

    verb = Verb.PAUSE
    reason_required = True

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        parser.add_argument(
            '--until', type=configured.until, metavar='WHEN',
            help='end of the pause: a length of time from now, such as 2h, or '
                 'an instant (UTC); default: until it is resumed')

    def recorded_arguments(self, session: Session) -> dict[str, object]:
        until = session.parsed.until
        #: Instant at which the pause ends by itself.
        self.until = (None if until is None
                      else until.after(session.store.now()))
        return super().recorded_arguments(session) | {'until': self.until}

    def change(self, session: Session, job: 'StoredJob',
               record: 'ActionRecord') -> str:
        from distperiodic.operator import admin
        objects, actor = session.parsed.objects, session.actor
        end = wording.until(self.until)
        if objects:
            before = admin.pause_objects(
                session.store, job.name, objects, by=actor.name, why=actor.why,
                until=self.until)
            return (f'paused {configured.plural(len(set(objects)), "object")} '
                    f'of {job.name}{end}' + (
                        f' ({len(before)} of them already paused; the new '
                        'reason replaces theirs)' if before else ''))
        admin.pause(session.store, job.name, by=actor.name, why=actor.why,
                    until=self.until)
        replaced = '' if job.paused_since is None else (
            f' (it was already paused{wording.until(job.paused_until)}, at '
            f'{_moment(job.paused_since)} by {job.paused_by}: '
            f'{job.paused_why}; the new reason replaces this one)')
        return f'paused {job.name}{end}{replaced}'


class JobResume(_JobsAction):
    """Resume jobs or objects from their next ticks on.

    The pauses of objects outlast the pause of their job: resume them with
    --object or --all-objects. Each scheduler answers when the pause no longer
    applies.
    """

    verb = Verb.RESUME

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        parser.add_argument(
            '--all-objects', action='store_true',
            help='all paused objects of the selected jobs')

    def change(self, session: Session, job: 'StoredJob',
               record: 'ActionRecord') -> str:
        from distperiodic.operator import admin
        parsed = session.parsed
        if parsed.objects or parsed.all_objects:
            found = admin.resume_objects(
                session.store, job.name,
                None if parsed.all_objects else parsed.objects)
            # The schedulers confirm these objects.
            record.arguments['objects'] = found
            record.outcome = configured.plural(len(found), 'object')
            return (f'resumed {record.outcome} of {job.name}' if found else
                    f'no such object of {job.name} was paused; nothing was '
                    'changed')
        left = '' if not job.paused_objects else (
            f'; {configured.plural(job.paused_objects, "object")} of it '
            'paused separately: see distperiodic objects '
            f'{job.name} --paused')
        if admin.resume(session.store, job.name):
            return f'resumed {job.name}; it continues with its next tick{left}'
        record.outcome = 'it was not paused'
        return f'{job.name} was not paused; nothing was changed{left}'


class JobTrigger(_JobAction):
    """Run a job once now, paused or not.

    The command runs all objects that schedulers have listed. With --tasks it
    also runs the objects that the catalogue lists now, even before the first
    tick of the job. An object whose earlier tick has not ended is left out.
    Earlier ticks that are not claimed yet stay due: misfire decides whether
    they run. Each scheduler answers with the number of objects that it has
    claimed.
    """

    verb = Verb.TRIGGER
    note = ONCE
    effect = 'it searches for triggered objects {}'

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        parser.add_argument('job', metavar='JOB', help='name of the job')
        parser.add_argument(
            '--object', metavar='OBJECT', help='run only this object')
        configured.add_tasks(
            parser, 'the command reads its catalogue, and also runs objects '
            'that no scheduler has listed yet')

    def arguments(self, parsed: argparse.Namespace,
                  settings: 'opts.Settings') -> dict[str, object]:
        if parsed.tasks is not None:
            raise exceptions.ConfigError(
                'without a store, schedulers run the objects that they have '
                'listed themselves; omit --tasks, or set [distperiodic] '
                'connection')
        return {'job': parsed.job, 'object': parsed.object}

    def write(self, session: Session) -> int:
        from distperiodic.operator import admin
        from distperiodic.operator.members import request_answers
        job, key = session.parsed.job, session.parsed.object
        tasks, store = session.tasks, session.store
        found = None
        if tasks is not None:
            found = _read(session, tasks)
        elif job not in store.names().values():
            _refuse_unknown(session)
        schedulers = _schedulers(session.members.members())
        hint = session.prepare_hint()
        with session.recorded(job, object=key) as record:
            if found is not None:
                _list(session, *found)
            result = admin.trigger(store, job, key=key)
            record.outcome = result.outcome
            if result.objects:
                request_answers(store, record, schedulers, tick=result.tick)
        _report(session, result)
        hint(self.verb)
        return self.await_schedulers(session, schedulers, {job: record})


def _report(session: Session, result: 'Triggered') -> None:
    """Print the number of triggered objects.

    :raises ConfigError: no object can run now.
    """
    parsed = session.parsed
    if not result.objects:
        what = (f'no object of job {parsed.job!r} can'
                if parsed.object is None else
                f'object {parsed.object!r} of job {parsed.job!r} cannot')
        raise exceptions.ConfigError(
            f'{what} run now: '
            + ('an earlier tick has not ended; wait until it has'
               if result.busy
               else 'a later tick is already claimed; if this run is not '
               'enough, give the command again' if result.overtaken
               else 'the catalogue lists no object' if session.tasks
               else 'no scheduler has listed it; give --tasks to read the '
               'catalogue'))
    left_out = ''.join(
        f', left out {number} {which}' for number, which in (
            (result.busy, 'whose earlier tick has not ended'),
            (result.overtaken, 'that are already claimed for a later tick')
        ) if number)
    session.print(
        f'triggered {configured.plural(result.objects, "object")} for '
        f'tick {configured.moment(result.tick)}{left_out}')


def _refuse_unknown(session: Session) -> None:
    """Raise an error that explains how to run a job without a record.

    :raises ConfigError: always.
    """
    try:
        session.store.names(session.parsed.job)
    except exceptions.ConfigError as exc:
        raise exceptions.ConfigError(
            f'{exc}. If the name is correct, no scheduler has recorded the '
            'job yet: give --tasks MODULE:CLASS to run it now') from exc


def _read(session: Session, tasks: 'periodic.PeriodicTasks'
          ) -> 'tuple[core_job.Job, catalogue_read.ListedObjects]':
    """Return the job, and the objects that its catalogue lists now.

    :raises ConfigError: there is no such job or object, or the catalogue
        cannot be read.
    """
    parsed = session.parsed
    job = tasks.jobs.get(parsed.job)
    if job is None:
        raise exceptions.ConfigError(
            f'--tasks {parsed.tasks!r} has no job {parsed.job!r}'
            + (did_you_mean(parsed.job, tasks.jobs)
               or f'; it has {", ".join(tasks.jobs)}'))
    if job.scope is Scope.MEMBER or not job.enabled:
        raise exceptions.ConfigError(
            f'job {job.name!r} is disabled in its code; enable it'
            if not job.enabled else
            f'each member runs job {job.name!r} for itself, without '
            "claims; give it scope='group' or objects=")
    found = catalogue_read.read(tasks, job, session.store.now())
    if isinstance(found, str):
        raise exceptions.ConfigError(
            f'job {job.name!r}: {found}; omit --tasks to run the objects '
            'that schedulers have already listed')
    if parsed.object is not None and parsed.object not in found.ids:
        raise exceptions.ConfigError(
            f'object {parsed.object!r} of job {job.name!r} cannot run '
            f'now: {job.objects or "the job"} does not list it')
    return job, found


def _list(session: Session, job: 'core_job.Job',
          found: catalogue_read.ListedObjects) -> None:
    """Add the job's objects to the listing, as a scheduler would."""
    from distperiodic.adapters.sql.store import SqlClaimStore
    settings = session.settings
    with contextlib.closing(SqlClaimStore(
            settings.connection, namespace=settings.group)) as claims:
        catalogue_read.record(
            session.store, claims, job, found, session.parsed.object)
