# SPDX-License-Identifier: Apache-2.0
"""Simulate the worlds of many seeds: ``python -m tests.simulation --seeds
1000``.
"""

import argparse
import collections
import concurrent.futures
import functools
import hashlib
import os
import sys
import time

from tests import checker
from tests.simulation import planted
from tests.simulation import standby
from tests.simulation.cluster import SECOND
from tests.simulation.cluster import Cluster


def live(seed, bug=None, log=None, **given):
    """Simulate the world of one seed. Return its findings, counts, duration
    and digest.

    Some seeds have a second world, whose partition has one active worker.
    """
    if given.pop('standby', False):
        return _live(seed, bug, log, **{**standby.draw(seed), **given})
    result = _live(seed, bug, log, **given)
    if not given and bug is None and standby.have(seed):
        second = _live(seed, None, log, **standby.draw(seed))
        for what in 'findings', 'fates', 'runs', 'faults', 'worlds', 'seconds':
            result[what] += second[what]
    return result


def _live(seed, bug, log, **given):
    cluster = Cluster(seed, bug=bug, log=log, **given)
    record = cluster.run()
    oracle = cluster.judge()
    tasks = cluster.tasks
    found = [] if tasks is None else tasks.judge()
    if cluster.standby is not None:
        found = cluster.standby.findings
    text = repr([(r.key, r.start, r.end, r.process) for r in record.runs])
    setup = cluster.setup
    return {
        'seed': seed,
        'findings': [str(one) for one in [
            *checker.check(record), *oracle.findings, *found]],
        'fates': oracle.fates,
        'runs': collections.Counter(run.job for run in record.runs),
        'faults': collections.Counter(cluster.world.faults),
        'tasks': collections.Counter(
            {} if tasks is None else tasks.endings()),
        'worlds': collections.Counter([
            'long' if setup.long else 'short',
            'SQLite' if setup.sql else 'in memory',
            *(['with tasks'] if tasks else []),
            *(['standby'] if cluster.standby else [])]),
        'seconds': cluster.world.t / SECOND,
        'digest': hashlib.sha256(text.encode()).hexdigest()[:12],
    }


def replay(seed, bug=None, without=(), **given):
    """Return the command that simulates *seed* again, with a log."""
    more = ''.join([
        *(f' --{name}' for name, chosen in given.items() if chosen),
        *(f" --without '{fault}'" for fault in without),
        f" --bug '{bug}'" if bug else ''])
    return (f'python -m tests.simulation --from {seed} --seeds 1 '
            f'--log{more}')


def many(seeds, bug=None, processes=None, **given):
    """Simulate many seeds.

    :param processes: Number of processes. None means one for each processor.
    """
    processes = processes or os.cpu_count() or 1
    if processes == 1:
        yield from (live(seed, bug, **given) for seed in seeds)
        return
    with concurrent.futures.ProcessPoolExecutor(processes) as pool:
        yield from pool.map(
            functools.partial(live, bug=bug, **given), seeds,
            chunksize=4)


def main(arguments=None):
    parser = argparse.ArgumentParser('python -m tests.simulation')
    parser.add_argument('--seeds', type=int, default=1000)
    parser.add_argument('--from', type=int, default=1, dest='first')
    parser.add_argument('--log', action='store_true')
    parser.add_argument('--bug', choices=sorted(planted.BUGS))
    parser.add_argument('--processes', type=int)
    parser.add_argument('--without', action='append', default=[],
                        help='leave out a fault, such as: cut')
    parser.add_argument('--sql', action='store_true', default=None,
                        help='only worlds with the store in SQLite')
    parser.add_argument('--long', action='store_true', default=None,
                        help='only worlds with few ticks, which last about an '
                        'hour')
    parser.add_argument('--tasks', action='store_true', default=None,
                        help='only worlds with tasks')
    parser.add_argument('--standby', action='store_true', default=None,
                        help='only worlds with one active worker')
    options = parser.parse_args(arguments)
    began = time.perf_counter()
    seeds = range(options.first, options.first + options.seeds)
    log = print if options.log else None
    chosen = {name: getattr(options, name) for name in (
        'sql', 'long', 'tasks', 'standby', 'without')}
    given = {name: value for name, value in {
        **chosen, 'sql': options.sql or options.tasks}.items() if value}
    results = ((live(seed, options.bug, log, **given) for seed in seeds)
               if log else many(
                   seeds, options.bug, options.processes, **given))
    broken, seconds = 0, 0.0
    sums = {name: collections.Counter()
            for name in ('fates', 'runs', 'faults', 'tasks', 'worlds')}
    kinds = collections.Counter()
    for result in results:
        seconds += result['seconds']
        for what, number in sums.items():
            number.update(result[what])
        if result['findings']:
            broken += 1
            kinds.update({f.partition(':')[0] for f in result['findings']})
            print(f'seed {result["seed"]}: {len(result["findings"])} '
                  f'findings; '
                  + replay(result['seed'], options.bug, **chosen))
            for finding in result['findings'][:5 if not log else None]:
                print(f'    {finding}')
    took = time.perf_counter() - began
    for what, number in sums.items():
        print(f'{what}: ' + ', '.join(
            f'{key} {n}' for key, n in sorted(number.items())))
    print(f'{len(seeds)} seeds, {broken} broken {dict(kinds)}; '
          f'{seconds:.0f} s in {took:.1f} s: {seconds / took:.0f} times as '
          'fast as life')
    return 1 if broken else 0


if __name__ == '__main__':
    sys.exit(main())
