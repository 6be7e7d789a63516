# SPDX-License-Identifier: Apache-2.0
"""There is more work than the workers can do, for minutes.

Each run takes two seconds, so that a period has more due objects than the
slots can run. No other fault disturbs the world.
"""

import collections
import itertools

import pytest

from distperiodic.core import schedule
from tests import checker
from tests.oracle.facts import SECOND
from tests.simulation import draws
from tests.simulation.cluster import Cluster

_PERIOD, _TAKES = 4, 2.0
#: Seconds until the overload lasts, and from then on the longest time for
#: which a slot may be free.
_BEGUN, _IDLE = 15, 1.0
_OVERLOADED = dict(
    long=False, slots=2, lease=10.0, session=5.0, batch_size=500,
    late_after=2.5, sweep=1.0, faults=[], noise=[], takes=_TAKES)


def unfair(cluster, together):
    """Yield a finding for each owner whose objects did not take turns: one of
    them began two more runs than another.

    :param together: Seconds within which runs that were sent one after the
        other may begin in any order.
    """
    counts = collections.defaultdict(collections.Counter)
    for job, key in cluster.catalogues.listings:
        counts[job, cluster.owner_of(job, key)][key] = 0
    uneven = {}
    for run in cluster.runs:
        owner = run.job, cluster.owner_of(run.job, run.object)
        runs = counts[owner]
        runs[run.object] += 1
        if max(runs.values()) <= 1 + min(runs.values()):
            uneven.pop(owner, None)
        elif run.start > uneven.setdefault(
                owner, run.start) + together * SECOND:
            yield checker.Finding('unfair', f'{owner}: {dict(runs)}')


def idle(cluster):
    """Yield a finding for each time for which a slot was free too long."""
    by_process = collections.defaultdict(list)
    for run in cluster.runs:
        by_process[run.process].append(run)
    for process, runs in by_process.items():
        slots = cluster.slots.get(
            process.partition('~')[0], cluster.setup.slots)
        changes = sorted(itertools.chain(
            ((run.start, 1) for run in runs),
            ((run.end, -1) for run in runs if run.end is not None)))
        busy = 0
        for (at, change), (until, _) in itertools.pairwise(changes):
            busy += change
            if (at > cluster.world.begin + _BEGUN * SECOND
                    and busy < slots
                    and until - at > _IDLE * SECOND):
                yield checker.Finding('idle', (
                    f'{process}: {busy} runs from {at} to {until}'))


@pytest.mark.parametrize(('name', 'local', 'schedulers', 'workers'), [
    *((name, True, 1, 0) for name in ('latest', 'skip', 'all', 'spread')),
    *((name, False, 1, 1) for name in ('latest', 'skip', 'all', 'spread')),
    ('latest', True, 3, 0), ('latest', False, 3, 2), ('spread', False, 3, 2)])
def test_objects_take_turns_and_no_slot_idles(
        name, local, schedulers, workers):
    job = draws.job_of(name, schedule.Every(_PERIOD))
    cluster = Cluster(3, jobs={name: job}, tasks=False, **_OVERLOADED | dict(
        local=local, schedulers=schedulers, workers=workers,
        objects=9 * (schedulers if local else workers)))
    # The pools of schedulers may differ.
    cluster.slots['s2'] = 3
    cluster.run()
    # If several schedulers share the workers, a run may wait at a worker until
    # the run of another scheduler ends.
    together = 0.1 if local or schedulers == 1 else _TAKES

    assert len(cluster.runs) > 100
    assert [*unfair(cluster, together), *idle(cluster)] == []
