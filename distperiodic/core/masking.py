# SPDX-License-Identifier: Apache-2.0
"""URLs as they may be shown."""

import re

_SCHEME = re.compile(r'([\w+.-]+://)?')
_OPTION = re.compile(r'(?<=[?&])(\w*pass\w*=)[^&]*')


def mask(url: str) -> str:
    """*url* without its passwords, also if it is none."""
    found = _SCHEME.match(url)
    scheme = found[0] if found else ''
    user, at, place = url[len(scheme):].rpartition('@')
    if at and ':' in user:
        user = user.partition(':')[0] + ':***'
    # Drivers take them from there, too.
    return scheme + user + at + _OPTION.sub(r'\1***', place)
