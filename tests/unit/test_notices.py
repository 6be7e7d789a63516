# SPDX-License-Identifier: Apache-2.0
"""Notices of tasks, in one process and between processes with one file."""

import logging
import os
import socket

import pytest

from distperiodic.adapters.local import notice_sockets
from distperiodic.adapters.local import notices
from tests import waiting
from tests.logged import lines

GROUP = 'größe'


class Post:
    """An SQLite file, and the listeners beside it."""

    def __init__(self, directory):
        self.directory = directory
        self.key = f'sqlite:///{directory}/claims.sqlite', GROUP
        self.place = notice_sockets.place_of(*self.key)
        self.open = []

    def listen(self):
        """Listen like another process; return the list of received notices."""
        arrived = []
        self.open.append(notice_sockets.Listener(
            self.place, lambda tasks: arrived.append(list(tasks))))
        return arrived

    def files(self):
        return sorted(os.listdir(self.directory))

    def close(self):
        for one in self.open:
            one.close()


@pytest.fixture(params=['short', 'long' * 30])
def post(request, tmp_path):
    """A post in a directory whose path fits into a socket's address, and one
    in a directory whose path is too long.
    """
    directory = tmp_path / request.param
    directory.mkdir()
    made = Post(directory)
    yield made
    made.close()


def test_a_notice_reaches_each_process_that_shares_the_file(post):
    one, other = post.listen(), post.listen()

    assert notices.notify(post.key, ['t1', 't2'])

    waiting.wait_until(lambda: one == other == [['t1', 't2']])


def test_a_notice_of_another_group_or_file_is_not_received(post, tmp_path):
    arrived = post.listen()

    assert not notices.notify((post.key[0], 'other'), ['t1'])
    assert not notices.notify((f'sqlite:///{tmp_path}/b.sqlite', GROUP),
                              ['t1'])
    assert not notices.notify(('postgresql:///claims', GROUP), ['t1'])

    notices.notify(post.key, ['t2'])
    waiting.wait_until(lambda: arrived == [['t2']])


def test_a_process_notifies_itself_once(post):
    arrived = []
    notices.listen(post.key, arrived.append)
    others = post.listen()

    assert notices.notify(post.key, ['t1'])
    waiting.wait_until(lambda: others == [['t1']])
    notices.unlisten(post.key, arrived.append)

    assert arrived == [['t1']]
    assert len(post.files()) == 1
    assert notices.notify(post.key, ['t2'])
    assert arrived == [['t1']]


def test_many_tasks_are_notified_in_several_datagrams(post):
    arrived = post.listen()
    tasks = [f'{n:064}' for n in range(1200)]

    notices.notify(post.key, tasks)

    waiting.wait_until(lambda: sum(arrived, []) == tasks)


def test_the_socket_of_a_process_that_was_killed_is_removed(post):
    arrived = post.listen()
    [name] = post.files()
    dead = post.directory / f'{name[:-12]}{0:012x}'
    with (socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one,
          notice_sockets.address_of(dead) as address):
        one.bind(address)

    assert notices.notify(post.key, ['t1'])

    assert post.files() == [name]
    waiting.wait_until(lambda: arrived == [['t1']])


def test_a_process_that_does_not_read_blocks_no_sender(post):
    with (socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one,
          notice_sockets.address_of(
              post.directory / f'{post.place.prefix}slow') as address):
        one.bind(address)
        for _ in range(2000):
            notices.notify(post.key, ['t1'])


@pytest.mark.parametrize('junk', [
    b'', b'{', b'"t1"', b'[1]', b'\xff', b'[' * 90_000])
def test_a_datagram_that_cannot_be_read_is_dropped(post, junk):
    arrived = post.listen()
    with (socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one,
          notice_sockets.address_of(
              post.directory / post.open[0].name) as address):
        one.sendto(junk, address)

    notices.notify(post.key, ['t1'])

    waiting.wait_until(lambda: arrived == [['t1']])


def test_without_a_directory_the_sweep_finds_the_tasks(tmp_path, caplog):
    key = f'sqlite:///{tmp_path}/none/claims.sqlite', GROUP
    arrived = []

    with caplog.at_level(logging.WARNING):
        notices.listen(key, arrived.append)

    [line] = lines(caplog, 'no notices from other processes')
    assert line.has(directory=str(tmp_path / 'none'))
    assert notices.notify(key, ['t1'])
    notices.unlisten(key, arrived.append)
    assert not notices.notify(key, ['t2'])
    assert arrived == [['t1']]
