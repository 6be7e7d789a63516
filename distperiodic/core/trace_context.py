# SPDX-License-Identifier: Apache-2.0
"""Trace contexts: the text by which a span of one process names a span of
another.

The text is a ``traceparent`` of W3C Trace Context, version 00::

    00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01
    |  trace id, 16 bytes               span id, 8 bytes flags
    version

Bit 0 of the flags is 1 if the span is recorded.
"""

import re
from typing import Any

#: Number of characters of a trace context.
LENGTH = 55

_FORM = re.compile(
    r'00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}')


def parse_trace(value: Any) -> str | None:
    """Return *value* if it is a trace context.

    :param value: Value from another process, which may be of any type.
    :returns: The text. None means that *value* is not a trace context.
    """
    if isinstance(value, str) and _FORM.fullmatch(value):
        return value
    return None


def is_sampled(trace: str) -> bool:
    """Return whether the span that *trace* names is recorded."""
    return bool(int(trace[-2:], 16) & 1)
