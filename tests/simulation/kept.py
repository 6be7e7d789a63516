# SPDX-License-Identifier: Apache-2.0
"""The seeds that once failed, from ``seeds.txt``."""

import functools
import pathlib

#: The line of the file that ends the seeds of the worlds of before.
_LATER = '# later'


@functools.cache
def _lines():
    return pathlib.Path(__file__).with_name(
        'seeds.txt').read_text().splitlines()


def _seeds(lines):
    return frozenset(int(line.split()[0]) for line in lines
                     if line and not line.startswith('#'))


def seeds():
    """All of them."""
    return _seeds(_lines())


@functools.cache
def _early():
    lines = _lines()
    return _seeds(lines[:next(
        number for number, line in enumerate(lines)
        if line.startswith(_LATER))])


def early(seed):
    """Return whether *seed* failed before worlds drew the later features.

    Such a world has none of them, so it shows again what failed.
    """
    return seed in _early()
