# SPDX-License-Identifier: Apache-2.0
"""The time to join a group on a real ZooKeeper: for one more member of a group
of a hundred, and for two hundred members at the same time.

Ten processes contain the members, ten or twenty each. Each member has a client
and a session of its own. Two other kinds of members are measured as well. One
kind uses tooz as the documentation of tooz describes: with a heartbeat thread,
and with ``run_watchers()`` every 0.1 s. The other kind uses a watch of kazoo.
For one more member, a time counts from its request to join until another
member knows it, or until the last of the other members does. For two hundred
members, the times count from the common moment at which they start. All times
are read from the machine's monotonic clock.

    pytest -s -o timeout=0 tests/benchmarks/test_membership.py
"""

import socket
import statistics
import threading
import time
import urllib.parse
import uuid

from tests.benchmarks import measuring

PROCESSES = 10
MEMBERS = 100
JOINS = 7
AT_REST = 20.0
AT_ONCE = 200
POLL = 0.1
SESSION = 10.0


class Ours:
    """One member of distperiodic, created as the services do."""

    def __init__(self, url, group, name, seen):
        from distperiodic.adapters.coordination import membership
        from distperiodic.adapters.local.clock import SystemClock

        self.name = name
        self.views = 0
        self._seen = seen
        self._known = frozenset()
        self.membership = membership.ToozMembership(
            url, name, clock=SystemClock(),
            announced=membership.Announced(points=40),
            session_timeout=SESSION)
        self.membership.join(group, self._viewed)

    def _viewed(self, view):
        now = time.monotonic()
        if self._seen is None:
            return
        self.views = view.version
        names = frozenset(m.identity for m in view.members)
        for name in names ^ self._known:
            self._seen[self.name, name, name in names] = now
        self._known = names

    def start(self):
        self.membership.start()
        self.membership.wait_joined(60)

    def leave(self):
        self.membership.stop()

    def end(self):
        """Do nothing: a member ends when it leaves."""


class Polling:
    """One member that uses only tooz."""

    def __init__(self, url, group, name, seen):
        from tooz import coordination

        self.name = name
        self.group = group.encode()
        self.views = 0
        self._seen = seen
        self._over = threading.Event()
        self.coordinator = coordination.get_coordinator(
            f'{url}?timeout={SESSION:.0f}', name.encode())

    def start(self):
        self.connect()
        self.join()

    def connect(self):
        from tooz import coordination

        self.coordinator.start(start_heart=True)
        try:
            self.coordinator.create_group(self.group).get()
        except coordination.GroupAlreadyExist:
            pass
        if self._seen is not None:
            threading.Thread(target=self._poll, daemon=True).start()

    def _note(self, event, present):
        self.views += 1
        self._seen[self.name, event.member_id.decode(),
                   present] = time.monotonic()

    def _poll(self):
        self.coordinator.watch_join_group(
            self.group, lambda event: self._note(event, True))
        self.coordinator.watch_leave_group(
            self.group, lambda event: self._note(event, False))
        # From now on tooz reports changes, but it does not report the members
        # that were already present.
        for name in self.coordinator.get_members(self.group).get():
            self._seen[self.name, name.decode(), True] = time.monotonic()
        while not self._over.wait(POLL):
            self.coordinator.run_watchers()

    def join(self):
        self.coordinator.join_group(self.group).get()

    def leave(self):
        self._over.set()
        self.coordinator.leave_group(self.group).get()

    def end(self):
        self.coordinator.stop()


class Pushed(Polling):
    """A member that uses tooz and kazoo's watch on the group.

    This member shows the cost of a push alone. It has no ring, does not decide
    whether a view is trusted, and reads the group only once.
    """

    def _poll(self):
        path = self.coordinator._path_group(self.group)
        known = set()

        def changed(children):
            now = time.monotonic()
            nonlocal known
            names = set(children)
            self.views += 1
            for name in names ^ known:
                self._seen[self.name, name, name in names] = now
            known = names

        self.coordinator._coord.ChildrenWatch(path, changed)


KINDS = {'distperiodic, pushed': Ours, 'tooz, polled': Polling,
         'tooz and a bare ChildrenWatch': Pushed}
OURS = 'distperiodic, pushed'


def hold(kind, url, orders, answers):
    """Run a process that contains members, until it receives the order to end.
    """
    from tooz import coordination

    members, seen = [], {}
    while True:
        order, *about = orders.get()
        answer = None
        if order == 'gather':
            group, names = about
            # tooz needs a quarter of a second to find its driver, once per
            # process. This time is not part of a join.
            coordination.get_coordinator(url, b'not-used')
            members = [KINDS[kind](url, group, name, seen) for name in names]
        elif order == 'start':
            moment, = about
            time.sleep(max(0.0, moment - time.monotonic()))
            in_threads(m.start for m in members)
            answer = time.monotonic()
        elif order == 'seen':
            name, present = about
            answer = [seen.get((m.name, name, present)) for m in members]
        elif order == 'all seen':
            others, = about
            answer = [
                max((seen.get((m.name, other, True), float('inf'))
                     for other in others if other != m.name), default=0.0)
                for m in members]
        elif order == 'views':
            answer = [m.views for m in members]
        elif order == 'leave':
            in_threads(m.leave for m in members)
            in_threads(m.end for m in members)
            members.clear()
            seen.clear()
        answers.put(answer)
        if order == 'end':
            return


def in_threads(acts):
    threads = [threading.Thread(target=act) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class Crowd:
    """Ten processes that contain members of one kind."""

    def __init__(self, kind, url):
        self.kind = kind
        self.url = url
        self.group = ''
        self.names = []
        self._ends = []
        for _ in range(PROCESSES):
            orders = measuring.SPAWN.SimpleQueue()
            answers = measuring.SPAWN.SimpleQueue()
            process = measuring.SPAWN.Process(
                target=hold, args=(kind, url, orders, answers))
            process.start()
            self._ends.append((process, orders, answers))

    def gather(self, number):
        """Create *number* members of a new group. The members do not join yet.
        """
        self.group = f'benchmark-{uuid.uuid4().hex[:8]}'
        self.names = [f'api-{n}' for n in range(number)]
        for n, (_, orders, _) in enumerate(self._ends):
            orders.put(('gather', self.group, self.names[n::PROCESSES]))
        self._answers()

    def ask(self, *order):
        """Give an order to all processes. Return their answers."""
        for _, orders, _ in self._ends:
            orders.put(order)
        return self._answers()

    def _answers(self):
        return [answers.get() for _, _, answers in self._ends]

    def wait(self, *order, timeout=60.0):
        """Wait until each member has recorded a time. Return these times."""
        end = time.monotonic() + timeout
        while True:
            times = [t for answer in self.ask(*order) for t in answer]
            if None not in times and float('inf') not in times:
                return times
            if time.monotonic() > end:
                missing = times.count(None) + times.count(float('inf'))
                raise TimeoutError(f'{self.kind}: {order[0]}: {missing} of '
                                   f'{len(times)} members do not know')
            time.sleep(0.1)

    def close(self):
        self.ask('end')
        for process, _, _ in self._ends:
            process.join()


def requests(url):
    """Return how many packets the server has received so far."""
    address = urllib.parse.urlsplit(url)
    with socket.create_connection((address.hostname, address.port), 5) as end:
        end.sendall(b'mntr')
        answer = b''
        while piece := end.recv(65536):
            answer += piece
    for line in answer.decode().splitlines():
        key, _, value = line.partition('\t')
        if key == 'zk_packets_received':
            return int(value)
    raise LookupError('mntr gave no zk_packets_received')


def stamped_join(crowd, number):
    """Start one more member. Return the member, its start time, and the time
    of its request to join.
    """
    asked = []
    name = f'late-{number}'
    one = KINDS[crowd.kind](crowd.url, crowd.group, name, None)
    if crowd.kind == OURS:
        from distperiodic.adapters.coordination.term import Term

        join = Term.join

        def stamped(self, group):
            asked.append(time.monotonic())
            join(self, group)

        Term.join = stamped
        began = time.monotonic()
        try:
            one.start()
        finally:
            Term.join = join
    else:
        began = time.monotonic()
        one.connect()
        asked.append(time.monotonic())
        one.join()
    return one, began, asked[0]


def joins_and_rest(crowd):
    crowd.gather(MEMBERS)
    crowd.ask('start', time.monotonic() + 0.5)
    crowd.wait('all seen', crowd.names)
    time.sleep(2.0)
    before, began = requests(crowd.url), time.monotonic()
    time.sleep(AT_REST)
    rate = ((requests(crowd.url) - before) / (time.monotonic() - began)
            / len(crowd.names))
    figures = {'others': [], 'joined': [], 'started': [], 'left': []}
    for number in range(JOINS):
        one, began, asked = stamped_join(crowd, number)
        times = crowd.wait('seen', one.name, True)
        figures['others'] += [t - asked for t in times]
        figures['joined'].append(max(times) - asked)
        figures['started'].append(max(times) - began)
        time.sleep(0.5)
        asked = time.monotonic()
        one.leave()
        times = crowd.wait('seen', one.name, False)
        figures['left'].append(max(times) - asked)
        one.end()
        time.sleep(0.5)
    crowd.ask('leave')
    return rate, figures


def all_at_once(crowd):
    crowd.gather(AT_ONCE)
    moment = time.monotonic() + 0.5
    before = requests(crowd.url)
    joined = max(crowd.ask('start', moment)) - moment
    known = max(crowd.wait('all seen', crowd.names)) - moment
    time.sleep(max(0.0, moment + 3.0 - time.monotonic()))
    asked = requests(crowd.url) - before
    views = [v for answer in crowd.ask('views') for v in answer]
    crowd.ask('leave')
    return joined, known, asked, views


def test_members_come_and_go(zookeeper):
    crowds = {}
    try:
        for kind in KINDS:
            crowds[kind] = Crowd(kind, zookeeper.url)
        # The server becomes faster during its first minute. So run these
        # rounds first; otherwise the first kind would have a disadvantage.
        for crowd in crowds.values():
            all_at_once(crowd)
        print_joins({k: joins_and_rest(c) for k, c in crowds.items()})
        measured = {kind: [] for kind in KINDS}
        for _ in range(measuring.rounds(3)):
            for kind, crowd in crowds.items():
                measured[kind].append(all_at_once(crowd))
        print_joins_at_once(measured)
    finally:
        for crowd in crowds.values():
            crowd.close()


def print_joins(measured):
    with measuring.table(
            f'{MEMBERS} members on ZooKeeper, ms',
            'members', 'join: others p50', 'p99',
            'the last of them', 'least-most', 'from its start()',
            'leave: the last', 'requests/s and member at rest',
            file=__file__, versions=('tooz', 'kazoo')) as row:
        for kind, (rate, figures) in measured.items():
            others = sorted(figures['others'])
            last = measuring.Figure.of(figures['joined'])
            row(kind,
                measuring.ms(others[len(others) // 2]),
                measuring.ms(others[len(others) * 99 // 100]),
                measuring.ms(last.median), measuring.spread(last),
                measuring.ms(statistics.median(figures['started'])),
                measuring.ms(statistics.median(figures['left'])),
                f'{rate:.2f}')


def print_joins_at_once(measured):
    with measuring.table(
            f'{AT_ONCE} members connect and join at once, ms',
            'members', 'all joined', 'all know all', 'least-most',
            'requests in 3 s', 'rebuilds per member, median', 'most',
            file=__file__, versions=('tooz', 'kazoo')) as row:
        for kind, answers in measured.items():
            known = measuring.Figure.of([a[1] for a in answers])
            views = [v for a in answers for v in a[3]]
            row(kind,
                measuring.ms(statistics.median(a[0] for a in answers)),
                measuring.ms(known.median), measuring.spread(known),
                f'{statistics.median(a[2] for a in answers):,.0f}',
                *((f'{statistics.median(views):.0f}', max(views))
                  if kind == OURS else ('-', '-')))
