# SPDX-License-Identifier: Apache-2.0
"""The input of the oracle for a cluster of real processes.

The simulation uses the same oracle. Here a scheduler counts as unable to claim
during each fault of ZooKeeper or PostgreSQL. A scheduler also counts as unable
during a fault of its own host, and for :data:`START` seconds after that fault.
If ZooKeeper fails in this time, the entry of the dead process cannot expire,
so these seconds count again from the end of ZooKeeper's fault. If the broker
fails in this time, they count again, too, if the fault has restarted the
process: a scheduler joins its group when its broker has answered. If other
schedulers are able to claim during this time, they must claim the ticks of the
affected scheduler. There is no other excuse, and each skip must have a true
reason, even during a fault.
"""

from distperiodic.adapters.sql.column_types import STATE_CODES
from distperiodic.core import schedule
from distperiodic.core.claim import State
from tests.chaos import jobs
from tests.chaos.cluster import POINTS
from tests.chaos.cluster import SCHEDULERS
from tests.chaos.cluster import SESSION
from tests.chaos.cluster import SWEEP
from tests.chaos.pace import PACE
from tests.oracle import fates
from tests.oracle.facts import SECOND
from tests.oracle.facts import Bounds
from tests.oracle.facts import Entry
from tests.oracle.facts import Facts
from tests.oracle.facts import Listed
from tests.oracle.facts import Reading
from tests.oracle.facts import Scheduler
from tests.oracle.facts import Span

#: Guarantee G4: seconds within which a due tick is claimed. The seconds count
#: from the due time or, if that is later, from the moment when some scheduler
#: becomes able to claim the tick.
PROMISE = SESSION + 1.0 * PACE
#: Seconds within which the owner of an object claims a due tick. The seconds
#: count from the due time or, if that is later, from the moment when the owner
#: becomes able to claim the tick.
PROMPT = 1.0 * PACE
#: Seconds added to each limit, because a busy machine delays the processes.
SLACK = 2.0 * PACE
#: Seconds that a scheduler needs to start again after a fault of its own host.
START = 6.0 * PACE
_LISTED = STATE_CODES[State.LISTED]
#: Names of the servers that a scheduler needs to claim a tick.
_NEEDED = frozenset(['zookeeper', 'postgresql'])
#: Kinds of faults that restart schedulers.
_RESTARTS = frozenset([
    'scheduler killed', 'killed at a step', 'restart', 'log full'])


def judge(record, moves, hosts):
    """Judge all due ticks of a record.

    :param record: a :class:`tests.chaos.books.Record` that ends just before
        the journal was read.
    :param moves: rows of the journal; see :func:`tests.chaos.journal.read`.
    :param hosts: names of hosts by the pids of their processes.
    :returns: a :class:`tests.oracle.fates.Oracle`.
    """
    return fates.judge(_facts(record, moves, hosts),
                       record.claims, record.skips)


def _facts(record, moves, hosts):
    # The objects were listed before the record begins, while the cluster
    # started. Ticks from before the record may run, but the oracle does not
    # require their claims. An object is listed as of the reading of its
    # catalogue, which is earlier than the row.
    begin = min((row.settled if row.state == _LISTED else row.at
                 for row in moves), default=record.begin)
    declared = jobs.declared()
    listings = {
        (job, key): [Listed(begin, True, _rule(job, key))]
        for job in jobs.POLICIES for key in jobs.objects_of(job)}
    return Facts(
        begin, record.end,
        Bounds(*(int(seconds * SECOND) for seconds in (
            PROMPT + SLACK, PROMISE + SLACK, SWEEP + SLACK,
            SLACK))),
        [Scheduler(
            name, name, declared, record.begin,
            unable=[Span(one.begin, _over(one, record.windows), one.kind)
                    for one in record.windows if _befell(one, name, hosts)])
         for name in SCHEDULERS],
        [(begin, tuple(Entry(name, name, POINTS)
                       for name in SCHEDULERS))],
        {name: [(begin, job)] for name, job in declared.items()}, listings,
        {job: [Reading(record.begin, name, record.begin,
                       frozenset(jobs.objects_of(job)))
               for name in SCHEDULERS] for job in jobs.POLICIES})


def _over(window, windows):
    """Return the time until which a scheduler counts as unable to claim
    because of the fault of *window*.
    """
    if window.befell & _NEEDED:
        return window.end
    over = window.end + int(START * SECOND)
    needed = {'zookeeper'}
    if window.kind in _RESTARTS:
        needed.add('broker')
    for one in sorted(windows):
        if needed & one.befell and one.begin < over and (
                window.begin < one.end):
            over = max(over, one.end + int(START * SECOND))
    return over


def _befell(window, name, hosts):
    return bool(window.befell & (_NEEDED | {name})) or any(
        hosts.get(one) == name for one in window.befell)


def _rule(job, key):
    spacing = jobs.spacing_of(job, key)
    return schedule.Every(spacing) if spacing else None
