# SPDX-License-Identifier: Apache-2.0
"""Tests of ``tests/logged.py``, which parses log lines for other tests."""

import logging

import pytest

from tests import logged

MESSAGES = [
    'scheduler: member=api-1 group=g guarantee=each is run once; so it is',
    "run failed: job=poll object='a' attempt=1 error=Boom: no; it is retried",
    'ending: finishing what was begun; send it again to end at once',
    'closing failed (not an error): backend=file:// reason=it is closed']


@pytest.mark.parametrize('style', [
    '%(asctime)s %(process)d %(levelname)s %(name)s %(message)s',
    '%(asctime)s.%(msecs)03d %(process)d %(levelname)s %(name)s %(message)s',
    '%(asctime)s %(levelname)s %(name)s %(message)s'],
    ids=['tests', 'services', 'commands'])
def test_a_log_file_has_the_lines_that_were_logged(tmp_path, caplog, style):
    handler = logging.FileHandler(tmp_path / 'log')
    handler.setFormatter(logging.Formatter(style))
    ours, theirs = (logging.getLogger(name)
                    for name in ('distperiodic.service.tests', 'kazoo'))
    for logger in ours, theirs:
        logger.addHandler(handler)
    try:
        for message in MESSAGES:
            ours.warning(message)
            theirs.warning(message)
        ours.error('membership failed: member=api-1', exc_info=OSError(
            'no disk: reason=full'))
    finally:
        for logger in ours, theirs:
            logger.removeHandler(handler)
        handler.close()

    found = logged.written((tmp_path / 'log').read_text())

    assert [line.text for line in found] == [
        *MESSAGES, 'membership failed: member=api-1']
    assert [line.event for line in found] == [
        'scheduler', 'run failed', 'ending: finishing what was begun',
        'closing failed', 'membership failed']
    assert [line.level for line in found] == 4 * ['WARNING'] + ['ERROR']
    assert found[1] == {'job': 'poll', 'object': "'a'", 'attempt': '1',
                        'error': 'Boom: no'}
    assert logged.written((tmp_path / 'log').read_text(), 'run failed') == [
        found[1]]
    assert [line for line in logged.lines(caplog)
            if line.event == 'run failed'] == 2 * [found[1]]
