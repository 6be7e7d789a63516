# SPDX-License-Identifier: Apache-2.0
"""What the oracle holds for due is what had to be, and no more."""

from distperiodic.core import schedule
from tests.oracle import due
from tests.oracle.facts import FOREVER
from tests.oracle.facts import SECOND
from tests.oracle.facts import Bounds
from tests.oracle.facts import Entry
from tests.oracle.facts import Facts
from tests.oracle.facts import Listed
from tests.oracle.facts import Reading
from tests.oracle.facts import Scheduler
from tests.simulation import draws

PAIR = 'parts', 'parts-new'


def at(seconds):
    return int(seconds * SECOND)


def test_an_object_may_count_from_the_instant_of_whoever_read_it_first():
    """Its owner stood still until 20 s and goes on with the tick of 16 s. By
    then another one, whose place on the ring nobody knows, has recorded it.
    """
    bounds = Bounds(at(1), at(5), at(1), at(2))
    facts = Facts(
        0, at(100), bounds,
        schedulers=[Scheduler('a~1', 'a', {}, entered=0)],
        rings=[(0, (Entry('a~1', 'a', 40),))],
        in_force={'parts': [(-FOREVER, draws.job_of(
            'parts', schedule.Every(8)))]},
        listings={PAIR: [Listed(at(10), True)]},
        readings={'parts': [
            Reading(at(20.2), 'b', at(20.1), frozenset({PAIR[1]})),
            Reading(at(20.5), 'a', at(16), frozenset({PAIR[1]}))]})
    owners = due.Owners(facts)
    owners.deadline = lambda job, name, since: (
        since + bounds.prompt if since >= at(20) else FOREVER)

    found = {one.tick // SECOND: one.must
             for one in due.dues(facts, owners, PAIR)}

    assert (found[16], found[24]) == (False, True)
