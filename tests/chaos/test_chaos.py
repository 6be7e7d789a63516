# SPDX-License-Identifier: Apache-2.0
"""A cluster of real processes keeps its guarantees during faults.

For a longer run with other faults: ``tox -e chaos -- --minutes 20 --seed 7``.
"""

import pytest

from tests.chaos import __main__ as command
from tests.chaos import failpoints
from tests.chaos import faults
from tests.chaos import life
from tests.chaos import plan
from tests.chaos import report
from tests.chaos.buses import BUSES

SEED = 1
MINUTES = 2.0
#: Minutes of faults with Redis. These are only the faults of the group 'bus'.
BUS_MINUTES = 1.0


@pytest.mark.timeout(600)
def test_no_promise_is_broken_whatever_befalls_the_cluster(tmp_path):
    _live(tmp_path, 'rabbitmq', MINUTES)


@pytest.mark.timeout(400)
def test_no_promise_is_broken_during_the_faults_of_redis(tmp_path):
    _live(tmp_path, 'redis', BUS_MINUTES, 'bus')


def _live(place, name, minutes, group=''):
    bus = BUSES[name]
    lived = life.live(
        place, SEED, 60 * minutes, bus, pause=plan.DENSE,
        kinds=command.GROUPS[group])

    assert not lived.findings, '\n'.join([
        report.report(lived), f'all logs and records: {place}',
        command.replay(SEED, minutes, bus, dense=True, group=group)])


@pytest.mark.parametrize('bus', sorted(BUSES))
@pytest.mark.parametrize('name', sorted(failpoints.POINTS))
def test_a_step_at_which_processes_die_is_one_of_the_product(name, bus):
    point = failpoints.POINTS[name]

    assert callable(getattr(
        failpoints.owner_of(point, BUSES[bus].carrier), point.method))


def test_a_seed_is_the_same_plan_each_time():
    assert plan.draw(7, 600) == plan.draw(7, 600)
    assert plan.draw(7, 600) != plan.draw(8, 600)


@pytest.mark.parametrize('bus', sorted(BUSES))
def test_a_long_plan_has_every_fault_and_every_step(bus):
    drawn = plan.draw(7, 3600, without=BUSES[bus].without)

    assert {fault.kind for fault in drawn} == (
        plan.KINDS.keys() - BUSES[bus].without)
    assert {fault.point for fault in drawn} >= set(failpoints.POINTS)


def test_each_kind_of_fault_has_code_that_applies_it():
    assert faults.MAKERS.keys() == plan.KINDS.keys()


@pytest.mark.parametrize('bus', sorted(BUSES))
def test_a_bus_omits_faults_of_the_bus_only(bus):
    assert BUSES[bus].without < plan.OF_THE_BUS < plan.EVERY


def test_the_faults_of_each_group_exist():
    assert all(kinds <= plan.EVERY for kinds in command.GROUPS.values())
