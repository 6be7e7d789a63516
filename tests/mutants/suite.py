# SPDX-License-Identifier: Apache-2.0
"""The suites that may catch a bug, and how to see which test did.

===========================  ================================================
``unit/test_ring.py``        these unit tests; a word after it is for ``-k``
``conformance/sqlite``       every store of that kind keeps its port's promises
``conformance/test_x.py``    another suite; a word after it is for ``-k``
``simulation``               whole clusters, one from each seed
``simulation/standby``       those with one active worker
``functional/test_db.py``    real servers; a word after it is for ``-k``
===========================  ================================================
"""

import re
import sys
from typing import NamedTuple

#: Seconds for a test, and for a suite, after which a bug makes it hang.
TEST, SUITE = 60, 600
SEEDS = 40

_PYTEST = (sys.executable, '-m', 'pytest', '-x', '-q',
           '-p', 'no:cacheprovider', '--no-header', '--tb=no',
           f'--timeout={TEST}', '--hypothesis-profile=first')
# The name of a test may have blanks in it.
_FAILED = re.compile(
    r'^(?:FAILED|ERROR) (?:tests/\w+/)?(.+?)(?: - .*)?$', re.MULTILINE)
_NO_SUCH_TEST = 4
_SEED = re.compile(r'^seed \d+', re.MULTILINE)


class Suite(NamedTuple):
    command: tuple[str, ...]
    #: A line of its output that tells that there is nothing to wait for.
    last: re.Pattern | None = None

    def caught(self, code, output):
        """What caught the bug; None: nothing did.

        :param code: with which the command ended.
        :raises Unusable: no test has judged the product.
        """
        if self.last is not None and (seed := self.last.search(output)):
            return seed[0]
        if code == 0:
            return None
        if self.last is not None:
            return output.strip().rpartition('\n')[2][:60]
        if code == _NO_SUCH_TEST:
            raise NoSuchTest(output[-2_000:])
        failed = _FAILED.search(output)
        if code != 1 or failed is None:
            raise Unusable(output[-2_000:])
        return failed[1]


class Unusable(Exception):
    """A suite that cannot judge a bug: it fails without it, or not at all."""


class NoSuchTest(Unusable):
    """A test is not there that caught a bug once."""


def suite(name, tests=()):
    """The suite of that *name*.

    :param tests: some of it, as :meth:`Suite.caught` tells them; empty: all.
        Of several seeds all are lived through from the first one on.
    """
    kind, _, rest = name.partition('/')
    simulation = (sys.executable, '-m', 'tests.simulation', '--processes', '1',
                  *((f'--{rest}',) if rest else ()))
    if tests and kind == 'simulation':
        seeds = [int(one.split()[1]) for one in tests]
        return Suite((
            *simulation, '--from', str(min(seeds)),
            '--seeds', str(max(seeds) - min(seeds) + 1)), _SEED)
    if tests:
        return Suite((*_PYTEST, *(f'tests/{kind}/{one}' for one in tests)))
    if kind == 'simulation':
        # A world on the real store takes as long as ten in memory.
        return Suite((*simulation, '--seeds',
                      str(SEEDS // 4 if rest else SEEDS)), _SEED)
    if kind == 'conformance' and not rest.startswith('test_'):
        return Suite((*_PYTEST, 'tests/conformance/test_step_store.py',
                      'tests/conformance/test_claim_store.py',
                      '-k', rest))
    path, _, word = rest.partition(' ')
    return Suite((*_PYTEST, f'tests/{kind}/{path}',
                  *(('-k', word) if word else ())))
