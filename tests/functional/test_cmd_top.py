# SPDX-License-Identifier: Apache-2.0
"""``distperiodic top`` on a terminal, and the list of what waits."""

import contextlib
import os
import pty
import select
import subprocess

import pytest

from distperiodic.core.claim import HeldLease
from distperiodic.core.claim_request import NewLease
from tests import claiming
from tests import waiting
from tests.functional import commands
from tests.functional.places import SECOND


class Terminal:
    """A terminal on which a command runs."""

    def __init__(self, *argv):
        self._screen, screen = pty.openpty()
        self.process = subprocess.Popen(
            [*commands.PROGRAM, *map(str, argv)], stdin=screen, stdout=screen,
            stderr=screen, env={**commands.ENVIRONMENT, 'COLUMNS': '120',
                                'LINES': '40', 'TERM': 'xterm'})
        os.close(screen)
        self.text = ''

    def shows(self, *words):
        """Return whether the command has written all *words* so far."""
        while select.select([self._screen], [], [], 0)[0]:
            try:
                self.text += os.read(self._screen, 65536).decode()
            except OSError:
                break  # The command has ended.
        return all(word in self.text for word in words)

    def press(self, keys):
        """Press keys, and forget what was written before."""
        assert self.shows()
        self.text = ''
        os.write(self._screen, keys.encode())

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self._screen)


@pytest.fixture
def terminal(place):
    with contextlib.closing(Terminal(
            'top', '--interval', '0.2', '--config-file', place.config)
    ) as made:
        yield made


def start(place, job, *objects):
    claiming.claim(place.store, job, place.now, objects, lease=job,
                   holder='vm:0', seconds=60.0, supersede=False)
    place.store.start(
        HeldLease(job, job, place.now), objects,
        NewLease(f'{job} runs', 'vm:1', 60.0))


def test_top_shows_the_group_as_it_is_now(place, terminal):
    waiting.wait_until(lambda: terminal.shows('Running (0)'), 60)

    start(place, 'poll', 'host-1', 'host-2')

    waiting.wait_until(lambda: terminal.shows(
        'no-scheduler', 'do: start distperiodic scheduler', 'Running (2)',
        'host-2', 'vm:1'), 30)
    terminal.press('/host-2\r')
    waiting.wait_until(
        lambda: terminal.shows('filter: host-2', 'Running (1)'), 30)
    terminal.press('\x1b[B')
    terminal.press('\r')
    waiting.wait_until(lambda: terminal.shows('answer', 'still running'), 30)
    terminal.press('x')
    waiting.wait_until(lambda: terminal.shows('Running (1)'), 30)
    terminal.press('q')
    assert terminal.process.wait(30) == 0


def test_top_needs_a_terminal(place_of_sqlite):
    told = place_of_sqlite.refuse('top')

    assert told.strip().endswith(
        'top needs a terminal; use: distperiodic status --watch 2')


def test_work_that_waits_is_listed_by_job(place):
    claiming.claim(place.store, 'poll', place.now - 9 * SECOND, ['a', 'b'],
                   lease='l', holder='vm:0', seconds=60.0, supersede=False)
    start(place, 'sync', 'c')

    told = place.tell('waiting')[1]

    assert [(row['job'], row['waiting'], row['object'], row['claimed'])
            for row in told] == [('poll', 2, 'a', 'yes')]
    assert 0 <= told[0]['longest_s'] < 60
    assert told[0]['since'].endswith('Z')


def test_an_empty_list_has_a_sentence(place_of_sqlite):
    assert 'Nothing waits for a worker.' in place_of_sqlite.above('waiting')
