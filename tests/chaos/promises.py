# SPDX-License-Identifier: Apache-2.0
"""What the oracle needs to know of real processes.

It is the oracle of the simulation, with what is known of a cluster of real
processes. A scheduler counts as unable to claim during a fault of the ensemble
or the store, and during a fault of its own and while it starts again. The
other schedulers must claim its ticks meanwhile. Nothing else is excused: the
reason of each skip must be true at all times.
"""

from oslo_config import cfg

from distperiodic import opts
from distperiodic.core import schedule
from tests.chaos import jobs
from tests.chaos.cluster import POINTS
from tests.chaos.cluster import SCHEDULERS
from tests.chaos.cluster import SESSION
from tests.chaos.cluster import SWEEP
from tests.oracle import fates
from tests.oracle.facts import SECOND
from tests.oracle.facts import Bounds
from tests.oracle.facts import Entry
from tests.oracle.facts import Facts
from tests.oracle.facts import Listed
from tests.oracle.facts import Reading
from tests.oracle.facts import Scheduler
from tests.oracle.facts import Span

#: Guarantee G4: a due tick is claimed so long after the later of its due time
#: and the moment from which somebody is able to.
PROMISE = SESSION + 1.0
#: The same, if the owner of the object is able to claim it.
PROMPT = 1.0
#: How long a process may take to do what is due on a machine that is busy.
SLACK = 2.0
#: How long a scheduler takes to start again after a fault of its own.
START = 6.0
#: Servers without which no scheduler claims.
_NEEDED = frozenset(['zookeeper', 'postgresql'])


def judge(record, moves, hosts):
    """What became of all that was due.

    :param record: see :class:`tests.chaos.books.Record`; its end is when the
        last move was read.
    :param moves: of the journal.
    :param hosts: pid to the host that it was on.
    :returns: a :class:`tests.oracle.fates.Oracle`.
    """
    return fates.judge(_facts(record, moves, hosts),
                       record.claims, record.skips)


def _facts(record, moves, hosts):
    # What was listed before the cluster was calm may run, and need not.
    begin = min((row.at for row in moves), default=record.begin)
    tasks = jobs.make_tasks(_conf(), None)
    listings = {
        (job, key): [Listed(begin, True, _rule(job, key))]
        for job in jobs.POLICIES for key in jobs.objects_of(job)}
    return Facts(
        begin, record.end,
        Bounds(*(int(seconds * SECOND) for seconds in (
            PROMPT + SLACK, PROMISE + SLACK, SWEEP + SLACK,
            SLACK))),
        [Scheduler(
            name, name, tasks.jobs, record.begin,
            unable=[Span(one.begin, one.end + _after(one),
                         one.kind)
                    for one in record.windows if _befell(one, name, hosts)])
         for name in SCHEDULERS],
        [(begin, tuple(Entry(name, name, POINTS)
                       for name in SCHEDULERS))],
        {name: [(begin, job)] for name, job in tasks.jobs.items()}, listings,
        {job: [Reading(record.begin, name, record.begin,
                       frozenset(jobs.objects_of(job)))
               for name in SCHEDULERS] for job in jobs.POLICIES})


def _after(window):
    """Return the microseconds for which a fault has an effect afterwards."""
    return 0 if window.befell & _NEEDED else int(START * SECOND)


def _befell(window, name, hosts):
    return bool(window.befell & (_NEEDED | {name})) or any(
        hosts.get(one) == name for one in window.befell)


def _rule(job, key):
    spacing = jobs.spacing_of(job, key)
    return schedule.Every(spacing) if spacing else None


def _conf():
    conf = cfg.ConfigOpts()
    opts.register_opts(conf)
    conf([])
    return conf
