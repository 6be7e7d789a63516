# SPDX-License-Identifier: Apache-2.0
"""One flow over two books: what a store decides, and what is a member's own.
"""

import itertools

import pytest

from distperiodic.adapters.local.memory import MemoryClaimStore
from distperiodic.core import message
from distperiodic.core.claim import Authority
from distperiodic.core.job import Scope
from distperiodic.core.member import View
from distperiodic.core.member import parse_entry
from distperiodic.core.ring import Ring
from distperiodic.flow import leases
from distperiodic.flow.scheduler import pipeline
from tests.unit import world as worlds
from tests.views import Views

ENTRY = f'me~{"0" * 16}~1~f1'


class Process:
    """A scheduler's flow and the pool beside it, as the service has them."""

    def __init__(self):
        self.clock = worlds.Clock()
        self.bus = worlds.Bus(self)
        self.views = Views()
        self.stores = {
            authority: worlds.StoreQueue(MemoryClaimStore(self.clock))
            for authority in Authority}
        jobs = {
            Authority.STORE: worlds.job('ours', scope=Scope.GROUP),
            Authority.RING: worlds.job('mine', scope=Scope.MEMBER,
                                       topic='-')}
        numbers = itertools.count()
        self.flow = pipeline.Pipeline(
            [leases.Book(authority, {job.name: job}, self.stores[authority],
                         grants_here=True)
             for authority, job in jobs.items()],
            clock=self.clock, membership=self.views, group='group',
            identity='me', me=lambda: ENTRY, bus=self.bus,
            reader=worlds.Reader(), put=lambda event: self.flow.handle(event),
            new_lease=lambda: f'lease-{next(numbers)}')
        for topic in 'default', '-':
            self.flow.dispatcher.workers_changed(
                topic, [worlds.worker(slots=100)])

    def note(self, batch):
        """All that is sent stays open until :meth:`finish`."""

    def show(self, trusted=True):
        me = parse_entry(ENTRY)
        self.views['group'] = View(
            'group', (me,), Ring({'me': 40}), version=1, since=0.0,
            me=me, trusted_until=float('inf') if trusted else 0.0)
        self.flow.view_changed()

    def turn(self, seconds):
        """Let time pass; the jobs whose batches were sent."""
        sent = len(self.bus.batches)
        for _ in range(round(seconds)):
            self.clock.advance(1)
            self.flow.run_due()
            self.flow.sweep()
        return [batch.job for batch in self.bus.batches[sent:]]

    def finish(self):
        for batch in list(self.bus.open.values()):
            del self.bus.open[batch.id]
            self.flow.reported(message.Report(
                batch.id, batch.worker, done=[0], seconds=0.1))


@pytest.fixture
def process():
    made = Process()
    made.show()
    return made


def test_each_batch_says_who_decides_about_it_and_has_an_id_of_its_own(
        process):
    assert sorted(process.turn(61)) == ['mine', 'ours']

    assert {batch.job: batch.authority for batch in process.bus.batches} == {
        'ours': Authority.STORE, 'mine': Authority.RING}
    assert len({batch.id for batch in process.bus.batches}) == 2
    for batch in process.bus.batches:
        for authority in Authority:
            grants = process.flow.grants_of(authority)
            assert (grants.lease_of(batch) is not None) is (
                authority is batch.authority)


def test_results_are_recorded_where_the_run_was_granted(process):
    for _ in range(3):
        process.turn(60)
        process.finish()

    assert process.flow.dispatcher.counts['ours', 'done'] == 3
    assert process.flow.dispatcher.counts['mine', 'done'] == 3
    for job, authority in ('ours', Authority.STORE), ('mine', Authority.RING):
        for other in Authority:
            ended = []
            process.stores[other].submit(
                lambda store, job=job: store.settled(
                    job, process.bus.batches[-1].tick), ended.append)
            assert bool(ended[0]) is (other is authority)


def test_a_result_counts_though_its_batch_was_taken_from_the_worker(process):
    """The store says whose it is, not the one who has lost sight of it."""
    process.turn(61)
    process.flow.dispatcher.workers_changed('default', [])

    process.finish()

    [batch] = [b for b in process.bus.batches if b.job == 'ours']
    rows = []
    process.stores[Authority.STORE].submit(
        lambda store: store.rows_of('ours', batch.objects), rows.extend)
    assert [row.free for row in rows] == [True]


def test_what_is_a_members_own_runs_while_the_store_is_away(process):
    process.turn(1)
    process.stores[Authority.STORE].away = True

    assert process.turn(60) == ['mine']


def test_who_is_not_sure_of_its_view_gives_up_nothing_of_the_store(process):
    """The store decides there: the last view will do."""
    for topic in 'default', '-':
        process.flow.dispatcher.workers_changed(topic, [])
    process.turn(61)
    waiting = process.flow.dispatcher.waiting
    assert waiting == 2

    process.show(trusted=False)
    process.show()

    assert process.flow.dispatcher.waiting == waiting
    assert process.flow.dispatcher.waits_for(Authority.RING)
