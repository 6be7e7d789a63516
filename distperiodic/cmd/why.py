# SPDX-License-Identifier: Apache-2.0
"""``distperiodic why``: whether an object ran, and if not, the reason."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from distperiodic import exceptions
from distperiodic.cmd import answers
from distperiodic.cmd import configured
from distperiodic.cmd import explain
from distperiodic.core.reason import Reason

if TYPE_CHECKING:
    from distperiodic import opts
    from distperiodic import periodic
    from distperiodic.operator.queries import Object
    from distperiodic.operator.queries import StoreQueries


class Why(explain.Explained):
    """Show whether an object ran for its last tick, and if not, the reason.

    The findings about the object, its job and its partition follow. With --at
    the command shows an earlier tick. Omit OBJECT for a job of scope 'group'.
    Exit code 0: the object ran, is running, or will run as planned, and there
    are no findings; 1: it did not run, or there are findings; 2: there is no
    such job.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            '--at', type=configured.since, metavar='TIME',
            help='show the tick at or before this time: an instant in UTC, or '
                 'an age such as 90s, 30m, 24h or 7d; default: the last tick')
        return parser

    def take_action(self, parsed: argparse.Namespace
                    ) -> tuple[Sequence[str], Sequence[object]]:
        from distperiodic.operator.queries import StoreQueries
        settings = self.database(parsed)
        key, tasks = self.begin(parsed)
        rows: list[tuple[str, object]] = [
            ('job', parsed.job),
            ('object', parsed.object or '(the job itself)')]
        with self.store(parsed, StoreQueries) as queries:
            found = queries.object(parsed.job, key)
            tick = None
            if parsed.at is not None and found.claim is not None:
                tick = _tick_at(queries, parsed, key, tasks, found.now)
            if tick is None or not _is_past(found, tick):
                rows += self._answer(parsed, settings, key, found, tasks)
            else:
                rows += self.judged(*answers.past_rows(
                    parsed.job, found, tick,
                    queries.tick(parsed.job, key, tick)))
        return tuple(name for name, _ in rows), tuple(
            value for _, value in rows)

    def _answer(self, parsed: argparse.Namespace, settings: 'opts.Settings',
                key: str, found: 'Object',
                tasks: 'periodic.PeriodicTasks | None'
                ) -> list[tuple[str, object]]:
        """Return the rows about the last tick, and what is wrong."""
        from distperiodic.adapters.local.clock import SystemClock
        from distperiodic.operator import health
        from distperiodic.operator import health_facts
        facts = health_facts.read(
            settings, SystemClock(), key=key,
            job=None if found.job is None else parsed.job)
        slots = health.slots(facts, parsed.job)
        rows = self.answer(answers.Case(
            parsed.job, key, found, tasks, facts.live, settings, slots))
        wrong = [] if found.job is None else health.concerning(
            health.findings(facts), parsed.job, key,
            slots.partition if slots else '')
        # What is wrong with the whole group does not matter to an object that
        # has run.
        ran = dict(rows)['reason'] == Reason.RAN.value
        self.code = max(self.code, any(
            not ran or one.code not in health.OF_ALL for one in wrong))
        shown: object = (
            '\n'.join(one.line for one in wrong)
            if parsed.formatter == 'table' else [one.shown for one in wrong])
        return [*rows[:2], ('findings', shown), *rows[2:]]


def _is_past(found: 'Object', tick: int) -> bool:
    """Return True if the object's row no longer describes *tick*."""
    assert found.claim is not None
    last = found.claim
    return tick < min(last.tick, last.settled) or (
        last.tick < tick < last.settled)


def _tick_at(queries: 'StoreQueries', parsed: argparse.Namespace,
             key: str, tasks: 'periodic.PeriodicTasks | None',
             now: int) -> int:
    """Return the newest tick for which the object was due at the time --at.

    :raises ConfigError: the object's schedule is unknown, or has no tick at or
        before that time.
    """
    from distperiodic.core import audit
    from distperiodic.core import due
    from distperiodic.core import ring
    at = parsed.at.before(now)
    text, own = queries.schedule_of(parsed.job, key)
    if not text and tasks is not None and parsed.job in tasks.jobs:
        text = tasks.jobs[parsed.job].schedule_text()
    if not text:
        raise exceptions.ConfigError(
            f'the schedule of job {parsed.job!r} is not recorded yet, so '
            'its ticks are unknown; give --tasks')
    rule, spread = audit.named(text)
    tick = due.Plan(rule, spread=spread and not own).newest(
        at, ring.position_of(key))
    if tick is None:
        raise exceptions.ConfigError(
            f'{rule.describe()} has no tick before {configured.moment(at)}; '
            'give a later --at')
    return tick
