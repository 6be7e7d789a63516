# SPDX-License-Identifier: Apache-2.0
"""Rows of members, and answers of members to commands: guarantees in every
database.
"""

import collections
import contextlib
import threading
import uuid
from concurrent import futures

import pytest

from distperiodic.adapters.sql.members import SqlMembers
from distperiodic.adapters.sql.schema import connect
from distperiodic.core.control import Desired
from distperiodic.core.control import Me
from distperiodic.core.control import MemberOutcome
from distperiodic.core.control import Verb
from distperiodic.operator import auditing
from distperiodic.operator.group_reader import GroupStore
from distperiodic.operator.members import MemberAdmin
from distperiodic.operator.members import request_answers
from tests.pruned import pruned

World = collections.namedtuple('World', 'database store admin space members')


@pytest.fixture
def world(database_url):
    url = database_url
    space = f'tests-{uuid.uuid4().hex[:8]}'
    database, store = connect(url), GroupStore(url, space)
    made = World(
        database, store, MemberAdmin(store, auditing.Actor(
            'ann', 'desk', 'new kernel')), space, SqlMembers(database))
    yield made
    for one in made[:2]:
        one.close()


def report(world, name, part='', process='p~1'):
    me = Me(world.space, part, name)
    world.members.report(me, process, {'pid': 1},
                         new=world.members.read(me).desired is None)
    return me


def test_a_member_reads_its_desired_state_and_answers_once(world):
    me, other = report(world, 'api-1'), report(world, 'api-2')
    chosen = [one for one in world.admin.members() if one.name == 'api-1']

    action = world.admin.order(Verb.DRAIN, chosen, 'api-1')

    found = world.members.read(me)
    assert found.desired == Desired(drained=True)
    assert [(one.action, one.verb) for one in found.requests] == [
        (action, 'member drain')]
    assert world.members.read(other) == (Desired(), [], False)
    for text in 'first', 'second':
        world.members.answer(me, 'p~1', {action: MemberOutcome(True, text)})
    [answer] = world.admin.answers(action)
    assert (answer.done, answer.outcome, answer.process) == (
        True, 'first', 'p~1')
    assert world.members.read(me).requests == []


def test_a_desired_state_outlives_the_process(world):
    me = report(world, 'api-1')
    world.admin.order(Verb.DRAIN, world.admin.members(), 'all')
    world.admin.order(Verb.SET, world.admin.members(), 'all', pool_size=3)

    report(world, 'api-1', process='')
    report(world, 'api-1', process='p~2')

    assert world.members.read(me).desired == Desired(True, 3)
    world.admin.order(Verb.UNDRAIN, world.admin.members(), 'all')
    world.admin.order(Verb.UNSET, world.admin.members(), 'all')
    assert world.members.read(me).desired == Desired()


def test_members_of_a_drained_host_that_join_later_are_drained(world):
    first = report(world, 'h1:0')
    other = Me(world.space, '', 'h2:0')
    chosen = [one for one in world.admin.members() if one.name == 'h1:0']
    world.admin.order(Verb.DRAIN, chosen, 'host h1', ['h1'])
    late = Me(world.space, 'default', 'h1:7')

    # The member learns of the drain before it has a row, and after that.
    assert world.members.read(late) == (None, [], True)
    assert world.members.read(other) == (None, [], False)
    report(world, 'h1:7', 'default')
    report(world, 'h2:0')
    for me in first, late:
        assert world.members.read(me).desired == Desired(drained=True)
    assert world.members.read(other).desired == Desired()
    assert {(one.name, one.drained_by, one.drained_why)
            for one in world.admin.members() if one.drained} == {
        (name, 'ann@desk', 'new kernel') for name in ('h1:0', 'h1:7')}

    world.admin.order(Verb.UNDRAIN, world.admin.members(), 'host h1', ['h1'])
    assert world.members.read(Me(world.space, '', 'h1:8')) == (
        None, [], False)
    assert not any(one.drained for one in world.admin.members())


def test_two_operators_drain_one_host_at_the_same_time(world, database_url):
    """Each member obeys both commands, and answers both operators."""
    mine = [report(world, 'h1:0', part) for part in ('', 'vm')]
    other = report(world, 'h2:0')
    both = threading.Barrier(2)

    def drain(who):
        with contextlib.closing(
                GroupStore(database_url, world.space)) as store:
            desk = MemberAdmin(store, auditing.Actor(who, 'desk'))
            chosen = [one for one in desk.members() if one.is_on('h1')]
            both.wait(60)
            return desk.order(Verb.DRAIN, chosen, 'host h1', ['h1'])
    # The host is drained already in every second round.
    for number in range(20):
        with futures.ThreadPoolExecutor(2) as pool:
            actions = list(pool.map(drain, ['ann', 'bob']))
        for me in mine:
            found = world.members.read(me)
            assert found.desired == Desired(drained=True)
            assert sorted(one.action for one in found.requests) == sorted(
                actions)
            world.members.answer(me, 'p~1', {
                one.action: MemberOutcome(True, 'drained')
                for one in found.requests})
        for action in actions:
            assert [(one.part, one.name, one.done)
                    for one in world.admin.answers(action)] == [
                ('', 'h1:0', True), ('vm', 'h1:0', True)]
        assert {one.drained_by for one in world.admin.members()
                if one.drained} <= {'ann@desk', 'bob@desk'}
        assert world.members.read(other).desired == Desired()
        assert world.members.read(Me(
            world.space, '', 'h1:7')).host_drained
        if number % 2:
            world.admin.order(
                Verb.UNDRAIN, world.admin.members(), 'host h1', ['h1'])
            for me in mine:
                world.members.answer(me, 'p~1', {
                    one.action: MemberOutcome(True, 'undrained')
                    for one in world.members.read(me).requests})


def test_an_undrain_of_all_members_ends_the_drains_of_all_hosts(world):
    for host in 'h1', 'h2':
        report(world, f'{host}:0')
        world.admin.order(Verb.DRAIN, world.admin.members(), host, [host])

    world.admin.order(Verb.UNDRAIN, world.admin.members(), 'all', None)

    for host in 'h1', 'h2':
        assert not world.members.read(
            Me(world.space, '', f'{host}:9')).host_drained


def test_a_scheduler_and_a_worker_of_one_name_are_two_members(world):
    report(world, 'api-1')
    worker = report(world, 'api-1', part='default')
    chosen = [one for one in world.admin.members() if one.part]

    world.admin.order(Verb.DRAIN, chosen, 'api-1')

    assert [(one.part, one.drained) for one in world.admin.members()] == [
        ('', False), ('default', True)]
    assert world.members.read(worker).desired.drained


def test_an_operator_reads_the_facts_of_each_process_apart(world):
    """One member cannot read its catalogue, and the other one can."""
    def write(name, part, process, **state):
        me = Me(world.space, part, name)
        world.members.report(me, process, state,
                             new=world.members.read(me).desired is None)
    failing = {'job': 'poll', 'error': 'no \U0001f4be', 'failing_s': 60.0,
               'reading_s': None, 'read_s': 90.0}
    write('vm:0', '', 'vm:0~1', up_s=3600.0, host='vm', pid=7,
          catalogues=[failing])
    write('vm:1', '', 'vm:1~2', up_s=1.0, catalogues=[])
    write('vm:0', 'default', 'vm:0~3', up_s=5.0)

    first, second, worker = world.admin.members()

    assert [one.label for one in (first, second, worker)] == [
        'scheduler vm:0', 'scheduler vm:1', 'worker default/vm:0']
    assert (first.host, first.pid, first.process) == ('vm', 7, 'vm:0~1')
    assert first.seen - first.facts.started == 3_600_000_000
    [fact] = first.facts.catalogues
    assert (fact.job, fact.error) == ('poll', 'no \U0001f4be')
    assert (first.seen - fact.failing_since, first.seen - fact.read_at) == (
        60_000_000, 90_000_000)
    assert second.facts.catalogues == []

    # The facts of a process that is silent stay, and become older.
    again = world.admin.members()[0]
    assert (again.seen, again.facts.started) == (
        first.seen, first.facts.started)
    assert again.age >= first.age


def test_an_action_is_on_record_with_its_outcome(world):
    report(world, 'api-1')
    action = world.admin.order(Verb.DRAIN, world.admin.members(), 'all')
    world.admin.conclude(action, '1 done')

    [event] = auditing.events(world.store, since=0, limit=9)

    assert event[2:] == ('ann', 'desk', 'member drain', 'all', {},
                         'new kernel', '1 done')
    [member] = world.admin.members()
    assert (member.drained_by, member.drained_why) == (
        'ann@desk', 'new kernel')


def test_members_answer_for_a_job_once_the_command_is_carried_out(world):
    me, other = report(world, 'api-1'), report(world, 'api-2')
    record = auditing.ActionRecord(
        world.space, auditing.Actor('ann', 'desk'), 'job trigger', 'poll',
        {'object': 'a'})
    world.database.write(
        lambda connection: record.insert(
            connection, world.database.dialect.now))
    assert world.members.read(me).requests == []

    request_answers(world.store, record, world.admin.members(), tick=7)

    assert world.members.read(me).requests == [
        (record.id, 'job trigger', {'object': 'a', 'tick': 7}, 'poll')]
    world.members.answer(
        other, 'p~1', {record.id: MemberOutcome(True, 'claimed 1 object')})
    unanswered, answered = world.admin.answers('f' * 32, record.id)
    assert (unanswered.name, unanswered.at) == ('api-1', None)
    assert (answered.name, answered.action, answered.outcome) == (
        'api-2', record.id, 'claimed 1 object')


def test_old_records_are_pruned_but_for_that_of_a_drain(world):
    report(world, 'api-1')
    kept = world.admin.order(Verb.DRAIN, world.admin.members(), 'all')
    world.admin.order(Verb.SET, world.admin.members(), 'all', pool_size=3)

    assert pruned(world.database, world.space, history=-1.0) == {
        'actions': 1}

    assert [one.id for one in auditing.events(
        world.store, since=0, limit=9)] == [kept]
