# SPDX-License-Identifier: Apache-2.0
"""The suites that may catch a bug, and how to find the test that did.

===========================  ================================================
``unit/test_ring.py``        these unit tests; a word after it is for ``-k``
``conformance/sqlite``       the tests of claims and steps, on this store
``conformance/test_x.py``    another suite; a word after it is for ``-k``
``simulation``               whole clusters, one for each seed
``simulation/standby``       clusters with one active worker
``simulation/test_x.py``     tests of some worlds; a word after it is for
                             ``-k``
``functional/test_db.py``    real servers; a word after it is for ``-k``
===========================  ================================================
"""

import re
import sys
from typing import NamedTuple

#: Time limits in seconds for a test and for a suite, because a bug may make a
#: test hang.
TEST, SUITE = 60, 600
SEEDS = 40

_PYTEST = (sys.executable, '-m', 'pytest', '-x', '-q',
           '-p', 'no:cacheprovider', '--no-header', '--tb=no',
           f'--timeout={TEST}', '--hypothesis-profile=first')
# The name of a test may contain blanks.
_FAILED = re.compile(
    r'^(?:FAILED|ERROR) (?:tests/\w+/)?(.+?)(?: - .*)?$', re.MULTILINE)
_NO_SUCH_TEST = 4
_SEED = re.compile(r'^seed \d+', re.MULTILINE)


class Suite(NamedTuple):
    command: tuple[str, ...]
    #: The suite may stop once its output matches this pattern.
    last: re.Pattern | None = None

    def caught(self, code, output):
        """Return the test or seed that caught the bug, or None.

        :param code: Exit code of the command.
        :param output: Output of the command.
        :raises Unusable: The tests did not run to a result.
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
    """The suite cannot judge a bug, because it fails without the bug or
    breaks.
    """


class NoSuchTest(Unusable):
    """A test that has caught a bug before no longer exists."""


def suite(name, tests=()):
    """Return the suite *name*.

    :param tests: Tests of the suite, as :meth:`Suite.caught` returns them.
        Empty means all tests. For seeds, all seeds from the lowest to the
        highest one are run.
    """
    kind, _, rest = name.partition('/')
    simulation = (sys.executable, '-m', 'tests.simulation', '--processes', '1',
                  *((f'--{rest}',) if rest else ()))
    seeded = kind == 'simulation' and not rest.startswith('test_')
    if tests and seeded:
        seeds = [int(one.split()[1]) for one in tests]
        return Suite((
            *simulation, '--from', str(min(seeds)),
            '--seeds', str(max(seeds) - min(seeds) + 1)), _SEED)
    if tests:
        return Suite((*_PYTEST, *(f'tests/{kind}/{one}' for one in tests)))
    if seeded:
        # A world on the real store takes as long as ten worlds in memory.
        return Suite((*simulation, '--seeds',
                      str(SEEDS // 4 if rest else SEEDS)), _SEED)
    if kind == 'conformance' and not rest.startswith('test_'):
        return Suite((*_PYTEST, 'tests/conformance/test_step_store.py',
                      'tests/conformance/test_claim_store.py',
                      '-k', rest))
    path, _, word = rest.partition(' ')
    return Suite((*_PYTEST, f'tests/{kind}/{path}',
                  *(('-k', word) if word else ())))
