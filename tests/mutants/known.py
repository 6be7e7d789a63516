# SPDX-License-Identifier: Apache-2.0
"""For each bug, the test that caught it before.

This test is tried first, because a whole suite takes a long time. If it no
longer catches the bug, all suites of the bug are tried, as for a new bug.

Each line of ``caught.csv`` has a bug, a suite, and a test or seed of the
suite.
"""

import csv
import pathlib

CAUGHT = pathlib.Path(__file__).with_name('caught.csv')


def read(path=CAUGHT):
    """Return a dict from each bug to (suite, test)."""
    if not path.exists():
        return {}
    with path.open(newline='') as file:
        return {name: (suite, test) for name, suite, test in csv.reader(file)}


def record(name, suite, test, path=CAUGHT):
    """Record that *test* caught the bug, so that it is tried first."""
    caught = read(path)
    caught[name] = suite, test
    with path.open('w', newline='') as file:
        csv.writer(file, lineterminator='\n').writerows(
            (name, *caught[name]) for name in sorted(caught))
