# SPDX-License-Identifier: Apache-2.0
"""The simulation finds each bug that is planted in the product."""

import functools

import pytest

from tests.simulation import __main__ as command
from tests.simulation import planted

# Number of seeds within which each planted bug must be found. Most bugs are
# found within three.
ENOUGH = 150
#: The first seed that finds a bug, for bugs that need many. A change of the
#: worlds or of the product may change it: then other seeds are tried.
FIRST = {
    'cursor moved by a stale fence': 6, 'late result counted': 6,
    'losses forgotten': 28, 'losses of steps forgotten': 9,
    'message before commit': 2, 'never again': 8, 'no compare at start': 39,
    'no fence': 5, 'no late claim': 8, 'one ring for all jobs': 9,
    'other jobs not counted': 18, 'runs not counted': 16, 'short lease': 6,
    'supersede what runs': 6, 'trust by name': 5}


#: Bugs that take three seconds or more until they are found.
SLOW = frozenset([
    'cursor moved by a stale fence', 'last comes first', 'late result counted',
    'losses of steps forgotten', 'message before commit', 'no fence',
    'supersede what runs'])


@functools.cache
def is_right(seed, given):
    """Return whether a world without a bug has no findings."""
    return not command.live(seed, **dict(given))['findings']


@pytest.mark.parametrize('bug', [
    pytest.param(bug, marks=pytest.mark.full if bug in SLOW else ())
    for bug in sorted(planted.BUGS)])
def test_a_planted_bug_is_found(bug):
    """If the simulation did not find a planted bug, it could also miss this
    bug in the product.
    """
    # Most bugs are planted in the store in memory, and show within minutes of
    # virtual time.
    given = {'sql': False, 'long': False, **planted.BUGS[bug].given}
    first = FIRST.get(bug, 1)
    assert any(
        command.live(seed, bug, **given)['findings']
        and is_right(seed, tuple(sorted(given.items())))
        for seed in (*range(first, ENOUGH + 1), *range(1, first)))
