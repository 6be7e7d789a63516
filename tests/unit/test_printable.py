# SPDX-License-Identifier: Apache-2.0
"""Text of users that a terminal or a log shows."""

import io
import logging

import pytest
from oslo_config import cfg
from oslo_log import formatters
from oslo_log import log

from distperiodic.cmd import terminal
from distperiodic.core import printable
from distperiodic.testing import FrozenClock


@pytest.mark.parametrize(('text', 'shown'), [
    ('host-1 ä 好', 'host-1 ä 好'),
    ('\x1b]0;owned\x07', r'\x1b]0;owned\x07'),
    ('a\r\nb', r'a\r\nb'),
    ('\u202egnp', r'\u202egnp'),
    ('\x9b31m', r'\x9b31m'),
    ('\ud800', r'\ud800'),
    ('a\tb\x7f', r'a\tb\x7f'),
    ('\U000e0041', r'\U000e0041')])
def test_characters_that_control_a_terminal_are_escaped(text, shown):
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
        'INFO failed\n    ValueError: \\x1b[2J')


def test_each_line_of_an_error_has_a_prefix_or_is_indented():
    conf = cfg.ConfigOpts()
    log.register_options(conf)
    conf([])
    conf.set_override('logging_default_format_string',
                      '2026-01-01 ERROR %(message)s')
    conf.set_override('logging_exception_prefix', '2026-01-01 ERROR ')
    formatter = terminal.LogFormatter(formatters.ContextFormatter(
        project='distperiodic', version='1', config=conf))
    try:
        raise ValueError('first\nsecond\nINFO all is well')
    except ValueError as error:
        text = formatter.format(logging.LogRecord(
            'distperiodic', logging.ERROR, __file__, 1, 'failed\nhere', (),
            (type(error), error, error.__traceback__), sinfo='the stack'))

    # oslo.log appends the text of the error to the message.
    assert text.splitlines()[:4] == [
        '2026-01-01 ERROR failed', '    here: ValueError: first',
        '    second', '    INFO all is well']
    assert [line for line in text.splitlines() if not line.startswith(
        ('2026-01-01 ERROR ', '    '))] == []
    assert text.count('2026-01-01 ERROR second') == 1
    assert 'the stack' in text


def test_a_library_that_logs_each_attempt_logs_one_line_per_minute():
    clock = FrozenClock()
    repeated = terminal.Repeated(('amqp', 'oslo.messaging'), clock)

    def passes(name, message, *args):
        return repeated.filter(logging.LogRecord(
            name, logging.ERROR, __file__, 1, message, args, None))

    assert passes('oslo.messaging.rabbit', 'no vhost, attempt %d', 1)
    assert passes('oslo.messaging.rabbit', 'closed')
    assert passes('amqp', 'no vhost, attempt %d', 1)
    for name in 'amqp', 'oslo.messaging.rabbit':
        assert not passes(name, 'no vhost, attempt %d', 2)
    for _ in range(2):
        assert passes('distperiodic', 'no vhost, attempt %d', 1)
    clock.advance(60.0)
    assert passes('amqp', 'no vhost, attempt %d', 3)
