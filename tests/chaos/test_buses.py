# SPDX-License-Identifier: Apache-2.0
"""The faults that the chaos suite injects into messages and servers affect
the product, on each bus.

If a fault had no effect, a run of the chaos suite would test nothing.
"""

import contextlib
import random

import pytest

from tests.chaos.buses import BUSES
from tests.ends import connected
from tests.waiting import wait_until


@pytest.fixture(scope='module', params=sorted(BUSES))
def bus(request):
    with BUSES[request.param].serve() as server:
        yield BUSES[request.param](server)


def test_the_faults_of_messages_reach_the_members(bus):
    with connected(bus.server.url, patience=20.0) as ends:
        ends.talk('before')
        queues = [ends.work_queue, ends.reports_queue]
        wait_until(lambda: set(bus.listened()) == set(queues), 20)
        wait_until(lambda: bus.waiting([*queues, 'no queue']) == [0, 0])

        with contextlib.closing(bus.tap()) as tap:
            ends.send(1)
            found = []
            wait_until(lambda: found.extend(tap.messages()) or found)
            assert len(found) == 1
            tap.again(found[0])
            tap.anew(found[0], random.Random(1),
                     lambda message: message.update(id='2'))
            wait_until(lambda: '2' in ends.got)
            ends.report(1)
            wait_until(lambda: '1' in ends.reported)
            # The tap does not return the messages that it has sent.
            wait_until(lambda: found.extend(tap.messages())
                       or len(found) == 2)

        bus.send_garbage(queues)
        wait_until(lambda: all(len(one.dropped) >= 4
                               for one in (ends.back, ends.work)))
        ends.talk('after')


def test_the_faults_of_the_server_reach_the_members(bus):
    with connected(bus.server.url) as ends:
        ends.talk('before')

        bus.run_out('memory')
        ends.send(1)
        wait_until(lambda: '1' in ends.unsent)
        bus.recover('memory')
        ends.talk(2, 30)

        assert bus.delete_queue(ends.work_queue)
        ends.talk(3, 30)
        bus.close_connections()
        ends.talk(4, 30)
    wait_until(lambda: bus.listened() == [], 20)
    assert not bus.delete_queue('no queue')
