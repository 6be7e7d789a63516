# SPDX-License-Identifier: Apache-2.0
"""Flows of three tasks that do nothing, on TaskFlow's worker-based engine.

An engine with its own executor would need a second or more to find the worker
for each flow. So all engines share one executor that knows the worker already,
and ten threads run the engines concurrently. Nothing is persisted.
"""

import concurrent.futures
import time
import uuid

from taskflow import engines
from taskflow import task
from taskflow.engines.worker_based import executor
from taskflow.engines.worker_based import worker
from taskflow.patterns import linear_flow

from tests.benchmarks import measuring

STEPS = 3
THREADS = 10
# TaskFlow would need minutes for the number of tasks that the other programs
# run in seconds.
FLOWS = 300


class Nothing(task.Task):

    def execute(self):
        return None


class _Shared(executor.WorkerTaskExecutor):
    """An executor that keeps running, although each engine calls its start()
    and its stop().
    """

    _on = False

    def start(self):
        if not self._on:
            self._on = True
            super().start()

    def stop(self):
        pass

    def end(self):
        super().stop()


def serve(url, exchange, topic):
    worker.Worker(exchange, topic, [Nothing], url=url,
                  threads_count=THREADS).run(display_banner=False)


def speeds(url, number):
    """Return the flows per second of *number* rounds.

    :param url: URL of RabbitMQ, in the format of oslo.messaging.
    """
    url = url.replace('rabbit://', 'pyamqp://')
    exchange = f'taskflow-{uuid.uuid4().hex[:8]}'
    topic = f'{exchange}-work'
    process = measuring.SPAWN.Process(
        target=serve, args=(url, exchange, topic), daemon=True)
    process.start()
    shared = _Shared(uuid.uuid4().hex, exchange, [topic], url=url,
                     transition_timeout=None)
    shared.start()
    assert shared.wait_for_workers(timeout=60) == 0

    def run(name):
        flow = linear_flow.Flow(f'flow-{name}').add(
            *(Nothing(f'nothing-{step}') for step in range(STEPS)))
        engines.load(flow, engine='worker-based', executor=shared).run()

    found = []
    with concurrent.futures.ThreadPoolExecutor(THREADS) as threads:
        for _ in range(number):
            began = time.time()
            list(threads.map(run, range(FLOWS)))
            found.append(FLOWS / (time.time() - began))
    shared.end()
    process.terminate()
    process.join()
    return found
