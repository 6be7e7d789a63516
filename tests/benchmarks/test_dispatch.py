# SPDX-License-Identifier: Apache-2.0
"""Objects per second from a tick until they are known to be done, compared
with bare messaging.

The figures of distperiodic include all work: a SchedulerService and a
WorkerService in two processes, members on a ZooKeeper, durable queues, and a
confirmation of each message. The measurement begins at the tick, and ends when
the scheduler knows that the last object is done. So it includes the work of
the scheduler: to read, compare and divide the catalogue, and to claim the
objects.

The peers send lists that are prepared in advance. The measurement of
oslo.messaging ends when the sender knows the result (see test_messaging.py).
The measurement of kombu, which confirms nothing, ends when the last message is
received. In the case of the first tick, the scheduler does not know the pace
of any worker yet, so it sends small batches.

    pytest -s -o timeout=0 tests/benchmarks/test_dispatch.py
"""

import itertools
import os
import statistics
import tempfile
import time
import uuid

import kombu

from tests.benchmarks import measuring
from tests.benchmarks import test_messaging

OBJECTS = 20_000
BATCH = 500
THREADS = 10
SPACING = 3


def configuration(options):
    from oslo_config import cfg

    from distperiodic import opts

    conf = cfg.ConfigOpts()
    conf([])
    opts.register_opts(conf)
    for name, value in options.items():
        conf.set_override(name, value, opts.GROUP)
    return conf


def make_tasks(conf, names, spacing, ticks, last_ran):
    import distperiodic

    count = itertools.count(1)

    class Tasks(distperiodic.PeriodicTasks):

        def nodes(self, context):
            ticks.append(context.tick.timestamp())
            return names

        @distperiodic.periodic_task(spacing=spacing, objects='nodes')
        def poll(self, context, name):
            if not next(count) % len(names):
                last_ran.put(time.time())

    return Tasks(conf)


def serve(kind, url, options, objects, spacing, prepare, answers, over):
    """Run one service of distperiodic in its own process."""
    from oslo_service import backend

    prepare()

    backend.init_backend(backend.BackendType.THREADING)
    import oslo_messaging

    from distperiodic import service

    conf = configuration(options)
    oslo_messaging.TransportURL(conf)
    conf.set_override('transport_url', url)
    names = [str(uuid.UUID(int=n)) for n in range(objects)]
    ticks = []
    tasks = make_tasks(conf, names, spacing, ticks, answers)
    one = {'scheduler': service.SchedulerService,
           'worker': service.WorkerService}[kind](conf, tasks)
    one.start()
    if kind == 'scheduler':
        for number in itertools.count(1):
            done = objects * number
            while (one.counts.get(('poll', 'done'), 0) < done
                   and not over.is_set()):
                time.sleep(0.002)
            if over.is_set():
                break
            answers.put((ticks[-1], time.time(), time.process_time()))
    over.wait()
    answers.put((0.0, 0.0, time.process_time()))
    one.stop()


def nothing():
    """Prepare nothing in the process of a service."""


def our_rounds(zookeeper_url, rabbit_url, rounds, objects=OBJECTS,
               spacing=SPACING, told=lambda pids: None, prepare=nothing,
               **more):
    """Measure *rounds* rounds after a first one.

    :param told: called with the pids of the scheduler and the worker, before
        these processes end.
    :param prepare: called in each process before the service starts.
    :param more: options of the section [distperiodic].
    :returns: (seconds from the tick to the last run, seconds to known done) of
        each round, including the first; CPU seconds of the scheduler and of
        the worker per round.
    """
    with tempfile.TemporaryDirectory() as place:
        options = {
            'backend_url': zookeeper_url, 'dispatcher': 'messaging',
            'group': f'benchmark-{uuid.uuid4().hex[:8]}',
            'pool_size': THREADS, 'state_path': place,
            'dispatch_batch_size': BATCH, **more}
        over = measuring.SPAWN.Event()
        queues = [measuring.SPAWN.SimpleQueue() for _ in range(2)]
        both = [measuring.SPAWN.Process(target=serve, args=(
            kind, rabbit_url, options, objects, spacing, prepare, queue,
            over))
            for kind, queue in zip(('scheduler', 'worker'), queues,
                                   strict=True)]
        for process in both:
            process.start()
        seconds = []
        cpu_before = 0.0
        for number in range(rounds + 1):
            tick, known, cpu = queues[0].get()
            ran = queues[1].get()
            seconds.append((ran - tick, known - tick))
            if not number:
                cpu_before = cpu, cpu_of(both[1].pid)
        cpu_after = cpu, cpu_of(both[1].pid)
        told([process.pid for process in both])
        over.set()
        for process in both:
            process.join(20)
        return seconds, [(a - b) / rounds for a, b in zip(
            cpu_after, cpu_before, strict=True)]


def cpu_of(pid):
    with open(f'/proc/{pid}/stat') as stat:
        fields = stat.read().rpartition(')')[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf('SC_CLK_TCK')


def kombu_queue(name):
    exchange = kombu.Exchange(name, 'direct', durable=True)
    return kombu.Queue(name, exchange, routing_key=name, durable=True)


def kombu_worker(url, name, size, answers):
    count = 0

    def heard(body, message):
        nonlocal count
        message.ack()
        count += len(body)
        if not count % OBJECTS:
            answers.put(time.time())

    with kombu.Connection(url) as connection:
        with connection.Consumer(
                kombu_queue(name), callbacks=[heard], accept=['json'],
                prefetch_count=500):
            answers.put(time.time())
            while True:
                connection.drain_events()


def kombu_rounds(url, size, rounds):
    """Yield the objects per second of each round. The messages are persistent,
    and contain *size* ids as JSON.
    """
    url = url.replace('rabbit://', 'amqp://')
    name = f'kombu-{uuid.uuid4().hex[:8]}'
    answers = measuring.SPAWN.SimpleQueue()
    worker = measuring.SPAWN.Process(
        target=kombu_worker, args=(url, name, size, answers), daemon=True)
    worker.start()
    answers.get()
    ids = [str(uuid.uuid4()) for _ in range(size)]
    with kombu.Connection(url) as connection:
        producer = connection.Producer(serializer='json')
        queue = kombu_queue(name)
        for _ in range(rounds):
            began = time.time()
            for _ in range(OBJECTS // size):
                producer.publish(ids, exchange=queue.exchange,
                                 routing_key=name, delivery_mode=2)
            yield OBJECTS / (answers.get() - began)
        worker.terminate()
        worker.join()
        bound = queue(connection.default_channel)
        bound.delete()
        bound.exchange.delete()


def test_objects_per_second(zookeeper, rabbitmq):
    number = measuring.rounds()
    # The slowest peer runs at most three rounds, because each round is already
    # an average over 20,000 messages.
    peers = {
        'oslo.messaging, one cast per object': test_messaging.bare_rounds(
            rabbitmq.url, OBJECTS, 1, min(number, 3)),
        f'oslo.messaging, {BATCH} ids a cast': test_messaging.bare_rounds(
            rabbitmq.url, OBJECTS, BATCH, number),
        'kombu, one message per object': kombu_rounds(
            rabbitmq.url, 1, number),
        f'kombu, {BATCH} ids a message': kombu_rounds(
            rabbitmq.url, BATCH, number),
    }
    speeds = {name: list(rounds) for name, rounds in peers.items()}
    seconds, (scheduler, worker) = our_rounds(
        zookeeper.url, rabbitmq.url, number)
    first, *rest = seconds
    speeds['distperiodic, tick to known done'] = [
        OBJECTS / known for _, known in rest]
    speeds['distperiodic, tick to last run'] = [
        OBJECTS / ran for ran, _ in rest]
    speeds['distperiodic, its first tick'] = [OBJECTS / first[1]]
    one = statistics.median(speeds['oslo.messaging, one cast per object'])
    batches = statistics.median(
        speeds[f'oslo.messaging, {BATCH} ids a cast'])
    with measuring.table(
            f'{OBJECTS:,} objects through RabbitMQ, objects/s',
            'what', 'median', 'least', 'most', 'to one cast each',
            f'to casts of {BATCH}', file=__file__,
            versions=('oslo.messaging', 'kombu')) as row:
        for name, values in speeds.items():
            median = statistics.median(values)
            row(name, f'{median:,.0f}', f'{min(values):,.0f}',
                f'{max(values):,.0f}', measuring.times(median / one),
                f'{median / batches:.2f}x')
    print('CPU of ours per object: scheduler '
          f'{scheduler / OBJECTS * 1e6:.1f} us, worker '
          f'{worker / OBJECTS * 1e6:.1f} us', flush=True)
