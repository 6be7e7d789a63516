# SPDX-License-Identifier: Apache-2.0
"""The facts about an object: its last ticks, and the reason if it did not run.
"""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from distperiodic.core import audit
from distperiodic.core import due
from distperiodic.core import ring
from distperiodic.core import schedule
from distperiodic.core import wording
from distperiodic.core.due import NOTHING
from distperiodic.core.due import Plan
from distperiodic.core.explanation import ClaimStanding
from distperiodic.core.explanation import ObjectFacts
from distperiodic.core.explanation import Past
from distperiodic.core.explanation import reason_of
from distperiodic.core.explanation import reasons_of
from distperiodic.core.job import Job
from distperiodic.core.job import Scope
from distperiodic.core.outcomes import BY_OBJECT
from distperiodic.core.outcomes import LATE
from distperiodic.core.outcomes import OUTCOMES
from distperiodic.core.reason import Reason
from distperiodic.core.tick_exceptions import TickException
from distperiodic.operator import catalogue_read
from distperiodic.operator import cells
from distperiodic.operator.health import Slots
from distperiodic.operator.live_group import Group

if TYPE_CHECKING:
    from distperiodic import opts
    from distperiodic import periodic
    from distperiodic.operator.queries import Object
    from distperiodic.operator.queries import TickFacts

_moment = wording.moment

#: Template of the answer for each reason. An answer states the meaning of the
#: reason, and the next step.
SENTENCES = {
    Reason.RAN: 'it ran: done at {served} by {worker}',
    Reason.RAN_LATE:
        'it ran, but its first run for {at} began more than a period after '
        'the object was due{after}',
    Reason.JOB_UNKNOWN:
        'job {job!r} is {missing}; correct the name; see: distperiodic job '
        'list',
    Reason.MEMBER_JOB:
        'each member runs the job for itself, and the runs are not recorded; '
        'see the logs of the schedulers',
    Reason.DISABLED: 'the job is disabled in its code (enabled=False)',
    Reason.NEVER_SCHEDULED:
        'no scheduler of group {group!r} has recorded the job in the store '
        'yet; start one with these tasks',
    Reason.OBJECT_UNKNOWN:
        'no scheduler has listed it yet; "distperiodic why" with --tasks '
        'checks whether the catalogue lists it',
    Reason.NOT_LISTED:
        'the catalogue does not list it now; its last tick: {tick}',
    Reason.NOT_DUE_YET:
        'it is listed, and its first tick is in the future: {next}',
    Reason.PASSED_OVER:
        'its tick {settled} was passed over by misfire: {skip_reason}',
    Reason.LOST:
        'its tick {settled} was lost: {skip_reason}; this is a bug, please '
        'report it with the output of distperiodic audit --ticks',
    Reason.SKIPPED_BY_OVERLAP:
        'its tick {settled} was skipped by overlap: its tick {tick} had not '
        'ended{standing}',
    Reason.SKIPPED_BY_PAUSE:
        'its tick {settled} was skipped: {skip_reason}{still_paused}',
    Reason.CANCELLED:
        'its claim for {tick} was given up before a run succeeded',
    Reason.DEAD:
        'its run for {tick} failed for good at attempt {attempt}: {error}; '
        'it runs again at its next tick; to run it earlier: distperiodic '
        'dead requeue {job} --object {object}',
    Reason.WAITS_FOR_WORKER:
        'it is claimed for {tick} by {holder}, and has waited for a free slot '
        'of a worker since {waiting}{slots}',
    Reason.WAITS_FOR_SWEEP:
        'it is claimed for {tick}, and the next sweep of a scheduler picks it '
        'up; each scheduler sweeps every {sweep:g} s',
    Reason.WAITS_FOR_RETRY:
        'its run for {tick} failed; attempt {following} is due at {until}',
    Reason.RUNNING:
        'its run for {tick} was granted to {worker}, which holds the lease '
        'until {until} and renews it',
    Reason.HOLDER_GONE:
        'it is claimed for {tick} by {holder}, which is gone; the next '
        'sweep takes it over, at {until} at the latest',
    Reason.LEASE_ENDED:
        'it is claimed for {tick} by {holder}, whose lease ended at {until}; '
        'the next sweep takes it over, if a scheduler runs',
    Reason.PAUSED:
        'the job was paused{paused_until} at {paused_since} by {paused_by}: '
        '{paused_why}; to resume it: distperiodic job resume {job}',
    Reason.OBJECT_PAUSED:
        'the object was paused{object_until} at {object_since} by '
        '{object_by}: {object_why}; to resume it: distperiodic job resume '
        '{job} --object {object}',
    Reason.NOT_LATE_YET:
        'its tick {due} is due and its owner has not claimed it yet; other '
        'members claim it {late_after:g} s after it was due',
    Reason.NO_SCHEDULER:
        'group {group!r} has no scheduler, so no process claims its tick '
        '{due}; start a scheduler',
    Reason.NOBODY_CLAIMS:
        'no object of the job was claimed for its tick {due}: no scheduler '
        'is running, or all schedulers hold their ticks; look for '
        '"ticks held", "catalogue failed" and "store away" in the logs',
    Reason.LEFT_BEHIND:
        'its tick {due} was not claimed, although it was listed at the time '
        'and other objects of the job were claimed; the next late scan claims '
        'it, or records why it did not run',
    Reason.SUPERSEDED:
        'its claim for {at} was superseded: a later tick was claimed before '
        'a worker started the run',
    Reason.OTHER_SCHEDULE:
        'its job had another schedule at {at}: the current schedule applies '
        'from {schedule_since}',
    Reason.PRUNED:
        'the history of {at} was deleted: the history begins at {begins}; '
        'see [distperiodic] history_retention',
    Reason.ONE_OF_SEVERAL:
        'the ids of {unknown:,} objects that did not run for {at} are not '
        'kept, because there are too many, so the outcome is one of these: '
        '{several}',
    Reason.NOT_RECORDED:
        'the store has no record of it for {at}, and does not keep whether '
        'the catalogue listed it then: {since}',
}

#: Templates for reasons that need another answer for an object's earlier
#: ticks.
PAST = {
    Reason.RAN:
        'it ran: {number:,} objects were done for {at}, and it is not among '
        'the objects with another outcome{after}',
    Reason.DEAD:
        'its run for {at} failed for good{attempt}{on}: {error}',
    Reason.NOT_LISTED:
        'the catalogue did not list it at {at}: {since}',
    Reason.PASSED_OVER:
        'its tick {at} was passed over by misfire: {skip_reason}',
    Reason.LOST:
        'its tick {at} was lost: {skip_reason}; this is a bug, please report '
        'it with the output of distperiodic audit --ticks',
    Reason.SKIPPED_BY_OVERLAP:
        'its tick {at} was skipped by overlap: {skip_reason}',
    Reason.SKIPPED_BY_PAUSE: 'its tick {at} was skipped: {skip_reason}',
    Reason.CANCELLED: 'its claim for {at} was given up before a run succeeded',
    Reason.NOBODY_CLAIMS:
        'no scheduler claimed it for {at}: the store has no record of it',
}

# Reasons whose objects are recorded.
_RECORDED = frozenset(OUTCOMES[name].reason for name in BY_OBJECT)


@dataclasses.dataclass(frozen=True)
class ObjectSources:
    """One object of one job, and the sources of facts about it.

    A source that is None is not available.
    """

    job: str
    object: str
    found: 'Object'
    tasks: 'periodic.PeriodicTasks | None'
    group: 'Group | None'
    settings: 'opts.Settings'
    slots: 'Slots | None' = None


def facts_of(sources: ObjectSources) -> tuple[Reason, dict[str, object]]:
    """Return the reason for the last outcome, and the known facts by name."""
    tasks = sources.tasks
    job = None if tasks is None else tasks.jobs.get(sources.job)
    rule, is_listed, remark = _schedule(sources, job)
    facts = _facts(sources, job, rule, is_listed)
    reason = reason_of(facts)
    if rule is not None and job is not None:
        following: int | None = _after(sources, _plan(sources, job, rule))
    else:
        following = _recorded_next(sources)
    sentence = SENTENCES[reason].format(**_words(sources, facts, following))
    found, claim = sources.found, sources.found.claim
    answer: dict[str, object] = {
        'answer': sentence + (f' ({remark})' if remark else ''),
        'reason': reason.value}
    if claim is None:
        return reason, answer
    return reason, answer | {
        'last tick': _moment(claim.tick),
        'state': claim.state.value,
        'skipped': f'{_moment(claim.settled)} by {claim.skipped_by.value}'
        if claim.skipped and claim.skipped_by else '',
        'attempt': found.attempt, 'fence': found.fence,
        'worker': found.worker,
        'last served': _or_never(found.served),
        'lease': f'{claim.holder or "unowned"} until {_moment(claim.until)}'
        if claim.until is not None else '',
        'tick before': _or_never(found.previous),
        'next tick': '' if following is None else _moment(following),
        'failed': '; '.join(
            f'{_moment(one.tick)} attempt {one.attempt}'
            f'{" on " * bool(one.worker)}{one.worker}: '
            f'{wording.one_line(one.error)}' for one in found.failed)}


def _or_never(micros: int | None) -> str:
    return cells.NEVER if micros is None else _moment(micros)


def _schedule(sources: ObjectSources, job: 'Job | None') -> tuple[
        'schedule.Schedule | None', bool | None, str]:
    """Return the object's schedule, True if it is listed, and a remark.

    A value of None is unknown. The remark gives the reason, except for a job
    that --tasks does not have, that is disabled, or that each member runs for
    itself.
    """
    if sources.tasks is None:
        return None, None, (
            'based on recorded claims only; "distperiodic why" with --tasks '
            'reads the catalogue, too')
    if job is None or not job.enabled or job.scope is Scope.MEMBER:
        return None, None, ''
    found = catalogue_read.read(sources.tasks, job, sources.found.now)
    if isinstance(found, str):
        return job.schedule, None, found
    return (found.schedule_of(sources.object) or job.schedule,
            sources.object in found.ids, '')


def _plan(sources: ObjectSources, job: 'Job',
          rule: 'schedule.Schedule') -> 'Plan':
    """Return the plan that determines when the object is due."""
    if rule is not job.schedule:
        return job.plan(own=rule)
    found = sources.found.job
    return job.plan() if found is None else job.plan(found.schedule_since)


def _after(sources: ObjectSources, plan: 'Plan') -> int:
    """Return the instant at which the object is due next."""
    position = ring.position_of(sources.object)
    newest = plan.newest(sources.found.now, position)
    tick = plan.schedule.after(
        sources.found.now if newest is None else newest)
    return tick + plan.phase(tick, position)


def _recorded_next(sources: ObjectSources) -> int | None:
    """Return the instant at which the object is due next, by the schedule in
    the store.

    None means that the instant is unknown, or that the object is not listed.
    """
    found = sources.found
    if (sources.tasks is not None or found.job is None or found.claim is None
            or found.claim.since is None):
        return None
    own = found.claim.row(sources.object, 0).attributes.rule
    plan = recorded_plan(own or found.job.schedule, bool(own))
    return None if plan is None else _after(sources, plan)


def recorded_plan(text: str | None, own: bool) -> Plan | None:
    """Return the plan of an object from the text of its schedule.

    :param own: True if the schedule is the object's own.
    :returns: None means that the schedule is unknown.
    """
    if (found := audit.recorded(text)) is None:
        return None
    rule, spread = found
    return Plan(rule, spread=spread and not own)


def _facts(sources: ObjectSources, job: 'Job | None',
           rule: 'schedule.Schedule | None',
           is_listed: bool | None) -> ObjectFacts:
    found, group = sources.found, sources.group
    alive = None
    if group is not None:
        alive = frozenset(
            one.holder for some in (group.members, *group.workers.values())
            for one in some)
    due = undecided = None
    if rule is not None and job is not None:
        plan = _plan(sources, job, rule)
        position = ring.position_of(sources.object)
        due = plan.newest(found.now, position)
        if found.claim is not None:
            row = found.claim.row(sources.object, position)
            if plan.verdict(row, found.now) is NOTHING:
                # Ticks before the object was listed count as decided, too.
                due = min(found.claim.settled, found.now)
            first = rule.after(plan.floor(row.settled, row.since, position))
            undecided = first + plan.phase(first, position)
    return ObjectFacts(
        now=found.now, stored=found.job is not None,
        defined=None if sources.tasks is None else job is not None,
        enabled=job is None or job.enabled,
        of_members=job is not None and job.scope is Scope.MEMBER,
        paused=found.job is not None and found.job.paused_since is not None,
        object_paused=found.pause is not None,
        listed=is_listed, claim=found.claim,
        due=due, undecided=undecided,
        newest=found.job.tick if found.job else None,
        late_after=round(sources.settings.late_claim_after * 1e6),
        alive=alive, schedulers=None if group is None else sum(
            bool(m.points) for m in group.members))


def _words(sources: ObjectSources, facts: ObjectFacts,
           following: int | None) -> dict[str, object]:
    """Return the values that the templates of the answers need."""
    found, claim, job = sources.found, sources.found.claim, sources.found.job
    due = facts.due
    if due is None:
        due = facts.newest if claim is None else max(
            claim.settled, claim.tick, facts.newest or 0)
    return {
        'job': sources.job, 'object': sources.object,
        'group': sources.settings.group,
        'missing': 'not in the store' if sources.tasks is None
        else 'neither in the store nor in --tasks',
        'due': '' if due is None else _moment(due),
        'next': 'unknown, because its schedule is not recorded'
        if following is None else _moment(following),
        'slots': '' if sources.slots is None else (
            f'; {sources.slots.busy:,} of {sources.slots.size:,} slots of '
            f'partition {sources.slots.partition} are busy'),
        'sweep': sources.settings.sweep_interval,
        'late_after': sources.settings.late_claim_after,
        'paused_since': _or_never(job.paused_since if job else None),
        'paused_by': job.paused_by if job else '',
        'paused_why': job.paused_why if job else '',
        'paused_until': wording.until(job.paused_until if job else None),
        **_words_of_pause(found),
        **_words_of_claim(found),
    }


def _words_of_pause(found: 'Object') -> dict[str, object]:
    """Return the values that the pauses of an object and of its job have."""
    job, pause = found.job, found.pause
    still = ''
    if job is not None and job.paused_since is not None:
        still = f'; the job is still paused{wording.until(job.paused_until)}'
    elif pause is not None:
        still = f'; the object is still paused{wording.until(pause.until)}'
    return {
        'still_paused': still,
        'object_since': _or_never(pause.since if pause else None),
        'object_by': pause.by if pause else '',
        'object_why': pause.why if pause else '',
        'object_until': wording.until(pause.until if pause else None)}


def _words_of_claim(found: 'Object') -> dict[str, object]:
    """Return the values that the row of an object has."""
    claim = found.claim
    return {
        **dict.fromkeys(('tick', 'at'), 'never' if claim is None
                        else _moment(claim.tick)),
        'settled': '' if claim is None else _moment(claim.settled),
        'served': _or_never(found.served),
        'worker': found.worker or 'an unknown worker',
        'holder': (claim.holder if claim else '') or 'an unknown process',
        'until': _or_never(claim.until if claim else None),
        'attempt': found.attempt, 'following': found.attempt + 1,
        'skip_reason': found.skip_reason or 'no reason was recorded',
        'standing': '' if claim is None or not claim.open or not found.worker
        else f', and its run is still in progress on {found.worker}',
        'error': wording.one_line(found.failed[0].error)
        if found.failed else 'its record was pruned',
        'waiting': _or_never(found.waiting),
    }


def past_facts(found: 'Object', tick: int,
               kept: 'TickFacts') -> tuple[Reason, dict[str, object]]:
    """Return the reason for the outcome of an earlier tick, and the evidence.

    :param kept: The store's data on that tick.
    """
    assert found.claim is not None
    past = _past(found, tick, kept)
    several = reasons_of(past)
    reason = _reason(several)
    sentence = PAST.get(reason) or SENTENCES[reason]
    recorded = (past.outcome if reason in _RECORDED else
                kept.past.last(LATE) if reason is Reason.RAN_LATE else None)
    requeued = kept.past.requeued
    return reason, {
        'answer': sentence.format(
            at=_moment(tick), number=kept.counts.get(Reason.RAN, 0),
            several=', '.join(
                f'{one.value} '
                f'({wording.plural(kept.counts.get(one, 0), "object")})'
                for one in several),
            unknown=past.unknown, since=_listing(found.claim),
            schedule_since=_moment(max(0, kept.schedule_since)),
            begins=_moment(max(0, kept.begins)),
            skip_reason=(
                recorded.reason if recorded
                # While a whole job is paused, no objects are recorded.
                else 'paused' if reason is Reason.SKIPPED_BY_PAUSE
                else '') or 'no reason was recorded',
            after='' if requeued is None else
            '; before that, its run had failed for good, and an operator '
            f'requeued it at {_moment(requeued.at)}',
            **_failure(kept, recorded)),
        'reason': reason.value, 'tick': _moment(tick),
        'recorded': '' if recorded is None else
        f'{_moment(recorded.at)} by {recorded.member or "an operator"}',
        'all objects': ', '.join(
            f'{number:,} {one.value}' for one, number in kept.counts.items()
            if number),
        'last tick': _moment(found.claim.tick),
        'last served': _or_never(found.served)}


def past_reason(found: 'Object', tick: int, kept: 'TickFacts') -> Reason:
    """Return the reason of :func:`past_facts`."""
    return _reason(reasons_of(_past(found, tick, kept)))


def _past(found: 'Object', tick: int, kept: 'TickFacts') -> Past:
    claim = found.claim
    assert claim is not None
    return Past(tick, claim, found.previous, found.served,
                len(kept.failed), kept.counts, kept.begins, kept.rows_begin,
                # Objects with an own schedule do not follow that of the job.
                due.ALWAYS if claim.attributes.rule else kept.schedule_since,
                kept.past)


def _reason(several: Sequence[Reason]) -> Reason:
    return several[0] if len(several) == 1 else Reason.ONE_OF_SEVERAL


def _failure(kept: 'TickFacts',
             recorded: TickException | None) -> dict[str, str]:
    """Return the values for the template of a dead run."""
    if not kept.failed:
        return {'attempt': '', 'error': 'its record was pruned',
                'on': f' on {recorded.member}'
                if recorded and recorded.member else ''}
    failed = kept.failed[0]
    return {'attempt': f' at attempt {failed.attempt}',
            'on': f' on {failed.worker}' if failed.worker else '',
            'error': wording.one_line(failed.error)}


def _listing(claim: ClaimStanding) -> str:
    """Return a phrase about the last listing of an object."""
    if claim.since is not None:
        return f'its last listing begins at {_moment(claim.since)}'
    return ('it is not listed' if claim.delisted is None
            else f'it was delisted at {_moment(claim.delisted)}')
