# SPDX-License-Identifier: Apache-2.0
"""What a record of a cluster says about the promises that were made.

The record is made by what the handlers did themselves and by the store, not
by the flow's own log: runs, claims and their endings, and the times at which
a process could not know better. Everything here is a pure function of it;
times are microseconds of one clock.

Each expected tick comes to one class, and only a *lost* one is a finding::

    done | dead | superseded | cancelled   by the ending of its claim
    open      claimed, and its end is not due yet
    skipped   not claimed: the policy of its job, or a fault, accounts for it
    lost      not claimed, and nothing accounts for it

The causes of *lost* that Jepsen's checker for Chronos has to solve for, since
its runs carry no tick, are a look-up here: ours carry (job, object, tick).
"""

import bisect
import collections
import dataclasses
from collections.abc import Iterable
from collections.abc import Sequence
from typing import NamedTuple

SECOND = 1_000_000

#: (job, object, tick)
Key = tuple[str, str, int]


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
    end: int | None = None  # None: it was going on when the record ends
    outcome: str = ''  # done, failed or killed; empty: none yet
    #: Whether its claim was somebody else's already when it began.
    stale: bool = False

    @property
    def key(self) -> Key:
        return self.job, self.object, self.tick


@dataclasses.dataclass(slots=True)
class Claim:
    """One (job, object, tick) in the store."""

    job: str
    object: str
    tick: int
    at: int
    #: When and how it ended; more than one is a finding.
    endings: list[tuple[int, str]] = dataclasses.field(default_factory=list)
    #: The fences under which runs were granted, in the order of the grants.
    grants: list[int] = dataclasses.field(default_factory=list)
    #: The fences of the runs whose finish counted.
    counted: list[int] = dataclasses.field(default_factory=list)
    #: How often it was claimed as new.
    claimed: int = 1

    @property
    def ended(self) -> int | None:
        return self.endings[-1][0] if self.endings else None


class Effect(NamedTuple):
    """What a store that compares fences was told."""

    at: int
    job: str
    object: str
    tick: int
    fence: int
    accepted: bool


class Stall(NamedTuple):
    """A time in which a process could not act, or knew that it must not."""

    process: str
    begin: int
    end: int
    kind: str


class Window(NamedTuple):
    """A time in which a fault, or what it left behind, was about."""

    begin: int
    end: int
    kind: str
    #: Others make up for it; only of objects with a time of their own in the
    #: period a tick may be overtaken by the next one.
    mild: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Policy:
    """What a job promises."""

    job: str
    period: int
    #: Each tick runs, however late: misfire=all, overlap=wait.
    every: bool = False
    #: Each object has a time of its own in the period.
    phased: bool = False
    at_most_once: bool = False
    #: Attempts after which it is given up.
    most: int = 1 << 30


@dataclasses.dataclass
class Record:
    """All that is known of one stretch of a cluster's life."""

    begin: int
    end: int
    policies: dict[str, Policy]
    expected: list[Key]
    runs: list[Run]
    claims: dict[Key, Claim]
    effects: list[Effect]
    stalls: list[Stall]
    windows: list[Window]
    #: By when what was claimed must have ended, and a due tick be claimed.
    patience: int


class Finding(NamedTuple):
    """A promise that was broken."""

    kind: str
    text: str

    def __str__(self) -> str:
        return f'{self.kind}: {self.text}'


def check(record: Record) -> list[Finding]:
    """Everything that is wrong with *record*."""
    return [
        *lost(record), *doubled(record.claims.values()),
        *overlaps(record.runs, record.stalls),
        *fences(record), *unended(record), *attempts(record),
        *stale(record.runs)]


def _seconds(record: Record, instant: int) -> str:
    return f'{(instant - record.begin) / SECOND:.3f}'


class _Windows:
    """Whether a time touches any of many windows."""

    def __init__(self, windows: Iterable[Window]):
        merged: list[list[int]] = []
        for window in sorted(windows):
            if merged and window.begin <= merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], window.end)
            else:
                merged.append([window.begin, window.end])
        self._begins = [begin for begin, _ in merged]
        self._ends = [end for _, end in merged]

    def touch(self, begin: int, end: int) -> bool:
        at = bisect.bisect_right(self._begins, end) - 1
        return at >= 0 and self._ends[at] >= begin


def classify(record: Record) -> dict[Key, str]:
    """What became of each expected tick."""
    windows = _Windows(one for one in record.windows if not one.mild)
    mild = _Windows(one for one in record.windows if one.mild)
    by_object: dict[tuple[str, str], list[Claim]] = (
        collections.defaultdict(list))
    for claim in record.claims.values():
        by_object[claim.job, claim.object].append(claim)
    for claims in by_object.values():
        claims.sort(key=lambda claim: claim.tick)
    classes: dict[Key, str] = {}
    for key in record.expected:
        claim = record.claims.get(key)
        if claim is not None:
            classes[key] = claim.endings[-1][1] if claim.endings else 'open'
            continue
        job, name, tick = key
        policy = record.policies[job]
        claims = by_object.get((job, name), [])
        if policy.every and claims and claims[0].tick < tick:
            classes[key] = 'lost'
        elif windows.touch(tick, tick + 2 * policy.period):
            classes[key] = 'skipped'
        elif not policy.every and any(
                one.tick < tick and (one.ended is None or one.ended > tick)
                for one in claims):
            # An earlier run went on: the overlap policy.
            classes[key] = 'skipped'
        elif (policy.phased and mild.touch(tick, tick + 2 * policy.period)
              and (job, name, tick - policy.period) in record.claims):
            classes[key] = 'skipped'
        else:
            classes[key] = 'lost'
    return classes


def lost(record: Record) -> list[Finding]:
    """Ticks that nobody claimed and nothing accounts for; ticks of jobs that
    promise each of them, and that were passed over.
    """
    found = []
    for (job, name, tick), what in classify(record).items():
        text = f'{job} {name} tick {_seconds(record, tick)}'
        if what == 'lost':
            found.append(Finding('lost', f'{text} was never claimed'))
        elif what in ('superseded', 'cancelled', 'skipped') and (
                record.policies[job].every):
            found.append(Finding('lost', f'{text} ended as {what}'))
    return found


def doubled(claims: Iterable[Claim]) -> list[Finding]:
    """Claims that came to more than one end, or were claimed as new twice."""
    found = []
    for claim in claims:
        text = f'{claim.job} {claim.object} tick {claim.tick}'
        done = [ending for ending in claim.endings if ending[1] == 'done']
        if len(done) > 1:
            found.append(Finding('doubled', f'{text} done {len(done)} times'))
        elif len(claim.endings) > 1:
            found.append(Finding(
                'doubled', f'{text} ended as {claim.endings}'))
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
    """Runs of one object that began while another went on, in a process
    that was not stopped and was sure of its lease.
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
                    f'{run.job} {run.object}: {_told(one)} goes on at '
                    f'the start of {_told(run)}')))
        others.append(run)
    return found


def stale(runs: Iterable[Run]) -> list[Finding]:
    """Runs that began though their claim was not theirs any more."""
    return [Finding('stale', f'{run.job} {run.object}: {_told(run)}')
            for run in runs if run.stale]


def _told(run: Run) -> str:
    end = 'now' if run.end is None else f'{run.end / SECOND:.4f}'
    return (f'[tick {run.tick / SECOND:.0f} fence {run.fence} attempt '
            f'{run.attempt} on {run.process} from '
            f'{run.start / SECOND:.4f} to {end}]')


def fences(record: Record) -> list[Finding]:
    """Fences that did not grow, or were run under more than once."""
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
    """Claims that had all the time they need and came to no end."""
    return [
        Finding('unended', (
            f'{claim.job} {claim.object} tick '
            f'{_seconds(record, claim.tick)}, claimed at '
            f'{_seconds(record, claim.at)}, granted {claim.grants}'))
        for claim in record.claims.values()
        if not claim.endings and claim.at < record.end - record.patience]


def attempts(record: Record) -> list[Finding]:
    """Claims that ran more often than they may."""
    found = []
    runs = collections.Counter(run.key for run in record.runs)
    for run in record.runs:
        if run.attempt > record.policies[run.job].most:
            found.append(Finding('attempts', _told(run)))
    for key, number in runs.items():
        if number > 1 and record.policies[key[0]].at_most_once:
            found.append(Finding(
                'attempts', f'{key} ran {number} times, at most once'))
    return found
