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
from tests.chaos.pace import PACE

#: Seed and minutes of the life in the default run.
SEED, MINUTES = 1, 2.0
#: The same for Redis. These are only the faults of the group 'bus'.
BUS_SEED, BUS_MINUTES = 1, 1.0
#: Only one cluster lives at a time, because each uses a whole processor.
one_at_a_time = pytest.mark.xdist_group('life')


@one_at_a_time
@pytest.mark.timeout(900 * PACE)
@pytest.mark.parametrize(('seed', 'minutes'), [
    (SEED, MINUTES), pytest.param(2, 8.0, marks=pytest.mark.full)])
def test_guarantees_hold_during_every_kind_of_fault(tmp_path, seed, minutes):
    _live(tmp_path, 'rabbitmq', seed, minutes)


@one_at_a_time
@pytest.mark.timeout(600 * PACE)
@pytest.mark.parametrize(('seed', 'minutes'), [
    (BUS_SEED, BUS_MINUTES), pytest.param(2, 4.0, marks=pytest.mark.full)])
def test_no_promise_is_broken_during_the_faults_of_redis(
        tmp_path, seed, minutes):
    _live(tmp_path, 'redis', seed, minutes, 'bus')


def _live(place, name, seed, minutes, group=''):
    bus = BUSES[name]
    lived = life.live(
        place, seed, 60 * minutes, bus, pause=plan.DENSE,
        kinds=command.GROUPS[group])

    assert not lived.findings, '\n'.join([
        report.report(lived), f'all logs and records: {place}',
        command.replay(seed, minutes, bus, dense=True, group=group)])


def test_each_kind_of_fault_occurs_in_the_default_run():
    drawn = plan.draw(
        SEED, 60 * MINUTES, plan.DENSE, BUSES['rabbitmq'].without)
    drawn += plan.draw(
        BUS_SEED, 60 * BUS_MINUTES, plan.DENSE,
        BUSES['redis'].without | (plan.EVERY - command.GROUPS['bus']))

    assert {fault.kind for fault in drawn} == plan.EVERY


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
