# SPDX-License-Identifier: Apache-2.0
"""Text from users, made safe for terminals and logs.

Ids, names, reasons and errors come from users. Such a text may contain
characters that a terminal obeys (escape sequences, BEL, carriage return), that
reorder the text around them (right-to-left marks), or that forge a line.
"""

import re

# The characters that need a check: all but the printable ones of ASCII.
_SUSPECT = re.compile(r'[^ -~]')
_SUSPECT_IN_LINES = re.compile(r'[^ -~\n]')


def escaped(text: str) -> str:
    """Return *text* with escapes in place of characters that do not print.

    For example, ESC becomes the four characters ``\\x1b``. Backslashes of the
    text itself stay as they are: the result is for people, and cannot be
    converted back.
    """
    return _SUSPECT.sub(_escape, text)


def escaped_lines(text: str) -> str:
    """Return :func:`escaped` *text*, but keep the ends of lines."""
    return _SUSPECT_IN_LINES.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    letter = found[0]
    if letter.isprintable():
        return letter
    return letter.encode('unicode_escape').decode()
