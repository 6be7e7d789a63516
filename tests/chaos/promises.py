# SPDX-License-Identifier: Apache-2.0
"""What the oracle needs to know of real processes.

It is the oracle of the simulation, with what is known of a cluster of real
processes. A scheduler counts as unable to claim while a fault befalls it, its
ensemble or its store, and for as long afterwards as what the fault left
behind may take. Meanwhile the others have to claim what it does not. Nothing
else is excused: whenever a tick is given up, its reason has to be true.
"""

from oslo_config import cfg

from distperiodic import opts
from distperiodic.core import schedule
from tests.chaos import cluster as cluster_
from tests.chaos import jobs
from tests.oracle import facts as facts_
from tests.oracle import fates

SECOND = facts_.SECOND

#: Guarantee G4: a due tick is claimed so long after the later of its due time
#: and the moment from which somebody is able to.
PROMISE = cluster_.SESSION + 1.0
#: How long a process may take to do what is due on a machine that is busy.
SLACK = 2.0
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
        (job, key): [facts_.Listed(begin, True, _rule(job, key))]
        for job in jobs.POLICIES for key in jobs.objects_of(job)}
    return facts_.Facts(
        begin, record.end,
        facts_.Bounds(*(int(seconds * SECOND) for seconds in (
            PROMISE + SLACK, PROMISE + SLACK, cluster_.SWEEP + SLACK,
            SLACK))),
        [facts_.Scheduler(
            name, name, tasks.jobs, record.begin,
            unable=[facts_.Span(one.begin, one.end, one.kind)
                    for one in record.windows if _befell(one, name, hosts)])
         for name in cluster_.SCHEDULERS],
        [(begin, tuple(facts_.Entry(name, name, cluster_.POINTS)
                       for name in cluster_.SCHEDULERS))],
        {name: [(begin, job)] for name, job in tasks.jobs.items()}, listings,
        {job: [facts_.Reading(record.begin, name, record.begin,
                              frozenset(jobs.objects_of(job)))
               for name in cluster_.SCHEDULERS] for job in jobs.POLICIES})


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
