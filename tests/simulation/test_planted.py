# SPDX-License-Identifier: Apache-2.0
"""The simulation finds each bug that is planted in the product."""

import pytest

from tests.simulation import __main__ as command
from tests.simulation import planted

# Number of seeds within which each planted bug must be found. Most bugs are
# found within three.
ENOUGH = 150


@pytest.mark.parametrize('bug', sorted(planted.BUGS))
def test_a_planted_bug_is_found(bug):
    """If the simulation did not find a planted bug, it could also miss this
    bug in the product.
    """
    # Most bugs are planted in the store in memory, and show within minutes of
    # virtual time.
    given = {'sql': False, 'long': False, **planted.BUGS[bug].given}
    assert any(
        command.live(seed, bug, **given)['findings']
        and not command.live(seed, **given)['findings']
        for seed in range(1, ENOUGH + 1))
