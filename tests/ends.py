# SPDX-License-Identifier: Apache-2.0
"""Both ends of a message bus, and the messages that they receive."""

import contextlib
import dataclasses
import os
import time
import uuid

from oslo_config import cfg

from distperiodic.adapters.messaging import bus as messaging
from distperiodic.adapters.messaging import queue_names
from distperiodic.core import message
from tests.pauses import Pauses
from tests.waiting import wait_until

#: The brokers for tests of all buses. The fixture ``url`` also has the fake
#: broker.
BROKERS = ['rabbitmq', 'quorum', 'redis', 'directory']
PATIENCE = 2.0
LATE = PATIENCE + 1.0


def entry(identity, generation=1):
    return f'{identity}~{uuid.uuid4().hex[:16]}~{generation}~f1.s10'


class Ends:
    """A scheduler's bus and a worker's bus, with the messages they received.

    :param patience: Seconds after which the scheduler's bus gives up a batch.
    """

    def __init__(self, url, patience=PATIENCE, **options):
        self.group = options.pop('group', None) or uuid.uuid4().hex[:8]
        self.partition = options.pop('partition', 'default')
        self.scheduler = entry('api-1')
        self.worker = entry('worker.1')
        self.conf = cfg.ConfigOpts()
        self.conf([])
        self.batches, self.reports = [], []
        self.sent, self.unsent = [], {}
        worker_keys = options.pop('worker_keys', options.get('keys', ()))
        endpoint = messaging.Endpoint(
            self.conf, url, group=self.group, me=self.scheduler,
            **{name: options.pop(name) for name in (
                'keys', 'quorum', 'monotonic') if name in options})
        self.work = messaging.MessagingWorkBus(
            endpoint, on_report=self.reports.extend, on_sent=self._on_sent,
            on_unsent=self._on_unsent, patience=patience, **options)
        options.pop('capacity', None)
        self.back = messaging.MessagingReportBus(
            dataclasses.replace(endpoint, me=self.worker, keys=worker_keys),
            partition=self.partition, on_batch=self.batches.append, **options)

    def _on_sent(self, batch):
        self.sent.append(batch.id)

    def _on_unsent(self, batch, reason):
        assert batch.id not in self.unsent, 'told twice'
        self.unsent[batch.id] = reason

    @property
    def got(self):
        return [batch.id for batch in self.batches]

    @property
    def reported(self):
        return [report.batch for report in self.reports]

    @property
    def work_queue(self):
        return (queue_names.work_topic(self.group, self.partition)
                + '.' + self.worker.rpartition('~')[0].rpartition('~')[0])

    @property
    def reports_queue(self):
        return queue_names.reports_topic(self.group) + (
            '.' + self.scheduler.rpartition('~')[0].rpartition('~')[0])

    def send(self, number, **changes):
        batch = message.Batch(
            str(number), 'poll', 1_700_000_000_000_000, ['a', 'b'], [1, 1],
            [1, 1], self.scheduler, self.worker, 'lease-1', self.partition)
        self.work.send(dataclasses.replace(batch, **changes))

    def report(self, number, to=None):
        self.back.report(
            message.Report(str(number), self.worker, [0, 1]),
            to or self.scheduler)

    def talk(self, number, timeout=10.0):
        """Send a batch and its report; repeat until the report arrives."""
        def answered():
            if self.reported.count(str(number)):
                return True
            if not self.got.count(str(number)):
                self.unsent.pop(str(number), None)
                self.send(number)
                with contextlib.suppress(TimeoutError):
                    soon(lambda: str(number) in self.got
                         or str(number) in self.unsent, PATIENCE)
            if str(number) in self.got:
                self.report(number)
                time.sleep(0.05)
            return self.reported.count(str(number))
        wait_until(answered, timeout, f'{number} was not answered',
                   interval=0.2)


def soon(condition, timeout):
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.01)


@contextlib.contextmanager
def connected(url, **options):
    ends = Ends(url, **options)
    try:
        ends.back.start(20)
        ends.work.start(20)
        yield ends
    finally:
        ends.work.close(3)
        ends.back.close(3)


@contextlib.contextmanager
def took_at_most(seconds):
    """Assert that the block takes less time, without the pauses of the
    machine.
    """
    began = time.monotonic()
    with Pauses() as pauses:
        yield
    assert time.monotonic() - began - pauses.total < seconds


def run_in_child(act):
    """Run *act* in a forked process; return 0 if it returned true."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if act() else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)
