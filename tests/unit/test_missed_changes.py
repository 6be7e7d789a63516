# SPDX-License-Identifier: Apache-2.0
"""A process that was suspended while the schedule of its job was replaced and
put back.
"""

import pytest

from distperiodic.core.job import Job
from distperiodic.core.job import Scope
from distperiodic.core.schedule import SECOND
from distperiodic.core.schedule import Every
from tests.unit.deciding import Bench

START = 1_700_000_000 * SECOND // (600 * SECOND) * (600 * SECOND)


def at(seconds):
    return START + seconds * SECOND


@pytest.fixture
def bench():
    """Return a bench with a process that missed two changes of the schedule
    and has not noticed them yet. The schedule of ten seconds was not in force
    between the seconds 15 and 25.
    """
    found = Bench(at(1))
    ours, other = (Job('poll', Every(seconds), Scope.OBJECTS, 'hosts')
                   for seconds in (10, 600))
    found.begin(ours)
    [process] = found.processes
    process.read({'a': None}, at(1))
    found.go_to(at(10))
    process.tick(at(10), 'a', None)
    found.start()
    found.end()
    for seconds, job in (15, other), (25, ours):
        found.go_to(at(seconds))
        found.begin(job)
    found.taken()
    return found


def test_it_claims_no_tick_from_before_the_schedule_was_put_back(bench):
    bench.processes[0].tick(at(20), 'a', None)

    assert bench.taken() == []


def test_it_goes_on_with_the_next_tick(bench):
    bench.processes[0].tick(at(20), 'a', None)
    bench.go_to(at(30))

    bench.processes[0].tick(at(30), 'a', None)

    assert [end.tick for end in bench.taken()] == [at(30)]
