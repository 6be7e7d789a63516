# SPDX-License-Identifier: Apache-2.0
"""The pytest plug-in; pytest loads it by its entry point."""

from collections.abc import Callable
from collections.abc import Iterator
from typing import TYPE_CHECKING
from typing import Any

import pytest

if TYPE_CHECKING:
    from distperiodic.testing import Cluster


@pytest.fixture
def distperiodic_cluster() -> 'Iterator[Callable[..., Cluster]]':
    """Make clusters, and close them at the end of the test.

    The value of the fixture is a function with the arguments of
    :class:`distperiodic.testing.Cluster`.
    """
    # Imported here, so that pytest does not import the library in projects
    # that do not use it.
    from distperiodic.testing import Cluster
    made: list[Cluster] = []

    def make(*args: Any, **kwargs: Any) -> Cluster:
        made.append(Cluster(*args, **kwargs))
        return made[-1]
    yield make
    for cluster in made:
        cluster.close()
