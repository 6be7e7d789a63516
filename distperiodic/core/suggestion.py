# SPDX-License-Identifier: Apache-2.0
"""Suggestions of similar names, for error messages about unknown names."""

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return '; did you mean X?', or an empty text if no name is similar."""
    near = difflib.get_close_matches(name, list(known), 1)
    return f'; did you mean {near[0]!r}?' if near else ''
