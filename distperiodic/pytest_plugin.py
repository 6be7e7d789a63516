# SPDX-License-Identifier: Apache-2.0
"""Plug-in for pytest. An entry point makes pytest load it."""

from collections.abc import Callable
from collections.abc import Iterator
from typing import TYPE_CHECKING
from typing import Any

import pytest

if TYPE_CHECKING:
    from distperiodic.testing import Cluster


@pytest.fixture
def distperiodic_cluster() -> 'Iterator[Callable[..., Cluster]]':
    """Create clusters, and close them at the end of the test.

    The value of the fixture is a function that creates a cluster. The function
    accepts the arguments of :class:`distperiodic.testing.Cluster`.
    """
    # Import the library only in projects that use this fixture.
    from distperiodic.testing import Cluster
    made: list[Cluster] = []

    def make(*args: Any, **kwargs: Any) -> Cluster:
        made.append(Cluster(*args, **kwargs))
        return made[-1]
    yield make
    for cluster in made:
        cluster.close()
