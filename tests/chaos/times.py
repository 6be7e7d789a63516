# SPDX-License-Identifier: Apache-2.0
"""How long it took until others took over, and until all was as before.

Taken from the journal, by the clock of the store: from the moment at which a
process was killed or stopped to the next grant of what it ran, and from the
end of the last fault to the last claim that was late because of it.
"""

import bisect
import collections
from typing import Any
from typing import NamedTuple

from tests import checker
from tests.chaos import jobs
from tests.chaos import journal
from tests.chaos.cluster import LEASE
from tests.chaos.cluster import SESSION
from tests.chaos.cluster import SWEEP

SECOND = checker.SECOND

#: Seconds until work of a dead worker is granted anew, where nothing else
#: keeps anybody from it: its session is over, by ZooKeeper's ticks of half a
#: second, the next sweep has come, and somebody was sent the work and has
#: begun. The last takes its time here, with eight processes to a processor.
TAKE_OVER = min(LEASE, SESSION) + 1.0 + SWEEP + 1.5
#: Seconds until all is as before after the last fault: what was started last
#: has joined, the longest lease is over, and what waited has run.
RECOVERY = SESSION + LEASE + 10.0
#: A claim that is so late shows that not all is well, in microseconds.
LATE = 2.5 * SECOND
# What was over so long before a death has nothing to do with it.
_NEAR = 5 * SECOND
# Jobs whose claims are late for other reasons: their own phase, an earlier
# run, or ticks that they have missed and run one after the other.
_SLOW = ('spread', 'wait', 'slow', 'all', 'each', 'narrow')


class TakeOver(NamedTuple):
    """What ran in a process when it died, and was granted anew."""

    seconds: float
    #: Whether no other fault was about.
    alone: bool
    #: Of the journal.
    row: Any


def take_overs(moves, deaths, windows):
    """What was running in processes at their death, and was granted anew.

    :param deaths: (microseconds, host): times at which one died or stopped.
    """
    running = collections.defaultdict(list)  # host to (from, until, claim)
    begun = {}
    next_grant = collections.defaultdict(list)
    for row in moves:
        pair = row.job, row.object
        state = journal.STATES[row.state]
        if state == 'running':
            next_grant[(*pair, row.tick)].append(row.at)
        before = begun.pop(pair, None)
        if before is not None:
            running[before.worker.partition('~')[0]].append(
                (before.at, row.at, before))
        if state == 'running':
            begun[pair] = row
    found = []
    for at, host in deaths:
        for begin, end, row in running[host]:
            if not begin < at < end:
                continue
            grants = next_grant[row.job, row.object, row.tick]
            i = bisect.bisect_right(grants, at)
            if i < len(grants):
                seconds = (grants[i] - at) / SECOND
                near = [window for window in windows
                        if window.begin <= grants[i]
                        and window.end >= at - _NEAR]
                found.append(TakeOver(seconds, len(near) <= 1, row))
    return found


def check(moves, deaths, windows, record, healed):
    """Where it took longer than it may."""
    found = [checker.Finding('take-over', (
        f'{one.row.job} {one.row.object} tick {one.row.tick} of '
        f'{one.row.worker} after {one.seconds:.1f} s'))
        for one in take_overs(moves, deaths, windows)
        if one.alone and one.seconds > TAKE_OVER]
    seconds = ended(record, healed)
    if seconds > RECOVERY:
        found.append(checker.Finding('recovery', (
            f'the last end of a claim came {seconds:.1f} s after the last '
            'fault')))
    return found


def recovery(record, healed):
    """Seconds from the end of the last fault to the last late claim."""
    late = [claim.at for claim in record.claims.values()
            if claim.at > healed and claim.job not in _SLOW
            and claim.at - claim.tick > LATE]
    return (max(late, default=healed) - healed) / SECOND


def ended(record, healed):
    """Seconds to the last end of what was claimed before that moment."""
    ends = [claim.ended for claim in record.claims.values()
            if claim.at < healed and claim.ended and claim.ended > healed
            and claim.job not in _SLOW]
    return (max(ends, default=healed) - healed) / SECOND


def lateness(record):
    """Job to how late its claims were, in seconds, of those outside all
    faults.
    """
    found = collections.defaultdict(list)
    for claim in record.claims.values():
        if claim.job in jobs.POLICIES and not any(
                window.begin <= claim.at and claim.tick <= window.over
                for window in record.windows):
            found[claim.job].append((claim.at - claim.tick) / SECOND)
    return found


def spread(values):
    """Median, 99th percentile and greatest of some numbers, as text."""
    if not values:
        return 'none'
    some = sorted(values)
    return (f'{len(some)} of them, median {some[len(some) // 2]:.2f}, '
            f'99 % {some[int(len(some) * 0.99)]:.2f}, '
            f'most {some[-1]:.2f}')
