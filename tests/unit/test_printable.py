# SPDX-License-Identifier: Apache-2.0
"""Text of users that a terminal or a log shows."""

import io
import logging

import pytest

from distperiodic.cmd import terminal
from distperiodic.core import printable


@pytest.mark.parametrize(('text', 'shown'), [
    ('host-1 ä 好', 'host-1 ä 好'),
    ('\x1b]0;owned\x07', r'\x1b]0;owned\x07'),
    ('a\r\nb', r'a\r\nb'),
    ('\u202egnp', r'\u202egnp'),
    ('\x9b31m', r'\x9b31m'),
    ('\ud800', r'\ud800'),
    ('a\tb\x7f', r'a\tb\x7f'),
    ('\U000e0041', r'\U000e0041')])
def test_what_a_terminal_obeys_is_escaped(text, shown):
    assert printable.escaped(text) == shown


def test_the_ends_of_lines_are_kept_in_lines():
    assert printable.escaped_lines('a\n\x1bb\n') == 'a\n\\x1bb\n'


def test_the_output_of_commands_is_escaped():
    output = io.StringIO()
    print('paused \x1b[31mpoll\nfor ever', file=terminal.Printable(output))

    assert output.getvalue() == 'paused \\x1b[31mpoll\nfor ever\n'


def logged(message, *args, error=None):
    """Return the line of a log record."""
    formatter = terminal.LogFormatter(logging.Formatter('INFO %(message)s'))
    exc_info = None if error is None else (type(error), error, None)
    return formatter.format(logging.LogRecord(
        'distperiodic', logging.INFO, __file__, 1, message, args, exc_info))


def test_a_reason_with_a_line_of_its_own_forges_no_log_line():
    assert logged('paused: why=%s', '100 %d\nINFO all is well\x07') == (
        'INFO paused: why=100 %d\n    INFO all is well\\x07')


def test_the_text_of_an_error_is_escaped_in_the_log():
    assert logged('failed', error=ValueError('\x1b[2J')) == (
        'INFO failed\nValueError: \\x1b[2J')
