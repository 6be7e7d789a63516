# SPDX-License-Identifier: Apache-2.0
"""A scheduler carries out and confirms the commands of operators on jobs."""

import pytest

from distperiodic.adapters.local.memory import MemoryClaimStore
from distperiodic.core.claim import UNBOUNDED
from distperiodic.core.claim import Authority
from distperiodic.core.control import Verb
from distperiodic.core.job import Scope
from tests import claiming
from tests.logged import events
from tests.unit import world as worlds

KEYS = [f'host-{n}' for n in range(20)]


# -- without a store

class Group:
    """Schedulers without a store, and the world in which they run."""

    def __init__(self, names, *jobs, **options):
        self.world = worlds.World()
        self.members = [self.world.scheduler(
            *jobs, name=name, sees=names, catalogues={
                job.name: KEYS for job in jobs if job.objects}, **options)
            for name in names]
        self._seen = dict.fromkeys(names, 0)
        self.world.advance(1)

    def tell(self, verb, why='new kernel', **arguments):
        return [one.flow.order_jobs(verb, arguments, why)
                for one in self.members]

    def started(self, seconds=0):
        """Let time pass; return the objects that started since the last call.
        """
        if seconds:
            self.world.advance(seconds)
        new = [start.object for one in self.members
               for start in one.starts[self._seen[one.name]:]]
        self._seen.update((one.name, len(one.starts)) for one in self.members)
        return sorted(new)


JOBS = (worlds.job('poll', objects=True),
        worlds.job('scrub', objects=True, topic='disks'),
        worlds.job('beat', scope=Scope.MEMBER),
        worlds.job('never', scope=Scope.GROUP, enabled=False))


@pytest.fixture
def alone():
    group = Group(['me'], worlds.job('poll', objects=True))
    assert group.started(60) == sorted(KEYS)
    return group


def test_a_paused_job_runs_again_after_it_is_resumed(alone, caplog):
    caplog.set_level('INFO')
    assert alone.tell(Verb.PAUSE, job='poll') == [
        (True, 'paused; 0 in flight')]
    assert alone.started(180) == []

    assert alone.tell(Verb.RESUME, job='poll') == [(True, 'resumed')]

    assert alone.started(60) == sorted(KEYS)
    assert alone.members[0].count('paused') == 3 * len(KEYS)
    assert [one for one in events(caplog) if one.startswith('job ')] == [
        'job paused', 'job resumed']
    assert alone.tell(Verb.RESUME, job='poll') == [
        (True, 'it was not paused here')]


def test_a_pause_over_the_bus_does_not_reach_a_member_that_joins_later(alone):
    alone.tell(Verb.PAUSE, job='poll')
    later = alone.world.scheduler(
        worlds.job('poll', objects=True), name='new', sees=['me', 'new'],
        catalogues={'poll': KEYS})
    alone.world.show(alone.members[0], ['me', 'new'])

    alone.world.advance(120)

    assert later.flow.paused_jobs == []
    assert alone.members[0].flow.paused_jobs == ['poll']
    assert later.starts


def test_a_trigger_runs_each_members_own_part_once():
    group = Group(['a', 'b'], worlds.job('poll', objects=True))
    group.started(60)
    at = group.world.clock.seconds

    answers = group.tell(Verb.TRIGGER, job='poll')

    assert group.started() == sorted(KEYS)
    assert [int(text.split()[1]) for _, text in answers] == [
        sum(start.at >= at for start in one.starts) for one in group.members]
    # The ticks of the schedule are not affected.
    assert group.started(60) == sorted(KEYS)


def test_a_trigger_counts_objects_that_wait_for_a_worker():
    group = Group(['me'], worlds.job('poll', objects=True), finishes=False,
                  workers=[worlds.worker(slots=2)])

    assert group.tell(Verb.TRIGGER, job='poll') == [
        (True, 'claimed 20 objects')]
    assert len(group.started()) == 2


def test_a_trigger_leaves_the_objects_that_another_member_has_gained(alone):
    alone.world.scheduler(
        worlds.job('poll', objects=True), name='new', sees=['me', 'new'],
        catalogues={'poll': KEYS})
    alone.world.show(alone.members[0], ['me', 'new'])

    alone.tell(Verb.TRIGGER, job='poll')

    assert 0 < len(alone.started()) < len(KEYS)


def test_a_paused_job_is_triggered_nevertheless(alone):
    alone.tell(Verb.PAUSE, job='poll')

    alone.tell(Verb.TRIGGER, job='poll')

    assert alone.started(120) == sorted(KEYS)


def test_a_trigger_leaves_out_objects_that_still_run():
    group = Group(['me'], worlds.job('poll', objects=True, overlap='wait'),
                  finishes=False)
    group.world.advance(60)

    assert group.tell(Verb.TRIGGER, job='poll') == [
        (True, 'claimed 0 objects, left out 20 whose earlier tick has not '
         'ended')]


def test_a_trigger_gives_objects_all_their_attempts_again(alone, monkeypatch):
    store, asked = alone.members[0].store, []
    claim = store.claim
    monkeypatch.setattr(store, 'claim', lambda *args, **options: (
        asked.append(options), claim(*args, **options))[1])

    alone.tell(Verb.TRIGGER, job='poll')

    assert [one.get('max_attempts', UNBOUNDED) for one in asked] == [UNBOUNDED]


def test_one_object_is_run_by_its_owner():
    group = Group(['a', 'b'], worlds.job('poll', objects=True))
    group.started(60)

    answers = group.tell(Verb.TRIGGER, job='poll', object='host-3')

    assert sorted(answers) == [(True, 'claimed 1 object'),
                               (True, 'it does not own this object')]
    assert group.started() == ['host-3']
    for done, text in group.tell(Verb.TRIGGER, job='poll', object='host-99'):
        assert not done
        assert "does not list object 'host-99'" in text


def test_objects_with_their_own_schedule_are_triggered_too():
    world = worlds.World()
    me = world.scheduler(
        worlds.job('poll', objects=True), catalogues={'poll': [
            worlds.thing('slow', spacing=600), 'fast']})
    world.advance(61)

    assert me.flow.order_jobs(Verb.TRIGGER, {'job': 'poll'}, '').text == (
        'claimed 2 objects')


@pytest.mark.parametrize('arguments, paused', [
    ({'job': 'scrub'}, ['scrub']), ({'topic': 'disks'}, ['scrub']),
    ({'topic': 'default'}, ['poll']), ({}, ['poll', 'scrub'])])
def test_one_job_or_those_of_a_partition_or_all_are_paused(arguments, paused):
    group = Group(['me'], *JOBS)

    [answer] = group.tell(Verb.PAUSE, **arguments)

    assert answer.done
    assert group.members[0].flow.paused_jobs == paused


@pytest.mark.parametrize('verb', [Verb.PAUSE, Verb.RESUME, Verb.TRIGGER])
@pytest.mark.parametrize('arguments, said', [
    ({'job': 'pool'}, "it has no job 'pool'; it has poll, scrub"),
    ({'job': 'beat'}, "job 'beat' is disabled, or each member runs it"),
    ({'job': 'never'}, "job 'never' is disabled, or each member runs it"),
    ({'topic': 'tapes'}, "no job of partition 'tapes'; it has default, disks"),
    ({'job': 7}, 'it has no job 7'),
])
def test_a_job_that_cannot_be_controlled_is_named(verb, arguments, said):
    group = Group(['me'], *JOBS)

    [answer] = group.tell(verb, **arguments)

    assert not answer.done
    assert said in answer.text
    assert group.members[0].flow.paused_jobs == []


def test_a_member_that_cannot_run_objects_now_answers_with_the_reason(alone):
    [me] = alone.members

    alone.world.distrust(me)
    assert 'not certain' in alone.tell(Verb.TRIGGER, job='poll')[0].text
    alone.world.trust(me)
    me.flow.set_drained(True)
    assert 'drained' in alone.tell(Verb.TRIGGER, job='poll')[0].text
    me.flow.set_drained(False)
    me.reader.given['poll'] = ...
    late = alone.world.scheduler(
        worlds.job('poll', objects=True), catalogues={'poll': ...})
    assert 'not read the catalogue' in late.flow.order_jobs(
        Verb.TRIGGER, {'job': 'poll'}, '').text


# -- with a store

class Stored:
    """A scheduler with a store that several members share."""

    def __init__(self, **options):
        self.world = worlds.World()
        self.store = self.world.shared_store()
        self.me = self.world.scheduler(
            worlds.job('poll', objects=True), store=self.store,
            catalogues={'poll': KEYS}, **options)
        self.world.advance(61)
        self.answers = []

    def confirm(self, verb, job='poll', **arguments):
        self.me.flow.confirm_job(verb, job, arguments, self.answers.append)


@pytest.fixture
def stored():
    return Stored()


def test_a_pause_is_confirmed_once_it_applies(stored):
    stored.store.pause('poll', 'new kernel')

    stored.confirm(Verb.PAUSE)
    before = len(stored.me.starts)
    stored.world.advance(120)

    assert stored.answers == [(True, 'paused; 0 in flight')]
    assert len(stored.me.starts) == before
    stored.store.resume('poll')
    stored.confirm(Verb.RESUME)
    assert stored.answers[1:] == [(True, 'resumed')]


def test_a_hint_makes_a_scheduler_read_the_status_at_its_next_sweep(caplog):
    caplog.set_level('INFO')
    stored = Stored(sweep_interval=30.0)
    stored.store.pause('poll', 'new kernel')
    stored.me.flow.sweep()
    assert 'job paused' not in events(caplog)

    stored.me.flow.hurry()
    stored.me.flow.sweep()

    assert events(caplog)[-1] == 'job paused'


def test_a_read_that_began_before_the_command_confirms_nothing(stored):
    """The pending read has seen the job before it was paused."""
    queue = stored.me.queue
    queue.slow = True
    stored.world.advance(60)
    assert queue.asked
    before, queue.asked = queue.asked, []
    for call, then, _ in before:
        found = call(stored.store)
        queue.asked.append((lambda store, found=found: found, then, None))
    stored.store.pause('poll', 'new kernel')

    stored.confirm(Verb.PAUSE)
    assert stored.answers == []
    queue.answer()

    [answer] = stored.answers
    assert (answer.done, answer.text.partition(';')[0]) == (True, 'paused')


def test_a_command_waits_until_the_store_is_back(stored):
    stored.me.queue.away = True
    stored.store.pause('poll', 'new kernel')

    stored.confirm(Verb.PAUSE)
    assert stored.answers == []
    stored.me.queue.come_back()

    assert stored.answers == [(True, 'paused; 0 in flight')]


@pytest.mark.parametrize('verb, pause', [
    (Verb.PAUSE, False), (Verb.RESUME, True)])
def test_a_command_that_a_later_one_replaced_is_not_confirmed(
        stored, verb, pause):
    if pause:
        stored.store.pause('poll', 'new kernel')

    stored.confirm(verb)

    assert stored.answers == [
        (False, 'a later command has replaced this one')]


@pytest.mark.parametrize('verb', [Verb.PAUSE, Verb.RESUME, Verb.TRIGGER])
def test_a_job_of_other_schedulers_is_none_of_this_one(stored, verb):
    stored.confirm(verb, 'scrub')

    assert stored.answers == [(True, 'it does not schedule this job')]


def test_a_trigger_is_answered_with_the_number_of_claims(stored):
    tick = stored.world.clock.now()
    claiming.claim(stored.store, 'poll', tick, KEYS[:3], lease='triggered',
                   holder='', seconds=0.0, supersede=False)
    stored.world.clock.advance(0.1)

    stored.confirm(Verb.TRIGGER, tick=tick)
    stored.confirm(Verb.TRIGGER, tick=tick + 1)

    assert stored.answers == [(True, 'claimed 3 objects'),
                              (True, 'claimed 0 objects')]


def test_a_drained_scheduler_claims_no_triggered_objects(stored):
    stored.me.flow.set_drained(True)

    stored.confirm(Verb.TRIGGER)

    [answer] = stored.answers
    assert answer.done
    assert 'drained' in answer.text


def test_a_member_job_has_no_pause_in_the_store():
    world = worlds.World()
    me = world.scheduler(
        worlds.job('ours', scope=Scope.GROUP),
        store=MemoryClaimStore(world.clock),
        own=[worlds.job('mine', scope=Scope.MEMBER, topic='-')])
    answers = []

    me.flow.confirm_job(Verb.PAUSE, 'mine', {}, answers.append)

    assert Authority.RING in me.queues
    assert answers == [(True, 'it does not schedule this job')]
