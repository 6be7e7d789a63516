# SPDX-License-Identifier: Apache-2.0
"""Duration of take-overs and of the recovery from faults.

The take-over of a run lasts from the death or stop of its process to the next
grant of its claim. The recovery begins at the end of the last fault. Its end
is measured in two ways: by the last late claim (:func:`recovery`), and by the
end of the last claim from before the recovery (:func:`ended`). Only the second
measurement has a limit. The times of grants and claims are from the journal,
by the store's clock.
"""

import bisect
import collections
from typing import Any
from typing import NamedTuple

from tests import checker
from tests.chaos import jobs
from tests.chaos import journal
from tests.chaos import pace
from tests.chaos.cluster import LEASE
from tests.chaos.cluster import SESSION
from tests.chaos.cluster import SWEEP
from tests.chaos.pace import PACE

SECOND = checker.SECOND

#: Seconds within which the claims of a dead worker are granted again, if there
#: is no other fault. First, the worker's session or lease expires. ZooKeeper
#: detects an expired session up to 1 s later, because its clock has ticks of
#: 0.5 s. The next sweep then finds the claims. Another worker receives the
#: work and starts it within 1.5 s. The 1.5 s are long because all processes
#: share two processors.
TAKE_OVER = min(LEASE, SESSION) + SWEEP + (1.0 + 1.5) * PACE
#: Seconds within which the cluster recovers after the last fault: the last
#: process that was started has joined, the longest lease has expired, and the
#: waiting work has run.
RECOVERY = SESSION + LEASE + 10.0 * PACE
#: A claim counts as late if it was acquired more than this number of
#: microseconds after its tick.
LATE = 2.5 * pace.SECOND
# If a fault ended more than this number of microseconds before the death of a
# process, it does not affect the take-over.
_NEAR = 5 * pace.SECOND
# Jobs whose claims may be late without a fault, because an object has a phase,
# because an earlier run has not ended, or because missed ticks run one after
# another.
_SLOW = ('spread', 'wait', 'slow', 'all', 'each', 'narrow')


class TakeOver(NamedTuple):
    """The take-over of a run whose process died or was stopped, and whose
    claim was granted again.
    """

    #: Seconds from the death or the stop to the next grant.
    seconds: float
    #: True if there was no second fault near this time.
    alone: bool
    #: The row of the interrupted run in the journal.
    row: Any


def take_overs(moves, deaths, windows):
    """Return the take-overs of runs whose process died or was stopped, and
    whose claim was granted again.

    :param moves: rows of the journal; see :func:`tests.chaos.journal.read`.
    :param deaths: (microseconds, host) of each death or stop of a process.
    :param windows: the times of the faults.
    """
    # For each host, (begin, end, row) of its runs.
    running = collections.defaultdict(list)
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
    """Find take-overs that took too long, and a recovery that took too long.
    """
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
    """Return the seconds from *healed* to the last late claim.

    The jobs in ``_SLOW`` are ignored, because their claims may be late without
    a fault.

    :param healed: end of the last fault, in microseconds.
    """
    late = [claim.at for claim in record.claims.values()
            if claim.at > healed and claim.job not in _SLOW
            and claim.at - claim.tick > LATE]
    return (max(late, default=healed) - healed) / SECOND


def ended(record, healed):
    """Return the seconds from *healed* to the last end of a claim that was
    acquired before *healed*.

    The jobs in ``_SLOW`` are ignored, because their claims may be late without
    a fault.

    :param healed: end of the last fault, in microseconds.
    """
    ends = [claim.ended for claim in record.claims.values()
            if claim.at < healed and claim.ended and claim.ended > healed
            and claim.job not in _SLOW]
    return (max(ends, default=healed) - healed) / SECOND


def lateness(record):
    """Return the delay of each claim that no fault affected, by job.

    A delay is the number of seconds from the tick to the claim.
    """
    found = collections.defaultdict(list)
    for claim in record.claims.values():
        if claim.job in jobs.POLICIES and not any(
                window.begin <= claim.at and claim.tick <= window.over
                for window in record.windows):
            found[claim.job].append((claim.at - claim.tick) / SECOND)
    return found


def spread(values):
    """Return the number, median, 99th percentile and maximum of *values*, as
    text.
    """
    if not values:
        return 'none'
    some = sorted(values)
    return (f'{len(some)} of them, median {some[len(some) // 2]:.2f}, '
            f'99 % {some[int(len(some) * 0.99)]:.2f}, '
            f'most {some[-1]:.2f}')
