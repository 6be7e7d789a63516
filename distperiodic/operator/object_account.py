# SPDX-License-Identifier: Apache-2.0
"""The account of one object: whether it ran, and if not, the reason."""

from collections.abc import Mapping
from collections.abc import Sequence
from typing import TYPE_CHECKING
from typing import NamedTuple

from distperiodic import exceptions
from distperiodic.core import due
from distperiodic.core import ring
from distperiodic.core import wording
from distperiodic.core.claim import State
from distperiodic.core.explanation import reason_in_row
from distperiodic.core.reason import Reason
from distperiodic.operator import health
from distperiodic.operator.filters import Since
from distperiodic.operator.health import Finding
from distperiodic.operator.object_answers import ObjectSources
from distperiodic.operator.object_answers import facts_of
from distperiodic.operator.object_answers import past_facts
from distperiodic.operator.object_answers import past_reason
from distperiodic.operator.object_answers import recorded_plan
from distperiodic.operator.sources import Sources

if TYPE_CHECKING:
    # This module loads SQLAlchemy.
    from distperiodic.operator.queries import Object
    from distperiodic.operator.queries import TickFacts


# Number of ticks in an account.
_TICKS = 30
# Reasons of the ticks before the first one that the store can explain.
_BEFORE = frozenset([
    Reason.NOT_LISTED, Reason.PRUNED, Reason.OTHER_SCHEDULE])
#: Letter of each outcome of a tick, for readers of a row of ticks. Any other
#: reason means that the outcome is unknown, or that there was no tick.
LETTERS = {
    Reason.RAN: '.', Reason.RAN_LATE: 'l', Reason.DEAD: 'F', Reason.LOST: 'L',
    Reason.SUPERSEDED: 'S', Reason.PASSED_OVER: '-',
    Reason.SKIPPED_BY_OVERLAP: '-', Reason.SKIPPED_BY_PAUSE: '-',
    Reason.CANCELLED: 'x', Reason.NOBODY_CLAIMS: 'n', Reason.RUNNING: 'o',
    Reason.WAITS_FOR_RETRY: 'o', Reason.WAITS_FOR_WORKER: 'o'}


class TickFate(NamedTuple):
    """The outcome of one tick of an object."""

    tick: int
    #: None means that the tick has no outcome yet.
    reason: Reason | None

    @property
    def letter(self) -> str:
        return 'o' if self.reason is None else LETTERS.get(self.reason, '?')

    @property
    def shown(self) -> str:
        return 'no outcome yet' if self.reason is None else self.reason.value


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
    #: The last ticks of the object, the newest first. Empty means that they
    #: are unknown.
    ticks: Sequence[TickFate]

    def fields(self, people: bool) -> dict[str, object]:
        """Return the facts and the findings, by name.

        :param people: True for the findings as lines.
        """
        facts = dict(self.facts)
        if self.ticks:
            facts['last ticks'] = ''.join(
                one.letter for one in reversed(self.ticks)) if people else [
                {'tick': wording.moment(one.tick), 'reason': one.shown}
                for one in self.ticks]
        if self.findings is None:
            return facts
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
    tick = plan = None
    past = ObjectTicks((), {})
    if found.claim is not None:
        plan = _plan_of(sources, job, key)
        if plan is not None:
            past = _ticks(sources, job, key, found, plan)
        if at is not None:
            tick = _tick_at(plan, job, key, at.before(found.now))
    if tick is not None and plan is not None and _is_past(
            found, tick, plan.newest(found.now, ring.position_of(key)) or 0):
        return ObjectAccount(*past_facts(
            found, tick, past.facts.get(tick) or queries.ticks(
                store, job, key, [tick])[tick]), None, found, past.fates)
    settings = sources.settings
    facts = sources.facts(
        key=key, job=None if found.job is None else job)
    slots = health.slots(facts, job)
    reason, answer = facts_of(ObjectSources(
        job, key, found, sources.tasks, facts.live, settings, slots))
    return ObjectAccount(reason, answer, [] if found.job is None else (
        health.concerning(health.findings(facts), job, key,
                          slots.partition if slots else '')), found,
        past.fates)


class ObjectTicks(NamedTuple):
    """The last ticks of an object."""

    fates: Sequence[TickFate]
    #: The store's data on the ticks that the object's row does not describe.
    facts: 'Mapping[int, TickFacts]'


def _ticks(sources: Sources, job: str, key: str, found: 'Object',
           plan: due.Plan) -> ObjectTicks:
    """Return the last ticks of an object, the newest first."""
    from distperiodic.operator import queries
    assert found.claim is not None
    ticks: list[int] = []
    tick = plan.newest(found.now, ring.position_of(key))
    while tick is not None and len(ticks) < _TICKS:
        ticks.append(tick)
        tick = plan.schedule.at_or_before(tick - 1)
    earlier = [one for one in ticks if _is_past(found, one, ticks[0])]
    facts = queries.ticks(sources.store, job, key, earlier) if earlier else {}
    fates = [TickFate(one, past_reason(found, one, facts[one])
                      if one in facts else reason_in_row(found.claim, one))
             for one in ticks]
    while fates and fates[-1].reason in _BEFORE:
        fates.pop()
    return ObjectTicks(fates, facts)


def _is_past(found: 'Object', tick: int, newest: int) -> bool:
    """Return True if the history has the outcome of *tick*.

    :param newest: The last tick for which the object was due. Its account is
        that of the object's row.
    """
    assert found.claim is not None
    last = found.claim
    # An operator may have triggered the last claim after the newest tick.
    return tick < last.tick and tick <= last.settled or (
        last.tick < tick < last.settled) or (
        tick < newest and tick <= last.settled and (
            tick != last.tick or not last.open
            and last.state is not State.COMMITTED))


def _plan_of(sources: Sources, job: str, key: str) -> due.Plan | None:
    """Return the schedule that determines when the object is due.

    None means that the schedule is unknown.
    """
    from distperiodic.operator import queries
    text, own = queries.schedule_of(sources.store, job, key)
    if not text and sources.tasks is not None and job in sources.tasks.jobs:
        text = sources.tasks.jobs[job].schedule_text()
    return recorded_plan(text, own)


def _tick_at(plan: due.Plan | None, job: str, key: str, before: int) -> int:
    """Return the newest tick for which the object was due by *before*.

    :raises ConfigError: the object's schedule is unknown, or has no tick at or
        before that time.
    """
    if plan is None:
        raise exceptions.ConfigError(
            f'the schedule of job {job!r} is not recorded yet, or a later '
            'release has recorded it, so its ticks are unknown; "distperiodic '
            'why" with --tasks reads the schedule from the code')
    tick = plan.newest(before, ring.position_of(key))
    if tick is None:
        raise exceptions.ConfigError(
            f'{plan.schedule.describe()} has no tick before '
            f'{wording.moment(before)}; give a later time')
    return tick
