# SPDX-License-Identifier: Apache-2.0
"""What a service does with the commands of operators, and what it answers."""

import collections

import pytest

from distperiodic.core.control import Desired
from distperiodic.core.control import Outcome
from distperiodic.core.control import Verb
from distperiodic.service.control import Controls
from tests.logged import events


class Service:
    """A service that notes what it is asked."""

    def __init__(self):
        self.asked = []

    def set_drained(self, drained):
        self.asked.append(drained)

    def set_pool_size(self, size):
        self.asked.append(size)
        return Outcome(size != 99, f'pool_size is {size}')

    def open_runs(self):
        return 7

    def report(self):
        return {}


Parts = collections.namedtuple('Parts', 'service controls')


@pytest.fixture
def made():
    service = Service()
    return Parts(service, Controls(service, 'api-1'))


def test_what_is_wanted_is_done_once(made, caplog):
    caplog.set_level('INFO')
    for _ in range(3):
        made.controls.apply(Desired(True, 4))
    made.controls.apply(Desired())

    assert made.service.asked == [True, 4, False, None]
    assert events(caplog) == ['member drained', 'pool size set',
                              'member undrained', 'pool size set']


def test_a_drain_is_answered_with_what_is_left(made):
    made.controls.apply(Desired(drained=True))

    assert made.controls.answer(Verb.DRAIN) == (True, 'drained; 7 in flight')


@pytest.mark.parametrize('drained, verb', [
    (True, Verb.UNDRAIN), (False, Verb.DRAIN)])
def test_a_command_that_a_later_one_replaced_is_not_done(made, drained, verb):
    made.controls.apply(Desired(drained=drained))

    assert not made.controls.answer(verb).done


def test_a_size_that_cannot_be_had_is_not_done(made):
    made.controls.apply(Desired(pool_size=99))

    assert made.controls.answer(Verb.SET) == (False, 'pool_size is 99')


def test_a_command_of_another_release_is_refused(made):
    answer = made.controls.answer('member paint')

    assert not answer.done
    assert "'member paint'" in answer.text
    assert made.service.asked == []
