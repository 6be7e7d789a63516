# SPDX-License-Identifier: Apache-2.0
"""A bad network: a TCP proxy on loopback that fails on request.

    client ── Proxy.port ──► Proxy ──► server

    pass        every byte, both ways
    delay       every byte, both ways, *seconds* later
    drop        nothing either way; connections stay open
    drop_s2c    requests arrive, answers vanish; connections stay open
    reset       connections are reset, and new ones too

Dropped bytes are lost. If a connection continued after a loss, its stream
would have a gap, which no real network causes. So when a dropping mode ends,
each connection that lost bytes is reset, as by a router that has lost its
state.

Limits: in ``drop`` the kernel still accepts a new connection, and then no
bytes arrive. A firewall that drops packets would not even let a client
connect. The kernel also buffers unread bytes, about 100 kB in each direction.
"""

import collections
import contextlib
import selectors
import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import Literal
from typing import Self
from urllib import parse

HOST = '127.0.0.1'
Mode = Literal['pass', 'delay', 'drop', 'drop_s2c', 'reset']

_PIECE = 65536
# Bytes held for a slow reader; above this the connection is reset.
_MOST_WAITING = 16 * 1024 * 1024


class _Way:
    """One direction of one connection."""

    def __init__(self, source: socket.socket, target: socket.socket,
                 to_client: bool):
        self.source = source
        self.target = target
        self.to_client = to_client
        #: (when to send, bytes); empty bytes mean that the source has ended.
        self.waiting: collections.deque[tuple[float, bytes]] = (
            collections.deque())
        self.size = 0
        self.ended = False


class _Pair:
    """One connection: the client's socket and the socket to the server."""

    def __init__(self, client: socket.socket, server: socket.socket):
        self.client = client
        self.server = server
        self.ways = (_Way(client, server, False), _Way(server, client, True))
        self.lost_bytes = False


class Proxy:
    """A connection to one server that can be disturbed during its use.

    All work is done in one thread. So the bytes of a connection keep their
    order in every mode and when the mode changes.

    :param target: (host, port) of the server.
    :param port: Port to listen on. 0 means any free port.
    """

    def __init__(self, target: tuple[str, int], port: int = 0):
        #: URL of the server through this proxy, after :meth:`before`.
        self.url = ''
        self._target = target
        self._listener = socket.create_server((HOST, port))
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._mode: Mode = 'pass'
        self._seconds = 0.0
        self._pairs: list[_Pair] = []
        self._orders: collections.deque[
            tuple[Mode, float, threading.Event]] = collections.deque()
        #: (request whose answer will be lost, bytes required before it in the
        #: same connection, event set when this happens), or None.
        self._doomed: tuple[bytes, bytes, threading.Event] | None = None
        self._doomed_in: _Pair | None = None
        self._selector = selectors.DefaultSelector()
        self._knock, self._door = socket.socketpair()
        self._door.setblocking(False)
        self._over = False
        #: Bytes received from the client and from the server.
        self.received = {'client': 0, 'server': 0}
        #: Number of received pieces. If each request waits for its answer,
        #: this is the number of requests and answers.
        self.pieces = {'client': 0, 'server': 0}
        #: Number of accepted connections.
        self.accepted = 0
        self._thread = threading.Thread(
            target=self._run, name=f'proxy-{self.port}', daemon=True)
        self._thread.start()

    @classmethod
    def before(cls, url: str, port: int = 0) -> Self:
        """Return a proxy for the server of *url*.

        :param port: As for the class.
        """
        parts = parse.urlsplit(url)
        assert parts.hostname and parts.port, url
        found = cls((parts.hostname, parts.port), port)
        login, at, _ = parts.netloc.rpartition('@')
        found.url = parts._replace(
            netloc=f'{login}{at}{HOST}:{found.port}').geturl()
        return found

    @property
    def mode(self) -> Mode:
        return self._mode

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return len(self._pairs)

    def set(self, mode: Mode, seconds: float = 0.0) -> None:
        """Change the mode; return when the change is in force.

        :param seconds: Delay of each byte in the mode ``delay``.
        """
        done = threading.Event()
        self._orders.append((mode, seconds, done))
        self._knock.send(b'.')
        assert done.wait(5), 'the proxy stands still'

    def lead_to(self, target: tuple[str, int]) -> None:
        """Connect new connections to another server."""
        self._target = target

    def lose_answer(self, request: bytes,
                    after: bytes = b'') -> threading.Event:
        """Deliver the next piece with *request* in it, but not its answer.

        The piece must come from a client. From then on the mode is
        ``drop_s2c``. A call of :meth:`set` cancels this.

        :param after: Bytes that the same connection must have sent before.
        :returns: An event that is set when the piece has arrived.
        """
        happened = threading.Event()
        self._doomed_in = None
        self._doomed = request, after, happened
        return happened

    @contextlib.contextmanager
    def being(self, mode: Mode, seconds: float = 0.0) -> Iterator[None]:
        """Change the mode for a while, and restore ``pass`` afterwards."""
        self.set(mode, seconds)
        try:
            yield
        finally:
            self.set('pass')

    def close(self) -> None:
        """End all connections, and stop listening."""
        if not self._over:
            self._over = True
            # The thread may have noticed _over, and ended before this write.
            with contextlib.suppress(BrokenPipeError):
                self._knock.send(b'.')
            self._thread.join(5)
            self._knock.close()

    def __enter__(self) -> 'Proxy':
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # -- all methods below run in the thread

    def _run(self) -> None:
        self._selector.register(self._listener, selectors.EVENT_READ,
                                self._accept)
        self._selector.register(self._door, selectors.EVENT_READ, self._obey)
        while not self._over:
            for key, _ in self._selector.select(self._pause()):
                # Another event of this round may have closed the socket. The
                # type is ignored because only sockets, and no bare numbers,
                # are registered.
                if key.fileobj.fileno() >= 0:  # type: ignore[union-attr]
                    key.data()
            for pair in list(self._pairs):
                self._deliver(pair)
        for pair in list(self._pairs):
            self._end(pair, reset=False)
        self._listener.close()
        self._door.close()
        self._selector.close()

    def _pause(self) -> float | None:
        """Return the seconds until waiting bytes must be sent, or None."""
        times = [way.waiting[0][0] for pair in self._pairs
                 for way in pair.ways if way.waiting]
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _obey(self) -> None:
        self._door.recv(_PIECE)
        while self._orders:
            self._mode, self._seconds, done = self._orders.popleft()
            self._doomed = None
            for pair in list(self._pairs):
                healed = pair.lost_bytes and not self._drops(pair.ways[1])
                if self._mode == 'reset' or healed:
                    self._end(pair, reset=True)
            done.set()

    def _drops(self, way: _Way) -> bool:
        return self._mode == 'drop' or (
            self._mode == 'drop_s2c' and way.to_client)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        self.accepted += 1
        if self._mode == 'reset':
            _reset(client)
            return
        try:
            # On loopback a connection succeeds or fails at once.
            server = socket.create_connection(self._target, timeout=1.0)
        except OSError:
            _reset(client)
            return
        pair = _Pair(client, server)
        self._pairs.append(pair)
        for way in pair.ways:
            way.source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            way.source.setblocking(False)
            self._selector.register(
                way.source, selectors.EVENT_READ,
                lambda pair=pair, way=way: self._receive(pair, way))

    def _receive(self, pair: _Pair, way: _Way) -> None:
        try:
            piece = way.source.recv(_PIECE)
        except BlockingIOError:
            return
        except OSError:
            self._end(pair, reset=True)
            return
        side = 'server' if way.to_client else 'client'
        self.received[side] += len(piece)
        self.pieces[side] += 1
        if self._doomed is not None and not way.to_client:
            self._doom(pair, piece, *self._doomed)
        if not piece:
            # A bad network loses the end of a connection like other bytes.
            self._selector.unregister(way.source)
            way.ended = True
        if self._drops(way):
            pair.lost_bytes = True
            if all(one.ended for one in pair.ways):
                self._end(pair, reset=False)
            return
        late = self._seconds if self._mode == 'delay' else 0.0
        way.waiting.append((time.monotonic() + late, piece))
        way.size += len(piece)
        if way.size > _MOST_WAITING:
            self._end(pair, reset=True)

    def _doom(self, pair: _Pair, piece: bytes, request: bytes, after: bytes,
              happened: threading.Event) -> None:
        if after in piece:
            self._doomed_in = pair
        if pair is self._doomed_in and request in piece:
            self._doomed = None
            self._mode = 'drop_s2c'
            happened.set()

    def _deliver(self, pair: _Pair) -> None:
        for way in pair.ways:
            while (pair in self._pairs and way.waiting
                   and way.waiting[0][0] <= time.monotonic()):
                if self._drops(way):
                    # The bytes were under way when the network failed.
                    way.waiting.clear()
                    way.size = 0
                    pair.lost_bytes = True
                    break
                due, piece = way.waiting.popleft()
                way.size -= len(piece)
                try:
                    if not piece:
                        way.target.shutdown(socket.SHUT_WR)
                        break
                    sent = way.target.send(piece)
                except BlockingIOError:
                    sent = 0
                except OSError:
                    self._end(pair, reset=True)
                    return
                if sent < len(piece):
                    way.waiting.appendleft(
                        (time.monotonic() + 0.01, piece[sent:]))
                    way.size += len(piece) - sent
                    break
        if pair in self._pairs and all(
                way.ended and not way.waiting for way in pair.ways):
            self._end(pair, reset=False)

    def _end(self, pair: _Pair, reset: bool) -> None:
        if pair not in self._pairs:
            return
        self._pairs.remove(pair)
        for one in (pair.client, pair.server):
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(one)
            if reset:
                _reset(one)
            else:
                one.close()


def _reset(one: socket.socket) -> None:
    """Close a socket so that its peer sees a reset, not an end."""
    with contextlib.suppress(OSError):
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER,
                       struct.pack('ii', 1, 0))
    one.close()
