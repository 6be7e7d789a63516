# SPDX-License-Identifier: Apache-2.0
"""The judge of the partition with one active worker finds wrong histories.

Each test builds the records of a short life by hand. All times are seconds
from the beginning of the record.
"""

import types

import pytest

from tests import checker
from tests.chaos import books
from tests.chaos import jobs
from tests.chaos import plan
from tests.chaos import standby
from tests.chaos.active import NOBODY
from tests.chaos.active import Asked
from tests.chaos.cluster import SERVERS
from tests.chaos.cluster import SESSION
from tests.chaos.jobs import LONGEST
from tests.chaos.pace import PACE
from tests.chaos.promises import PROMISE
from tests.chaos.promises import START

SECOND = checker.SECOND
BEGIN = 1_000_000 * SECOND
END = 100.0 * PACE
#: Slightly more than the seconds within which a worker takes over.
TOO_LATE = standby.TAKES_OVER + 0.5


def at(seconds):
    return BEGIN + int(seconds * SECOND)


class Life:
    """Records of three workers. The first worker is active from second 1 on.
    """

    def __init__(self):
        self.told, self.rows = [], []
        self.driver = types.SimpleNamespace(windows=[], stalls=[], asked=[])
        for number in (1, 2, 3):
            self.tell(0, 'candidate', number, process=f'p{number}~a')
        self.number = 0
        self.row(1, 'p1~a')
        self.run(1.5, 2.0, 1)

    def tell(self, seconds, what, pid, **about):
        self.told.append({'what': what, 'pid': pid, 'host': f'p{pid}',
                          'at': at(seconds), **about})

    def row(self, seconds, worker, promoted=None):
        self.rows.append(types.SimpleNamespace(
            committed=at(seconds), worker=worker, promoted=promoted,
            fence=len({row.worker for row in self.rows} | {worker})))

    def run(self, begin, end, pid, what=('start', 'end'), key=0):
        self.number += 1
        about = {'job': 'alone', 'object': f'alone-{key:03}', 'tick': 0,
                 'fence': self.number, 'attempt': 1, 'step': 0,
                 'rollback': False, 'parameters': {}, 'result': {}}
        self.tell(begin, what[0], pid, **about)
        if end is not None:
            self.tell(end, what[1], pid, outcome='done', **about)

    def die(self, seconds, pid):
        self.tell(seconds, 'gone', pid)
        self.window(seconds, END, 'worker killed', f'p{pid}')

    def window(self, begin, end, kind, *befell):
        self.driver.windows.append(books.Window(
            at(begin), at(end), kind, frozenset(befell)))

    def stall(self, begin, end, pid):
        self.driver.stalls.append(checker.Stall(
            str(pid), at(begin), at(end), 'stopped'))
        self.window(begin, end, 'worker frozen', f'p{pid}')

    def take_over(self, seconds, pid):
        self.row(seconds, f'p{pid}~a')
        self.run(seconds + 0.1, seconds + 0.5, pid)

    def hand_over(self, seconds, pid):
        self.row(seconds - 0.1, None)
        self.take_over(seconds, pid)

    def ask(self, seconds, member, code=0, text='p2 is next'):
        self.driver.asked.append(Asked(
            at(seconds), at(seconds + 0.5), member, code, text))

    @property
    def verdict(self):
        self.told.sort(key=lambda line: line['at'])
        return standby.judge(
            self.told, self.rows, self.driver, BEGIN, at(END))

    @property
    def kinds(self):
        return {one.kind for one in self.verdict.findings}


@pytest.fixture
def life():
    return Life()


def test_a_worker_that_dies_is_replaced_in_time(life):
    life.die(10, 1)
    life.take_over(13.5, 2)

    taken, = life.verdict.required
    assert (taken.why, taken.seconds) == ('killed', pytest.approx(3.6))
    assert life.kinds == set()
    assert life.verdict.missing({'active killed'}) == set()


# 1. Never two at the same time

def test_two_workers_at_work_are_found(life):
    life.run(10, 12, 1)
    life.hand_over(11, 2)

    assert life.kinds == {'two active'}


def test_a_command_beside_a_run_is_found(life):
    life.run(10, 12, 1)
    life.hand_over(13, 2)
    life.run(11.5, 13, 2, ('step', 'step end'))

    assert life.kinds == {'two active'}


def test_a_run_that_has_not_ended_is_found_too(life):
    life.run(10, None, 1)
    life.hand_over(50, 2)

    assert life.kinds == {'two active'}


def test_a_stopped_process_runs_nothing_until_it_wakes(life):
    life.run(9.5, 15.2, 1)
    life.stall(10, 15.3, 1)
    life.take_over(13.2, 2)
    assert life.kinds == set()

    life.run(15, 16, 1)
    life.run(15.1, 17, 2)
    assert life.kinds == {'two active'}


@pytest.mark.parametrize('kind, befell, findings', [
    ('member cut from store', 'p1', set()), ('store cut', 'postgresql', set()),
    ('member cut from store', 'p3', {'two active'})])
def test_a_handler_that_checks_nothing_may_go_on_after_a_fault(
        life, kind, befell, findings):
    assert jobs.is_stubborn('alone-001')
    life.window(8, 9.5, kind, befell)
    life.run(10, 12, 1, key=1)
    life.hand_over(11, 2)
    assert life.kinds == findings

    life.run(11.2, 12, 1, key=0)
    assert life.kinds == {'two active'}


def test_a_stall_of_another_process_is_no_excuse(life):
    life.run(10, 12, 1)
    life.stall(10, 15.3, 3)
    life.hand_over(11, 2)

    assert life.kinds == {'two active'}


# 2. Take-overs

@pytest.mark.parametrize('why', ['killed', 'frozen', 'cut off', 'released'])
def test_a_worker_that_is_not_replaced_is_found(life, why):
    if why == 'killed':
        life.die(10, 1)
    elif why == 'frozen':
        life.stall(10, 10 + TOO_LATE, 1)
    elif why == 'cut off':
        life.window(10, 10 + TOO_LATE, standby.CUT_OFF, 'p1')
    else:
        life.row(10, None)
    assert life.kinds == {'not taken over'}

    life.take_over(10 + TOO_LATE, 2)
    assert life.kinds == {'not taken over'}


def test_a_worker_that_takes_over_and_begins_no_run_is_found(life):
    life.die(10, 1)
    life.row(13.5, 'p2~a')

    assert life.kinds == {'not taken over'}


def test_a_worker_that_wakes_early_need_not_be_replaced(life):
    life.stall(10, 10 + SESSION + 1, 1)

    assert life.kinds == set()
    assert life.verdict.required == []


@pytest.mark.parametrize('server', SERVERS)
def test_a_fault_of_a_server_delays_a_take_over_until_it_is_over(
        life, server):
    life.die(10, 1)
    life.window(9, 20, 'a fault', server)
    life.take_over(20 + PROMISE, 2)
    assert life.kinds == set()
    assert life.verdict.required[0].seconds == pytest.approx(PROMISE + 0.1)

    life.rows[-1].committed = at(20 + TOO_LATE)
    life.run(20 + TOO_LATE, 21 + TOO_LATE, 2)
    assert life.kinds == {'not taken over'}


def test_one_spare_worker_is_enough(life):
    life.die(10, 1)
    life.window(5, 30, 'a fault', 'p2')
    assert life.kinds == {'not taken over'}

    life.window(5, 30, 'a fault', 'p3')
    life.take_over(30 + START, 2)
    assert life.kinds == set()


def test_a_rolling_restart_excuses_each_host_only_while_it_restarts(life):
    life.window(5, 40, 'rolling restart', 'p1', 'p2', 'p3', 's1', 's2', 's3')
    life.die(10, 1)
    assert life.kinds == {'not taken over'}

    for name in 'p2', 'p3':
        life.window(5, 30, 'restart', name)
    life.take_over(30 + START, 2)
    assert life.kinds == set()


def test_without_a_scheduler_no_worker_can_begin_a_run(life):
    life.die(10, 1)
    life.window(5, 30, 'a fault', 's1')
    life.window(5, 30, 'a fault', 's2')
    assert life.kinds == {'not taken over'}

    life.window(5, END, 'a fault', 's3')
    life.take_over(30 + START, 2)
    assert life.kinds == set()


def test_a_new_worker_that_dies_at_once_is_replaced_too(life):
    life.die(10, 1)
    life.row(13.5, 'p2~a')
    life.die(13.6, 2)
    life.take_over(17, 3)
    assert life.kinds == set()

    life.rows[-1].committed = at(13.6 + TOO_LATE)
    life.run(13.6 + TOO_LATE, 14.6 + TOO_LATE, 3)
    assert life.kinds == {'not taken over'}


def test_a_life_without_a_take_over_is_vacuous(life):
    life.die(10, 1)
    life.window(9, 14, 'a fault', 'zookeeper')
    life.take_over(13.5, 2)

    assert life.kinds == set()
    assert life.verdict.missing({'active frozen', 'active replaced'}) == {
        'take-over', 'promotion'}


def test_a_long_plan_requires_take_overs_and_promotions():
    assert Life().verdict.missing(plan.KINDS) == {'take-over', 'promotion'}


# 3. Signs of life

@pytest.mark.parametrize('kind, befell, findings', [
    ('member cut from ensemble', 'p1', {'taken over early'}),
    ('member cut from store', 'p1', {'taken over early'}),
    ('active cut from ensemble', 'p1', {'taken over early'}),
    ('active cut from store', 'p1', {'taken over early'}),
    ('member cut from broker', 'p1', {'taken over early'}),
    ('ensemble killed', 'zookeeper', {'taken over early'}),
    ('store killed', 'postgresql', {'taken over early'}),
    ('worker frozen past its session', 'p2', {'taken over early'}),
    ('worker frozen past its session', 'p1', set()),
    (standby.CUT_OFF, 'p1', set())])
def test_a_worker_with_a_sign_of_life_is_not_replaced(
        life, kind, befell, findings):
    life.window(10, 15, kind, befell)
    life.take_over(14, 2)

    assert life.kinds == findings


def test_both_signs_may_be_lost_by_two_faults(life):
    life.window(10, 15, 'member cut from store', 'p1')
    life.window(10, 12, 'ensemble wiped', 'zookeeper')
    life.take_over(14, 2)
    assert life.kinds == set()

    life.take_over(15 + START + 1, 3)
    assert life.kinds == {'taken over early'}


def test_a_chosen_worker_waits_for_the_end_of_the_heartbeats_only(life):
    life.window(10, 20, 'member cut from store', 'p1')
    life.ask(10, 'p2')
    life.row(10.2, 'p1~a', 'p2')
    life.take_over(13.5, 2)
    assert life.kinds == set()

    life.driver.windows.clear()
    assert life.kinds == {'taken over early'}


# 4. Promotions

def test_a_choice_is_carried_out(life):
    life.ask(10, 'p2')
    life.row(10.2, 'p1~a', 'p2')
    life.row(11, None, 'p2')
    life.take_over(11.2, 2)

    assert life.kinds == set()
    assert len(life.verdict.carried_out) == 1


def test_a_choice_that_is_not_carried_out_is_found(life):
    life.ask(10, 'p2')
    life.row(10.2, 'p1~a', 'p2')
    assert life.kinds == {'promotion'}

    life.row(10.2 + TOO_LATE + LONGEST + 0.5, None)
    life.take_over(10.2 + TOO_LATE + 2, 2)
    assert life.kinds == {'promotion'}


def test_a_choice_that_the_store_has_not_recorded_is_found(life):
    life.ask(10, 'p2')

    assert life.kinds == {'promotion'}


def test_a_choice_may_be_replaced_by_a_later_one(life):
    life.ask(10, 'p2')
    life.row(10.2, 'p1~a', 'p2')
    life.ask(10.6, 'p3')
    life.row(10.8, 'p1~a', 'p3')
    life.row(11, None, 'p3')
    life.take_over(11.1, 3)

    assert [one.outcome for one in life.verdict.promotions] == [
        'replaced', 'carried out']
    assert life.kinds == set()


@pytest.mark.parametrize('befell, findings', [
    ('p2', set()), ('postgresql', set()), ('p3', {'promotion'}),
    ('w1', {'promotion'})])
def test_a_choice_is_withdrawn_only_if_the_chosen_worker_is_silent(
        life, befell, findings):
    life.ask(10, 'p2')
    life.row(10.2, 'p1~a', 'p2')
    life.window(10.4, 15, 'a fault', befell)
    life.row(13.5, 'p1~a')

    assert [one.outcome for one in life.verdict.promotions] == ['withdrawn']
    assert life.kinds == findings


@pytest.mark.parametrize('befell, findings', [
    ('p2', set()), ('postgresql', set()), ('p3', {'promotion'})])
def test_a_worker_that_stands_by_is_not_refused(life, befell, findings):
    life.window(5, 9, 'a fault', befell)
    life.ask(10, 'p2', 2, 'no worker p2 stands by')

    assert life.kinds == findings


def test_a_refusal_without_a_word_is_found(life):
    life.window(5, 9, 'a fault', 'p2')
    life.ask(10, 'p2', 2, '')

    assert life.kinds == {'promotion'}


def test_a_member_that_does_not_exist_is_refused(life):
    life.ask(10, NOBODY, 2, 'no worker')
    assert life.kinds == set()

    life.ask(12, NOBODY)
    assert life.kinds == {'promotion'}


def test_a_command_without_an_answer_is_found(life):
    life.ask(10, 'p2', None, '')

    assert life.kinds == {'promotion'}


def test_a_choice_of_the_active_worker_changes_nothing(life):
    life.ask(10, 'p1', text='p1 is already active')

    assert life.kinds == set()
    assert life.verdict.answers == {'needless': 1}
    assert life.verdict.missing({'active replaced'}) == {'promotion'}
