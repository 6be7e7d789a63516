# SPDX-License-Identifier: Apache-2.0
"""The oracle requires a claim of each tick that had to be claimed, and of no
other tick.
"""

import pytest

from distperiodic.core import ring
from distperiodic.core import schedule
from tests import checker
from tests.oracle import due
from tests.oracle import fates
from tests.oracle.facts import FOREVER
from tests.oracle.facts import SECOND
from tests.oracle.facts import Bounds
from tests.oracle.facts import Entry
from tests.oracle.facts import Facts
from tests.oracle.facts import Listed
from tests.oracle.facts import Reading
from tests.oracle.facts import Scheduler
from tests.oracle.facts import Span
from tests.simulation import draws

PAIR = 'parts', 'parts-new'


def at(seconds):
    return int(seconds * SECOND)


def test_an_object_may_count_from_the_instant_of_the_first_reader():
    """A new object may count from the instant of the reading that recorded it
    first.

    The owner is stalled until 20 s, and then reads the catalogue for the tick
    of 16 s. Just before this read, a member that is not on the ring recorded
    the object for 20.1 s.
    """
    bounds = Bounds(at(1), at(5), at(1), at(2))
    job = draws.job_of('parts', schedule.Every(8))
    facts = Facts(
        0, at(100), bounds,
        schedulers=[Scheduler('a~1', 'a', {'parts': job}, entered=0)],
        rings=[(0, (Entry('a~1', 'a', 40),))],
        in_force={'parts': [(-FOREVER, job)]},
        listings={PAIR: [Listed(at(10), True)]},
        readings={'parts': [
            Reading(at(20.2), 'b', at(20.1), frozenset({PAIR[1]})),
            Reading(at(20.5), 'a', at(16), frozenset({PAIR[1]}))]})
    owners = due.Owners(facts)
    owners.deadline = lambda job, name, since: (
        since + bounds.prompt if since >= at(20) else FOREVER)

    found = {one.tick // SECOND: one.must
             for one in due.dues(
                 facts, due.pieces(facts, owners, PAIR), PAIR)}

    assert (found[16], found[24]) == (False, True)


@pytest.mark.parametrize(('claimed', 'found'), [
    (39, []), (47, ['unexplained'])], ids=['before', 'after'])
def test_a_tick_settled_before_a_change_of_the_schedule_is_not_due(
        claimed, found):
    """A tick before the watermark is not due by a new schedule.

    The schedule is every 10 s until 40 s, and then every 24 s. By the new
    schedule, and by its phase, the object comes due for the tick of 24 s
    shortly after 40 s. By the old schedule it was due for the ticks of 20 s
    and 30 s.
    """
    name = next(
        f'spread-{n}' for n in range(1000) if at(0.8) < schedule.phase_us(
            ring.position_of(f'spread-{n}'), SECOND) < at(0.85))
    before, after = (draws.job_of('spread', schedule.Every(seconds))
                     for seconds in (10, 24))
    facts = Facts(
        0, at(60), Bounds(at(1), at(5), at(1), at(2)),
        schedulers=[Scheduler('a~1', 'a', {'spread': before}, entered=0,
                              left=at(40)),
                    Scheduler('a~2', 'a', {'spread': after}, entered=at(40))],
        rings=[(0, (Entry('a~1', 'a', 40),)),
               (at(40), (Entry('a~2', 'a', 40),))],
        in_force={'spread': [(-FOREVER, before), (at(40), after)]},
        listings={('spread', name): [Listed(-FOREVER, True)]})
    claims = {('spread', name, at(tick)): checker.Claim(
        'spread', name, at(tick), at(min(tick + 9, claimed)))
        for tick in (0, 10, 20)}
    claims['spread', name, at(30)] = checker.Claim(
        'spread', name, at(30), at(claimed))

    oracle = fates.judge(facts, claims, [])

    assert [finding.kind for finding in oracle.findings
            if 'tick 24.000' in finding.text] == found


def facts_of(readings, seen=None):
    """Return facts of one member, which owns the object from 10 s on."""
    job = draws.job_of('parts', schedule.Every(8))
    return Facts(
        0, at(60), Bounds(at(1), at(5), at(1), at(2)),
        schedulers=[Scheduler('a~1', 'a', {'parts': job}, entered=0,
                              seen=seen)],
        rings=[(0, ()), (at(10), (Entry('a~1', 'a', 40),))],
        in_force={'parts': [(-FOREVER, job)]},
        listings={PAIR: [Listed(-FOREVER, True)]},
        readings={'parts': [
            Reading(at(read), 'a', at(instant), frozenset({PAIR[1]}))
            for read, instant in readings]})


def required(facts):
    """Return the ticks that must be decided, in seconds."""
    [one] = fates.judge(facts, {}, []).objects
    return [due.tick // SECOND for due in one.dues if due.must]


def test_an_object_counts_from_its_first_reading_even_if_it_was_always_there():
    assert required(facts_of([(16.5, 16.4), (24, 24)])) == [24, 32, 40, 48, 56]


def test_the_owner_must_have_read_the_catalogue_for_a_tick_that_it_missed():
    assert required(facts_of([(26, 25.5)])) == [16, 24, 32, 40, 48, 56]


def test_a_member_that_has_not_yet_seen_its_ring_records_nothing():
    """It sees the ring of 10 s at 21 s, so it cannot use its reading of
    18.5 s for the tick of 16 s.
    """
    readings = [(18.5, 16), (23, 22.5)]

    assert required(facts_of(readings))[0] == 16
    # Less the usual delay, the member may have seen the ring before 10 s.
    assert required(facts_of(readings, [(at(10), at(9.97))]))[0] == 16
    assert required(facts_of(readings, [(at(10), at(21))]))[0] == 24


@pytest.mark.parametrize(('reader', 'read', 'seen', 'first'), [
    ('b', 18.6, 21, 24), ('b', 18.6, 17.9, 24), ('b', 18.6, 17.5, 16),
    ('b', 19.5, 21, 16), ('a', 18.6, 21, 16), ('c', 18.6, 21, 16)],
    ids=['earlier owner', 'usual delay', 'knows its successor',
         'after the record', 'owner', 'never owned it'])
def test_a_replaced_owner_may_record_an_object_before_the_new_owner(
        reader, read, seen, first):
    """The new owner reads the catalogue at 18.5 s for the tick of 16 s, and
    records it until 19.5 s. The earlier owner sees the ring of 10 s at *seen*.
    Until then it also records what it reads, which it has read for 18.55 s.
    """
    facts = facts_of([(18.5, 16)])
    [owner] = facts.schedulers
    owner.entered = at(18)
    facts.schedulers += [
        Scheduler(f'{name}~1', name, owner.jobs, entered=0,
                  seen=[(at(0), at(17)), (at(10), at(seen))])
        for name in 'bc']
    # Later processes with the same name have read nothing yet.
    facts.schedulers += [
        Scheduler(f'{name}~2', name, owner.jobs, entered=at(30),
                  seen=[(at(30), at(30))]) for name in 'bc']
    facts.rings[0] = 0, (Entry('b~1', 'b', 40),)
    facts.readings['parts'].append(Reading(
        at(read), reader, at(18.55), frozenset({PAIR[1]})))

    assert required(facts)[0] == first


@pytest.mark.parametrize(('read', 'found'), [
    (46, []), (36, ['outdated'])], ids=['old schedule', 'new schedule'])
def test_an_own_schedule_holds_until_its_change_is_read(read, found):
    """The object's schedule changes from 16 s to 8 s at 33 s. At 45 s the tick
    of 32 s is the newest one of the old schedule, but not of the new one.
    """
    facts = facts_of([(16, 16), (read, read - 0.5)])
    [member] = facts.schedulers
    member.unable.append(Span(at(38), at(44)))
    facts.listings[PAIR] = [
        Listed(-FOREVER, True, schedule.Every(16)),
        Listed(at(33), True, schedule.Every(8))]
    claim = checker.Claim(*PAIR, at(32), at(45))

    oracle = fates.judge(facts, {(*PAIR, at(32)): claim}, [])

    assert [finding.kind for finding in oracle.findings
            if 'tick 32.000' in finding.text] == found
