# SPDX-License-Identifier: Apache-2.0
"""Trace contexts in the text form of W3C Trace Context."""

import pytest

from distperiodic.core import trace_context

TRACE = '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01'


def test_a_trace_context_is_accepted():
    assert trace_context.parse_trace(TRACE) == TRACE
    assert len(TRACE) == trace_context.LENGTH


@pytest.mark.parametrize('value', [
    None, 7, '', [TRACE], TRACE.upper(), f'{TRACE}\n', f'{TRACE}-more',
    TRACE[:-1], f'01{TRACE[2:]}', f'ff{TRACE[2:]}',
    f'00-{"0" * 32}{TRACE[35:]}', f'{TRACE[:36]}{"0" * 16}-01',
    TRACE.replace('4', '\u0664'), 'x' * 1_000_000])
def test_any_other_value_is_ignored(value):
    assert trace_context.parse_trace(value) is None


@pytest.mark.parametrize(('flags', 'sampled'), [
    ('00', False), ('01', True), ('02', False), ('ff', True)])
def test_the_lowest_flag_means_that_the_span_is_recorded(flags, sampled):
    assert trace_context.is_sampled(TRACE[:-2] + flags) is sampled
