#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Print the functions of the product through which one claim request passes.

``tox -e measure`` runs this. A scheduler claims a batch in a SQLite file. The
functions on the path are those that are executing at one of these moments: the
request enters the queue of the store; the database executes the statement that
claims; the answer enters the inbox of the scheduler; the scheduler queues the
claims for dispatch. Functions that return earlier are not on the path.
"""

import itertools
import pathlib
import queue
import sys
import tempfile
import threading

from distperiodic.adapters.local.clock import SystemClock
from distperiodic.adapters.local.store_thread import StoreThread
from distperiodic.adapters.sql import schema
from distperiodic.adapters.sql.store import SqlClaimStore
from distperiodic.core.attributes import PLAIN
from distperiodic.core.claim import Authority
from distperiodic.core.job import Job
from distperiodic.core.job import Scope
from distperiodic.core.schedule import SECOND
from distperiodic.core.schedule import Every
from distperiodic.flow.leases import Book
from distperiodic.flow.scheduler.attendance import Attendance
from distperiodic.flow.scheduler.claimer import Claimer
from distperiodic.flow.scheduler.dispatcher import Dispatcher
from distperiodic.flow.wiring import SchedulerWiring
from distperiodic.ports import Listed

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGE = f'{ROOT / "distperiodic"}/'
OBJECTS = [f'object-{number}' for number in range(500)]


class Moments:
    """The longest chain of the product's functions at each moment."""

    def __init__(self):
        self.chains = {}

    def __call__(self, frame, event, arg):
        """Record the chain of functions; Python calls this as a profiler."""
        name = getattr(arg, '__name__', frame.f_code.co_name)
        if (event, name) not in {
                ('c_call', 'put'), ('c_call', 'execute'), ('call', 'offer')}:
            return
        chain = []
        while frame is not None:
            if frame.f_code.co_filename.startswith(PACKAGE):
                chain.append(f'{frame.f_code.co_filename[len(PACKAGE):]}: '
                             f'{frame.f_code.co_qualname}')
            frame = frame.f_back
        moment = threading.current_thread().name, name
        if len(chain) > len(self.chains.get(moment, ())):
            self.chains[moment] = chain[::-1]


def main(place):
    url = f'sqlite:///{place}/claims.sqlite'
    schema.sync(url)
    clock, inbox, moments = SystemClock(), queue.SimpleQueue(), Moments()
    job = Job('poll', Every(60.0), objects='list', scope=Scope.OBJECTS)
    threading.setprofile(moments)
    store = StoreThread(lambda: SqlClaimStore(url, namespace='measure'),
                        inbox.put, clock.monotonic)
    store.start()
    names = (f'lease-{number}' for number in itertools.count())
    wiring = SchedulerWiring(
        clock=clock, new_lease=names.__next__, sure=lambda entry: True,
        membership=None, group='measure', identity='me',
        me=lambda: f'me~{"0" * 16}~1~f1', bus=None, reader=None,
        put=lambda event: None)
    book = Book(Authority.STORE, {'poll': job}, store, grants_here=False)
    dispatcher = Dispatcher([book], wiring, None)
    attendance = Attendance(clock, store, book.jobs, 5.0)
    claimer = Claimer(
        book, wiring, owns=lambda job, row: True, piece=len(OBJECTS),
        promise=60.0, attendance=attendance, dispatcher=dispatcher)
    attendance.refresh()
    tick = job.schedule.at_or_before(clock.now())
    store.submit(lambda claims: claims.sync(
        'poll', [Listed(key, PLAIN, tick - SECOND) for key in OBJECTS], [],
        readings=[tick - SECOND]), lambda answer: None)
    while not attendance.known or not store.flush(60.0) or not inbox.empty():
        inbox.get(timeout=60.0)()
    moments.chains.clear()
    sys.setprofile(moments)
    claimer.start_tick(job, tick, OBJECTS)
    inbox.get(timeout=60.0)()
    sys.setprofile(None)
    assert dispatcher.waiting == len(OBJECTS)
    store.stop(10.0)
    for title, *both in (
            ('down', ('MainThread', 'put'), ('distperiodic-store', 'execute')),
            ('up', ('distperiodic-store', 'put'), ('MainThread', 'offer'))):
        path = dict.fromkeys(
            name for moment in both for name in moments.chains[moment])
        print(f'functions on the path {title}: {len(path)}')
        for name in path:
            print(f'  {name}')


if __name__ == '__main__':
    with tempfile.TemporaryDirectory() as directory:
        main(directory)
