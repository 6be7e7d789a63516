# SPDX-License-Identifier: Apache-2.0
"""Late scans: members claim ticks that the owners did not claim."""

import collections

import pytest

from distperiodic import exceptions
from distperiodic.core import ring
from distperiodic.core import schedule
from distperiodic.core.catalogue import id_of
from distperiodic.core.claim import Claimed
from distperiodic.core.job import Scope
from distperiodic.flow import events
from distperiodic.flow.scheduler import authority
from distperiodic.flow.scheduler.part import CIRCLE
from tests.unit import world as worlds


@pytest.fixture
def world():
    return worlds.World()


def _owned_by(name, **attributes):
    """An object owned by *name*, one of two members, with an early phase."""
    both = ring.Ring(dict.fromkeys('ab', 40))
    key = next(
        key for key in (f'new-{n}' for n in range(9999))
        if both.owner_of(key) == name and schedule.phase_us(
            ring.position_of(key), 600 * schedule.SECOND)
        < 2 * schedule.SECOND)
    return worlds.thing(key, **attributes) if attributes else key


@pytest.mark.parametrize('partial', [set(), {'poll'}],
                         ids=['whole', 'own arcs'])
@pytest.mark.parametrize('options', [
    {}, {'spread': True}, {'own': True}], ids=['grid', 'spread', 'own'])
def test_objects_of_a_member_that_hangs_are_claimed_by_others(
        world, partial, options):
    own = options.pop('own', False)
    objects = [worlds.thing(f'o-{n}', spacing=20.0) if own else f'o-{n}'
               for n in range(60)]
    everyone = world.group(
        'abc', worlds.job(every=20.0, objects=True, **options),
        catalogues={'poll': objects}, partial=partial)
    world.advance(30)

    hangs = everyone.pop()
    world.schedulers.remove(hangs)
    before = set(hangs.ticks())
    world.advance(71)

    assert before
    ran = {(s.object, s.tick) for one in [*everyone, hangs]
           for s in one.starts}
    assert {(f'o-{n}', tick) for n in range(60)
            for tick in (40, 60)} <= ran
    late = [s.at - s.tick for one in everyone for s in one.starts
            if s.tick in (40, 60) and not options]
    assert max(late, default=5) <= 5.5


@pytest.mark.parametrize(('rank', 'left'), [
    (2, 1), (4, 1), (7, 1), (6, 3), *(
        pytest.param(*more, marks=pytest.mark.full)
        for more in ((0, 1), (1, 7)))])
@pytest.mark.parametrize('options', [
    {'every': 8.0}, {'every': 8.0, 'misfire': 'all', 'overlap': 'wait'},
    {'every': 30.0, 'spread': True}], ids=['latest', 'all', 'spread'])
def test_the_only_member_that_reaches_the_store_serves_all_at_any_rank(
        world, options, rank, left):
    """Other members are in the group, but cut off from the store alone. The
    late scans of the members that the ring selects first never happen.
    """
    every, names = int(options['every']), 'abcdefgh'
    objects = [f'o-{n}' for n in range(24)]
    everyone = world.group(
        names, worlds.job(objects=True, **options),
        catalogues={'poll': objects})
    world.advance(2 * every + 1)
    first = names.index(everyone[0].views['group'].ring.owner_of('poll'))
    able = [everyone[(first + rank + n) % 8] for n in range(left)]
    for one in everyone:
        # For a while, no member reaches the store.
        one.queue.away = one not in able or left > 1
    world.advance(every)
    for one in able:
        one.queue.come_back()
    world.advance(7 * every)

    begin = 5 * every
    grace = min(5, every // 2)
    late = [s.at - s.tick - (schedule.phase_us(
        ring.position_of(s.object), every * schedule.SECOND)
        / schedule.SECOND if 'spread' in options else 0)
        for one in able for s in one.starts if s.tick > begin]
    # From the first turn on, the healthy member is one of the first to scan.
    assert max(late) < 2 * grace + 1
    assert {(s.object, s.tick) for one in able for s in one.starts} >= {
        (key, tick) for key in objects
        for tick in range(begin + every, 9 * every, every)}


def test_only_the_first_two_members_scan_when_the_store_is_back(world):
    """Otherwise all members would read all rows at the same time."""
    store, looks = world.shared_store(), []
    rows = store.rows
    store.rows = lambda job, arc, *, before, limit: (
        looks.append(before) or rows(job, arc, before=before, limit=limit))
    everyone = world.group(
        'abcdefgh', worlds.job(every=60.0, objects=True), store=store,
        catalogues={'poll': [f'o-{n}' for n in range(24)]})
    world.advance(61)
    for one in everyone:
        one.queue.away = True
    world.advance(300)
    looks.clear()

    for one in everyone:
        one.queue.come_back()
    world.advance(20)

    assert 1 <= len([before for before in looks if before is not None]) <= 4


def test_a_part_that_cannot_be_read_is_no_loss_for_ours(world):
    both = world.group(
        'ab', worlds.job(every=20.0, objects=True), partial={'poll'},
        catalogues={'poll': [f'o-{n}' for n in range(60)]})
    world.advance(22)
    objects, both[0].reader.given['poll'] = (
        both[0].reader.given['poll'], OSError('the database is away'))
    world.advance(10)

    both[0].reader.given['poll'] = objects
    world.advance(20)

    assert both[0].count('catalogue failed') == 0
    assert {s.tick for s in both[0].starts} == {20, 40}


def test_the_only_member_left_scans_all_that_was_late_before(world):
    """The member claims all objects that were due before the ring changed."""
    one, other = world.group(
        'ab', worlds.job(every=600.0, objects=True, spread=True),
        partial={'poll'},
        catalogues={'poll': [f'o-{n}' for n in range(120)]})
    world.advance(610)
    world.schedulers.remove(other)
    one.reader.given['poll'], given = ..., one.reader.given['poll']
    world.advance(200)
    one.reader.given['poll'] = given
    world.show(one, 'a')
    world.advance(60)

    due = {key for key in given if schedule.phase_us(
        ring.position_of(key), 600 * schedule.SECOND) < 250 * schedule.SECOND}
    assert due <= {
        s.object for s in (*one.starts, *other.starts) if s.tick == 600}


def three_that_lose_two(world, objects, after, **options):
    """Three members with partial catalogues. Only the first member survives.
    """
    everyone = world.group(
        'abc', worlds.job(every=600.0, objects=True, **options),
        catalogues={'poll': objects}, partial={'poll'})
    world.advance(after)
    for other in everyone[1:]:
        world.schedulers.remove(other)
    return everyone


def test_the_last_of_three_members_scans_all_that_was_not_scanned(world):
    """The member claims all objects that were due, also those of the other
    two.
    """
    objects = [f'o-{n}' for n in range(120)]
    everyone = three_that_lose_two(world, objects, 605, spread=True)
    one = everyone[0]
    # During this time the late scans of the member read the rows of all
    # objects, of all members.
    world.advance(200)

    def served():
        return {s.object for each in everyone for s in each.starts
                if s.tick == 600}
    due = {key for key in objects if schedule.phase_us(
        ring.position_of(key), 600 * schedule.SECOND) < 190 * schedule.SECOND}
    world.show(one, 'a')
    world.advance(30)

    assert due <= served()


def test_a_part_that_becomes_ours_is_scanned_from_the_beginning(world):
    """The objects of a lost member have schedules of their own. The objects of
    the surviving member do not.
    """
    parts = ring.Ring(dict.fromkeys('abc', 40))
    objects = [
        worlds.thing(key, spacing=1600.0) if parts.owner_of(key) == 'b'
        else key for key in (f'o-{n}' for n in range(60))]
    one = three_that_lose_two(world, objects, 1400)[0]
    # During this time the job has ticks at 1800 and 2400.
    world.advance(1020)

    def served():
        return {s.object for s in one.starts if s.tick == 1600}
    world.show(one, 'a')
    world.advance(10)

    assert served() == {key.id for key in objects
                        if not isinstance(key, str)}


@pytest.mark.parametrize('hangs', [False, True], ids=['reads', 'hangs'])
@pytest.mark.parametrize('partial', [set(), {'poll'}],
                         ids=['whole', 'own arcs'])
def test_the_only_member_left_claims_the_ticks_of_the_dead_at_once(
        world, partial, hangs):
    """The catalogue may contain only the objects of the member's old arcs, and
    the catalogue method may hang now.
    """
    one, other = world.group(
        'ab', worlds.job(every=600.0, objects=True), partial=partial,
        catalogues={'poll': [f'o-{n}' for n in range(60)]})
    world.advance(599)

    world.schedulers.remove(other)
    world.advance(4)
    assert 0 < len(one.starts) < 60
    if hangs:
        one.reader.given['poll'] = ...
    world.show(one, 'a')
    world.advance(1)

    assert sorted(s.object for s in one.starts) == sorted(
        f'o-{n}' for n in range(60))


@pytest.mark.parametrize('options', [
    {'spread': True}, {'own': True}], ids=['spread', 'own'])
def test_late_scans_claim_each_object_once(world, options):
    own = options.pop('own', False)
    store = world.shared_store()
    asked = []
    claim = store.claim

    def told(request, lease):
        asked.extend((key, request.tick) for key in request.objects)
        return claim(request, lease)
    store.claim = told
    objects = [worlds.thing(f'o-{n}', spacing=600.0) if own else f'o-{n}'
               for n in range(300)]
    world.scheduler(
        worlds.job(every=30.0 if own else 600.0, objects=True, **options),
        store=store, catalogues={'poll': objects})
    world.advance(620)
    asked.clear()

    world.advance(600)

    # The member claims each object once in time, and at most once more in a
    # late scan.
    assert 300 <= len(set(asked)) <= 330
    assert len(asked) <= 2 * len(set(asked))


def test_a_catalogue_that_hangs_from_the_start_prevents_no_tick(world):
    """The store still lists the objects of the earlier catalogue."""
    store = world.shared_store()
    poll = worlds.job(every=60.0, objects=True)
    objects = [f'o-{n}' for n in range(5)]
    first = world.scheduler(poll, name='a', store=store,
                            catalogues={'poll': objects})
    world.advance(70)
    world.schedulers.remove(first)

    other = world.scheduler(poll, name='a', store=store,
                            catalogues={'poll': ...})
    world.advance(70)

    assert {(s.object, s.tick) for s in other.starts} == {
        (key, 120) for key in objects}


def test_an_object_new_for_a_tick_runs_it_though_the_ring_changed_meanwhile(
        world):
    """The member reads the catalogue again after the change of the ring, for
    the same tick.
    """
    one = world.scheduler(
        worlds.job(every=60.0, objects=True), name='a', sees=['a', 'b'],
        store=world.shared_store(), catalogues={'poll': ['o-1']})
    world.advance(59)
    one.reader.given['poll'] = ...
    world.advance(2)

    world.show(one, ['a'])
    one.reader.given['poll'] = ['o-1', 'o-2']
    world.advance(2)

    assert {run.object for run in one.starts if run.tick == 60} == {
        'o-1', 'o-2'}


def test_objects_with_schedules_of_their_own_need_no_catalogue_either(world):
    """A catalogue method that hangs from the start delays no tick of these
    objects.
    """
    store = world.shared_store()
    poll = worlds.job(every=600.0, objects=True)
    own = [worlds.thing(f'o-{n}', spacing=10) for n in range(3)]
    first = world.scheduler(poll, name='a', store=store,
                            catalogues={'poll': own})
    world.advance(25)
    world.schedulers.remove(first)

    other = world.scheduler(poll, name='a', store=store,
                            catalogues={'poll': ...})
    world.advance(60)

    assert {run.tick for run in other.starts} >= {40, 50, 60, 70}


def test_a_member_that_joins_again_reads_its_catalogue_once_more(world):
    """Between the two tenures of the member, another member owned the objects.
    That other member may have delisted an object that was missing from the
    catalogue only briefly.
    """
    store = world.shared_store()
    one = world.scheduler(
        worlds.job(every=60.0, objects=True), name='a', store=store,
        catalogues={'poll': ['o-1', 'o-2']})
    world.advance(70)
    store.sync('poll', [], ['o-1'], readings=[world.clock.now()])

    world.show(one, ['a'], tenure=2)
    world.advance(60)

    assert {run.object for run in one.starts if run.tick == 120} == {
        'o-1', 'o-2'}


def test_a_read_in_progress_when_a_member_joins_again_is_repeated(world):
    store = world.shared_store()
    one = world.scheduler(
        worlds.job(every=60.0, objects=True), name='a', store=store,
        catalogues={'poll': ['o-1']})
    world.advance(59)
    one.reader.given['poll'] = ...
    world.advance(2)

    world.show(one, ['a'], tenure=2)
    # The read that began in the old tenure returns now.
    one.reader.given['poll'] = ['o-1']
    one.answer()
    one.reader.given['poll'] = ['o-1', 'o-2']
    world.advance(2)

    assert [row.object for row in store.rows_of('poll', ['o-1', 'o-2'])] == [
        'o-1', 'o-2']


def test_the_last_objects_of_a_period_are_claimed_by_its_catalogue(world):
    """The catalogue of the next period has other objects in another order."""
    last = [key for key in (f'last-{n}' for n in range(9000))
            if 59_850_000 < schedule.phase_us(
                ring.position_of(key), 60 * schedule.SECOND) < 59_950_000]
    one = world.scheduler(
        worlds.job(every=60.0, objects=True, spread=True),
        store=world.shared_store(), catalogues={
            'poll': [*(f'o-{n}' for n in range(200)), *last]})
    world.advance(119.8)
    one.queue.away = True
    world.advance(0.4)
    one.queue.come_back()

    one.reader.given['poll'] = last
    world.advance(0.1)

    assert last
    assert {s.object for s in one.starts if s.tick == 60} >= {*last}


def test_with_a_phase_the_tick_before_is_claimed_too_when_the_store_is_back(
        world):
    """The tick came and passed while the store was unavailable. For objects
    with a late phase it is still the newest due tick.
    """
    late = [key for key in (f'late-{n}' for n in range(600))
            if 59_000_000 < schedule.phase_us(
                ring.position_of(key), 60 * schedule.SECOND) < 59_900_000]
    one = world.scheduler(
        worlds.job(every=60.0, objects=True, spread=True),
        store=world.shared_store(), catalogues={'poll': late})
    world.advance(119.95)
    one.queue.away = True
    world.advance(60.4)
    one.queue.come_back()

    # No late scan would find the objects within this time.
    world.advance(0.5)

    assert late
    assert {s.object for s in one.starts if s.tick == 120} == {*late}


def test_objects_that_a_scan_did_not_win_are_found_by_the_next_scan(world):
    """A scan is recorded as complete only if it finds nothing to claim."""
    store = world.shared_store()
    claim, refused = store.claim, []

    def claim_not_at_first(request, lease):
        late = world.clock.now() - request.tick
        if late > 4 * schedule.SECOND and not refused:
            refused.extend(request.objects)
            return Claimed([], [], 0, [], [])
        return claim(request, lease)
    store.claim = claim_not_at_first
    objects = [f'o-{n}' for n in range(20)]
    both = world.group(
        'ab', worlds.job(every=60.0, objects=True), store=store,
        catalogues={'poll': objects})
    world.advance(50)

    world.schedulers.remove(both.pop())
    world.advance(40)

    assert refused
    assert sorted(s.object for s in both[0].starts if s.tick == 60) == sorted(
        objects)


class AfterPage:
    """A store that calls *event* after the first page of a late scan."""

    def __init__(self, store, event):
        self._store = store
        self._event = event

    def __getattr__(self, name):
        return getattr(self._store, name)

    def rows(self, job, arc, *, before, limit):
        found = self._store.rows(job, arc, before=before, limit=limit)
        if before is not None and self._event is not None:
            event, self._event = self._event, None
            event()
        return found


@pytest.mark.parametrize('while_scanned', [False, True],
                         ids=['after the scan', 'during the scan'])
@pytest.mark.parametrize('options', [
    {}, {'spread': True}, {'own': True}], ids=['grid', 'spread', 'own'])
def test_an_object_listed_after_a_scan_and_not_claimed_is_claimed_late(
        world, options, while_scanned):
    """The catalogue of the owner was slow. The owner listed the object late,
    and then lost the store.
    """
    own = options.pop('own', False)
    new = _owned_by('b', spacing=60.0) if own else _owned_by('b')
    known = _owned_by('a')
    store = world.shared_store()
    one, slow = world.group(
        'ab', worlds.job(every=60.0 if own else 600.0, objects=True,
                         **options),
        store=store, catalogues={'poll': [known]})
    world.advance(595)
    slow.reader.given['poll'] = ...
    claim = store.claim

    def not_by_its_owner(request, lease):
        if lease.id.startswith('b-'):
            raise exceptions.StoreUnavailable('cut off')
        return claim(request, lease)

    def answer():
        store.claim = not_by_its_owner
        slow.reader.given['poll'] = [known, new]
        slow.answer()
    if while_scanned:
        one.queue.store = AfterPage(store, answer)
    world.advance(18)
    if not while_scanned:
        assert slow.reader.given['poll'] is ...
        answer()
    assert slow.reader.given['poll'] is not ...
    world.advance(30)

    assert [row.object for row in store.rows_of('poll', [id_of(new)])]
    assert 600 in one.ticks(key=id_of(new))


class Watched:
    """A shared store that records which member counts the settled objects."""

    def __init__(self, store, name, counted):
        self._store = store
        self._name = name
        self._counted = counted

    def __getattr__(self, name):
        return getattr(self._store, name)

    def settled(self, job, tick):
        self._counted.add((worlds.seconds_of(tick), self._name))
        return self._store.settled(job, tick)


def test_two_of_many_members_scan_and_the_others_wait_for_the_result(
        world, monkeypatch):
    monkeypatch.setattr(authority.StoreAuthority, 'page', 1)
    store = world.shared_store()
    counted = set()
    for name in 'abcde':
        world.scheduler(
            worlds.job(every=60.0, objects=True), name=name, sees=None,
            store=Watched(store, name, counted),
            catalogues={'poll': ['a', 'b']})
    world.show_all('abcde')

    world.advance(290)

    looks = collections.Counter(tick for tick, _ in counted)
    assert looks == dict.fromkeys((0, 60, 120, 180, 240), 2)


def test_a_count_that_has_failed_is_followed_by_others(world, monkeypatch):
    monkeypatch.setattr(authority.StoreAuthority, 'page', 1)
    counted = set()

    class Failing(Watched):
        def settled(self, job, tick):
            number = super().settled(job, tick)
            if len(counted) == 1:
                raise exceptions.StoreUnavailable('out of order')
            return number
    world.group('a', worlds.job(every=60.0, objects=True), store=Failing(
        world.shared_store(), 'a', counted), catalogues={'poll': ['a', 'b']})

    world.advance(290)

    assert len(counted) > 1


def test_objects_of_a_long_catalogue_that_were_not_counted_are_claimed(
        world, monkeypatch):
    """The catalogue is longer than one page of rows, so a scan compares counts
    first.
    """
    monkeypatch.setattr(authority.StoreAuthority, 'page', 3)
    objects = [f'o-{n}' for n in range(9)]
    both = world.group('ab', worlds.job(every=60.0, objects=True),
                       catalogues={'poll': objects})
    world.advance(70)
    both[0].reader.given['poll'] = ...

    world.advance(70)

    assert both[0].starts
    assert {run.object for one in both for run in one.starts
            if run.tick == 120} == {*objects}


def test_an_object_delisted_after_its_claim_hides_no_unclaimed_object(
        world, monkeypatch):
    """The store's count of claimed objects includes delisted objects. So the
    count may seem complete although a listed object was not claimed.
    """
    monkeypatch.setattr(authority.StoreAuthority, 'page', 3)
    parts = ring.Ring(dict.fromkeys('abc', 40))
    objects = [f'o-{n}' for n in range(20)]
    of = {name: [key for key in objects if parts.owner_of(key) == name]
          for name in 'abc'}
    looks, hangs, claims = world.group(
        'abc', worlds.job(every=60.0, objects=True),
        catalogues={'poll': objects})
    world.advance(70)

    world.schedulers.remove(hangs)
    left = of['c'][:len(of['b'])]
    looks.reader.given['poll'] = [
        key for key in objects if key not in left]
    world.advance(51)
    world.schedulers.remove(claims)
    world.advance(20)

    assert len(left) == len(of['b'])
    assert {run.object for run in (*looks.starts, *claims.starts)
            if run.tick == 120} == {*objects}


class Slow:
    """Delay the answers of one method of the store until the test sends them.

    :param store: The store of the members.
    :param question: Name of the method.
    :param held: Function that is called with the arguments of a call. It
        returns True if the answer to this call is delayed.
    """

    def __init__(self, store, monkeypatch, question,
                 held=lambda *args, **options: True):
        #: The arguments of the delayed calls.
        self.asked = []
        self._waits = collections.deque()
        self._held = held
        self._call = getattr(store, question)
        setattr(store, question, self._asked)
        monkeypatch.setattr(worlds.StoreQueue, 'submit', self._asker())

    def _asked(self, *args, **options):
        if self._held(*args, **options):
            self.asked.append(args)
        return self._call(*args, **options)

    def _asker(self):
        ask = worlds.StoreQueue.submit

        def held(direct, call, then, *rest, **options):
            number = len(self.asked)

            def answered(answer):
                if len(self.asked) > number:
                    self._waits.append(lambda: then(answer))
                else:
                    then(answer)
            ask(direct, call, answered, *rest, **options)
        return held

    def answer(self, most=1_000):
        """Send up to *most* answers; each of them may lead to another call."""
        for _ in range(most):
            if not self._waits:
                return
            self._waits.popleft()()


def slow_to_read(store, monkeypatch):
    """Delay the pages that walks read, and no other reads."""
    return Slow(store, monkeypatch, 'rows',
                lambda *args, before, limit: before is None)


def arcs_of(asked):
    return [arc for _, arc in asked]


def test_a_job_of_the_group_is_due_since_there_are_schedulers_of_it(world):
    """The job comes due although its owner has no view of the group yet."""
    me = world.scheduler(worlds.job(every=60.0, scope=Scope.GROUP), sees=None,
                         store=world.shared_store())
    world.advance(65)

    world.show(me, ['me'])
    world.advance(5)

    assert me.ticks() == [60]


def that_lists_two(world):
    """A store, and a member that has run the first tick of two objects."""
    store = world.shared_store()
    me = world.scheduler(
        worlds.job(every=60.0, objects=True), sees=None, store=store,
        catalogues={'poll': ['a', 'b']})
    world.show(me, ['me'])
    world.advance(61)
    return store, me


def test_an_object_that_is_back_before_its_leaving_is_recorded_stays_listed(
        world, monkeypatch):
    store, me = that_lists_two(world)
    slow = Slow(store, monkeypatch, 'rows_of')

    me.reader.given['poll'] = ['a']
    world.advance(60)
    me.reader.given['poll'] = ['a', 'b']
    world.advance(60)
    assert slow.asked == [('poll', ['b'])]
    slow.answer()

    assert [row.object for row in store.rows_of('poll', ['b'])] == ['b']


def test_an_object_that_the_store_does_not_list_any_more_is_listed_again(
        world):
    """The former owner of the object delisted it late."""
    store, me = that_lists_two(world)

    store.sync('poll', [], ['b'], readings=[world.clock.now()])
    world.advance(60)

    assert me.ticks(key='b') == [60, 120]


def test_an_object_that_is_not_listed_is_not_searched_for(world, monkeypatch):
    """If the objects have phases, they may be claimed from an older catalogue,
    which may contain delisted objects.
    """
    store, me = that_lists_two(world)
    walks = slow_to_read(store, monkeypatch)

    me.flow.handle(events.Unlisted('poll', ['gone']))
    world.advance(5)
    assert walks.asked == []
    me.flow.handle(events.Unlisted('poll', ['gone', 'b']))
    world.advance(5)

    assert len(walks.asked) == 1


def test_a_member_that_lost_an_object_does_not_record_its_delisting(
        world, monkeypatch):
    """The new owner has listed the object in the meantime."""
    store = world.shared_store()
    parts = ring.Ring(dict.fromkeys('ab', 40))
    key = next(key for key in map(str, range(100))
               if parts.owner_of(key) == 'b')
    one, _ = (world.scheduler(
        worlds.job(every=60.0, objects=True), name=name, sees=None,
        store=store, catalogues={'poll': [key]}) for name in 'ab')
    world.show(one, 'a')
    world.advance(61)
    slow = Slow(store, monkeypatch, 'rows_of')

    one.reader.given['poll'] = []
    world.advance(60)
    world.show_all('ab')
    world.advance(10)
    assert slow.asked == [('poll', [key])]
    slow.answer()

    assert [row.object for row in store.rows_of('poll', [key])] == [key]


def test_a_walk_goes_on_where_it_was_when_the_ring_changes(
        world, monkeypatch):
    """A walk that began again at each change would never end if the ring
    changed more often than a walk takes.
    """
    monkeypatch.setattr(authority.StoreAuthority, 'page', 3)
    store = world.shared_store()
    slow = slow_to_read(store, monkeypatch)
    one = world.scheduler(
        worlds.job(every=600.0, objects=True), name='a', sees='ab',
        store=store, catalogues={'poll': [f'o-{n}' for n in range(40)]})
    world.advance(1)
    slow.answer(10)
    walked = arcs_of(slow.asked[:10])

    world.show(one, 'abc')
    world.advance(1)
    slow.answer()

    again = arcs_of(slow.asked[11:])
    own = ring.Ring(dict.fromkeys('abc', 40)).arcs('a')
    assert not [arc for arc in walked if ring.minus([arc], again) != [arc]]
    assert ring.minus(own, sorted([*walked, *again])) == []


def test_an_object_with_a_phase_does_not_wait_for_the_end_of_a_first_walk(
        world, monkeypatch):
    """The object waits neither in the period in which the walk begins, nor in
    the next period.
    """
    monkeypatch.setattr(authority.StoreAuthority, 'page', 3)
    store = world.shared_store()
    slow = slow_to_read(store, monkeypatch)
    objects = [f'o-{n}' for n in range(40)]
    one = world.scheduler(
        worlds.job(every=60.0, objects=True, spread=True), store=store,
        catalogues={'poll': objects})
    world.advance(1)
    slow.answer(10)
    read = {row.object for row in store.rows(
        'poll', ring.Arc(ring.MIN_POSITION, ring.MAX_POSITION),
        before=2 ** 62, limit=99)}

    world.advance(121)

    prompt = {(run.object, run.tick) for run in one.starts
              if run.at - run.tick - schedule.phase_us(
                  ring.position_of(run.object), 60 * schedule.SECOND
              ) / schedule.SECOND < 1.0}
    due = {(key, tick) for key in read for tick in (0, 60)
           if tick or schedule.phase_us(
               ring.position_of(key), 60 * schedule.SECOND)
           > 1.1 * schedule.SECOND}
    assert 0 < len(read) < len(objects)
    assert prompt >= due


def test_a_large_catalogue_is_listed_in_pieces_and_run_for_its_first_tick(
        world, monkeypatch):
    """A million objects in one call would be too many for a database."""
    store = world.shared_store()
    sizes = []
    sync = store.sync

    def count(job, listed, delisted, **options):
        sizes.append(max(len(listed), len(delisted)))
        return sync(job, listed, delisted, **options)
    monkeypatch.setattr(store, 'sync', count)
    monkeypatch.setattr(authority.StoreAuthority, 'page', 100)
    names = [f'o-{n}' for n in range(1050)]
    me = world.scheduler(
        worlds.job('poll', every=60.0, objects=True), store=store,
        catalogues={'poll': names})

    world.advance(61)

    assert sizes and max(sizes) <= 100
    assert sorted(one.object for one in me.starts) == sorted(names)
    me.reader.given['poll'] = names[:5]
    world.advance(60)
    assert max(sizes) <= 100
    assert len(store.rows('poll', CIRCLE, limit=9999)) == 5


def test_a_large_tick_that_takes_its_time_is_not_late_for_its_owner(world):
    store = world.shared_store()
    ranges = []
    rows = store.rows

    def read(job, arc, *, before, limit):
        if before is not None:
            ranges.append(arc)
        return rows(job, arc, before=before, limit=limit)
    store.rows = read
    names = [f'o-{n}' for n in range(300)]
    both = world.group(
        'ab', worlds.job(every=600.0, objects=True), store=store,
        batch_size=10, catalogues={'poll': names})
    world.advance(599)
    hangs = both.pop()
    world.schedulers.remove(hangs)

    busy = 0
    while len({s.object for s in both[0].starts}) < 300:
        ranges.clear()
        world.turn(takes=1.0)
        both[0].flow.sweep()
        # The rest of the tick is claimed in several steps.
        if ranges and both[0].step() < 0.001:
            busy += 1
            assert store.attend({'poll': 60.0}, {})['poll'].checked < (
                worlds.BEGIN + 600) * schedule.SECOND
            # The late scan covers only the arcs of the other member.
            view = ring.Ring(dict.fromkeys('ab', 40))
            assert {view.owner_at(end) for one in ranges for end in one} <= {
                'b'}

    assert busy
    world.advance(60)
    ours = {s.object for s in both[0].starts}
    assert ours == {*names}


@pytest.mark.full
def test_an_object_whose_spacing_changes_and_back_has_each_from_then_on(
        world):
    """A tick runs only if its schedule was in force when the tick came."""
    both = world.group('ab', worlds.job(every=70.0, objects=True), catalogues={
        'poll': [worlds.thing('o', spacing=3600.0)]})

    def change(spacing):
        for one in both:
            one.reader.given['poll'] = [worlds.thing('o', spacing=spacing)]
    world.advance(3700)
    change(60.0)
    world.advance(300)
    change(3600.0)
    world.advance(3300)

    ticks = sorted(tick for one in both for tick in one.ticks(key='o'))
    # The catalogue is read at each tick of the job. The changes are found at
    # the ticks 3710 and 4060.
    assert ticks == [3600, *range(3720, 4060, 60), 7200]


def test_a_schedule_that_changes_is_nothing_that_runs_immediately(world):
    """The object was listed before its schedule changed, so it does not run at
    the change.
    """
    both = world.group(
        'ab', worlds.job(every=60.0, objects=True, run_immediately=True),
        catalogues={'poll': [worlds.thing('o', spacing=3600.0)]})
    world.advance(100)
    for one in both:
        one.reader.given['poll'] = [worlds.thing('o', spacing=300.0)]

    world.advance(250)

    # The catalogue was read at 120.
    assert sorted(tick for one in both for tick in one.ticks()) == [0, 300]
