# SPDX-License-Identifier: Apache-2.0
"""Divides the tests of one run between two kinds of processes.

With ``pytest -n 12 --patient 4``, four of the twelve processes run the tests
that have no short time limits (:data:`PATIENT`), with a low priority. The
other eight processes run all other tests: first the lives of clusters
(:data:`LIFE`), and then the functional tests::

    gw0 to gw3    conformance, simulation, unit tests
    gw4           lives ............ functional tests
    gw5 to gw11                      functional tests

Functional tests wait most of the time, and the patient tests use the
processor time that they leave. Only patient tests run beside a life, which has
short time limits and needs a processor.
"""

import collections
import functools
import os

import pytest
from xdist.scheduler import LoadGroupScheduling

#: Group of the tests that let a cluster live.
LIFE = 'life'
#: Directories of the tests without short time limits, apart from the lives,
#: and the niceness of their processes.
PATIENT = 'unit', 'simulation', 'conformance', 'chaos'
LOW = 10
#: Seconds that a test may take to be among the first.
_LONG = 600


def pytest_addoption(parser):
    parser.addoption(
        '--patient', type=int, default=0, metavar='N',
        help='Number of the processes (-n) that run only tests without short '
             'time limits.')


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    if config.getoption('patient'):
        return Scheduler(config, log)
    return None


@functools.cache
def _is_patient(nodeid):
    path, _, name = nodeid.partition('::')
    return not name.endswith(f'@{LIFE}') and (
        f'/{path}'.split('/')[-2] in PATIENT)


class Scheduler(LoadGroupScheduling):
    """Gives each process the first tests in the queue that it may run."""

    def __init__(self, config, log=None):
        super().__init__(config, log)
        patient = config.getoption('patient')
        if patient >= self.numnodes:
            raise pytest.UsageError(
                f'--patient={patient} leaves no process for other tests; '
                f'raise -n, which is {self.numnodes}')
        if config.getoption('dist') != 'loadgroup':
            raise pytest.UsageError(
                '--patient keeps the lives of clusters together only with '
                '--dist loadgroup; add this option')
        self._patient = {f'gw{number}' for number in range(patient)}

    def schedule(self):
        # If there are fewer units than processes, xdist ends the last of
        # these. Let it end those first that cannot run all units.
        self.assigned_work = dict(sorted(
            self.assigned_work.items(),
            key=lambda item: item[0].gateway.id in self._patient))
        super().schedule()

    def remove_node(self, node):
        if (self.config.getoption('maxworkerrestart') == '0'
                and self._pending_of(self.assigned_work[node])):
            # The crash ends the run, so no process repeats the life.
            for other in self.nodes:
                other.shutdown()
        return super().remove_node(node)

    def mark_test_complete(self, node, item_index, duration=0):
        lived = self._life_lasts()
        super().mark_test_complete(node, item_index, duration)
        if lived and not self._life_lasts():
            for other in self.nodes:
                self._reschedule(other)

    def _life_lasts(self):
        return LIFE in self.workqueue or any(
            False in work.get(LIFE, {}).values()
            for work in self.assigned_work.values())

    def _reschedule(self, node):
        # A process begins a test when it knows the next one.
        while (not node.shutting_down
               and self._pending_of(self.assigned_work[node]) < 2):
            if self._unit_for(node) is not None:
                self._assign_work_unit(node)
            elif node.gateway.id in self._patient or not self.workqueue:
                node.shutdown()
            else:
                return  # until the end of the life

    def _assign_work_unit(self, node):
        name = self._unit_for(node)
        if name is not None:
            self.workqueue.move_to_end(name, last=False)
            super()._assign_work_unit(node)

    def _unit_for(self, node):
        """Return the name of the first unit that the process may run now."""
        if node.gateway.id not in self._patient:
            if LIFE in self.workqueue:
                return LIFE
            name = self._first(patient=False)
            # The process of the lives begins the last of them when it knows
            # its next test.
            if name and self._life_lasts() and (
                    LIFE not in self.assigned_work[node]):
                return None
            if name:
                return name
        return self._first(patient=True)

    def _first(self, *, patient):
        return next((name for name, unit in self.workqueue.items()
                     if _is_patient(next(iter(unit))) is patient), None)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """With several processes, order the tests so that the processors are busy
    until the end.

    The tests that may take longest come first, then those that run one after
    another in one process (``xdist_group``), and then the simulation. The
    tests of all other files are spread evenly over the rest of the time,
    because some need the processor and others wait. The only test of a file
    comes early, because it may be long. If patient tests run beside functional
    tests, the conformance tests come before the simulation: their servers
    would answer late if they began beside many functional tests.
    """
    if not hasattr(config, 'workerinput'):
        return
    divided = config.getoption('patient')
    sizes = collections.Counter(item.path for item in items)
    numbers = collections.Counter()

    def place(item):
        limit = item.get_closest_marker('timeout')
        earlier = numbers[item.path]
        numbers[item.path] += 1
        directory = item.path.parent.name
        return (not limit or limit.args[0] < _LONG,
                item.get_closest_marker('xdist_group') is None,
                not (divided and directory == 'conformance'),
                directory != 'simulation',
                earlier / sizes[item.path])
    items.sort(key=place)


def pytest_runtest_setup(item):
    """Give tests without short time limits a low priority.

    Otherwise they would take the processor from the tests that run at the same
    time in another process.
    """
    if hasattr(item.config, 'workerinput') and os.nice(0) < LOW and (
            _is_patient(item.nodeid)):
        os.nice(LOW)
