# SPDX-License-Identifier: Apache-2.0
"""A planted bug: one exact replacement in one file of the product.

A bug is a block of lines; blank lines part the blocks::

    bug: a result counts, whoever holds the lease
    in: distperiodic/adapters/local/memory.py
    suites: unit/test_memory.py, conformance/memory
     the line before, unchanged
    -the line that is replaced
    +the line that takes its place

The lines that begin with a space or a minus must stand in the file, one after
the other and exactly once. Lines that begin with # are comments.
"""

import pathlib
import re
from typing import NamedTuple

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]


class DoesNotApply(Exception):
    """The text that a bug replaces is not there, or more than once."""


class Bug(NamedTuple):
    #: One sentence in the words of the domain.
    name: str
    #: The file, from the root of the repository.
    path: str
    #: The suites to try, in order; see :mod:`tests.mutants.suite`.
    suites: tuple[str, ...]
    #: Whole lines: those that are there, and those that replace them.
    old: str
    new: str

    def plant(self, root):
        """Replace the text in the tree at *root*.

        :raises DoesNotApply: the file or its text has changed.
        """
        path = root / self.path
        path.write_text(self.planted(root))

    def planted(self, root):
        """The text of the file with the bug in it."""
        path = root / self.path
        if not path.exists():
            raise DoesNotApply(f'there is no {self.path}')
        text = '\n' + path.read_text()
        # Those that overlap as well.
        found = len(re.findall(f'(?={re.escape(self.old)})', text))
        if found != 1:
            raise DoesNotApply(
                f'the patch no longer applies: its text stands {found} times '
                f'in {self.path}')
        return text.replace(self.old, self.new)[1:]


def bugs():
    """All of them, in the order of the files and of the blocks in them."""
    return [bug for path in sorted(HERE.glob('*.txt'))
            for bug in read(path.read_text())]


def read(text):
    """The bugs of one file."""
    lines = [line for line in text.split('\n') if not line.startswith('#')]
    for block in '\n'.join(lines).split('\n\n'):
        if block.strip():
            yield _read_one(block.strip('\n').split('\n'))


def _read_one(lines):
    head = {}
    for name in ('bug', 'in', 'suites'):
        key, _, value = lines.pop(0).partition(': ')
        if key != name:
            raise ValueError(f'{name}: is missing before {value!r}')
        head[name] = value.strip()
    strange = [line for line in lines if line[:1] not in (' ', '-', '+')]
    if strange:
        raise ValueError(f'{head["bug"]}: what is {strange[0]!r}?')
    old, new = (
        '\n'.join(['', *(line[1:] for line in lines if line[0] in signs), ''])
        for signs in (' -', ' +'))
    return Bug(head['bug'], head['in'], tuple(
        suite.strip() for suite in head['suites'].split(',')), old, new)
