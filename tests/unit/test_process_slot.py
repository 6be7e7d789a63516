# SPDX-License-Identifier: Apache-2.0
"""The number of a process on its host, and the name of the host."""

import os
import re

import pytest

from distperiodic import exceptions
from distperiodic.adapters.local import process_slot
from distperiodic.adapters.local.process_slot import ProcessSlot
from distperiodic.adapters.local.process_slot import host_name
from distperiodic.core import member


def test_seats_are_the_lowest_numbers_that_are_free(tmp_path):
    seats = [ProcessSlot(str(tmp_path), 'scheduler') for _ in range(3)]
    other = ProcessSlot(str(tmp_path), 'worker')
    assert [s.number for s in seats] == [0, 1, 2]
    assert other.number == 0

    seats[1].leave()
    seats[1].leave()
    again = ProcessSlot(str(tmp_path), 'scheduler')

    assert again.number == 1
    for seat in (seats[0], seats[2], again, other):
        seat.leave()


def test_a_process_that_ends_frees_its_seat(tmp_path):
    child = os.fork()
    if not child:
        ProcessSlot(str(tmp_path), 'scheduler')
        os._exit(0)
    os.waitpid(child, 0)

    seat = ProcessSlot(str(tmp_path), 'scheduler')

    assert seat.number == 0
    seat.leave()


def test_a_directory_that_cannot_hold_locks_is_a_configuration_error(
        tmp_path):
    path = tmp_path / 'a-file'
    path.write_text('')

    with pytest.raises(exceptions.ConfigError, match='set .*state_path'):
        ProcessSlot(str(path), 'scheduler')


@pytest.mark.parametrize('name', [
    'node-1.example.org', 'Büro-PC', '_node', '-', '', '...', 'a b', '名'])
def test_any_host_name_begins_an_identity(monkeypatch, name):
    monkeypatch.setattr(process_slot.socket, 'gethostname', lambda: name)

    assert re.fullmatch('[A-Za-z0-9._-]+', host_name())
    assert member.check_identity(f'{host_name()}:0')
