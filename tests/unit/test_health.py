# SPDX-License-Identifier: Apache-2.0
"""The findings about the health of a group, as a function of its facts."""

import dataclasses
import functools
from unittest import mock

import pytest

from distperiodic import exceptions
from distperiodic import opts
from distperiodic.adapters.local.clock import SystemClock
from distperiodic.core.claim import State
from distperiodic.core.live import Live
from distperiodic.core.live import LiveProcess
from distperiodic.core.member import Member
from distperiodic.core.member import ring_digest
from distperiodic.core.member import ring_members
from distperiodic.core.ring import Ring
from distperiodic.core.schedule import SECOND
from distperiodic.core.standby import Role
from distperiodic.core.waiting import Wait
from distperiodic.core.waiting import WaitReason
from distperiodic.core.waiting import with_processes
from distperiodic.operator import health
from distperiodic.operator import health_facts
from distperiodic.operator import health_queries
from distperiodic.operator.activity import Failing
from distperiodic.operator.live_group import Group
from distperiodic.operator.member_rows import MemberRow
from distperiodic.operator.partitions import PartitionState
from distperiodic.operator.partitions import ServingWorker
from distperiodic.operator.task_queries import Halted
from distperiodic.operator.task_queries import Overdue
from distperiodic.operator.task_queries import Stuck
from distperiodic.operator.task_queries import StuckTask
from distperiodic.operator.waiting import Starving
from tests.configured import configuration

NOW = 1_000_000 * SECOND
NONCE = '0' * 16


def scheduler(name, points=40, ring_format=1):
    return Member(name, NONCE, 1, points=points, ring_format=ring_format)


def worker(name, slots=10):
    return Member(name, NONCE, 1, slots=slots)


def group(schedulers=('a:0',), workers=None, unknown=(), groups=('nodes',)):
    members = tuple(one if isinstance(one, Member) else scheduler(one)
                    for one in schedulers)
    return Group(
        'nodes', members, Ring(ring_members(members)),
        {topic: tuple(one if isinstance(one, Member) else worker(one)
                      for one in some)
         for topic, some in (workers or {}).items()},
        {}, list(unknown), list(groups), {})


def row(name='a:0', part='', age=1.0, stopped=False, drained=False, **state):
    age = round(age * SECOND)
    return MemberRow(
        part, name, '' if stopped else f'{name}~{NONCE}', age,
        {'healthy': True, 'host': name.partition(':')[0], **state},
        drained, NOW if drained else None, 'root@a' if drained else '', '',
        None, NOW - age)


def report(**state):
    """The rows of a group at rest, in which the worker reports *state*."""
    return {'members': (row(), row(part='default', **state))}


def schedulers(*ages):
    """The rows of schedulers with views of these ages. All but the last one
    have the view of the coordination service.
    """
    names = [f'{chr(97 + at)}:0' for at in range(len(ages))]
    digest = ring_digest(group(names).members)
    return {'live': group(names, {'default': ['a:0']}), 'members': (
        row(part='default'), *(
            row(name, view={
                'digest': 'other' if name == names[-1] else digest,
                'members': len(names), 'age_s': age, 'trusted': True})
            for name, age in zip(names, ages, strict=True)))}


def hung(members, **facts):
    """The facts about a group whose last member has not reported for long."""
    *others, last = members
    return {**facts, 'members': (*others, last._replace(
        age=99 * SECOND, seen=NOW - 99 * SECOND))}


def catalogue(**state):
    return {'members': (
        row(catalogues=[{'job': 'ping', 'read_s': 99, **state}]),
        row(part='default'))}


def run(**more):
    return {'job': 'ping', 'object': 'h7', 'tick': NOW, 'age_s': 40,
            'timeout_s': None, **more}


def job(name='ping', period=60, attended=1.0, unattended=False, ticks=(),
        paused=False, ago=1):
    """A job, and its last ticks with the numbers of objects that were
    superseded, and lost. *ago* is the age of the newest tick in seconds.
    """
    return health.JobFacts(
        name, period * SECOND, paused, NOW - round(attended * SECOND),
        unattended, [
            health.Recent(NOW - (at * period + ago) * SECOND, 10, superseded,
                          lost)
            for at, (superseded, lost) in enumerate(ticks)])


def failing(key='h7', runs=3, name='ping'):
    return Failing(name, key, runs, NOW - 60 * SECOND, NOW, NOW, 1, '',
                   'it is\nill', '', State.CLAIMED)


def waits(seconds, periods):
    return Starving('ping', 'h7', NOW - seconds * SECOND, periods, False)


def standby(active='w:0', *names):
    return PartitionState(
        'p', f'{active}~{NONCE}' if active else '', 1, NOW, 5.0, '', '',
        tuple(ServingWorker(f'{name}~{NONCE}', Role.STANDBY, NOW, 1.0)
              for name in names))


#: A group at rest: a scheduler and a worker of the same name on one host.
REST = health.Facts(
    'nodes', NOW, session_timeout=10.0, sweep_interval=1.0, messaging=True,
    live=group(workers={'default': ['a:0']}), stored=True,
    members=(row(), row(part='default')), jobs=(job(),),
    processes=Live([LiveProcess()], {'default': [LiveProcess()]}))


def test_findings_about_one_job_and_one_object():
    found = health.findings(dataclasses.replace(
        REST, failing=(failing('h1'), failing('h1', name='ping/h1'),
                       failing('h2')),
        jobs=(job(ticks=[(0, 1)]), job('ping/h1', ticks=[(0, 1)]))))

    assert [one.about for one in health.concerning(found, 'ping', 'h1')] == [
        'job ping', 'object ping/h1']


def about(**changes):
    """Return what is found about a group at rest after *changes*."""
    return {(one.code, one.about) for one in health.findings(
        dataclasses.replace(REST, **changes))}


# What differs from a group at rest, and what is found.
CASES = {
    'nothing': ({}, set()),
    'no store': ({'stored': False, 'members': (), 'jobs': ()}, set()),
    'no coordination service': ({'live': None}, set()),
    'the store is away': (
        {'store': 'refused', 'stored': False, 'members': (), 'jobs': ()},
        {('store-unavailable', 'store')}),
    'the coordination service is away': (
        {'coordination': 'refused', 'live': None},
        {('coordination-unavailable', 'coordination')}),
    'a store that refuses the calls of a process is not slow': (
        report(store={'calls': 9, 'p50_s': 9.0, 'slow_s': 9, 'waits_s': 9,
                      'away': True}), set()),
    'the broker is away': (
        {'members': (row(broker='refused'), row(part='default'))},
        {('broker-unavailable', 'broker')}),
    'runs that wait for the broker': (
        {'members': (row(broker='refused'), row(part='default')),
         'starving': (waits(180, 3.0),)},
        {('broker-unavailable', 'broker')}),
    'the broker was away when a process was killed': (
        {'members': (row(), row(name='b:0', stopped=True, broker='refused'),
                     row(part='default'))}, set()),
    'the store is fast': ({'round_trip': 0.24}, set()),
    'the store is slow': ({'round_trip': 0.25}, {('store-slow', 'store')}),
    'the store is so slow that standby workers are unknown': (
        {'round_trip': 0.6, 'unread': ['partitions', 'jobs'], 'jobs': (),
         'live': group(workers={'default': [worker('a:0', 0)]})},
        {('store-slow', 'store')}),
    # Members.
    'a worker killed beside a scheduler of its name': (
        {'live': group(workers={'default': ['b:0']}),
         'members': (row(), row(part='default', age=11),
                     row('b:0', 'default'))},
        {('member-dead', 'worker default/a:0')}),
    'a scheduler frozen beside a worker of its name': (
        {'live': group(['b:0'], {'default': ['a:0']}),
         'members': (row(age=11), row('b:0'), row(part='default'))},
        {('member-dead', 'scheduler a:0')}),
    'a member in the group that does not report': (
        {'members': (row(), row(part='default', age=11))},
        {('member-silent', 'worker default/a:0')}),
    'a member that has not reported for a session': (
        {'members': (row(), row(part='default', age=10))}, set()),
    'a member that died, before its session has ended': (
        {'live': group(), 'messaging': False,
         'members': (row(), row(part='default', age=9))}, set()),
    'a member that died long ago': (
        {'members': (*REST.members, row('old:0', age=health.GONE_FOR + 1))},
        set()),
    'a member that was stopped': (
        {'members': (*REST.members, row('b:0', age=99, stopped=True))},
        set()),
    'a drained member whose host was switched off': (
        {'members': (*REST.members, row('b:0', age=99, drained=True))},
        set()),
    'a drained member that hangs': (
        {'live': group(['a:0', scheduler('b:0', 0)],
                       {'default': ['a:0']}),
         'members': (*REST.members, row('b:0', age=99, drained=True))},
        {('member-silent', 'scheduler b:0')}),
    'a new process that has the name of a dead one': (
        {'members': (row(age=9), row(part='default'))}, set()),
    'a process without a store that was seen before': (
        {'stored': False, 'members': (), 'jobs': (),
         'seen': {('', 'b:0'): NOW - SECOND, ('', 'a:0'): NOW}},
        {('member-dead', 'scheduler b:0')}),
    'a process that works outside the group': (
        {'members': (*REST.members, row('b:0'))},
        {('member-outside', 'scheduler b:0')}),
    'a process that is not in the group yet': (
        {'members': (*REST.members, row(
            'b:0', healthy=False, unhealthy_s=1))}, set()),
    'a process that cannot join the group': (
        {'members': (*REST.members, row(
            'b:0', healthy=False, unhealthy_s=9, problem='no answer'))},
        {('member-unhealthy', 'scheduler b:0')}),
    'a process that is not healthy for a moment': (
        report(healthy=False, unhealthy_s=8), set()),
    'a scheduler that sees another group': (
        schedulers(60, 60, 60), {('view-differs', 'scheduler c:0')}),
    'two schedulers that disagree': (
        schedulers(60, 60), {('view-differs', 'scheduler b:0')}),
    'a scheduler that has just seen a change': (
        schedulers(60, 60, 9), set()),
    'two schedulers whose reports are not of one time': (
        schedulers(9, 60), set()),
    'a scheduler that saw another group before it hung': (
        hung(**schedulers(300, 300, 300)),
        {('member-silent', 'scheduler c:0')}),
    'a scheduler whose clock is ahead': (
        {'members': (row(clock_ahead_s=1.5), row(part='default'))},
        {('clock-differs', 'scheduler a:0')}),
    'a scheduler whose clock is behind': (
        {'members': (row(clock_ahead_s=-1.5), row(part='default'))},
        {('clock-differs', 'scheduler a:0')}),
    'a scheduler whose clock differs a little': (
        {'members': (row(clock_ahead_s=-0.9), row(part='default'))}, set()),
    'a process that cannot serve its metrics': (
        report(metrics='in\nuse'),
        {('metrics-unserved', 'worker default/a:0')}),
    'a process that could not serve its metrics before it was killed': (
        {'members': (*REST.members, row(
            'b:0', stopped=True, metrics='in use'))}, set()),
    'a process that creates no spans': (
        report(spans='no SDK'), {('spans-missing', 'worker default/a:0')}),
    'a subscriber that raises errors': (
        report(subscribers=[{'name': 'f', 'error': 'ValueError'}]),
        {('subscriber-failing', 'worker default/a:0')}),
    'a subscriber that loses events': (
        report(subscribers=[{'name': 'f', 'dropped': 3}]),
        {('subscriber-failing', 'worker default/a:0')}),
    'a subscriber that does not return': (
        report(subscribers=[{'name': 'f', 'calling_s': 15}]),
        {('subscriber-failing', 'worker default/a:0')}),
    'a subscriber that is slow': (
        report(subscribers=[{'name': 'f', 'calling_s': 13}]), set()),
    'a handler that hangs': (
        report(pools={'default': {'size': 9, 'busy': 1, 'hanging': 1}},
               slots={'default': {'hanging_runs': [run()]}}),
        {('handlers-hanging', 'worker default/a:0')}),
    'a handler that runs for long': (
        report(pools={'default': {'size': 9, 'busy': 1}},
               slots={'default': {'oldest': run()}}), set()),
    'a member whose store is slow': (
        report(store={'calls': 9, 'p50_s': 1.5, 'slow_s': 3}),
        {('store-slow', 'store')}),
    'a member that waits for the store': (
        report(store={'calls': 9, 'p50_s': 0.1, 'queued': 3, 'waits_s': 5}),
        {('store-slow', 'store')}),
    'a member whose store is busy': (
        report(store={'calls': 9, 'p50_s': 0.9, 'queued': 3, 'waits_s': 4}),
        set()),
    # The group.
    'no scheduler': (
        {'live': group([], {'default': ['a:0']}),
         'members': (row(part='default'),)},
        {('no-scheduler', 'group nodes')}),
    'no scheduler, without a coordination service': (
        {'live': None, 'members': (row(stopped=True),)},
        {('no-scheduler', 'group nodes')}),
    'the only scheduler is drained': (
        {'live': group([scheduler('a:0', 0)], {'default': ['a:0']}),
         'members': (row(drained=True), row(part='default'))}, set()),
    'no worker': (
        {'live': group(), 'members': (row(),)},
        {('no-worker', 'group nodes')}),
    'no worker is needed': (
        {'live': group(), 'members': (row(),), 'messaging': False}, set()),
    'no worker accepts work': (
        {'live': group(workers={'default': [worker('a:0', 0)]})},
        {('no-worker', 'group nodes')}),
    'the only worker is drained': (
        {'live': group(workers={'default': [worker('a:0', 0)]}),
         'members': (row(), row(part='default', drained=True))}, set()),
    'fewer than expected': (
        {'expected': 2, 'expected_workers': 1},
        {('too-few', 'group nodes')}),
    'two ring formats': (
        {'live': group([scheduler('a:0'), scheduler('b:0', ring_format=2)],
                       {'default': ['a:0']})},
        {('ring-formats', 'group nodes')}),
    'an entry of another program': (
        {'live': group(workers={'default': ['a:0']}, unknown=['x'])},
        {('entry-unknown', 'entry x')}),
    # Jobs and objects.
    'a job that no scheduler has': (
        {'jobs': (job(attended=14, unattended=True),)},
        {('job-unscheduled', 'job ping')}),
    'a job that is attended late, because the store is slow': (
        {'jobs': (job(attended=14, unattended=True),), 'round_trip': 0.6},
        {('store-slow', 'store')}),
    'a job that is attended late, because the store of a member is slow': (
        {'jobs': (job(attended=14, unattended=True),), **report(
            store={'calls': 9, 'p50_s': 1.5, 'slow_s': 3})},
        {('store-slow', 'store')}),
    'a job with a long period, in a group with a short session timeout': (
        {'jobs': (job(attended=12, unattended=True),), 'session_timeout': 3},
        set()),
    'a job with a short period, in a group with a short session timeout': (
        {'jobs': (job(attended=12, unattended=True, period=6),),
         'session_timeout': 3}, {('job-unscheduled', 'job ping')}),
    'a removed job without objects': ({'jobs': (job(attended=14),)}, set()),
    'a paused job that no scheduler has': (
        {'jobs': (job(attended=14, unattended=True, paused=True),)}, set()),
    'a job whose schedulers are drained': (
        {'jobs': (job(attended=14, unattended=True),),
         'members': (row(drained=True), row(part='default'))}, set()),
    'two ticks superseded': (
        {'jobs': (job(ticks=[(0, 0), (3, 0), (4, 0), (0, 0)]),)},
        {('workers-full', 'job ping')}),
    'two ticks superseded, without a worker': (
        {'jobs': (job(ticks=[(0, 0), (3, 0), (4, 0)]),),
         'live': group(), 'members': (row(),)},
        {('no-worker', 'group nodes')}),
    'two ticks superseded, without a worker of the partition': (
        {'jobs': (job(ticks=[(0, 0), (3, 0), (4, 0)]),),
         'members': (row(topics={'p': ['ping']}), row(part='default'))},
        {('partition-unserved', 'partition p')}),
    'two ticks superseded, with a drained worker': (
        {'jobs': (job(ticks=[(0, 0), (3, 0), (4, 0)]),),
         'live': group(workers={'default': [worker('a:0', 0)]}),
         'members': (row(topics={'default': ['ping']}),
                     row(part='default', drained=True))}, set()),
    'an object that waits for a slot': (
        {'starving': (waits(90, 1.5),)},
        {('workers-full', 'job ping')}),
    'an object of a short period that waits for a moment': (
        {'starving': (waits(2, 2.0),)},
        set()),
    'an object of a paused job that waits': (
        {'starving': (waits(90, 1.5),),
         'jobs': (job(paused=True),)}, set()),
    'an object that waits for several periods': (
        {'starving': (waits(180, 3.0),)},
        {('workers-full', 'job ping'), ('object-starving', 'object ping/h7')}),
    'one tick superseded': (
        {'jobs': (job(ticks=[(0, 0), (3, 0), (0, 0), (3, 0)]),)}, set()),
    'two ticks superseded, long ago': (
        {'jobs': (job(ticks=[(0, 0), (3, 0), (4, 0)], ago=181),)}, set()),
    'a catalogue that fails': (
        catalogue(error='it is ill', failing_s=3),
        {('catalogue-failing', 'job ping')}),
    'a catalogue of a paused job': (
        catalogue(error='it is ill', failing_s=3) | {
            'jobs': (job(paused=True),)}, set()),
    'a catalogue that hangs': (
        catalogue(reading_s=14), {('catalogue-hanging', 'job ping')}),
    'a catalogue that takes long': (catalogue(reading_s=13), set()),
    'a job of a partition without a worker': (
        {'members': (row(topics={'default': ['x'], 'p': ['ping']}),
                     row(part='default'))},
        {('partition-unserved', 'partition p')}),
    'a job of a partition whose worker is drained': (
        {'members': (row(topics={'p': ['ping']}), row(part='default'),
                     row(part='p', drained=True)),
         'live': group(workers={'default': ['a:0'],
                                'p': [worker('a:0', 0)]})}, set()),
    'a paused job of a partition without a worker': (
        {'members': (row(topics={'p': ['ping']}), row(part='default')),
         'jobs': (job(paused=True),)}, set()),
    'ticks lost': (
        {'jobs': (job(ticks=[(0, 0), (0, 2)]),)},
        {('ticks-lost', 'job ping')}),
    'an object that fails at every tick': (
        {'failing': (failing(),)}, {('object-failing', 'object ping/h7')}),
    'an object that failed twice': (
        {'failing': (failing(runs=2),)}, {('object-dead', 'object ping/h7')}),
    'many objects that fail': (
        {'failing': tuple(failing(f'h{n}') for n in range(6))},
        {('objects-failing', 'job ping')}),
    'a lease that is not taken over': (
        {'expired': health.ExpiredLeases('ping', NOW - 16 * SECOND, 2)},
        {('lease-expired', 'job ping')}),
    'a lease that has just expired': (
        {'expired': health.ExpiredLeases(
            'ping', NOW - 15 * SECOND, 2)}, set()),
    # Partitions, tasks and queues.
    'a standby partition with two workers': (
        {'partitions': (standby('w:0', 'w:0', 'w:1'),)}, set()),
    'a standby partition without a spare worker': (
        {'partitions': (standby('w:0', 'w:0'),)},
        {('partition-alone', 'partition p')}),
    'a standby partition without an active worker': (
        {'partitions': (standby('', 'w:0', 'w:1'),)},
        {('partition-inactive', 'partition p')}),
    'a standby partition that is not in use': (
        {'partitions': (standby(''),)}, set()),
    'tasks for a partition without a worker': (
        {'overdue': (Overdue('mysql', 'dump', 3, 't1', NOW - SECOND),)},
        {('partition-unserved', 'partition mysql')}),
    'tasks for a command that is unknown': (
        {'overdue': (Overdue('default', 'dmup', 3, 't1', NOW - SECOND),),
         'processes': Live([LiveProcess(commands=frozenset())],
                           {'default': [LiveProcess()]})},
        {('command-unserved', 'task t1')}),
    'tasks that wait for a busy worker': (
        {'overdue': (Overdue('default', 'dump', 3, 't1', NOW - SECOND),),
         'processes': Live([LiveProcess()], {'default': [
             LiveProcess(busy={'default': True})]})}, set()),
    'a stuck task': (
        {'stuck': Stuck(1, [StuckTask('t1', NOW, 'no rollback')])},
        {('task-stuck', 'task t1')}),
    'many stuck tasks': (
        {'stuck': Stuck(46, [StuckTask('t1', NOW, '')] * 10)},
        {('tasks-stuck', 'group nodes')}),
    'a halted queue': (
        {'halted': (Halted('disk 1', NOW, 'it failed', 't1', 3),)},
        {('queue-halted', 'queue disk 1')})}


@pytest.mark.parametrize('case', CASES)
def test_findings_follow_from_the_facts(case):
    changes, expected = CASES[case]

    assert about(**changes) == expected


#: Seconds between the restarts of two processes of an hour, and the seconds
#: after the stop of a process at which the next one reports, and joins.
RESTARTS, REPORTS, JOINS = 30, 3, 5
#: Host that is drained, and then switched off.
DRAINED = 'd:0'


@functools.lru_cache
def group_of(away):
    """Three hosts with two roles each, without the process that is *away*, and
    a host that is drained.
    """
    members = [(part, f'{host}:0') for part in ('', 'default')
               for host in 'abc']
    live = [one for one in members if one != away]
    return members, group(
        [name for part, name in live if not part] + [scheduler(DRAINED, 0)],
        {'default': [name for part, name in live if part]})


def hour():
    """Yield the facts of each second of an hour of restarts."""
    members, _ = group_of(None)
    for second in range(3600):
        number, since = divmod(second, RESTARTS)
        restarts = members[number % len(members)]
        _, live = group_of(restarts if since < JOINS else None)
        rows = [row(DRAINED, age=max(1, second - 1800), drained=True)]
        for part, name in members:
            state = {'age': (second + ord(name[0])) % 3, 'view': {
                'digest': ring_digest(live.members), 'members': 4,
                'age_s': since, 'trusted': True}}
            if (part, name) == restarts and since < JOINS:
                state = {'stopped': True} if since < REPORTS else {
                    'age': 0, 'healthy': False, 'unhealthy_s': 2,
                    'problem': 'it joins the group'}
            rows.append(row(name, part, **state))
        if second >= 1810:
            # The drained host was switched off, and its session has ended.
            live = dataclasses.replace(live, members=tuple(
                one for one in live.members if one.points))
        yield {'live': live, 'members': tuple(rows), 'jobs': (
            job(period=5, attended=1 + since % 3, unattended=True,
                ticks=[(0, 0), (since == JOINS, 0), (0, 0), (0, 0)]),)}


def test_an_hour_of_rolling_restarts_and_a_drained_host_are_well():
    assert [(second, found) for second, changes in enumerate(hour())
            if (found := about(**changes))] == []


def test_each_code_has_a_case():
    found = {code for _, expected in CASES.values() for code, _ in expected}

    assert found == set(health.CODES)


def test_failures_come_first_and_the_oldest_of_them():
    found = health.findings(dataclasses.replace(
        REST, failing=(failing(),), halted=(
            Halted('q', NOW - 9 * SECOND, '', None, 0),
            Halted('p', NOW - 90 * SECOND, '', None, 0))))

    assert [one.about for one in found] == [
        'queue p', 'queue q', 'object ping/h7']


def test_a_server_that_is_away_comes_before_its_consequences():
    found = health.findings(dataclasses.replace(
        REST, coordination='connection refused', live=None, halted=(
            Halted('q', NOW - 9 * SECOND, '', None, 0),)))

    assert [one.about for one in found] == ['coordination', 'queue q']


def test_ticks_are_lost_since_the_first_of_them():
    [found] = health.findings(dataclasses.replace(
        REST, jobs=(job(ticks=[(0, 1), (0, 0), (0, 2)]),)))

    assert found.since == NOW - 121 * SECOND


@pytest.mark.parametrize(('task', 'named'), [('t1', True), (None, False)])
def test_a_halted_queue_names_the_task_that_has_halted_it(task, named):
    [found] = health.findings(dataclasses.replace(
        REST, halted=(Halted('q', NOW, '', task, 0),)))

    assert ('task' in found.remedy) is named
    assert (f'by task {task}' in found.text) is named


@pytest.mark.parametrize(('messaging', 'expected'), [
    (True, ('default', 9, 4)), (False, ('default', 5, 1))])
def test_the_slots_of_a_job_are_those_that_run_its_handlers(
        messaging, expected):
    topics = {'default': ['ping']}
    facts = dataclasses.replace(REST, messaging=messaging, members=(
        row(topics=topics, pools={'default': {'size': 5, 'busy': 1}}),
        row(part='default', topics=topics,
            pools={'default': {'size': 9, 'busy': 4}})))

    assert health.slots(facts, 'ping') == expected


@pytest.mark.parametrize(
    ('objects', 'code'), [(0, 0), (1, 1), (5, 1), (6, 2)])
def test_the_exit_code_is_that_of_the_worst_finding(objects, code):
    found = health.findings(dataclasses.replace(REST, failing=tuple(
        failing(f'h{at}') for at in range(objects))))

    assert health.exit_code(found) == code


@pytest.mark.parametrize(('processes', 'wait', 'code'), [
    (Live([], {}), Wait.NO_SCHEDULER, 'command-unserved'),
    (Live([LiveProcess(commands=frozenset())], {}), Wait.NO_COMMAND,
     'command-unserved'),
    (Live([LiveProcess()], {}), Wait.NO_WORKER, 'partition-unserved'),
    (Live([LiveProcess()], {'default': [LiveProcess(commands=frozenset())]}),
     Wait.NO_COMMAND, 'command-unserved'),
    (Live([LiveProcess(drained=True)], {}), Wait.DRAINED, None),
    (Live([LiveProcess()], {'default': [LiveProcess(busy={'default': True})]}),
     Wait.BUSY, None)])
def test_a_finding_and_the_command_task_show_give_the_same_reason(
        processes, wait, code):
    ready = WaitReason(Wait.READY, 'default', 'dump')

    assert with_processes(ready, processes).wait is wait
    assert {one for one, _ in about(processes=processes, overdue=(
        Overdue('default', 'dump', 3, 't1', NOW - SECOND),))} == (
            {code} if code else set())


def test_a_state_that_an_operator_requested_is_named():
    said = health.notes(dataclasses.replace(
        REST, jobs=(job(paused=True),),
        members=(row(), row(part='default', drained=True))))

    assert said == ['paused: ping', 'drained: worker default/a:0']


def test_a_wrong_name_of_the_group_brings_the_right_one():
    [found] = health.findings(dataclasses.replace(
        REST, live=group([], groups=['nova', 'nova.workers.default']),
        members=(), stored=False))

    assert 'has the groups nova' in found.text


@pytest.mark.parametrize(('later', 'outside'), [
    (group(['a:0', 'b:0'], {'default': ['a:0']}), set()),
    (group(['a:0'], {'default': ['a:0', 'b:0']}), {'scheduler b:0'}),
    (exceptions.CoordinationUnavailable('no answer'), {'scheduler b:0'})])
def test_a_process_that_joins_while_the_facts_are_read_is_inside(
        later, outside, monkeypatch):
    """The store is read after the group, so it may know more processes."""
    reads = mock.Mock(side_effect=[REST.live, later])
    monkeypatch.setattr(health_facts, 'read_group', reads)
    monkeypatch.setattr(health_queries, 'read', lambda *args: {
        'stored': True, 'now': NOW, 'members': (*REST.members, row('b:0'))})

    facts = health_facts.read(opts.settings(configuration(
        backend_url='zookeeper://h', connection='sqlite://')),
        SystemClock())

    assert {one.about for one in health.findings(facts)
            if one.code == 'member-outside'} == outside
