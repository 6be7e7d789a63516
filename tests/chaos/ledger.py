# SPDX-License-Identifier: Apache-2.0
"""Model of the external systems that handlers change. It compares fences and
keeps all records.

    python -m tests.chaos.ledger SOCKET FILE

The ledger is one process that no fault affects. It appends each record to
FILE, with the time of its own clock. A handler waits for the answer, so its
record is written before its next action. The ledger rejects an effect whose
fence is lower than the fence of an accepted effect. When a connection ends,
the ledger records that the process has died.

Two simpler designs do not work. If all processes appended to one file, no
fences would be compared. If the records were in a database, a process that is
stopped in a transaction would block all other processes.
"""

import contextlib
import json
import os
import pathlib
import selectors
import socket
import sys
import threading
import time

# Seconds for which a handler waits for an answer. The ledger always answers
# quickly, so a longer wait is an error. With the limit the test fails and does
# not hang.
_PATIENCE = 20.0


class Ledger:
    """The connection of handlers to the ledger. Each process has one
    connection.

    :param name: name of the host.
    """

    def __init__(self, address, name):
        self._address = address
        self._name = name
        self._lock = threading.Lock()
        self._channel = None
        self._pid = 0

    def tell(self, what, **about):
        """Record an event. Return whether the ledger accepted it."""
        line = json.dumps({'what': what, 'pid': os.getpid(),
                           'host': self._name, 'told': time.monotonic_ns(),
                           **about}) + '\n'
        with self._lock:
            if self._pid != os.getpid():
                # A forked child opens its own connection, and the parent keeps
                # the old one.
                self._channel = socket.socket(socket.AF_UNIX)
                self._channel.settimeout(_PATIENCE)
                self._channel.connect(self._address)
                self._pid = os.getpid()
            self._channel.sendall(line.encode())
            answer = self._channel.recv(1)
        if not answer:
            raise RuntimeError('the ledger has ended')
        return answer == b'y'


class _Teller:
    """The ledger's side of one connection, which belongs to one process."""

    def __init__(self, channel):
        self.channel = channel
        self.rest = b''
        self.who = None


class _Server:
    def __init__(self, address, path):
        self._book = pathlib.Path(path).open('a')
        self._highest = {}
        self._selector = selectors.DefaultSelector()
        self._door = socket.socket(socket.AF_UNIX)
        self._door.bind(address)
        self._door.listen(64)
        self._selector.register(self._door, selectors.EVENT_READ)

    def serve(self):
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._door:
                    channel, _ = self._door.accept()
                    self._selector.register(
                        channel, selectors.EVENT_READ, _Teller(channel))
                else:
                    self._hear(key.data)
            self._book.flush()

    def _hear(self, teller):
        try:
            piece = teller.channel.recv(65536)
        except OSError:
            piece = b''
        if not piece:
            self._selector.unregister(teller.channel)
            teller.channel.close()
            if teller.who is not None:
                self._write({'what': 'gone', **teller.who})
            return
        *lines, teller.rest = (teller.rest + piece).split(b'\n')
        for line in lines:
            told = json.loads(line)
            teller.who = {'pid': told['pid'], 'host': told['host']}
            answer = self._take(told)
            with contextlib.suppress(OSError):
                teller.channel.sendall(b'y' if answer else b'n')

    def _take(self, told):
        accepted = True
        if told['what'] == 'effect':
            pair = told['job'], told['object']
            accepted = told['fence'] >= self._highest.get(pair, -1)
            if accepted:
                self._highest[pair] = told['fence']
            told['accepted'] = accepted
        self._write(told)
        return accepted

    def _write(self, told):
        told['at'] = time.time_ns() // 1000
        if told['what'] == 'start':
            # The process may have been suspended before it sent the line. Then
            # its handler began long before the line arrived.
            told['at'] -= (time.monotonic_ns() - told['told']) // 1000
        self._book.write(json.dumps(told) + '\n')


if __name__ == '__main__':
    _Server(*sys.argv[1:]).serve()
