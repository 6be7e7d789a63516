# SPDX-License-Identifier: Apache-2.0
"""A cluster of real processes keeps its guarantees during faults.

For a longer run with other faults: ``tox -e chaos -- --minutes 20 --seed 7``.
"""

import pytest

from tests.chaos import __main__ as command
from tests.chaos import failpoints
from tests.chaos import life
from tests.chaos import plan
from tests.chaos import report

SEED = 1
MINUTES = 1.8


@pytest.mark.timeout(600)
def test_no_promise_is_broken_whatever_befalls_the_cluster(tmp_path):
    lived = life.live(tmp_path, SEED, 60 * MINUTES, pause=plan.DENSE)

    assert not lived.findings, '\n'.join([
        report.report(lived), f'all logs and records: {tmp_path}',
        command.replay(SEED, MINUTES, dense=True)])


@pytest.mark.parametrize('name', sorted(failpoints.POINTS))
def test_a_step_at_which_processes_die_is_one_of_the_product(name):
    point = failpoints.POINTS[name]

    assert callable(getattr(failpoints.owner_of(point), point.method))


def test_a_seed_is_the_same_plan_each_time():
    assert plan.draw(7, 600) == plan.draw(7, 600)
    assert plan.draw(7, 600) != plan.draw(8, 600)


def test_a_long_plan_has_every_fault_and_every_step():
    faults = plan.draw(7, 3600)

    assert {fault.kind for fault in faults} == set(plan.KINDS)
    assert {fault.point for fault in faults} >= set(failpoints.POINTS)
