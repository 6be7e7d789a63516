# SPDX-License-Identifier: Apache-2.0
"""Plants a bug in a copy of the package, and runs the suites on the copy."""

import contextlib
import importlib.util
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from typing import NamedTuple

from tests.mutants import known
from tests.mutants import suite as suites
from tests.mutants.bug import ROOT
from tests.mutants.bug import Bug
from tests.mutants.bug import DoesNotApply

#: The files and directories that are copied.
_COPIED = ('distperiodic', 'etc', 'tests', 'pyproject.toml')


class Outcome(NamedTuple):
    bug: Bug
    #: The suite that caught the bug, or ''.
    suite: str
    #: The test that caught the bug, or the reason why none did.
    told: str
    seconds: float

    @property
    def caught(self):
        return bool(self.suite)


class Runner:
    """Tries bugs; any number of threads may use it at the same time."""

    def __init__(self, root=ROOT):
        self._root = root
        self._known = known.read()
        self._lock = threading.Lock()
        #: For each suite, and separately for its known tests: a lock, and the
        #: result without a bug. None means that they have not run yet; ''
        #: means that they passed.
        self._sound = {}
        self._processes = set()
        self._stopped = False

    def stop(self):
        """Kill all started processes, so that all trials end at once."""
        with self._lock:
            self._stopped = True
            for process in self._processes:
                _kill(process)

    def try_bug(self, bug):
        """Find the suite that catches *bug*; return the outcome."""
        began = time.monotonic()

        def outcome(suite, told):
            return Outcome(bug, suite, told, time.monotonic() - began)
        with tempfile.TemporaryDirectory(prefix='mutant-') as name:
            tree = pathlib.Path(name)
            self._copy(tree)
            try:
                bug.plant(tree)
                _forget_compiled(tree / bug.path)
                suite, test = self._known.get(bug.name, ('', ''))
                if suite in bug.suites:
                    with contextlib.suppress(suites.NoSuchTest):
                        told = self._run(suite, tree, [test])
                        if told is not None:
                            self._check(suite, self._known_of(suite))
                            return outcome(suite, told)
                for suite in bug.suites:
                    told = self._run(suite, tree)
                    if told is not None:
                        self._check(suite)
                        return outcome(suite, told)
            except (DoesNotApply, suites.Unusable) as exc:
                return outcome('', str(exc))
        return outcome('', 'NOT CAUGHT')

    def _known_of(self, suite):
        """Return the tests of *suite* that have caught a bug before."""
        return sorted({test for one, test in self._known.values()
                       if one == suite})

    def _check(self, suite, tests=()):
        """Check once that *suite*, or some of its tests, passes without a bug.

        :raises Unusable: The suite fails without a bug.
        """
        key = suite, bool(tests)
        with self._lock:
            lock = self._sound.setdefault(key, [threading.Lock(), None])
        with lock[0]:
            if lock[1] is None:
                with tempfile.TemporaryDirectory(prefix='sound-') as name:
                    self._copy(pathlib.Path(name))
                    lock[1] = self._run(
                        suite, pathlib.Path(name), tests) or ''
        if lock[1]:
            raise suites.Unusable(
                f'{suite} fails without a bug, too: {lock[1]}')

    def _copy(self, tree):
        for name in _COPIED:
            source = self._root / name
            if source.is_dir():
                shutil.copytree(source, tree / name)
            else:
                shutil.copy2(source, tree / name)

    def _run(self, name, tree, tests=()):
        """Run the suite *name* on *tree*; return its first failure, or None.

        :param tests: The tests to run. Empty means all tests.
        """
        suite = suites.suite(name, tests)
        process = self._start(suite, tree)
        late = threading.Event()

        def give_up():
            late.set()
            _kill(process)
        timer = threading.Timer(suites.SUITE, give_up)
        timer.start()
        lines = []
        try:
            for line in process.stdout:
                lines.append(line)
                if suite.last is not None and suite.last.search(line):
                    _kill(process)
                    break
            code = process.wait()
        finally:
            timer.cancel()
            process.stdout.close()
            with self._lock:
                self._processes.discard(process)
        if late.is_set():
            return f'took more than {suites.SUITE} s'
        return suite.caught(code, ''.join(lines))

    def _start(self, suite, tree):
        environment = {**os.environ, 'PYTHONPATH': str(tree),
                       'PYTHONUNBUFFERED': '1'}
        with self._lock:
            if self._stopped:
                raise suites.Unusable('stopped')
            process = subprocess.Popen(
                suite.command, cwd=tree, text=True, env=environment,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, start_new_session=True)
            self._processes.add(process)
        return process


def _forget_compiled(path):
    """Delete the bytecode of *path*, which would hide a bug."""
    pathlib.Path(importlib.util.cache_from_source(path)).unlink(
        missing_ok=True)


def _kill(process):
    """Kill a process and all processes that it has started."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
