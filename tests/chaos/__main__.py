# SPDX-License-Identifier: Apache-2.0
"""Run a cluster with faults: ``python -m tests.chaos --minutes 20 --seed 7``.
"""

import argparse
import pathlib
import shutil
import sys
import tempfile

from tests.chaos import life
from tests.chaos import plan
from tests.chaos import report
from tests.chaos.buses import BUSES

#: Kinds of faults of each group. The empty name stands for all kinds.
GROUPS = {'': plan.EVERY, 'bus': plan.OF_THE_BUS,
          'standby': plan.OF_STANDBY}


def replay(seed, minutes, bus, only=(), dense=False, group=''):
    """Return the command that repeats the faults of *seed*."""
    return (f'python -m tests.chaos --bus {bus.name} --seed {seed} '
            f'--minutes {minutes:g}'
            + ' --dense' * dense + f' --{group}-only' * bool(group)
            + ''.join(f" --only '{kind}'" for kind in only))


def main(arguments=None):
    parser = argparse.ArgumentParser('python -m tests.chaos')
    parser.add_argument('--bus', choices=sorted(BUSES), default='rabbitmq',
                        help='the bus between schedulers and workers')
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--minutes', type=float, default=3.0,
                        help='minutes in which faults begin and end; the '
                        'start, the calm before the faults and the recovery '
                        'take about 70 s more. All times of a life are '
                        'longer on a slow machine')
    parser.add_argument('--only', action='append', default=[],
                        help='a kind of fault; the others are left out')
    parser.add_argument('--dense', action='store_true',
                        help='start a fault about every 2 s, not every 6 s')
    parser.add_argument('--bus-only', action='store_const', const='bus',
                        dest='group', default='',
                        help='draw faults of the bus and its messages, '
                        'deaths of processes, stops of processes at a step, '
                        'kills of all servers, and replacements of the active '
                        'worker')
    parser.add_argument('--standby-only', action='store_const',
                        const='standby', dest='group',
                        help='draw faults of workers, faults of the servers '
                        'on which the election of the active worker depends, '
                        'deaths and stops of processes at a step, rolling '
                        'restarts, and choices of an operator')
    parser.add_argument('--place', type=pathlib.Path,
                        help='a directory for logs and records, which stay')
    options = parser.parse_args(arguments)
    place = options.place or pathlib.Path(
        tempfile.mkdtemp(prefix='distperiodic-chaos-'))
    place.mkdir(parents=True, exist_ok=True)
    bus = BUSES[options.bus]
    lived = life.live(
        place, options.seed, 60 * options.minutes, bus, options.only,
        plan.DENSE if options.dense else plan.LOOSE,
        GROUPS[options.group],
        tell=lambda text: print(text, flush=True))
    text = report.report(lived)
    (place / 'report.txt').write_text(text + '\n')
    print(text)
    if lived.findings:
        again = replay(options.seed, options.minutes, bus, options.only,
                       options.dense, options.group)
        print(f'all logs and records: {place}\n'
              f'to have the same faults again: {again}')
        return 1
    if options.place is None:
        shutil.rmtree(place)
    return 0


if __name__ == '__main__':
    sys.exit(main())
