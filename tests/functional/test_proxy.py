# SPDX-License-Identifier: Apache-2.0
"""The network faults of the test proxy have exactly the effects that
:mod:`tests.proxy` describes.
"""

import contextlib
import socket
import socketserver
import threading
import time

import pytest

from tests import proxy
from tests.waiting import wait_until


class _Echo(socketserver.BaseRequestHandler):
    def handle(self):
        with contextlib.suppress(OSError):
            while piece := self.request.recv(65536):
                self.server.heard += piece
                self.request.sendall(piece)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    heard = b''


@pytest.fixture
def server():
    with _Server(('127.0.0.1', 0), _Echo) as server:
        threading.Thread(target=server.serve_forever, daemon=True,
                         kwargs={'poll_interval': 0.01}).start()
        yield server
        server.shutdown()


@pytest.fixture
def way(server):
    with proxy.Proxy(server.server_address) as way:
        yield way


@pytest.fixture
def client(way):
    with connected(way) as client:
        yield client


def connected(way):
    client = socket.create_connection(('127.0.0.1', way.port), 5)
    client.settimeout(5)
    return client


def says(client, text, timeout=5.0):
    client.settimeout(timeout)
    client.sendall(text)
    return hears(client, len(text))


def hears(client, size):
    heard = b''
    while len(heard) < size:
        piece = client.recv(65536)
        if not piece:
            break
        heard += piece
    return heard


def test_all_bytes_pass_in_their_order(client):
    text = bytes(range(256)) * 20_000
    threading.Thread(target=client.sendall, args=(text,)).start()

    assert hears(client, len(text)) == text


def test_the_end_of_a_connection_passes_as_well(client, way):
    client.sendall(b'last')
    client.shutdown(socket.SHUT_WR)

    assert hears(client, 100) == b'last'
    wait_until(lambda: way.connections == 0)


def test_nothing_passes_and_the_connection_stays_open(client, way, server):
    assert says(client, b'before') == b'before'

    way.set('drop')

    with pytest.raises(TimeoutError):
        says(client, b'lost', timeout=0.3)
    assert way.connections == 1
    assert server.heard == b'before'


def test_requests_arrive_and_answers_vanish(client, way, server):
    way.set('drop_s2c')

    with pytest.raises(TimeoutError):
        says(client, b'asked', timeout=0.3)
    wait_until(lambda: server.heard == b'asked')


def test_the_answer_to_one_request_is_lost(client, way, server):
    happened = way.lose_answer(b'COMMIT')
    assert says(client, b'SELECT') == b'SELECT'
    assert not happened.is_set()

    with pytest.raises(TimeoutError):
        says(client, b'COMMIT', timeout=0.2)

    assert happened.wait(5)
    wait_until(lambda: server.heard == b'SELECTCOMMIT')
    way.set('pass')
    with connected(way) as another:
        assert says(another, b'COMMIT') == b'COMMIT', 'it is lost once'


def test_bytes_come_late_and_in_their_order(client, way):
    way.set('delay', 0.1)
    began = time.monotonic()

    assert says(client, b'late') == b'late'

    assert time.monotonic() - began >= 0.2
    client.sendall(b'one')
    way.set('pass')
    client.sendall(b'two')
    assert hears(client, 6) == b'onetwo'


def test_open_and_new_connections_are_reset(client, way):
    assert says(client, b'before') == b'before'

    way.set('reset')

    with pytest.raises(ConnectionResetError):
        client.recv(1)
    with pytest.raises(ConnectionResetError), connected(way) as another:
        another.recv(1)
    way.set('pass')
    with connected(way) as another:
        assert says(another, b'after') == b'after'


def test_a_connection_that_lost_bytes_does_not_go_on_without_them(
        client, way):
    with connected(way) as idle:
        assert says(idle, b'before') == b'before'
        with way.being('drop_s2c'), pytest.raises(TimeoutError):
            says(client, b'lost', timeout=0.2)

        with pytest.raises(ConnectionResetError):
            client.recv(1)
        assert says(idle, b'after') == b'after'


def test_a_new_connection_in_a_hole_is_accepted_and_gets_no_answer(way):
    way.set('drop')

    with connected(way) as client, pytest.raises(TimeoutError):
        says(client, b'anybody?', timeout=0.2)


def test_a_server_that_is_not_there_resets(way, server):
    server.shutdown()
    server.server_close()

    with pytest.raises(ConnectionResetError), connected(way) as client:
        client.recv(1)


def test_pieces_are_counted_each_way(client, way):
    says(client, b'one')
    says(client, b'two')

    assert way.pieces == {'client': 2, 'server': 2}
