# SPDX-License-Identifier: Apache-2.0
"""Work of a process goes to its own pool, or to workers."""

from distperiodic.adapters.local.bus import LocalBus
from distperiodic.core import message


def test_work_of_this_process_goes_to_its_own_pool():
    class Further:
        sent = []

        def send(self, batch):
            self.sent.append(batch.job)
    here, further = [], Further()
    bus = LocalBus(lambda batch: here.append(batch.job), {'mine'},
                   further)

    for name in ('mine', 'ours'):
        bus.send(message.Batch('1', name, 0, ['a'], [1], [1], 's', 'w', 'l'))

    assert (here, further.sent) == (['mine'], ['ours'])


def test_without_a_way_to_workers_all_work_is_done_here():
    here = []
    bus = LocalBus(lambda batch: here.append(batch.job), {'mine'})

    bus.send(message.Batch('1', 'ours', 0, ['a'], [1], [1], 's', 'w', 'l'))

    assert here == ['ours']
