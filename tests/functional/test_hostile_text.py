# SPDX-License-Identifier: Apache-2.0
"""Ids, names and reasons that a terminal would obey."""

import contextlib
import json
import re

import pytest

from distperiodic.operator import auditing
from distperiodic.operator.group_reader import GroupStore
from tests import claiming
from tests.functional import commands
from tests.functional.places import SECOND

# It sets the title of a window, rings the bell, reorders text, goes to the
# start of the line, and forges a row.
HOSTILE = 'h\x1b]0;owned\x07\u202e\x9b2J\r\n| poll | fine |'


@pytest.mark.parametrize('argv', [
    ['dead', 'list'], ['dead', 'list', '-f', 'value'], ['running'],
    ['objects', 'poll'], ['history'], ['job', 'list'], ['events'],
    ['why', 'poll', HOSTILE], ['audit']], ids=' '.join)
def test_a_command_shows_hostile_text_escaped(place_of_sqlite, argv):
    place = place_of_sqlite
    place.run('poll', place.now - 9 * SECOND, HOSTILE, dead=[HOSTILE])
    place.run('poll', place.now - SECOND, 'b')
    claiming.claim(place.store, 'poll', place.now, ['b'], lease='open',
                   holder='api', seconds=60.0, supersede=False)
    with contextlib.closing(GroupStore(
            place.url, place.group)) as store, auditing.recorded(
                store, auditing.Actor(HOSTILE, 'here', HOSTILE),
                'job pause', HOSTILE):
        pass
    told = commands.call(*argv, '--config-file', place.config).stdout

    assert told
    assert [line for line in told.splitlines()
            if not re.fullmatch('[ -~]*', line)] == []
    assert not re.search(r'^ *\| poll \| fine', told, re.MULTILINE)


def test_programs_get_hostile_text_as_it_is(place_of_sqlite):
    place = place_of_sqlite
    place.run('poll', place.now, HOSTILE, dead=[HOSTILE])

    [row] = json.loads(place.ask('dead', 'list', '-f', 'json'))
    assert row['object'] == HOSTILE
    # The text mode of the pipe reads CR LF as LF.
    assert HOSTILE.replace('\r', '') in place.ask(
        'dead', 'list', '-f', 'csv')
