# SPDX-License-Identifier: Apache-2.0
"""``distperiodic audit``: check that all due work and all tasks were done.
"""

import argparse
import collections
import dataclasses
import functools
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import TYPE_CHECKING
from typing import NamedTuple
from typing import TypeAlias

from distperiodic import exceptions
from distperiodic.cmd import configured
from distperiodic.cmd import display
from distperiodic.cmd.session import Session
from distperiodic.core import audit
from distperiodic.core import due
from distperiodic.core import task_audit
from distperiodic.core.job import COMMAND_PREFIX
from distperiodic.core.job import Job
from distperiodic.core.job import Scope
from distperiodic.core.outcomes import Fate
from distperiodic.core.schedule import SECOND
from distperiodic.operator import catalogue_read
from distperiodic.operator import cells
from distperiodic.operator.cells import Output
from distperiodic.operator.filters import Since

if TYPE_CHECKING:
    from distperiodic import opts
    from distperiodic import periodic
    from distperiodic.operator.queries import Account
    from distperiodic.operator.waiting import Starving

# Maximum number of ticks of one job to audit. The audit computes each tick.
_MOST_TICKS = 1_000_000
# Maximum seconds to claim all objects of a very large job for one tick.
_CLAIMING = 120.0
# Maximum number of ticks that the sentence above the table lists.
_NAMED = 3
# Number of periods for which an object must have waited for a start, and
# maximum number of such objects that are read.
_STARVING, _MOST_STARVING = 3, 1000


class _Audited(NamedTuple):
    """The outcome of the ticks of one job."""

    job: str
    ticks: Mapping[int, collections.Counter[Fate]]
    #: Text about unknown facts, with the reason. Empty means that all facts
    #: are known.
    unknown: str
    #: True if --tasks has the job, but its catalogue cannot be read.
    unread: bool
    #: Classes that cannot be counted completely. A recorded number of such a
    #: class is still shown.
    blank: frozenset[Fate]

    @property
    def wrong(self) -> bool:
        """True if some work is lost or unexplained, or may be."""
        return self.unread or any(
            self.total[fate] for fate in audit.FINDINGS)

    @property
    def total(self) -> collections.Counter[Fate]:
        return sum(self.ticks.values(), collections.Counter())


class Audit(display.Table):
    """Show whether all due work was done, in numbers of objects and of tasks.

    Exit code 0: nothing is lost or unexplained; 1: some work is lost or
    unexplained, an object was superseded for several periods and not started,
    or the catalogue of a job of --tasks cannot be read.
    """

    for_people = ('table',)

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        configured.add_job(parser)
        parser.add_argument(
            '--since', type=configured.since, default='24h', metavar='TIME',
            help='check the ticks since TIME, the tasks that were submitted '
                 'since TIME, and all tasks that have not ended. TIME is an '
                 'age such as 90s, 30m, 24h or 7d, or an instant in UTC; '
                 'default: 24h')
        parser.add_argument(
            '--ticks', action='store_true',
            help='show a row for each tick, the newest first, and no rows for '
                 'tasks')
        configured.add_tasks(
            parser, 'it provides the policies and the catalogue of each job; '
            'without it, the audit cannot find objects that are not listed')

    def act(self, session: Session) -> Output:
        from distperiodic.operator import waiting
        from distperiodic.operator.task_audit import tasks_alike
        parsed = session.parsed
        named = configured.job_of(parsed)
        session.check_store()
        tasks, store = session.tasks, session.store
        names = sorted(store.names(named).values())
        since = parsed.since.before(store.now())
        audited = [_audit(session, name, since) for name in names]
        alike = [] if named is not None else tasks_alike(store, since)
        starving = [one for one in waiting.starving(
            store, _STARVING, _MOST_STARVING + 1)
            if one.superseded and named in (None, one.job)]
        of_tasks = [
            _Audited(COMMAND_PREFIX + name, {since: fates}, '', False,
                     task_audit.NOT_OF_TASKS)
            for name, fates in sorted(task_audit.by_type(alike).items())]
        if starving or any(
                one.wrong for one in (*audited, *of_tasks)):
            self.code = configured.FINDING
        self.sentence = '\n'.join(filter(None, [
            _sentence(audited, parsed.since,
                      [] if named is not None else _missing(tasks, names))
            if audited or not of_tasks else '',
            _sentence_of_tasks(alike, parsed.since) if of_tasks else '',
            _sentence_of_starving(starving)]))
        return self.listing(
            _columns(parsed.ticks),
            [(one, tick, fates) for one in audited
             for tick, fates in sorted(one.ticks.items(), reverse=True)
             if fates] if parsed.ticks else
            [(one, 0, one.total) for one in (*audited, *of_tasks)])


_Row: TypeAlias = tuple[_Audited, int, collections.Counter[Fate]]


def _columns(ticks: bool) -> dict[str, Callable[[_Row], object]]:
    """Return the columns of the table, in numbers of objects or tasks.

    :param ticks: True if each row is of one tick.
    """
    columns: dict[str, Callable[[_Row], object]] = {
        'Job': lambda row: row[0].job}
    if ticks:
        columns['Tick'] = lambda row: configured.moment(row[1])
    return columns | {
        'Due': lambda row: _due(row[2]),
        **{fate.value.capitalize(): functools.partial(_number_of, fate)
           for fate in Fate}}


def _number_of(fate: Fate, row: _Row) -> object:
    audited, _, fates = row
    return (cells.Cell('-', None) if fate in audited.blank
            and not fates[fate] else fates[fate])


def _due(fates: collections.Counter[Fate]) -> int:
    return (fates.total() - fates[Fate.UNEXPLAINED]
            - fates[Fate.NOT_LISTED])


def _audit(session: Session, name: str, since: int) -> _Audited:
    from distperiodic.operator import queries
    tasks = session.tasks
    job = None if tasks is None else tasks.jobs.get(name)
    account = queries.account(
        session.store, name, since,
        '' if job is None else job.schedule_text())
    if not account.schedule:
        return _Audited(name, {
            tick: audit.classify(counts)
            for tick, counts in account.ticks.items()},
            'the lost ticks are unknown: the schedule of the job is not '
            'recorded yet, and --tasks does not have the job', False,
            frozenset([Fate.LOST, Fate.PASSED_OVER, Fate.NOT_LISTED]))
    judged = _judged(account, job, session.settings)
    rule = judged.plan.schedule
    if rule.count(account.begins, account.now) > _MOST_TICKS:
        raise exceptions.ConfigError(
            f'job {name!r} has more than {_MOST_TICKS:,} ticks '
            f'({rule.describe()}) in that time; give a shorter --since')
    ticks = audit.judge(account.ticks, account.alike, account.placed, judged,
                        account.begins, account.now)
    missing = _not_listed(session, job, account.now)
    unknown = missing if isinstance(missing, str) else ''
    if not unknown and missing:
        newest = rule.at_or_before(account.now) or account.now
        ticks.setdefault(newest, collections.Counter())[
            Fate.NOT_LISTED] += len(missing)
    return _Audited(
        name, ticks, unknown, bool(unknown) and job is not None,
        frozenset([Fate.NOT_LISTED] if unknown else []))


def _judged(account: 'Account', job: 'Job | None',
            settings: 'opts.Settings') -> audit.AuditedJob:
    """Return the job's schedule in force and its policies, for the audit."""
    rule, spread = audit.named(account.schedule)
    plan = due.Plan(rule, spread=spread) if job is None else job.plan()
    return audit.AuditedJob(
        dataclasses.replace(plan, schedule=rule, spread=spread,
                            since=account.schedule_since),
        job is not None, account.attended, account.paused,
        round((settings.late_claim_after + settings.session_timeout
               + _CLAIMING) * SECOND))


def _not_listed(session: Session, job: 'Job | None',
                now: int) -> set[str] | str:
    """Return the objects that are in the catalogue but not in the store.

    :return: The ids of these objects, or text with the reason why they are
        unknown.
    """
    unknown = ('cannot determine which objects are not listed, nor which '
               'ticks misfire gives up: ')
    if session.tasks is None:
        return unknown + '--tasks is not given'
    if job is None:
        return unknown + '--tasks has no such job'
    if not job.enabled:
        return set()
    found = catalogue_read.read(session.tasks, job, now)
    if isinstance(found, str):
        return f'cannot determine which objects are not listed: {found}'
    from distperiodic.operator import queries
    return queries.not_listed(session.store, job.name, found.ids)


def _sentence_of_tasks(alike: Sequence[task_audit.Alike],
                       since: Since) -> str:
    number = sum(one.number for one in alike)
    return (f'{configured.plural(number, "task")} submitted {since.phrase} '
            f'or not ended: {task_audit.phrase(alike)}.')


def _sentence_of_starving(starving: 'Sequence[Starving]') -> str:
    """Return a sentence about objects that wait, although they are claimed."""
    if not starving:
        return ''
    first, number = starving[0], len(starving)
    more = 'more than ' * (number > _MOST_STARVING)
    return (f'{more}{configured.plural(min(number, _MOST_STARVING), "object")}'
            f' {"was" if number == 1 else "were"} superseded for '
            f'{_STARVING} periods or more and not started, such as '
            f'{first.object!r} of {first.job} since '
            f'{configured.moment(first.since)}: there is more work than the '
            'workers can do, or no worker runs it; see distperiodic status.')


def _missing(tasks: 'periodic.PeriodicTasks | None',
             names: Sequence[str]) -> list[str]:
    """Return the jobs that should be in the store but are not."""
    return [] if tasks is None else [
        job.name for job in tasks.jobs.values()
        if job.enabled and job.scope is not Scope.MEMBER
        and job.name not in names]


def _sentence(audited: Sequence[_Audited], since: Since,
              missing: Sequence[str]) -> str:
    if not audited:
        return 'No scheduler has recorded a job yet.'
    total: collections.Counter[Fate] = sum(
        (one.total for one in audited), collections.Counter())
    counts = ', '.join(f'{total[fate]:,} {fate}' for fate in Fate
                       if total[fate]) or 'nothing'
    lines = [f'{configured.plural(len(audited), "job")} {since.phrase}: '
             f'{_due(total):,} due; {counts}.']
    for fate in audit.FINDINGS:
        for one in audited:
            ticks = sorted(t for t, fates in one.ticks.items() if fates[fate])
            if ticks:
                where = configured.listed(
                    [configured.moment(tick) for tick in ticks], _NAMED)
                lines.append(f'{one.job}: {one.total[fate]:,} {fate}, at '
                             f'{where}.')
    if missing:
        lines.append('No scheduler has recorded '
                     f'{configured.listed(missing)} yet.')
    for one in audited:
        if one.unknown:
            lines.append(f'{one.job}: {one.unknown}.')
    return '\n'.join(lines)
