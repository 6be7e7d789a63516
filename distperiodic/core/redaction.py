# SPDX-License-Identifier: Apache-2.0
"""Removal of passwords from URLs."""

import re

_SCHEME = re.compile(r'([\w+.-]+://)?')
_OPTION = re.compile(r'(?<=[?&])(\w*pass\w*=)[^&]*')


def redact(url: str) -> str:
    """Return *url* without its passwords, even if it is not a valid URL."""
    found = _SCHEME.match(url)
    scheme = found[0] if found else ''
    user, at, place = url[len(scheme):].rpartition('@')
    if at and ':' in user:
        user = user.partition(':')[0] + ':***'
    # Database drivers also accept a password in the query string.
    return scheme + user + at + _OPTION.sub(r'\1***', place)
