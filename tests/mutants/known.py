# SPDX-License-Identifier: Apache-2.0
"""Which test caught each bug before: it is tried first, since a whole suite
takes long. One that does not catch its bug any more excuses nothing: then all
suites of the bug are tried, as for one that is new.

A line of ``caught.csv`` is a bug, a suite, and the test or seed in it.
"""

import csv
import pathlib

CAUGHT = pathlib.Path(__file__).with_name('caught.csv')


def read(path=CAUGHT):
    """Bug to the suite that caught it, and the test."""
    if not path.exists():
        return {}
    with path.open(newline='') as file:
        return {name: (suite, test) for name, suite, test in csv.reader(file)}


def record(name, suite, test, path=CAUGHT):
    """Have it tried first from now on."""
    caught = read(path)
    caught[name] = suite, test
    with path.open('w', newline='') as file:
        csv.writer(file, lineterminator='\n').writerows(
            (name, *caught[name]) for name in sorted(caught))
