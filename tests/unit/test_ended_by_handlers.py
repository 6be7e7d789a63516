# SPDX-License-Identifier: Apache-2.0
"""Handlers that end their runs in their own transactions, and then raise an
exception.
"""

import itertools

import pytest

from distperiodic.adapters.local.memory import MemoryClaimStore
from distperiodic.core import message
from distperiodic.core.claim import HeldLease
from distperiodic.core.claim import State
from tests import claiming
from tests.logged import events
from tests.unit import world as worlds

TICK = 60_000_000
SENDER, WORKER = (f'{name}~{"0" * 16}~1~f1' for name in ('api-1', 'w-1'))


class Store(MemoryClaimStore):
    """A store in which the transactions of handlers have ended some runs."""

    def __init__(self, clock):
        super().__init__(clock)
        self.committed = set()

    def fail(self, lease, failures, *options):
        super().finish(lease, self.committed)
        return super().fail(
            lease, [one for one in failures
                    if one.object not in self.committed], *options)

    def finish(self, lease, objects, *options):
        return super().finish(lease, objects, *options) | (
            self.committed.intersection(objects))


class Desk:
    """The grants of a worker, and a batch of two runs."""

    def __init__(self, retries):
        clock = worlds.Clock()
        self.store, self.reports, runs = Store(clock), [], []
        names = itertools.count()
        job = worlds.job('poll', objects=True, retries=retries)
        self.grants = worlds.run_leases(
            {job.name: job}, store=worlds.StoreQueue(self.store), clock=clock,
            lease=60.0, run=runs.append, shared=True,
            report=lambda report, to: self.reports.append(report),
            new_lease=lambda: f'retry-{next(names)}')
        won = claiming.claim(self.store, job.name, TICK, ['a', 'b'],
                             lease='claims', holder='api-1', seconds=60.0,
                             supersede=False).won
        self.grants.accept(message.Batch(
            'batch', job.name, TICK, ['a', 'b'], [one.fence for one in won],
            [1, 1], SENDER, WORKER, 'claims'))
        [self.batch] = runs

    def fail(self):
        """Report that both handlers have raised an exception."""
        self.grants.reported(message.Report('batch', WORKER, failed=[
            (0, 'late'), (1, 'ill')]), SENDER)
        [report] = self.reports
        return report


@pytest.mark.parametrize('retries', [0, 2])
def test_a_run_that_its_handler_has_ended_is_reported_as_done(
        retries, caplog):
    desk = Desk(retries)
    desk.store.committed = {'a'}

    report = desk.fail()

    assert (report.done, report.lost) == ([0], [])
    assert report.failed + report.retried == [(1, 'ill')]
    assert 'results dropped' not in events(caplog)


def test_a_failure_in_a_lost_lease_is_reported_as_lost(caplog):
    desk = Desk(retries=0)
    assert desk.store.discard(
        HeldLease(desk.grants.lease_of(desk.batch), 'poll', TICK), ['a', 'b'],
        State.CANCELLED) == 2

    report = desk.fail()

    assert (report.done, report.failed, report.lost) == ([], [], [0, 1])
    assert 'results dropped' in events(caplog)
