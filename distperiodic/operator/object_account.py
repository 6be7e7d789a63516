# SPDX-License-Identifier: Apache-2.0
"""The account of one object: whether it ran, and if not, the reason."""

from typing import TYPE_CHECKING
from typing import NamedTuple

from distperiodic import exceptions
from distperiodic.core import audit
from distperiodic.core import due
from distperiodic.core import ring
from distperiodic.core import wording
from distperiodic.core.reason import Reason
from distperiodic.operator import health
from distperiodic.operator.filters import Since
from distperiodic.operator.health import Finding
from distperiodic.operator.object_answers import ObjectSources
from distperiodic.operator.object_answers import facts_of
from distperiodic.operator.object_answers import past_facts
from distperiodic.operator.sources import Sources

if TYPE_CHECKING:
    # This module loads SQLAlchemy.
    from distperiodic.operator.queries import Object


class ObjectAccount(NamedTuple):
    """The account of a tick of an object."""

    reason: Reason
    #: The answer in one sentence, the reason and its evidence, by name.
    facts: dict[str, object]
    #: The findings about the object, its job and its partition. None means
    #: that they are not read: the tick is an earlier one.
    findings: list[Finding] | None
    #: The store's data on the object.
    found: 'Object'

    def fields(self, people: bool) -> dict[str, object]:
        """Return the facts and the findings, by name.

        :param people: True for the findings as lines.
        """
        if self.findings is None:
            return self.facts
        facts = dict(self.facts)
        return {name: facts.pop(name) for name in ('answer', 'reason')} | {
            'findings': '\n'.join(one.line for one in self.findings)
            if people else [one.shown for one in self.findings]} | facts


def account(sources: Sources, job: str, key: str,
            at: Since | None = None) -> ObjectAccount:
    """Return the account of the last tick of an object.

    :param at: None means the last tick, and otherwise the last tick at or
        before this instant.
    :raises ConfigError: the tick at *at* is unknown.
    """
    from distperiodic.operator import queries
    store = sources.store
    found = queries.object_of(store, job, key)
    tick = None
    if at is not None and found.claim is not None:
        tick = _tick_at(sources, job, key, at, found.now)
    if tick is not None and _is_past(found, tick):
        return ObjectAccount(*past_facts(
            found, tick, queries.tick(store, job, key, tick)), None, found)
    settings = sources.settings
    facts = sources.facts(
        key=key, job=None if found.job is None else job)
    slots = health.slots(facts, job)
    reason, answer = facts_of(ObjectSources(
        job, key, found, sources.tasks, facts.live, settings, slots))
    return ObjectAccount(reason, answer, [] if found.job is None else (
        health.concerning(health.findings(facts), job, key,
                          slots.partition if slots else '')), found)


def _is_past(found: 'Object', tick: int) -> bool:
    """Return True if the object's row no longer describes *tick*."""
    assert found.claim is not None
    last = found.claim
    return tick < min(last.tick, last.settled) or (
        last.tick < tick < last.settled)


def _tick_at(sources: Sources, job: str, key: str, at: Since,
             now: int) -> int:
    """Return the newest tick for which the object was due at the time *at*.

    :raises ConfigError: the object's schedule is unknown, or has no tick at or
        before that time.
    """
    from distperiodic.operator import queries
    tasks, before = sources.tasks, at.before(now)
    text, own = queries.schedule_of(sources.store, job, key)
    if not text and tasks is not None and job in tasks.jobs:
        text = tasks.jobs[job].schedule_text()
    if not text:
        raise exceptions.ConfigError(
            f'the schedule of job {job!r} is not recorded yet, so '
            'its ticks are unknown; "distperiodic why" with --tasks reads '
            'the schedule from the code')
    rule, spread = audit.named(text)
    tick = due.Plan(rule, spread=spread and not own).newest(
        before, ring.position_of(key))
    if tick is None:
        raise exceptions.ConfigError(
            f'{rule.describe()} has no tick before {wording.moment(before)}; '
            'give a later time')
    return tick
