# SPDX-License-Identifier: Apache-2.0
"""The order in which a scheduler serves its objects, with too few slots."""

import collections
import itertools
import random

import pytest

from distperiodic.core import message
from distperiodic.core.claim_request import NewLease
from distperiodic.core.schedule import Misfire
from distperiodic.core.schedule import Overlap
from distperiodic.flow.scheduler.in_flight import Line
from tests.unit.test_in_flight import claims
from tests.unit.world import World
from tests.unit.world import job
from tests.unit.world import thing
from tests.unit.world import worker

SECOND = 1_000_000


class Slots:
    """A worker with few slots, whose runs take time.

    :param takes: Function that returns the seconds of the next run.
    """

    def __init__(self, world, scheduler, slots, takes):
        self.world = world
        self.scheduler = scheduler
        self.free = slots
        self.takes = takes
        self.queue = collections.deque()
        self.known = set()
        self.ends = []
        #: Runs that have begun, by job and object.
        self.runs = collections.Counter()
        #: Jobs in the order in which their runs began.
        self.order = []
        for name, one in scheduler.jobs.items():
            for key in scheduler.reader.given[name]:
                self.runs[name, getattr(key, 'id', key)] = 0
            assert one.topic == 'default'

    def turn(self, seconds, step=0.25):
        for _ in range(round(seconds / step)):
            self.world.advance(step)
            self._end()
            self._begin()

    def _begin(self):
        for batch in self.scheduler.bus.open.values():
            if batch.id not in self.known:
                self.known.add(batch.id)
                self.queue.extend((batch, i)
                                  for i in range(len(batch.objects)))
        while self.free and self.queue:
            batch, index = self.queue.popleft()
            self.free -= 1
            self.runs[batch.job, batch.objects[index]] += 1
            self.order.append(batch.job)
            takes = self.takes()
            self.ends.append((self.world.clock.monotonic() + takes, takes,
                              batch, index))

    def _end(self):
        now = self.world.clock.monotonic()
        over = [end for end in self.ends if end[0] <= now + 1e-6]
        self.ends = [end for end in self.ends if end[0] > now + 1e-6]
        for _, takes, batch, index in over:
            self.free += 1
            self.scheduler.flow.reported(message.Report(
                batch.id, batch.worker, done=[index], seconds=takes))
        left = collections.Counter(
            [end[2].id for end in self.ends]
            + [batch.id for batch, _ in self.queue])
        for name in [*self.scheduler.bus.open]:
            if name in self.known and not left[name]:
                del self.scheduler.bus.open[name]
        self.scheduler.flow.run_due()
        self.scheduler.flow.pump()

    def spread(self, name='poll'):
        """Return the difference between the most and the fewest runs."""
        found = [runs for (job_, _), runs in self.runs.items()
                 if job_ == name]
        return max(found) - min(found)


def overloaded(*jobs, objects=60, slots=10, takes=lambda: 2.0, **options):
    """Start a scheduler whose worker has too few slots."""
    world = World()
    me = world.scheduler(
        *jobs, finishes=False, workers=[worker(slots=slots)],
        catalogues={one.name: [f'{one.name}-{n}' for n in range(objects)]
                    for one in jobs} | options.pop('catalogues', {}),
        **options)
    return Slots(world, me, slots, takes)


@pytest.mark.parametrize('spread', [
    False, pytest.param(True, marks=pytest.mark.full)])
@pytest.mark.parametrize('overlap', Overlap)
@pytest.mark.parametrize('misfire', Misfire)
@pytest.mark.parametrize('objects', [
    60, pytest.param(50, marks=pytest.mark.full)])
def test_each_object_is_served_in_turn(misfire, overlap, spread, objects):
    """There is 2.5 or 3 times too much work, for 40 ticks."""
    slots = overloaded(job(every=4.0, objects=True, misfire=misfire,
                           overlap=overlap, spread=spread), objects=objects)

    for _ in range(40):
        slots.turn(4.0)
        assert slots.spread() <= 1

    assert sum(slots.runs.values()) >= 0.95 * 40 * 4.0 / 2.0 * 10


@pytest.mark.parametrize('seed', [
    *range(3), *(pytest.param(seed, marks=pytest.mark.full)
                 for seed in range(3, 6))])
def test_runs_of_different_lengths_starve_no_object(seed):
    draws = random.Random(seed)
    slots = overloaded(
        job(every=4.0, objects=True), objects=draws.randrange(50, 90),
        takes=lambda: draws.choice([0.5, 1.0, 2.0, 2.5]))

    for _ in range(40):
        slots.turn(4.0)
        # An object whose long run lasts beyond its next tick misses a turn.
        assert slots.spread() <= 2


def test_objects_with_own_schedules_are_served_in_turn():
    objects = [thing(f'o{n}', spacing=(3, 4, 6)[n % 3]) for n in range(90)]
    slots = overloaded(job(every=4.0, objects=True),
                       catalogues={'poll': objects})

    for _ in range(40):
        slots.turn(4.0)
        assert slots.spread() <= 1


def test_an_object_that_is_listed_later_waits_behind_the_others():
    slots = overloaded(job(every=4.0, objects=True))
    slots.turn(40.0)
    fewest = min(slots.runs.values())

    slots.scheduler.reader.given['poll'] = [
        *slots.scheduler.reader.given['poll'], 'new']
    slots.turn(24.0)

    assert slots.runs['poll', 'new'] in (1, 2)
    del slots.runs['poll', 'new']
    assert min(slots.runs.values()) > fewest
    assert slots.spread() <= 1


@pytest.mark.parametrize(('objects', 'second', 'seconds', 'order'), [
    # The second job is due while the first one has a backlog of 12 s.
    (60, dict(offset=4.0), 34.0, [('first', 60), ('second', 60)]),
    (40, dict(offset=1.0, priority=1), 20.0,
     [('first', 10), ('second', 40), ('first', 30)])],
    ids=['longest-wait', 'priority'])
def test_a_higher_priority_comes_first_and_then_the_longest_wait(
        objects, second, seconds, order):
    slots = overloaded(job('first', every=600.0, objects=True),
                       job('second', every=600.0, objects=True, **second),
                       objects=objects)

    slots.turn(600.0 + seconds, step=1.0)

    assert [(name, len([*runs])) for name, runs in itertools.groupby(
        slots.order[-2 * objects:])] == order


def test_jobs_that_are_due_together_alternate():
    slots = overloaded(job('first', every=600.0, objects=True),
                       job('second', every=600.0, objects=True))

    slots.turn(600.0 + 12.0, step=1.0)

    assert abs(collections.Counter(slots.order[-40:])['first'] - 20) <= 10


# The line itself.

def line_of(*places):
    line = Line()
    for number, place in enumerate(places):
        [claim] = claims(f'o{number}')
        line.put(NewLease(f'l{number}', 'me', 60.0),
                 [claim._replace(place=place * SECOND)])
    return line


def taken(line, number=10):
    found = []
    while (group := line.take(number)[0]) is not None:
        found.append([claim.object for claim in group.claims])
    return found


def test_claims_are_taken_in_the_order_of_their_places():
    assert taken(line_of(3, 1, 2)) == [['o1'], ['o2'], ['o0']]


class Waiting:
    """A line from which single claims are taken. Times are in seconds."""

    def __init__(self, **options):
        self.line = Line(**options)

    def put(self, **places):
        """Put objects with these places, which wait since 10 s."""
        for key, place in places.items():
            [claim] = claims(key)
            self.line.put(NewLease(f'{key} at {place}', 'me', 60.0), [
                claim._replace(place=int(place * SECOND),
                               waiting=10 * SECOND)])

    def take(self, number=1):
        return ''.join(sum(([claim.object for claim in self.line.take(
            1)[0].claims] for _ in range(number)), []))


def test_an_object_that_starts_before_others_of_its_round_stays_behind_them():
    """Messages that are sent one after the other may arrive in another order.
    """
    waiting = Waiting()
    waiting.put(a=1, b=2, c=3, d=4)
    assert waiting.take(2) == 'ab'
    waiting.put(a=11, b=12)
    assert waiting.take(3) == 'cda'

    # The second run of a begins before the first runs of c and d.
    waiting.put(a=13, c=14, d=15)

    assert waiting.take(4) == 'bcda'


def test_an_object_that_was_returned_unstarted_keeps_its_place():
    waiting = Waiting()
    waiting.put(a=1, b=2, c=3)
    assert waiting.take() == 'a'
    waiting.put(a=11)
    assert waiting.take(2) == 'bc'
    waiting.put(b=12, c=13)
    assert waiting.take() == 'a'

    waiting.put(a=11)

    assert waiting.take(3) == 'abc'


def test_objects_of_a_line_that_was_empty_are_served_by_their_places():
    waiting = Waiting()
    waiting.put(a=1, b=2)
    assert waiting.take() == 'a'
    waiting.put(a=11)
    assert waiting.take(2) == 'ba'

    waiting.put(a=1, b=2)

    assert waiting.take(2) == 'ab'


def test_steps_of_tasks_have_no_rounds():
    """Their places say which of them is the most urgent."""
    waiting = Waiting(rounds=False)
    waiting.put(a=11, b=20)
    assert waiting.take() == 'a'

    waiting.put(a=12)

    assert waiting.take(2) == 'ab'


def test_a_batch_has_claims_of_one_lease():
    line = Line()
    for lease, names in ('x', 'ab'), ('y', 'cd'):
        line.put(NewLease(lease, 'me', 60.0), claims(*names))

    groups = [line.take(10)[0] for _ in range(2)]

    assert [group.lease.id for group in groups] == ['x', 'y']


def superseding(names, fence=7):
    return [claim._replace(fence=fence) for claim in claims(*names)]


def test_superseded_claims_are_not_taken():
    line = Line()
    line.put(NewLease('x', 'me', 60.0), claims(*'abcde'))
    line.put(NewLease('z', 'me', 60.0), claims(*'uvwxyz'))

    assert line.put(NewLease('y', 'me', 60.0), superseding('ab'), 2) == 0
    first, removed = line.take(10)

    assert [claim.object for claim in first.claims] == ['c', 'd', 'e']
    assert removed == 2
    assert taken(line) == [[*'uvwxyz'], ['a', 'b']]
    assert line.size == 0


def test_a_request_may_supersede_the_claims_of_some_of_its_objects():
    line = Line()
    line.put(NewLease('x', 'me', 60.0), claims(*'abcd'))
    again, new = superseding('ae')

    line.put(NewLease('y', 'me', 60.0), [again._replace(waiting=1),
                                    new._replace(waiting=9)], 1)

    assert sorted(sum(taken(line), [])) == [*'abcde']


def test_superseded_claims_do_not_pile_up():
    line = Line()
    line.put(NewLease('x', 'me', 60.0), claims(*'abcd'))
    removed = [line.put(NewLease(f'y{n}', 'me', 60.0),
                        superseding('abcd', 10 + n), 4) for n in range(10)]

    assert removed == [4] * 10
    assert line.size == 4


def test_claims_that_are_lost_leave_their_places_to_the_others():
    line = line_of(1, 2, 3, 4)

    lost = line.keep(lambda group: [
        one for one in group.claims if one.object not in ('o0', 'o2')])

    assert (lost, line.size) == (2, 2)
    assert taken(line) == [['o1'], ['o3']]


def test_the_cost_of_a_claim_does_not_depend_on_how_many_wait():
    """Each claim is compared with few others."""
    compared = 0

    class Place(int):
        def __lt__(self, other):
            nonlocal compared
            compared += 1
            return int(self) < int(other)
    for size in 2_000, 8_000:
        line, compared = Line(), 0
        for at in range(0, size, 500):
            line.put(NewLease(f'l{at}', 'me', 60.0), [
                claim._replace(place=Place(n * SECOND // 100))
                for n, claim in enumerate(claims(*map(str, range(500))), at)])
        assert compared < 4 * size
