# SPDX-License-Identifier: Apache-2.0
"""Faults of connections and messages; see :mod:`tests.chaos.faults`."""

import contextlib
import time

from tests.chaos.pace import PACE

#: Modes of a proxy that interrupt a sign of life. The mode 'drop_s2c' is not
#: among them: in this mode the requests of the host arrive, so ZooKeeper does
#: not end the session of the host.
CUTS = ('drop', 'reset')
# Seconds by which a slow connection delays each byte.
_LATE = 0.3 * PACE
# Seconds to wait for a message if no process sends any.
_SILENCE = 15.0 * PACE
# Maximum seconds in which processes declare their queues again.
_DECLARING = 10.0 * PACE


def worsen(fault, server, mode):
    """Disturb the connections of all hosts to a server."""
    yield from fault.take(server)
    for way in fault.cluster.ways(server):
        way.set(mode, _LATE)
    yield fault.seconds
    for way in fault.cluster.ways(server):
        way.set('pass')


def cut_off(fault, server, active=False):
    """Cut one running host off from a server.

    :param active: True means the host of the active worker, if no other fault
        affects it. The worker then loses the sign of life that needs this
        server.
    """
    host = yield from fault.take_host(active=active)
    yield from fault.take(server)
    # The other hosts still reach the server, so this fault does not count as a
    # fault of the server. It only keeps other faults away from the server.
    fault.befell.discard(server)
    host.ways[server].set(fault.random.choice(
        CUTS if active else [*CUTS, 'drop_s2c']))
    yield fault.seconds
    host.ways[server].set('pass')


def lose_commits(fault):
    """Lose the answers to commits. The transactions are committed all the
    same.
    """
    yield from fault.take('postgresql')
    ways = fault.cluster.ways('postgresql')
    lost = 0
    end = time.monotonic() + fault.seconds
    while time.monotonic() < end:
        way = fault.random.choice(ways)
        happened = way.lose_answer(b'COMMIT')
        lost += yield from fault.until(happened.is_set, 1.0 * PACE)
        # By then the database has executed the commit.
        yield 0.1 * PACE
        way.set('pass')
    fault.happened = lost > 0


def _tapped(fault, each):
    """For a while, call *each* with a tap and with every message that it
    receives.

    If no process can send because of another fault, wait longer for the first
    message.
    """
    yield from fault.take('broker')
    seen = 0
    end = time.monotonic() + fault.seconds
    with contextlib.closing(fault.cluster.bus.tap()) as tap:
        while time.monotonic() < end + (0 if seen else _SILENCE):
            for found in tap.messages():
                seen += 1
                each(tap, found)
            yield 0.05
    fault.happened = seen > 0


def double(fault):
    """Deliver every message a second time, and once more under another id."""
    def again(tap, found):
        tap.again(found)
        tap.anew(found, fault.random)
    yield from _tapped(fault, again)


def replay(fault):
    """Deliver genuine messages again after they have become obsolete."""
    kept = []
    yield from _tapped(fault, lambda tap, found: kept.append(found))
    yield 3.0 * PACE
    yield from fault.until(fault.cluster.broker.answers)
    with contextlib.closing(fault.cluster.bus.tap(listens=False)) as tap:
        for found in kept:
            tap.anew(found, fault.random)


def forge(fault):
    """Send forged messages with other ids, fences and leases."""
    random = fault.random

    def change(message):
        if message['kind'] == 'report':
            for report in message['reports']:
                told = {i for kind in ('failed', 'retried', 'refused')
                        for i, _ in report[kind]} | {*report['lost']}
                report['done'] = sorted({*report['done'], 0, 1, 2} - told)
            return
        if message['kind'] == 'notice':
            message['tasks'] = [f'{random.getrandbits(128):032x}'
                                for _ in message['tasks']]
            return
        what = random.choice(['id', 'lease', 'fences', 'job'])
        if what != 'fences':
            message['id'] = f's{random.randrange(10 ** 9)}'
        if what == 'lease':
            message['lease'] = f'{random.getrandbits(80):020x}'
        elif what == 'fences':
            message['fences'] = [one + 10 for one in message['fences']]
        elif what == 'job':
            message['job'] = random.choice(['poll', 'each', 'unheard of'])
    yield from _tapped(
        fault, lambda tap, found: tap.anew(found, random, change))


def send_garbage(fault):
    """Send bytes that are not a message of the product."""
    yield from fault.take('broker')
    fault.happened = False

    def send():
        # After a broker has lost its data, the processes need some time to
        # declare their queues again.
        end = time.monotonic() + _DECLARING
        while not (queues := fault.cluster.queues().values()) and (
                time.monotonic() < end):
            time.sleep(0.1)
        fault.cluster.bus.send_garbage(queues)
        fault.happened = len(queues) > 0
    yield from fault.apart(send)
