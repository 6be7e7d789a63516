# SPDX-License-Identifier: Apache-2.0
"""A service obeys and answers the commands of operators."""

import collections
import json
import types

import pytest

from distperiodic.core.control import Desired
from distperiodic.core.control import Found
from distperiodic.core.control import Me
from distperiodic.core.control import MemberCommand
from distperiodic.core.control import MemberOutcome
from distperiodic.core.control import Verb
from distperiodic.core.control_message import ControlRequest
from distperiodic.service.control import BusControl
from distperiodic.service.control import Controls
from distperiodic.service.control import StoreControl
from distperiodic.service.member_control import MemberControl
from distperiodic.testing import FrozenClock
from tests.logged import events
from tests.logged import lines


class Service:
    """A service that records the calls it receives."""

    def __init__(self):
        self.asked = []
        self.alarm = None

    def set_drained(self, drained):
        self.asked.append(drained)

    def set_pool_size(self, size):
        self.asked.append(size)
        return MemberOutcome(size != 99, f'pool_size is {size}')

    def open_runs(self):
        return 7

    def hurry(self):
        self.asked.append('hurry')

    def alarms(self):
        return self.alarm

    def report(self):
        return {'topics': {'default': ['poll']}}

    def confirm_job(self, request, then):
        self.asked.append((request.verb, request.target))
        self.confirm = then

    def order_jobs(self, verb, arguments, why):
        self.asked.append((verb, dict(arguments), why))
        return MemberOutcome(True, 'paused')


Parts = collections.namedtuple('Parts', 'service controls')


@pytest.fixture
def made():
    service = Service()
    return Parts(service, Controls(service, 'api-1'))


def test_a_desired_state_is_applied_once(made, caplog):
    caplog.set_level('INFO')
    for _ in range(3):
        made.controls.apply(Desired(True, 4))
    made.controls.apply(Desired())

    assert made.service.asked == [True, 4, False, None]
    assert events(caplog) == ['member drained', 'pool size set',
                              'member undrained', 'pool size set']


def test_a_drain_is_answered_with_the_number_of_runs_left(made):
    made.controls.apply(Desired(drained=True))

    assert made.controls.answer(Verb.DRAIN) == (True, 'drained; 7 in flight')


@pytest.mark.parametrize('drained, verb', [
    (True, Verb.UNDRAIN), (False, Verb.DRAIN)])
def test_a_command_that_a_later_one_replaced_is_not_done(made, drained, verb):
    made.controls.apply(Desired(drained=drained))

    assert not made.controls.answer(verb).done


def test_a_pool_size_that_is_not_possible_is_answered_as_not_done(made):
    made.controls.apply(Desired(pool_size=99))

    assert made.controls.answer(Verb.SET) == (False, 'pool_size is 99')


def test_a_size_that_was_not_set_is_unset_with_the_size_in_force(made):
    made.controls.apply(Desired())

    assert made.controls.answer(Verb.UNSET) == (True, 'pool_size is None')


def test_a_command_of_another_release_is_refused(made):
    answer = made.controls.answer('member paint')

    assert not answer.done
    assert "'member paint'" in answer.text
    assert made.service.asked == []


# Without a store.

class Steered:
    """A service that operators control by messages, and its replies."""

    def __init__(self, stored=False):
        self.service = Service()
        self.replies = []
        self.control = BusControl(
            self.service, Controls(self.service, 'api-1'),
            Me('cloud', 'default', 'api-1'), 'api-1~00c0ffee',
            reply=lambda reply, word: self.replies.append((word, reply)),
            stored=stored)

    def ask(self, verb, **arguments):
        """Send a command, and return its reply."""
        self.control.obey(ControlRequest(
            'f' * 32, 'cloud', verb, arguments, [], 'ops@host', 'new kernel',
            1_700_000_000_000_000, 'w0rd'))
        word, reply = self.replies[-1]
        assert (word, reply.request, reply.part, reply.name, reply.process
                ) == ('w0rd', 'f' * 32, 'default', 'api-1', 'api-1~00c0ffee')
        return reply

    def state(self):
        return json.loads(self.ask(Verb.SHOW).state)


@pytest.fixture
def steered():
    return Steered()


def test_a_drain_over_the_bus_is_done_and_logged_with_who_and_why(
        steered, caplog):
    caplog.set_level('INFO')

    reply = steered.ask(Verb.DRAIN)

    assert (reply.done, reply.outcome) == (True, 'drained; 7 in flight')
    assert steered.service.asked == [True]
    [line] = lines(caplog, 'command over the bus')
    assert (line['who'], line['reason'], line['command']) == (
        "'ops@host'", "'new kernel'", 'member drain')


def test_a_drained_member_reports_who_drained_the_member_when_and_why(steered):
    steered.ask(Verb.DRAIN)

    state = steered.state()
    assert (state['drained_by'], state['drained_why'], state['drained_at']
            ) == ('ops@host', 'new kernel', 1_700_000_000_000_000)

    assert steered.ask(Verb.UNDRAIN).outcome == 'undrained'
    assert 'drained_by' not in steered.state()
    assert steered.service.asked == [True, False]


def test_a_size_over_the_bus_is_set_and_unset_and_a_drain_stays(steered):
    steered.ask(Verb.DRAIN)

    assert steered.ask(Verb.SET, pool_size=4).outcome == 'pool_size is 4'
    assert steered.state()['pool_size'] == 4
    assert steered.ask(Verb.UNSET).done
    assert steered.state()['pool_size'] is None
    assert steered.service.asked == [True, 4, None]
    assert steered.ask(Verb.DRAIN).done


@pytest.mark.parametrize('arguments', [
    {}, {'pool_size': 0}, {'pool_size': 1001}, {'pool_size': 'many'},
    {'pool_size': None}, {'size': 4}])
def test_a_size_that_cannot_be_is_refused(steered, arguments):
    reply = steered.ask(Verb.SET, **arguments)

    assert not reply.done
    assert 'from 1 to 1000' in reply.outcome
    assert steered.service.asked == []


@pytest.mark.parametrize('verb', [Verb.PAUSE, Verb.RESUME, Verb.TRIGGER])
def test_a_command_on_a_job_is_carried_out_by_the_service(steered, verb):
    reply = steered.ask(verb, job='poll')

    assert (reply.done, reply.outcome) == (True, 'paused')
    assert steered.service.asked == [(verb, {'job': 'poll'}, 'new kernel')]


def test_a_command_that_needs_a_store_is_refused_without_one(steered):
    reply = steered.ask('partition promote')

    assert not reply.done
    assert 'needs a store' in reply.outcome


@pytest.mark.parametrize('verb', [one for one in Verb if one != Verb.SHOW])
def test_a_member_with_a_store_obeys_the_store_alone(verb):
    steered = Steered(stored=True)

    reply = steered.ask(verb, pool_size=4)

    assert not reply.done
    assert 'takes commands from its store' in reply.outcome
    assert steered.service.asked == []
    assert steered.ask(Verb.SHOW).done
    assert 'topics' not in steered.state()


# With a store.

class Queue:
    """A queue to a store, which records the calls."""

    def __init__(self):
        self.asked = []
        self.urgent = self

    def submit(self, call, then, failed=lambda: None):
        self.asked.append(then)


class Stored:
    """A service that operators control through the store."""

    def __init__(self, *requests):
        self.service = Service()
        self.queue = Queue()
        self.clock = FrozenClock()
        self.found = Found(Desired(), list(requests))
        self.control = StoreControl(
            self.service, Controls(self.service, 'api-1'),
            Me('cloud', '', 'api-1'), 'api-1~00c0ffee', store=self.queue,
            clock=self.clock, settings=types.SimpleNamespace(
                sweep_interval=5, session_timeout=15), found=self.found)

    def look(self):
        """Let the member read its row, which has not changed."""
        self.queue.asked.clear()
        self.clock.advance(6)
        self.control.sweep()
        self.queue.asked[0](self.found)


PAUSE = MemberCommand('a' * 32, Verb.PAUSE, {}, 'poll')


def test_a_job_is_confirmed_once_though_its_command_is_read_twice(caplog):
    caplog.set_level('INFO')
    stored = Stored(PAUSE)

    stored.look()
    assert events(caplog) == []
    stored.service.confirm(MemberOutcome(True, 'paused'))

    assert stored.service.asked == [(Verb.PAUSE, 'poll')]
    [line] = lines(caplog, 'command answered')
    assert (line['command'], line['outcome']) == ('job pause', 'paused')


def test_a_command_to_the_member_does_not_wait_for_a_job(caplog):
    caplog.set_level('INFO')

    Stored(PAUSE, MemberCommand('b' * 32, Verb.UNDRAIN, {}))

    [line] = lines(caplog, 'command answered')
    assert line['command'] == 'member undrain'


def test_a_report_is_written_at_once_when_an_alarm_changes():
    stored = Stored()

    def written():
        answers = [*stored.queue.asked]
        stored.queue.asked.clear()
        for answer in answers:
            answer(stored.found)
        return len(answers)
    stored.control.sweep()
    written()
    for seconds, alarm, reports in [
            (1.0, None, 0), (0.5, 'a catalogue fails', 1),
            (0.5, 'another fails', 0), (0.5, 'another fails', 1),
            (1.0, 'another fails', 0), (1.0, None, 1)]:
        stored.clock.advance(seconds)
        stored.service.alarm = alarm

        stored.control.sweep()

        assert written() == reports, (seconds, alarm)


def test_the_report_of_the_stop_is_the_last():
    """Any later report would show the process as alive."""
    stored = Stored()
    stored.control.stopped()
    stored.queue.asked.clear()

    stored.clock.advance(6)
    stored.control.sweep()

    look, = stored.queue.asked
    look(stored.found)
    assert stored.queue.asked == [look]


# The ways to a member.

class Member:
    """A member on a bus, and the commands that wait for its main thread."""

    def __init__(self, connection=''):
        self.service = Service()
        self.replies = []
        self.waiting = []
        self.control = MemberControl(
            self.service, Me('cloud', 'default', 'api-1'), 'api-1~00c0ffee',
            settings=types.SimpleNamespace(connection=connection), clock=None,
            reply=lambda reply, word: self.replies.append(reply),
            put=self.waiting.append)

    def put(self, members=(), reply='', verb=Verb.DRAIN):
        """Send a command, and return the reason to drop it."""
        return self.control.put(ControlRequest(
            'f' * 32, 'cloud', verb, {}, members, 'ops@host', '',
            1_700_000_000_000_000, reply))

    def turn(self):
        """Handle the commands that wait, in the main thread."""
        for event in self.waiting:
            event.call()
        self.control.sweep()


def test_a_command_is_obeyed_in_the_main_thread():
    member = Member()

    assert member.put([('default', 'api-1', 'api-1~00c0ffee')], 'w0rd') is None
    assert not member.control.drained
    member.turn()

    assert member.control.drained
    assert [reply.done for reply in member.replies] == [True]


@pytest.mark.parametrize('members, obeyed', [
    ([('default', 'api-1', 'api-1~00c0ffee')], True),
    ([('default', 'api-2', 'api-2~00c0ffee')], False),
    ([('', 'api-1', 'api-1~00c0ffee')], False)])
def test_a_member_obeys_the_commands_that_name_it(members, obeyed):
    member = Member()

    assert member.put(members, 'w0rd') is None
    member.turn()

    assert member.control.drained is obeyed


@pytest.mark.parametrize('members', [
    [('default', 'api-1', 'api-1~0ddba11')], [('default', 'api-1', '')], []],
    ids=['an earlier process', 'no process', 'no member'])
def test_a_command_to_another_process_of_the_member_is_dropped(members):
    member = Member()

    assert 'process' in member.put(members, 'w0rd')
    member.turn()

    assert not member.control.drained


@pytest.mark.parametrize('members', [
    [], [('default', 'api-1', 'api-1~0ddba11')]])
def test_any_process_of_a_member_reports_its_state(members):
    member = Member()

    assert member.put(members, 'w0rd', Verb.SHOW) is None
    member.turn()

    assert [reply.done for reply in member.replies] == [True]


def test_hints_make_a_member_read_its_store_once_per_sweep():
    member = Member('sqlite://')
    for _ in range(3):
        assert member.put() is None
    member.turn()
    member.turn()

    assert member.service.asked == ['hurry']
    assert not member.control.drained


def test_a_hint_to_a_member_without_a_store_is_dropped_with_a_reason():
    member = Member()

    assert 'no store' in member.put()
    member.turn()

    assert member.service.asked == []
