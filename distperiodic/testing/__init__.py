# SPDX-License-Identifier: Apache-2.0
"""Test kit for projects that embed distperiodic.

The test kit needs no server. Tests that use it do not wait for real time::

    from distperiodic import testing

    def test_each_node_is_polled_once_although_a_member_dies():
        with testing.Cluster(Nodes, members=2) as cluster:
            cluster.advance(60)
            cluster.kill('member-1')
            cluster.advance(120)
            cluster.assert_ran('poll', 'node-7', times=3)

The test kit uses the flow, the ring and the state machine of claims that the
services use. Its clock, membership and store are in memory. Handlers run in
the thread of the test. The page "Test your jobs" of the documentation has
examples.

Importing this package imports neither oslo.messaging nor oslo.service.
"""

from distperiodic.testing.clock import FrozenClock
from distperiodic.testing.cluster import Cluster
from distperiodic.testing.cluster import run_tick
from distperiodic.testing.context import make_context
from distperiodic.testing.record import Run

__all__ = ['Cluster', 'FrozenClock', 'Run', 'make_context', 'run_tick']
