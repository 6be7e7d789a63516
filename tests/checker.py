# SPDX-License-Identifier: Apache-2.0
"""Checks of a cluster's record against the guarantees of its jobs.

The record contains the runs, the claims with their endings, and the intervals
in which a process was stopped or did not trust its leases. The data come from
the handlers and from the store, not from the log. Every function of this
module is a pure function of the record. Times are microseconds of one clock.

For example, no result may count twice or with an old fence, runs must not
exceed the limits of their job, and every claim must end in time.
:mod:`tests.oracle` judges whether every due tick was handled.
"""

import collections
import dataclasses
from collections.abc import Iterable
from collections.abc import Sequence
from typing import NamedTuple

from distperiodic.core import audit
from distperiodic.core import outcomes
from distperiodic.core.claim import State
from distperiodic.core.outcomes import Fate

SECOND = 1_000_000

#: (job, object, tick)
Key = tuple[str, str, int]


def counts_of(endings: Iterable[State], *, due: int = 1, late: bool = False,
              still_open: bool = False) -> outcomes.Counts:
    """Return the counts of one object and tick.

    :param endings: Final states of the claims of this object and tick.
    """
    return outcomes.Counts(due, late=int(late), open=int(still_open), **(
        collections.Counter(outcomes.ENDED[state] for state in endings)))


@dataclasses.dataclass(slots=True)
class Run:
    """One call of a handler, as the handler saw it."""

    job: str
    object: str
    tick: int
    fence: int
    attempt: int
    process: str
    start: int
    end: int | None = None  # None: the run continues after the record ends
    outcome: str = ''  # done, failed or killed; empty: still unknown
    #: True if the fence of the run was already outdated when the run began.
    stale: bool = False
    #: Number of other runs of the job at the start of this run. Runs of
    #: processes that are stopped, or that do not trust their leases, do not
    #: count.
    beside: int = 0
    #: Number of other runs of all jobs of the partition, counted like
    #: ``beside``.
    within: int = 0

    @property
    def key(self) -> Key:
        return self.job, self.object, self.tick


@dataclasses.dataclass(slots=True)
class Claim:
    """One (job, object, tick) in the store, with its whole history."""

    job: str
    object: str
    tick: int
    at: int
    #: (instant, ending) pairs; more than one ending is a finding.
    endings: list[tuple[int, str]] = dataclasses.field(default_factory=list)
    #: The fences under which runs were granted, in the order of the grants.
    grants: list[int] = dataclasses.field(default_factory=list)
    #: The instant at which the claim's first run was granted.
    granted: int | None = None
    #: The fences of the runs whose results counted.
    counted: list[int] = dataclasses.field(default_factory=list)
    #: Number of times that the store reported the claim as new.
    claimed: int = 1
    #: Instants at which an operator requeued the claim after it had ended as
    #: dead.
    requeued: list[int] = dataclasses.field(default_factory=list)
    #: True if an operator triggered the claim.
    triggered: bool = False

    @property
    def ended(self) -> int | None:
        return self.endings[-1][0] if self.endings else None

    @property
    def counts(self) -> outcomes.Counts:
        """The endings as counts, like those in the history of a store."""
        return counts_of(
            (State(ending) for _, ending in self.endings),
            still_open=not self.endings)


class Effect(NamedTuple):
    """A write to a system that compares fences, and the decision of this
    system.
    """

    at: int
    job: str
    object: str
    tick: int
    fence: int
    accepted: bool


class Stall(NamedTuple):
    """An interval in which a process could not act, or knew that it must not
    act.
    """

    process: str
    begin: int
    end: int
    kind: str


@dataclasses.dataclass(frozen=True, slots=True)
class Policy:
    """The guarantees and limits of a job."""

    job: str
    #: True if each tick runs, however late: misfire=all, overlap=wait.
    every: bool = False
    at_most_once: bool = False
    #: Number of attempts after which the claim is given up.
    most: int = 1 << 30
    #: Maximum number of concurrent runs of the job.
    at_once: int = 1 << 30
    #: Maximum number of concurrent runs of all jobs of the partition.
    at_once_within: int = 1 << 30


@dataclasses.dataclass
class Record:
    """The facts about one period of a cluster's life."""

    begin: int
    end: int
    policies: dict[str, Policy]
    runs: list[Run]
    claims: dict[Key, Claim]
    effects: list[Effect]
    stalls: list[Stall]
    #: Microseconds within which a claim must have ended.
    patience: int


class Finding(NamedTuple):
    """A guarantee that was violated."""

    kind: str
    text: str

    def __str__(self) -> str:
        return f'{self.kind}: {self.text}'


def check(record: Record) -> list[Finding]:
    """Return all violations in *record*."""
    return [
        *dropped(record), *doubled(record.claims.values()),
        *overlaps(record.runs, record.stalls),
        *fences(record), *unended(record), *attempts(record),
        *stale(record.runs), *crowds(record), *poison(record)]


def seconds(record: Record, instant: int) -> str:
    """Return *instant* as seconds since the beginning of the record."""
    return f'{(instant - record.begin) / SECOND:.3f}'


def dropped(record: Record) -> list[Finding]:
    """Find claims that ended without a run although each tick must run."""
    return [
        Finding('dropped', f'{claim.job} {claim.object} tick '
                f'{seconds(record, claim.tick)} ended as {ending}')
        for claim in record.claims.values()
        if record.policies[claim.job].every
        for _, ending in claim.endings[-1:]
        if ending in ('superseded', 'cancelled', 'skipped')]


def doubled(claims: Iterable[Claim]) -> list[Finding]:
    """Find claims that have several endings, that the store reported as new
    more than once, or for which the result of an old grant counted.
    """
    found = []
    for claim in claims:
        text = f'{claim.job} {claim.object} tick {claim.tick}'
        fates = audit.classify(claim.counts)
        if fates[Fate.UNEXPLAINED]:
            found.append(Finding('doubled', (
                f'{text} done {claim.counts.done} times'
                if claim.counts.done > 1
                else f'{text} ended as {claim.endings}')))
        if any(fence != claim.grants[-1] for fence in claim.counted
               if claim.grants):
            found.append(Finding(
                'doubled', f'{text} was granted {claim.grants}, and the '
                f'results of {claim.counted} counted'))
        if claim.claimed > 1:
            found.append(Finding(
                'doubled', f'{text} was claimed {claim.claimed} times'))
    return found


def overlaps(runs: Sequence[Run], stalls: Iterable[Stall]) -> list[Finding]:
    """Find runs that began during another run of the same object.

    The other run counts only if its process was not stopped and trusted its
    lease.
    """
    stopped: dict[str, list[Stall]] = collections.defaultdict(list)
    for stall in stalls:
        stopped[stall.process].append(stall)
    found = []
    going: dict[tuple[str, str], list[Run]] = collections.defaultdict(list)
    for run in sorted(runs, key=lambda run: run.start):
        others = going[run.job, run.object]
        others[:] = [one for one in others
                     if one.end is None or one.end > run.start]
        for one in others:
            if not any(stall.begin <= run.start <= stall.end
                       for stall in stopped[one.process]):
                found.append(Finding('overlap', (
                    f'{run.job} {run.object}: {_told(one)} continues at '
                    f'the start of {_told(run)}')))
        others.append(run)
    return found


def stale(runs: Iterable[Run]) -> list[Finding]:
    """Find runs that began under an outdated fence."""
    return [Finding('stale', f'{run.job} {run.object}: {_told(run)}')
            for run in runs if run.stale]


def crowds(record: Record) -> list[Finding]:
    """Find runs that began although the limit of their job or of their
    partition was already reached.
    """
    return [Finding('crowd', f'{run.job} {run.object}: {_told(run)} beside '
                    f'{number} others of its {what}')
            for run in record.runs
            for policy in [record.policies[run.job]]
            for what, number, most in (
                ('job', run.beside, policy.at_once),
                ('partition', run.within, policy.at_once_within))
            if number >= most]


def poison(record: Record) -> list[Finding]:
    """Find objects that ran too often after a claim was given up.

    Until a run of such an object succeeds, each later tick may run the object
    only once. After a requeue or a trigger, the object has all its attempts
    again. This is also so for a later tick that supersedes the requeued or
    triggered claim before it runs.
    """
    runs: dict[Key, list[Run]] = collections.defaultdict(list)
    for run in record.runs:
        runs[run.key].append(run)
    found = []
    spent: set[tuple[str, str]] = set()
    for claim in sorted(record.claims.values(), key=lambda claim: claim.at):
        policy, pair = record.policies[claim.job], (claim.job, claim.object)
        of_one = sorted(runs[claim.job, claim.object, claim.tick],
                        key=lambda run: run.start)
        if claim.triggered:
            spent.discard(pair)
        # Each requeue ends one part of the claim's runs.
        for requeued in (*claim.requeued, None):
            part = [run for run in of_one
                    if requeued is None or run.start <= requeued]
            of_one = of_one[len(part):]
            if pair in spent and (len(part) > 1 or any(
                    run.attempt != policy.most for run in part)):
                found.append(Finding('poison', (
                    f'{pair} was given up, and ran again as '
                    f'{", ".join(map(_told, part))}')))
            if requeued is not None or claim.counted:
                spent.discard(pair)
            elif not policy.at_most_once and any(
                    run.attempt >= policy.most for run in part):
                spent.add(pair)
    return found


def _told(run: Run) -> str:
    end = 'now' if run.end is None else f'{run.end / SECOND:.4f}'
    return (f'[tick {run.tick / SECOND:.0f} fence {run.fence} attempt '
            f'{run.attempt} on {run.process} from '
            f'{run.start / SECOND:.4f} to {end}]')


def fences(record: Record) -> list[Finding]:
    """Find fences that did not grow, and fences that several runs shared."""
    found = []
    newest: dict[tuple[str, str], int] = {}
    for claim in sorted(record.claims.values(), key=lambda claim: claim.at):
        pair = claim.job, claim.object
        for fence in claim.grants:
            if fence <= newest.get(pair, -1):
                found.append(Finding('fence', (
                    f'{pair} was granted {fence} after {newest[pair]}')))
            newest[pair] = max(fence, newest.get(pair, -1))
    started: dict[tuple[str, str, int], Run] = {}
    for run in record.runs:
        before = started.setdefault((run.job, run.object, run.fence), run)
        if before is not run:
            found.append(Finding('fence', (
                f'{run.job} {run.object}: {_told(before)} and '
                f'{_told(run)} under one fence')))
    highest: dict[tuple[str, str], int] = {}
    for effect in record.effects:
        if effect.accepted:
            pair = effect.job, effect.object
            if effect.fence < highest.get(pair, -1):
                found.append(Finding('fence', (
                    f'{pair}: an effect of {effect.fence} after one of '
                    f'{highest[pair]}')))
            highest[pair] = effect.fence
    return found


def unended(record: Record) -> list[Finding]:
    """Find claims that had enough time to end, but have no ending."""
    return [
        Finding('unended', (
            f'{claim.job} {claim.object} tick '
            f'{seconds(record, claim.tick)}, claimed at '
            f'{seconds(record, claim.at)}, granted {claim.grants}'))
        for claim in record.claims.values()
        if not claim.endings and claim.at < record.end - record.patience]


def attempts(record: Record) -> list[Finding]:
    """Find claims that have more runs than the job allows."""
    found = []
    runs = collections.Counter(run.key for run in record.runs)
    for run in record.runs:
        if run.attempt > record.policies[run.job].most:
            found.append(Finding('attempts', _told(run)))
    begins: dict[Key, int] = {}
    for run in record.runs:
        begins[run.key] = min(run.start, begins.get(run.key, run.start))
    for key, number in runs.items():
        claim = record.claims.get(key)
        more = 0 if claim is None else sum(
            at > begins[key] for at in claim.requeued)
        if number > 1 + more and record.policies[key[0]].at_most_once:
            found.append(Finding(
                'attempts', f'{key} ran {number} times, at most once'))
    return found
