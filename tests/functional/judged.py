# SPDX-License-Identifier: Apache-2.0
"""Judges the runs of a cluster of real processes with the checker of the
tests.

The handlers record their runs. If a (job, object, tick) has several recorded
ends, only the end with the newest fence counts. A store that compares fences
would keep the same end. An older end also counts, and so is a finding, unless
its run may be repeated; see :func:`record`. The history of the store must have
the same totals.
"""

import collections

import sqlalchemy as sa

from distperiodic.adapters.sql import database
from distperiodic.adapters.sql import tables
from tests import checker
from tests import excused
from tests import waiting

_FOREVER = 1 << 62


def us(seconds):
    return round(seconds * checker.SECOND)


def killed(pids, at):
    """Return the stalls of processes that were killed at *at*."""
    return [checker.Stall(str(pid), us(at), _FOREVER, 'killed')
            for pid in pids]


def frozen(pid, begin, end):
    return checker.Stall(str(pid), us(begin), us(end), 'frozen')


def record(cluster, first, last, *, stalls=(), repeats=None, windows=(),
           committed=()):
    """Return the record of the job ``ping`` of *cluster* between two ticks.

    :param repeats: function that returns whether a run that has ended may be
        repeated, because its process could not report the end. None means that
        the runs of the processes in *stalls* may be repeated.
    :param windows: (begin, end) of each fault that explains unclaimed ticks,
        in seconds.
    :param committed: (object, tick, fence) of runs that committed their effect
        and their end together. The process of such a run may have died before
        it recorded the end.
    """
    stopped = {stall.process for stall in stalls}
    if repeats is None:
        def repeats(run):
            return str(run.pid) in stopped
    period = us(cluster.default['spacing'])
    ends = {(r.object, r.tick, r.fence): r for r in cluster.runs('end')}
    runs, claims = [], {}
    newest = collections.Counter()
    for line in sorted(cluster.runs(), key=lambda run: run.at):
        if not first <= line.tick <= last:
            continue
        end = ends.get((line.object, line.tick, line.fence))
        key = line.job, line.object, us(line.tick)
        runs.append(checker.Run(
            *key, line.fence, line.attempt, str(line.pid), us(line.at),
            us(end.at) if end else None, 'done' if end else ''))
        claim = claims.get(key)
        if claim is None:
            claim = claims[key] = checker.Claim(*key, us(line.at))
        claim.grants.append(line.fence)
        newest[key] = line.fence
        if end is None and (
                line.object, line.tick, line.fence) in committed:
            claim.counted.append(line.fence)
            claim.endings.append((us(line.at), 'done'))
    for line in sorted(ends.values(), key=lambda run: run.at):
        key = line.job, line.object, us(line.tick)
        if key in claims and (
                line.fence == newest[key] or not repeats(line)):
            claims[key].counted.append(line.fence)
            claims[key].endings.append((us(line.at), 'done'))
    ticks = range(us(first), us(last) + 1, period)
    expected = [('ping', f'192.168.10.{n}', tick) for tick in ticks
                for n in range(cluster.default['objects'])]
    now = max((run.start for run in runs), default=us(last))
    return excused.Record(
        us(first), now, {'ping': excused.Policy(
            'ping', every=cluster.default['misfire'] == 'all',
            period=period)},
        runs, claims, [], list(stalls), period, expected,
        [excused.Window(us(begin), us(end), 'away')
         for begin, end in windows])


def assert_kept(cluster, first, last, **about):
    """Assert that no run is lost or repeated, that no runs overlap, and that
    the history has the right totals.
    """
    found = record(cluster, first, last, **about)
    assert found.runs
    findings = [str(finding) for finding in excused.check(found)]
    assert not findings, '\n'.join(findings[:20])
    due = len(found.expected)
    # The last results may not have arrived yet.
    waiting.wait_until(
        lambda: _totals(cluster, first, last) == (due, due), 15,
        f'the history does not reach {due} due and ended', interval=0.2)


def _totals(cluster, first, last):
    """Return how many objects were due in these ticks, and how many ended."""
    told = [of for tick, of in account(cluster).items()
            if us(first) <= tick <= us(last)]
    return (sum(of['due'] for of in told),
            sum(of[name] for of in told for name in (
                'done', 'dead', 'skipped', 'superseded', 'cancelled')))


def account(cluster, job='ping'):
    """Return the history of a job, summed over its members, by tick."""
    engine = database.make_engine(cluster.connection)
    history = tables.history
    columns = [history.c[name] for name in (
        'due', 'done', 'dead', 'skipped', 'superseded', 'cancelled',
        'retried', 'taken_over')]
    with engine.connect() as connection:
        rows = connection.execute(
            sa.select(history.c.tick, *(
                sa.func.sum(column).label(column.name)
                for column in columns))
            .join(tables.job, tables.job.c.id == history.c.job)
            .where(tables.job.c.space == cluster.group,
                   tables.job.c.name == job)
            .group_by(history.c.tick)).mappings().all()
    engine.dispose()
    return {row['tick']: dict(row) for row in rows}
