# SPDX-License-Identifier: Apache-2.0
"""``distperiodic why``: whether an object ran, and if not, the reason."""

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING

from distperiodic import exceptions
from distperiodic.cmd import configured
from distperiodic.cmd import explain
from distperiodic.cmd.object_answers import ObjectSources
from distperiodic.cmd.object_answers import facts_of
from distperiodic.cmd.object_answers import past_facts
from distperiodic.cmd.session import Session
from distperiodic.core import audit
from distperiodic.core import due
from distperiodic.core import ring
from distperiodic.core.reason import Reason
from distperiodic.operator import health
from distperiodic.operator import health_facts

if TYPE_CHECKING:
    from distperiodic.operator.queries import Object


class Why(explain.Explained):
    """Show whether an object ran for its last tick, and if not, the reason.

    The findings about the object, its job and its partition follow. With --at
    the command shows an earlier tick. Omit OBJECT for a job of scope 'group'.
    Exit code 0: the object ran, is running, or will run as planned, and there
    are no findings; 1: it did not run, or there are findings; 2: there is no
    such job.
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        parser.add_argument(
            '--at', type=configured.since, metavar='TIME',
            help='show the tick at or before this time: an instant in UTC, or '
                 'an age such as 90s, 30m, 24h or 7d; default: the last tick')

    def facts(self, session: Session) -> Mapping[str, object]:
        session.check_store()
        from distperiodic.operator import queries
        job, store = session.parsed.job, session.store
        key = self.key_of(session)
        found = queries.object_of(store, job, key)
        tick = None
        if session.parsed.at is not None and found.claim is not None:
            tick = _tick_at(session, key, found.now)
        return {**explain.names(session), **(
            self._answer(session, key, found)
            if tick is None or not _is_past(found, tick)
            else self.judged(*past_facts(
                found, tick, queries.tick(store, job, key, tick))))}

    def _answer(self, session: Session, key: str,
                found: 'Object') -> Mapping[str, object]:
        """Return the facts about the last tick, and what is wrong."""
        settings, job = session.settings, session.parsed.job
        facts = health_facts.read(
            settings, session.clock, key=key,
            job=None if found.job is None else job)
        slots = health.slots(facts, job)
        answer = dict(self.judged(*facts_of(ObjectSources(
            job, key, found, session.tasks, facts.live, settings, slots))))
        wrong = [] if found.job is None else health.concerning(
            health.findings(facts), job, key,
            slots.partition if slots else '')
        # What is wrong with the whole group does not matter to an object that
        # has run.
        ran = answer['reason'] == Reason.RAN.value
        self.code = max(self.code, any(
            not ran or one.code not in health.OF_ALL for one in wrong))
        return {name: answer.pop(name) for name in ('answer', 'reason')} | {
            'findings': '\n'.join(one.line for one in wrong) if self.people
            else [one.shown for one in wrong]} | answer


def _is_past(found: 'Object', tick: int) -> bool:
    """Return True if the object's row no longer describes *tick*."""
    assert found.claim is not None
    last = found.claim
    return tick < min(last.tick, last.settled) or (
        last.tick < tick < last.settled)


def _tick_at(session: Session, key: str, now: int) -> int:
    """Return the newest tick for which the object was due at the time --at.

    :raises ConfigError: the object's schedule is unknown, or has no tick at or
        before that time.
    """
    from distperiodic.operator import queries
    job, tasks = session.parsed.job, session.tasks
    at = session.parsed.at.before(now)
    text, own = queries.schedule_of(session.store, job, key)
    if not text and tasks is not None and job in tasks.jobs:
        text = tasks.jobs[job].schedule_text()
    if not text:
        raise exceptions.ConfigError(
            f'the schedule of job {job!r} is not recorded yet, so '
            'its ticks are unknown; give --tasks')
    rule, spread = audit.named(text)
    tick = due.Plan(rule, spread=spread and not own).newest(
        at, ring.position_of(key))
    if tick is None:
        raise exceptions.ConfigError(
            f'{rule.describe()} has no tick before {configured.moment(at)}; '
            'give a later --at')
    return tick
