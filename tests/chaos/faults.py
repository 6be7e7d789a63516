# SPDX-License-Identifier: Apache-2.0
"""Start and end of each fault.

A fault is a generator that yields the seconds to wait before its next step. So
all faults run in one thread. This thread also starts the servers, because a
server ends with the thread that started it. A fault reserves the hosts and
servers that it affects, until it ends. Any other fault that affects one of
them waits until they are free. Limit: a fault at a failpoint reserves nothing,
because any process may pass the failpoint.
"""

import contextlib
import heapq
import itertools
import random
import signal
import threading
import time
import traceback

import pytest

from tests import checker
from tests.chaos import active
from tests.chaos import books
from tests.chaos import network
from tests.chaos import processes
from tests.chaos import servers
from tests.chaos.cluster import SERVERS
from tests.chaos.pace import PACE

_SOON = 0.1
# Of the faults that affect one host, the share that prefers the active worker.
_OF_ACTIVE = 0.4


class Driver:
    """Applies the faults of a plan to a cluster."""

    def __init__(self, cluster, tell=lambda text: None):
        self._cluster = cluster
        self._tell = tell
        self._befallen = set()
        self._order = itertools.count()
        #: Time windows of the faults, for the checker, in microseconds.
        self.windows = []
        self.stalls = []
        #: Findings that are errors in any case, without a check of the record.
        self.findings = []
        #: Processes that must not run anything.
        self.strangers = set()
        #: Choices of an operator; see :class:`tests.chaos.active.Asked`.
        self.asked = []

    def live(self, plan, every=lambda: None):
        """Apply all faults of *plan*. Return when the last one is over."""
        began = time.monotonic()
        heap = [(began + fault.at * PACE, next(self._order), fault, None)
                for fault in plan]
        heapq.heapify(heap)
        while heap:
            due, _, fault, steps = heap[0]
            pause = due - time.monotonic()
            every()
            if pause > 0:
                time.sleep(min(pause, _SOON))
                continue
            heapq.heappop(heap)
            if steps is None:
                steps = self._befall(fault)
            try:
                pause = next(steps)
            except StopIteration:
                continue
            except (Exception, pytest.fail.Exception) as exc:
                # The other faults continue, because their results are still
                # useful.
                self._tell(traceback.format_exc())
                self.findings.append(checker.Finding(
                    'broken test', f'{fault.kind}: {exc!r}'))
                continue
            heapq.heappush(heap, (
                time.monotonic() + pause, next(self._order), fault, steps))

    def _befall(self, fault):
        maker, *arguments = MAKERS[fault.kind]
        random_ = random.Random(fault.seed)
        happening = Happening(self, self._cluster, fault, random_)
        self._tell(f'{fault.kind} begins')
        try:
            yield from maker(happening, *arguments)
        finally:
            happening.release()
        end = time.time_ns() // 1000
        if happening.happened:
            self.windows.append(books.Window(
                happening.began or end, end, fault.kind,
                frozenset(happening.befell)))
        self._tell(f'{fault.kind} is over' + (
            '' if happening.happened else '; it did not happen'))


class Happening:
    """A fault in progress."""

    def __init__(self, driver, cluster, fault, random_):
        self.driver = driver
        self.cluster = cluster
        self.fault = fault
        self.random = random_
        #: Duration of the fault.
        self.seconds = fault.seconds * PACE
        self.began = 0
        self.happened = False
        #: Names of the affected hosts and servers, and pids of affected
        #: processes.
        self.befell = set()
        #: When each host or server was reserved, in microseconds.
        self._taken = {}

    def take(self, *names):
        """Reserve hosts and servers for this fault. Wait until they are free.
        """
        while not self.driver._befallen.isdisjoint(names):
            yield _SOON
        self.driver._befallen.update(names)
        self.befell.update(names)
        now = time.time_ns() // 1000
        self._taken.update(dict.fromkeys(names, now))
        self.began = self.began or now
        self.happened = True

    def is_free(self, name):
        """Return whether no fault has reserved a host or server."""
        return name not in self.driver._befallen

    def take_host(self, kind=None, active=False):
        """Reserve one host of *kind* and return it. None means any kind.

        :param active: True prefers the active worker of the partition that has
            one. If it is False, some of the faults still prefer this worker.
        """
        hosts = list(self.cluster.hosts.values()) if kind is None else (
            self.cluster.of_kind(kind))
        self.random.shuffle(hosts)
        if active or self.random.random() < _OF_ACTIVE:
            first = self.cluster.active()
            hosts.sort(key=lambda host: host.name != first)
        while True:
            for host in hosts:
                if self.is_free(host.name) and host.program.children:
                    yield from self.take(host.name)
                    return host
            yield _SOON

    def release(self, *names):
        """Release reserved hosts and servers; without names, all of them."""
        for name in names or list(self._taken):
            del self._taken[name]
            self.driver._befallen.discard(name)

    def end(self, kind, name):
        """Release a host. Record the part of this fault that affected this
        host as a separate fault, in addition to the whole fault.

        :param kind: kind of this part.
        """
        self.driver.windows.append(books.Window(
            self._taken[name], time.time_ns() // 1000, kind,
            frozenset([name])))
        self.release(name)

    def apart(self, call):
        """Execute a slow call in a thread, and wait until it returns."""
        failed = []

        def run():
            try:
                call()
            except BaseException as exc:
                failed.append(exc)
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        while thread.is_alive():
            yield _SOON
        if failed:
            raise failed[0]

    def until(self, condition, timeout=60.0 * PACE):
        """Wait for a condition. Return whether the condition became true."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            with contextlib.suppress(OSError):
                if condition():
                    return True
            yield _SOON
        return False

    def stall(self, pid, begin):
        """Record that process *pid* was stopped from *begin* until now."""
        self.driver.stalls.append(checker.Stall(
            str(pid), begin, time.time_ns() // 1000, 'stopped'))

    def find(self, text):
        self.driver.findings.append(checker.Finding(self.fault.kind, text))


# The server that each name in the kinds of faults stands for.
_ROLES = {'ensemble': 'zookeeper', 'broker': 'broker', 'store': 'postgresql'}
#: Function and arguments for each kind of fault.
MAKERS = {
    'scheduler killed': (processes.kill, 'scheduler'),
    'worker killed': (processes.kill, 'worker'),
    'scheduler frozen shortly': (processes.freeze, 'scheduler'),
    'worker frozen shortly': (processes.freeze, 'worker'),
    'scheduler frozen past its session': (processes.freeze, 'scheduler'),
    'worker frozen past its session': (processes.freeze, 'worker'),
    'scheduler frozen past its lease': (processes.freeze, 'scheduler'),
    'worker frozen past its lease': (processes.freeze, 'worker'),
    'killed at a step': (processes.strike, signal.SIGKILL),
    'frozen at a step': (processes.strike, signal.SIGSTOP),
    'rolling restart': (processes.roll,),
    'points changed': (processes.change_points,),
    'name taken': (processes.take_name,),
    'clock stepped': (processes.step_clock,),
    'log full': (processes.fill_log,),
    'active killed': (active.kill,),
    'active frozen': (active.freeze,),
    'active cut off': (active.cut_off,),
    'active cut from ensemble': (network.cut_off, 'zookeeper', True),
    'active cut from store': (network.cut_off, 'postgresql', True),
    'active replaced': (active.promote,),
    'promotion asked': (active.ask,),
    'ensemble killed': (servers.kill, 'zookeeper'),
    'ensemble wiped': (servers.wipe, 'zookeeper'),
    'ensemble frozen': (servers.freeze, 'zookeeper'),
    'broker killed': (servers.kill, 'broker'),
    'broker wiped': (servers.wipe, 'broker'),
    'broker flushed': (servers.command, 'flush'),
    'broker frozen': (servers.freeze, 'broker'),
    'broker out of memory': (servers.run_out, 'memory'),
    'broker out of disk': (servers.run_out, 'disk'),
    'queue deleted': (servers.delete_queue,),
    'connections closed': (servers.command, 'close_connections'),
    'messages doubled': (network.double,),
    'messages replayed': (network.replay,),
    'messages forged': (network.forge,),
    'garbage sent': (network.send_garbage,),
    'store killed': (servers.kill, 'postgresql'),
    'store frozen': (servers.freeze, 'postgresql'),
    'store connections ended': (servers.end_connections,),
    'commit answer lost': (network.lose_commits,),
    'store disk full': (servers.fill_disk,),
    'store locked': (servers.lock,),
    'all servers away': (servers.kill, *SERVERS),
    **{f'{name} {how}': (network.worsen, server, mode)
       for name, server in _ROLES.items()
       for how, mode in (('cut', 'reset'), ('half-open', 'drop_s2c'),
                         ('silent', 'drop'), ('slow', 'delay'))},
    **{f'member cut from {name}': (network.cut_off, server)
       for name, server in _ROLES.items()},
}
