# SPDX-License-Identifier: Apache-2.0
"""Eight processes pull tasks from one pool, and are killed with ``kill -9``.

DISTPERIODIC_TEST_SECONDS sets the duration. After a change of the dispenser,
run the test for a minute or longer::

    DISTPERIODIC_TEST_SECONDS=60 tools/run-tests -e functional -- \\
        tests/functional/test_task_dispenser.py
"""

import collections
import contextlib
import os
import random
import time
import uuid

import pytest

from distperiodic.adapters.sql import schema
from tests import dispensed
from tests.forks import Program
from tests.functional import commands
from tests.functional import pulling
from tests.functional.pulling import Call
from tests.programs import PYTHON
from tests.waiting import wait_until

SECONDS = float(os.environ.get('DISTPERIODIC_TEST_SECONDS', '12'))
PROCESSES = 8
#: Average number of seconds between two kills.
LIFE = 1.5


class Crew:
    """The processes of one test."""

    def __init__(self, url, pool, place):
        self.url, self.pool, self.place = url, pool, place
        self.begin = time.monotonic()
        self.started = 0
        self.programs = {}

    def start(self, number):
        """Start the process with this number, at first or in place of a killed
        one.

        Every second process has a name without a suffix. So it may have the
        name of a killed process, like a program that a person starts again.
        """
        self.started += 1
        name = f'w{number}' if self.started % 2 else (
            f'w{number}-{self.started}')
        self.programs[number] = Program(
            [*PYTHON, '-m', 'tests.functional.pulling', self.url, self.pool,
             name, self.started,
             self.place / f'{name}@{self.started}.journal'],
            self.place / f'{self.started}.log',
            env={**commands.ENVIRONMENT, 'BEGIN': str(self.begin)})

    def kill(self, number):
        program = self.programs.pop(number)
        code = program.process.poll()
        program.kill()
        assert code is None, program.said()

    @property
    def journals(self):
        return sorted(self.place.glob('*.journal'))


@pytest.fixture(params=['sqlite', 'postgresql', 'mariadb'])
def url(request, tmp_path):
    if request.param == 'sqlite':
        return f'sqlite:///{tmp_path}/pools.sqlite'
    return request.getfixturevalue(request.param).url


@pytest.mark.timeout(SECONDS + 240)
@pytest.mark.parametrize('url', [
    'postgresql', *(pytest.param(kind, marks=pytest.mark.full)
                    for kind in ('mariadb', 'sqlite'))], indirect=True)
def test_no_task_is_doubled_lost_or_back_with_eight_killed_processes(
        url, tmp_path):
    schema.sync(url)
    pool = f'pool-{uuid.uuid4().hex[:12]}'
    one = dispensed.dispenser(url, pool, bucket_timeout=pulling.TIMEOUT)
    draws = random.Random(url)
    one.recreate_task_pool(pulling.named(0))
    crew = Crew(url, pool, tmp_path)
    with contextlib.ExitStack() as stack:
        for number in range(PROCESSES):
            crew.start(number)
            stack.callback(lambda number=number: crew.programs[number].kill())
        wait_until(lambda: len(crew.journals) >= PROCESSES, timeout=90.0)
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            time.sleep(draws.expovariate(1 / LIFE))
            victim = draws.randrange(PROCESSES)
            crew.kill(victim)
            crew.start(victim)
    last = time.monotonic() - crew.begin
    one.recreate_task_pool(pulling.named(last))
    wait_until(lambda: one.stats().assigned == 0, timeout=60.0)
    one.close()
    one = dispensed.dispenser(url, pool)
    left = one.assign_tasks(10**6, 'last')
    stats = one.stats()
    one.close()

    calls = pulling.read(crew.journals)
    total = len(pulling.named(last))
    numbers = collections.Counter(call.kind for call in calls)
    print(f'{len(calls)} calls {dict(numbers)}, {crew.started} processes, '
          f'{total} tasks, {stats.done} done, '
          f'{sum(call.error is not None for call in calls)} errors')
    assert pulling.judge(calls, left, total) == []
    assert stats.free == 0
    assert stats.assigned + stats.done == total
    assert numbers.keys() >= {'assign', 'done', 'back', 'check', 'recreate'}
    assert stats.done > PROCESSES


# -- the judge


def call(worker, kind, start, end, tasks=(), answer=None, limit=5):
    return Call(worker, kind, limit, list(tasks), start, end, answer, None)


def verdicts(*calls, left=(), total=0):
    return [verdict.partition(':')[0]
            for verdict in pulling.judge(list(calls), list(left), total)]


def test_the_judge_sees_a_task_in_two_buckets():
    assert verdicts(call('a', 'assign', 0, 0.1, answer=['x']),
                    call('b', 'assign', 0.2, 0.3, answer=['x']),
                    ) == ['in two buckets', 'of another worker']


def test_the_judge_allows_an_assignment_after_an_expiry():
    late = pulling.TIMEOUT

    assert verdicts(call('a', 'assign', 0, 0.1, answer=['x']),
                    call('b', 'assign', late, late + 0.1, answer=['x'])) == []


def test_the_judge_sees_that_a_renewed_bucket_expired():
    late = pulling.TIMEOUT

    assert verdicts(call('a', 'assign', 0, 0.1, answer=['x']),
                    call('a', 'check', 0.5, 0.6, ['x'], True),
                    call('b', 'assign', late, late + 0.1, answer=['x']),
                    ) == ['in two buckets', 'of another worker']


def test_the_judge_allows_a_task_that_was_given_back_to_go_on():
    assert verdicts(call('a', 'assign', 0, 0.1, answer=['x', 'y']),
                    call('a', 'back', 0.2, 0.5, ['x'], True),
                    call('b', 'assign', 0.3, 0.4, answer=['x']),
                    call('a', 'assign', 0.6, 0.7, answer=[], limit=1),
                    call('c', 'assign', 0.65, 0.8, answer=['y'])) == []


def test_the_judge_sees_a_task_that_comes_back_after_it_was_done():
    done = (call('a', 'assign', 0, 0.1, answer=['x']),
            call('a', 'done', 0.2, 0.3, ['x'], True))

    assert verdicts(*done, call('b', 'assign', 0.4, 0.5, answer=['x'])) == [
        'back after done']
    assert verdicts(*done, left=['x']) == ['back after done, at the end']
    assert verdicts(*done, call('b', 'done', 0.4, 0.5, ['x'], True)) == [
        'done twice']


def test_the_judge_allows_a_worker_to_repeat_that_a_task_is_done():
    done = (call('a', 'assign', 0, 0.1, answer=['x']),
            call('a', 'done', 0.2, 0.3, ['x'], True),
            call('a', 'done', 0.4, 0.5, ['x'], True))

    assert verdicts(*done) == []
    assert verdicts(*done, call('b', 'assign', 0.35, 0.6, answer=['x'])) == [
        'back after done']


def test_the_judge_sees_a_lost_task():
    lost, given = pulling.task_of(0), pulling.task_of(1)

    assert verdicts(call('a', 'assign', 0, 0.1, answer=[lost]),
                    left=[given], total=2) == ['lost']
    assert verdicts(call('a', 'done', 0, None, [lost]),
                    left=[given], total=2) == []
