# SPDX-License-Identifier: Apache-2.0
"""``distperiodic audit``: whether all that was due was done."""

import argparse
import collections
from collections.abc import Mapping
from collections.abc import Sequence
from typing import TYPE_CHECKING
from typing import Any
from typing import NamedTuple

from cliff import lister

from distperiodic import exceptions
from distperiodic.cmd import configured
from distperiodic.cmd import listed
from distperiodic.core import audit
from distperiodic.core.audit import Fate

if TYPE_CHECKING:
    from distperiodic import opts
    from distperiodic import periodic
    from distperiodic.adapters import accounts as accounts_
    from distperiodic.core import job as job_

# Ticks of one job that are looked at: each is computed.
_MOST_TICKS = 1_000_000
# Ticks that the sentence names.
_NAMED = 3


class _Audited(NamedTuple):
    """What became of the ticks of one job."""

    job: str
    ticks: Mapping[int, collections.Counter[Fate]]
    #: Why nobody can say what was lost; empty: it can be said.
    unknown: str
    #: Whether the objects begin spread over the period, so that what is late
    #: is not counted.
    spread: bool

    @property
    def total(self) -> collections.Counter[Fate]:
        return sum(self.ticks.values(), collections.Counter())


class Audit(configured.Table, lister.Lister):
    """Show whether all that was due was done, in classes that leave nothing
    out.

    Exit code 0: nothing is lost or unexplained; 1: something is.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        configured.add_job(parser)
        parser.add_argument(
            '--since', type=configured.since, default='24h', metavar='TIME',
            help='ticks of so long, as in 90s, 30m, 24h or 7d, or from an '
                 'instant on, in UTC; default: 24h')
        parser.add_argument(
            '--ticks', action='store_true',
            help='a line for each tick, the newest first')
        listed.add_option(
            parser, 'it has the schedules and lists the objects, and without '
            'it nobody can say what is lost')
        return parser

    def run(self, parsed: argparse.Namespace) -> int:
        self.wrong = False
        return super().run(parsed) or int(self.wrong)

    def take_action(self, parsed: argparse.Namespace
                    ) -> tuple[Sequence[str], list[Sequence[Any]]]:
        settings = self.database(parsed)
        tasks = listed.load(self, parsed)
        with self.accounts(parsed) as accounts:
            names = [job.name for job in accounts.jobs()]
            if parsed.job is not None:
                # It says which ones there are.
                accounts.check_job(parsed.job)
                names = [parsed.job]
            since = parsed.since.before(accounts.now())
            audited = [_audit(accounts, name, since, tasks, settings)
                       for name in names]
        total: collections.Counter[Fate] = sum(
            (one.total for one in audited), collections.Counter())
        self.wrong = any(total[fate] for fate in audit.FINDINGS)
        self.sentence = _sentence(
            audited, total, parsed.since,
            [] if parsed.job is not None else _missing(tasks, names))
        if parsed.ticks:
            return ('Job', 'Tick', *_COLUMNS), [
                (one.job, configured.moment(tick),
                 *_cells(one, fates, parsed))
                for one in audited
                for tick, fates in sorted(one.ticks.items(), reverse=True)
                if fates]
        return ('Job', *_COLUMNS), [
            (one.job, *_cells(one, one.total, parsed)) for one in audited]


_COLUMNS = ('Due', *(fate.value.capitalize() for fate in Fate))


def _cells(audited: _Audited, fates: collections.Counter[Fate],
           parsed: argparse.Namespace) -> Sequence[Any]:
    """The numbers; of what nobody knows none, which people see as a dash."""
    none = '-' if parsed.formatter == 'table' else None
    unknown = {Fate.LATE} if audited.spread else set()
    if audited.unknown:
        unknown.add(Fate.LOST)
    return (_due(fates),
            *(none if fate in unknown else fates[fate] for fate in Fate))


def _due(fates: collections.Counter[Fate]) -> int:
    return fates.total() - fates[Fate.UNEXPLAINED]


def _audit(accounts: 'accounts_.Accounts', name: str, since: int,
           tasks: 'periodic.PeriodicTasks | None',
           settings: 'opts.Settings') -> _Audited:
    job = None if tasks is None else tasks.jobs.get(name)
    plan: audit.Plan | str = '--tasks is not given'
    if tasks is not None:
        plan = _plan(tasks, job, accounts.now(), settings)
    spread = job is not None and job.spread
    if isinstance(plan, str):
        found = accounts.account(name, since, None)
        return _Audited(name, {
            tick: audit.classify(counts)
            for tick, counts in found.ticks.items()}, plan, spread)
    newest = plan.rule.at_or_before(accounts.now())
    found = accounts.account(name, since, newest, plan.own)
    if found.begins is None:
        return _Audited(name, {}, 'there is no history of it', spread)
    since = max(since, found.begins)
    if plan.rule.count(since, found.now) > _MOST_TICKS:
        raise exceptions.ConfigError(
            f'job {name!r} has more than {_MOST_TICKS:,} ticks '
            f'({plan.rule.describe()}) in that time; give a shorter --since')
    ticks = audit.judge(
        found.ticks, found.served, found.rows, plan, since, found.now)
    return _Audited(name, {
        tick: _without_late(fates) if spread else fates
        for tick, fates in ticks.items()}, '', spread)


def _without_late(fates: collections.Counter[Fate]
                  ) -> collections.Counter[Fate]:
    """What is spread over the period is not late by its tick."""
    return collections.Counter({
        **fates, Fate.ON_TIME: fates[Fate.ON_TIME] + fates[Fate.LATE],
        Fate.LATE: 0})


def _plan(tasks: 'periodic.PeriodicTasks', job: 'job_.Job | None',
          now: int,
          settings: 'opts.Settings') -> audit.Plan | str:
    """What should have been; or why nobody can say."""
    if job is None:
        return '--tasks has no such job'
    if not job.enabled:
        return 'it is disabled'
    found = listed.read(tasks, job, now)
    if isinstance(found, str):
        return found
    return audit.Plan(job.schedule, found.ids, found.own,
                      round(settings.late_claim_after * 1e6), job.spread)


def _missing(tasks: 'periodic.PeriodicTasks | None',
             names: Sequence[str]) -> list[str]:
    """The jobs that should be in the store, and are not."""
    from distperiodic.core import job as job_
    return [] if tasks is None else [
        job.name for job in tasks.jobs.values()
        if job.enabled and job.scope is not job_.Scope.MEMBER
        and job.name not in names]


def _sentence(audited: Sequence[_Audited],
              total: collections.Counter[Fate], since: configured.Since,
              missing: Sequence[str]) -> str:
    if not audited:
        return 'No scheduler has claimed anything yet.'
    told = ', '.join(f'{total[fate]:,} {fate}' for fate in Fate
                     if total[fate]) or 'nothing'
    lines = [f'{configured.plural(len(audited), "job")} since {since.text}: '
             f'{_due(total):,} due; {told}.']
    for fate in audit.FINDINGS:
        for one in audited:
            ticks = sorted(t for t, fates in one.ticks.items() if fates[fate])
            if ticks:
                where = configured.listed(
                    [configured.moment(tick) for tick in ticks], _NAMED)
                lines.append(
                    f'{fate.capitalize()} of {one.job}: '
                    f'{one.total[fate]:,}, at {where}.')
    if missing:
        lines.append('Nobody has ever claimed anything of '
                     f'{configured.listed(missing)}.')
    for one in audited:
        if one.unknown:
            lines.append(f'What was lost of {one.job} is not known: '
                         f'{one.unknown}.')
    return '\n'.join(lines)
