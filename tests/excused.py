# SPDX-License-Identifier: Apache-2.0
"""Classification of the due ticks of real processes, where a fault may excuse
a tick that was not claimed.

With real processes, it is not known to the millisecond which process was able
to claim a tick. So a tick near a fault may be missed. :mod:`tests.oracle`,
which judges the simulation and the chaos suite, excuses no such miss.
"""

import bisect
import collections
import dataclasses
from collections.abc import Iterable
from typing import NamedTuple

from distperiodic.core import audit
from distperiodic.core import outcomes
from distperiodic.core.claim import State
from distperiodic.core.outcomes import Fate
from tests import checker


class Window(NamedTuple):
    """An interval in which a fault, or an effect of the fault, may excuse a
    miss.
    """

    begin: int
    end: int
    kind: str


@dataclasses.dataclass(frozen=True, slots=True)
class Policy(checker.Policy):
    """The guarantees of a job, and the spacing of its ticks."""

    period: int = 0


@dataclasses.dataclass
class Record(checker.Record):
    """A record with the ticks that were expected, and the times of faults."""

    # The base class declares a wider type, but never assigns the attribute.
    policies: dict[str, Policy]  # type: ignore[assignment]
    expected: list[checker.Key] = dataclasses.field(default_factory=list)
    windows: list[Window] = dataclasses.field(default_factory=list)


class _Windows:
    """Merged windows, to find quickly whether an interval overlaps a window.
    """

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


def classify(record: Record) -> dict[checker.Key, Fate]:
    """Return the class of each expected tick.

    The class comes from ``audit.classify``, which also classifies the ticks in
    a store.
    """
    windows = _Windows(record.windows)
    by_object: dict[tuple[str, str], list[checker.Claim]] = (
        collections.defaultdict(list))
    for claim in record.claims.values():
        by_object[claim.job, claim.object].append(claim)
    for claims in by_object.values():
        claims.sort(key=lambda claim: claim.tick)
    classes: dict[checker.Key, Fate] = {}
    for key in record.expected:
        claim = record.claims.get(key)
        if claim is not None:
            fates = audit.classify(claim.counts)
        elif accounted_for(key, by_object, windows, record):
            fates = audit.classify(checker.counts_of([State.SKIPPED]))
        else:
            fates = audit.classify(outcomes.Counts(), lost=1)
        classes[key] = (Fate.UNEXPLAINED if fates[Fate.UNEXPLAINED]
                        else next(iter(fates)))
    return classes


def accounted_for(
        key: checker.Key,
        by_object: dict[tuple[str, str], list[checker.Claim]],
        windows: _Windows, record: Record) -> bool:
    """Return True if a policy or a fault explains that a tick was not claimed.
    """
    job, name, tick = key
    policy = record.policies[job]
    claims = by_object.get((job, name), [])
    if policy.every and claims and claims[0].tick < tick:
        return False
    if windows.touch(tick, tick + 2 * policy.period):
        return True
    # The overlap policy explains a miss during an earlier run.
    return not policy.every and any(
        one.tick < tick and (one.ended is None or one.ended > tick)
        for one in claims)


def lost(record: Record) -> list[checker.Finding]:
    """Find ticks that were not claimed, without any explanation."""
    return [
        checker.Finding('lost', f'{job} {name} tick '
                        f'{checker.seconds(record, tick)} was never claimed')
        for (job, name, tick), what in classify(record).items()
        if what is Fate.LOST]


def check(record: Record) -> list[checker.Finding]:
    """Return all violations in *record*, and its lost ticks."""
    return [*lost(record), *checker.check(record)]
