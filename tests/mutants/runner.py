# SPDX-License-Identifier: Apache-2.0
"""Plants a bug in a copy of the package and runs the suites there."""

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

#: What a copy has.
_COPIED = ('distperiodic', 'tests', 'pyproject.toml')


class Outcome(NamedTuple):
    bug: Bug
    #: The suite that caught it, or empty.
    suite: str
    #: The test that did, or what went wrong.
    told: str
    seconds: float

    @property
    def caught(self):
        return bool(self.suite)


class Runner:
    """Any number of threads may try bugs at the same time."""

    def __init__(self, root=ROOT):
        self._root = root
        self._known = known.read()
        self._lock = threading.Lock()
        #: For each suite a lock, and what it finds where no bug is; None: it
        #: was not tried.
        self._sound = {}
        self._processes = set()
        self._stopped = False

    def stop(self):
        """End all that was started; what is tried ends at once."""
        with self._lock:
            self._stopped = True
            for process in self._processes:
                _kill(process)

    def try_bug(self, bug):
        """See which suite catches *bug*."""
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
        """The tests of *suite* that are known to catch something."""
        return sorted({test for one, test in self._known.values()
                       if one == suite})

    def _check(self, suite, tests=()):
        """See that *suite*, or these tests of it, pass without a bug, once.

        :raises Unusable: they do not.
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
        """What the suite *name* finds in *tree*; None: nothing.

        :param tests: the only ones that are run. Empty: all are.
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
    """What was compiled before a bug came would hide it."""
    pathlib.Path(importlib.util.cache_from_source(path)).unlink(
        missing_ok=True)


def _kill(process):
    """End it with all that it has started."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
