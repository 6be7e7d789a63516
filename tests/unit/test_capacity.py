# SPDX-License-Identifier: Apache-2.0
"""The slots that the work of a group needs, in each view of a group."""

import dataclasses

import pytest

from distperiodic.core import metric_table as table
from distperiodic.core.histogram import Histogram
from distperiodic.core.tally import Key
from distperiodic.operator import capacity
from distperiodic.operator import group_metrics
from distperiodic.operator.activity import Load
from distperiodic.operator.group_status import GroupStatus
from tests.unit.test_health import REST
from tests.unit.test_health import SECOND
from tests.unit.test_health import row

MINUTE = 60.0
#: Each run takes 2 s, and 60 runs have ended in a minute.
RAN = Histogram()
RAN.add(2 * SECOND, 60)


def load(job, per_second):
    return Load(job, per_second, Histogram(), RAN, MINUTE)


def worker(name, part, size, **options):
    return row(name, part, pools={part: {'size': size, 'busy': 1}}, **options)


MEMBERS = (
    row(topics={'default': ['ping', 'poll'], 'narrow': ['fill'],
                'idle': ['rest']}),
    worker('a:0', 'default', 10), worker('b:0', 'default', 10),
    worker('c:0', 'default', 10, drained=True),
    worker('d:0', 'default', 10, age=99), worker('e:0', 'narrow', 2),
    worker('f:0', 'idle', 5))
LOADS = (load('ping', 3.0), load('poll', 0.5), load('fill', 2.0),
         load('of no scheduler', 9.0))
FACTS = dataclasses.replace(REST, members=MEMBERS, loads=LOADS)


def test_the_jobs_of_a_partition_share_the_slots_of_its_live_workers():
    found = capacity.of_loads(LOADS, MEMBERS, 10.0)

    assert [(one.partition, one.needed, one.busy, one.slots)
            for one in found] == [
        ('default', pytest.approx(7.0), pytest.approx(4.0), 20),
        ('narrow', pytest.approx(4.0), pytest.approx(2.0), 2)]


def test_the_state_of_a_group_has_the_partitions_with_the_fullest_first():
    status = GroupStatus(FACTS)

    narrow, default = (status.headline.index(text) for text in (
        'partition narrow needs 4.0 of 2 slots (200.0 %)',
        'partition default needs 7.0 of 20 slots (35.0 %)'))
    assert narrow < default
    assert 'idle needs' not in status.headline


def test_programs_get_the_slots_of_all_partitions():
    [of_group, *_] = GroupStatus(FACTS).rows(False)

    assert (of_group['Needed slots'], of_group['Slots']) == (11.0, 22)
    [at_rest, *_] = GroupStatus(REST).rows(False)
    assert 'Needed slots' not in at_rest


def test_the_needed_slots_are_a_metric():
    values = group_metrics.of_facts(FACTS).values

    assert [values.get(Key(table.NEEDED_SLOTS.name, (name,)))
            for name in ('default', 'narrow', 'idle')] == [
                pytest.approx(7.0), pytest.approx(4.0), None]
