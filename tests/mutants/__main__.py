# SPDX-License-Identifier: Apache-2.0
"""Plant bugs in the product, and print which tests catch them.

``python -m tests.mutants --jobs 2`` tries all bugs. ``--only TEXT`` tries the
bugs with this text in their name or file.
"""

import argparse
import collections
import concurrent.futures
import signal
import sys
import time

from tests.mutants import known
from tests.mutants.bug import bugs as all_bugs
from tests.mutants.runner import Runner

_SLOW = 'functional'


def main(arguments=None):
    parser = argparse.ArgumentParser('python -m tests.mutants')
    parser.add_argument('--only', metavar='TEXT', action='append', default=[],
                        help='bugs with this text in their name or file')
    parser.add_argument('--jobs', type=int, default=2)
    parser.add_argument('--list', action='store_true')
    parser.add_argument('--record', action='store_true',
                        help='record which test caught each bug; later trials '
                        'of the bug begin with this test')
    options = parser.parse_args(arguments)
    bugs = [bug for bug in all_bugs() if not options.only or any(
        text in f'{bug.name} {bug.path}' for text in options.only)]
    if not bugs:
        parser.error('there is no bug of that name')
    if options.list:
        for bug in bugs:
            print(f'{bug.name}\n    {bug.path}: {", ".join(bug.suites)}')
        return 0
    # A SIGTERM raises KeyboardInterrupt, and so ends all child processes.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    began = time.monotonic()
    outcomes = []
    for one in _tried(bugs, options.jobs):
        outcomes.append(one)
        if options.record and one.caught:
            known.record(one.bug.name, one.suite, one.told)
    _summarise(outcomes, time.monotonic() - began)
    return 0 if all(one.caught for one in outcomes) else 1


def _tried(bugs, jobs):
    """Yield the outcomes, and print each as soon as it is known."""
    runner = Runner()
    width = max(len(bug.name) for bug in bugs)
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        try:
            for one in pool.map(runner.try_bug, bugs):
                print(f'{one.bug.name:{width}}  {one.seconds:6.1f} s  '
                      f'{one.suite or "-":24}  {one.told}', flush=True)
                yield one
        finally:
            runner.stop()


def _summarise(outcomes, seconds):
    suites = collections.Counter(
        one.suite.partition(' ')[0] for one in outcomes if one.caught)
    for suite, number in suites.most_common():
        print(f'{number:4}  {suite}')
    caught = suites.total()
    slow = sum(number for suite, number in suites.items()
               if suite.startswith(_SLOW))
    print(f'{len(outcomes)} bugs: {caught} caught, {caught - slow} of them '
          f'without a functional test; {seconds:.0f} s')
    for one in outcomes:
        if not one.caught:
            print(f'NOT CAUGHT: {one.bug.name} ({one.bug.path}): {one.told}')


if __name__ == '__main__':
    sys.exit(main())
