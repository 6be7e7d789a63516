# SPDX-License-Identifier: Apache-2.0
"""Objects per second through RabbitMQ and Redis, compared with bare
oslo.messaging.

One process sends, and another process receives and answers. The queues are
durable, the broker confirms every message, and Redis writes an append-only
file. An object counts when the sender knows that the object is done.

    pytest -s -o timeout=0 tests/benchmarks/test_messaging.py
"""

import multiprocessing
import statistics
import threading
import time
import uuid

import oslo_messaging
from oslo_config import cfg

from distperiodic.adapters.messaging.bus import Endpoint
from distperiodic.adapters.messaging.bus import MessagingReportBus
from distperiodic.adapters.messaging.bus import MessagingWorkBus
from distperiodic.core import message

OBJECTS = 20_000
MANY = 400_000
BATCH = 500
ROUNDS = 5

SCHEDULER = 'api-1~9f2c41d07be3a655~1~f1.r40'
WORKER = 'worker-1~00c0ffee00c0ffee~1~f1.s10'

SPAWN = multiprocessing.get_context('spawn')


def configuration():
    conf = cfg.ConfigOpts()
    conf([])
    return conf


def our_worker(url, group, ready, over):
    def on_batch(batch):
        bus.report(message.Report(
            batch.id, WORKER, list(range(len(batch.objects)))), batch.sender)

    bus = MessagingReportBus(
        Endpoint(configuration(), url, group=group, me=WORKER),
        partition='default', on_batch=on_batch)
    bus.start()
    ready.set()
    over.wait()
    bus.close()


class Counter:
    """A counter. A thread can wait until it reaches a number."""

    def __init__(self):
        self._changed = threading.Condition()
        self._count = 0

    def add(self, number):
        with self._changed:
            self._count += number
            self._changed.notify_all()

    def wait_for(self, number):
        with self._changed:
            assert self._changed.wait_for(
                lambda: self._count >= number, 120)
            self._count -= number


def our_rounds(url, objects, rounds, keys=()):
    group = uuid.uuid4().hex[:8]
    ready, over = SPAWN.Event(), SPAWN.Event()
    worker = SPAWN.Process(target=our_worker, args=(url, group, ready, over))
    worker.start()
    counter = Counter()
    unsent = []
    bus = MessagingWorkBus(
        Endpoint(configuration(), url, group=group, me=SCHEDULER),
        on_report=lambda reports: counter.add(sum(r.size for r in reports)),
        on_sent=lambda batch: None,
        on_unsent=lambda batch, reason: unsent.append(reason))
    ready.wait()
    bus.start()
    ids = [str(uuid.uuid4()) for _ in range(BATCH)]
    ones = [1] * BATCH
    try:
        for _ in range(rounds):
            began = time.perf_counter()
            for number in range(objects // BATCH):
                bus.send(message.Batch(str(number), 'poll', 0, ids, ones,
                                       ones, SCHEDULER, WORKER,
                                       'lease-1'))
            counter.wait_for(objects)
            yield objects / (time.perf_counter() - began)
        assert unsent == []
    finally:
        over.set()
        worker.join()
        bus.close()


class BareEndpoint:
    """The endpoint that bare oslo.messaging calls on each side."""

    def __init__(self, act):
        self.act = act

    def hear(self, ctxt, ids):
        self.act(ids)


def bare_transport(url):
    return oslo_messaging.get_rpc_transport(
        cfg.CONF, url + '?amqp_durable_queues=true')


def bare_target(name):
    return oslo_messaging.Target(exchange='bench', topic='bench', server=name)


def bare_server(transport, name, act):
    server = oslo_messaging.get_rpc_server(
        transport, bare_target(name), [BareEndpoint(act)])
    # The default of 64 threads would compete for one lock.
    server.start(override_pool_size=1)
    return server


def bare_client(transport, name):
    return oslo_messaging.get_rpc_client(transport, bare_target(name))


def bare_worker(url, name, ready, over):
    cfg.CONF([])
    transport = bare_transport(url)
    back = bare_client(transport, name + '-back')
    # An answer to each message would halve the speed of bare messaging. So the
    # receiver sends one answer for 500 objects, as distperiodic does.
    waiting = 0

    def act(ids):
        nonlocal waiting
        waiting += len(ids)
        if waiting >= BATCH:
            back.cast({}, 'hear', ids=list(range(waiting)))
            waiting = 0

    server = bare_server(transport, name, act)
    ready.set()
    over.wait()
    server.stop()
    server.wait()


def bare_rounds(url, objects, size, rounds):
    cfg.CONF([])
    name = uuid.uuid4().hex[:8]
    ready, over = SPAWN.Event(), SPAWN.Event()
    worker = SPAWN.Process(target=bare_worker, args=(url, name, ready, over))
    worker.start()
    transport = bare_transport(url)
    counter = Counter()
    server = bare_server(transport, name + '-back',
                         lambda ids: counter.add(len(ids)))
    client = bare_client(transport, name)
    ids = [str(uuid.uuid4()) for _ in range(size)]
    ready.wait()
    try:
        for _ in range(rounds):
            began = time.perf_counter()
            for _ in range(objects // size):
                client.cast({}, 'hear', ids=ids)
            counter.wait_for(objects)
            yield objects / (time.perf_counter() - began)
    finally:
        over.set()
        worker.join()
        server.stop()
        server.wait()
        transport.cleanup()


def test_objects_per_second(rabbitmq, redis):
    rows = {}
    rows['bare cast, one per object', OBJECTS] = bare_rounds(
        rabbitmq.url, OBJECTS, 1, 2)
    for objects in (OBJECTS, MANY):
        rows[f'bare cast, {BATCH} per message', objects] = bare_rounds(
            rabbitmq.url, objects, BATCH, ROUNDS)
        for name, url in ('RabbitMQ', rabbitmq.url), ('Redis', redis.url):
            rows[f'distperiodic, {name}', objects] = our_rounds(
                url, objects, ROUNDS)
    print()
    print('objects/s, sent to known done   objects     median        least'
          '         most  to one cast each')
    one = None
    for (what, objects), rounds in rows.items():
        speeds = list(rounds)
        median = statistics.median(speeds)
        one = one or median
        print(f'{what:30s} {objects:8,d} {median:10,.0f} '
              f'{min(speeds):12,.0f} {max(speeds):12,.0f} '
              f'{median / one:12.1f}x')
