# SPDX-License-Identifier: Apache-2.0
"""A member as a process of its own, which can be frozen, killed and forked.

    parent                                   child: python -m tests.members
      |--- {"do": "subset", "args": [...]} -->|
      |<-- {"answer": ...} or {"error": ...} -|

A thread of the child calls get_subset every few milliseconds, like a program
that starts work by the ring. It records the time of each call and its result.
Times are read from CLOCK_MONOTONIC, which all processes of a host share.
"""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any
from typing import NamedTuple

from tests import forks
from tests.programs import PYTHON
from tests.waiting import wait_until

#: The objects of each call of get_subset.
OBJECTS = [f'object-{n}' for n in range(200)]


class Asked(NamedTuple):
    """One call of get_subset in the child."""

    at: float  #: monotonic seconds of the call
    told: float  #: monotonic seconds of the answer
    mine: int  #: number of objects in the answer; -1: the view is unknown
    entry: str  #: the child's entry at that time

    @property
    def known(self) -> bool:
        return self.mine >= 0


class ChildError(Exception):
    """An error in the child; the text begins with the name of its class."""


def freeze(pid: int, harmless: Callable[[], bool]) -> float:
    """Suspend a process at a moment at which *harmless* returns true.

    The process may go on between the call of *harmless* and the signal. So
    this function calls *harmless* again while the process is suspended, and
    lets the process go on if the moment has passed.

    :returns: Seconds since the epoch, just before the process was suspended.
    """
    def frozen() -> float | None:
        if not harmless():
            return None
        at = time.time()
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: _is_stopped(pid), interval=0.001)
        if harmless():
            return at
        os.kill(pid, signal.SIGCONT)
        return None
    found = wait_until(frozen, 30, f'no moment came at which process {pid} '
                       'could be suspended', interval=0.001)
    assert found is not None
    return found


def _is_stopped(pid: int) -> bool:
    """Return whether all threads of a process are suspended."""
    try:
        states = [stat.read_text().rpartition(')')[2].split()[0]
                  for stat in pathlib.Path(f'/proc/{pid}/task').glob('*/stat')]
    except OSError:
        # A thread has ended meanwhile.
        return False
    return set(states) == {'T'}


class Process:
    """A member in a child process. ``start`` starts the member, which joins
    the group.
    """

    def __init__(self, url: str, group: str, identity: str | None = None,
                 **options: Any):
        """Start the process; the member does not connect yet.

        :param options: Options of HashRing.
        """
        self._child = forks.Popen(
            [*PYTHON, '-m', 'tests.members'], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=2)
        self.pid = self._child.pid
        self.do('make', url, group, identity, options)

    def do(self, what: str, *args: Any) -> Any:
        """Call the method *what* of :class:`_Child` with *args* in the child.

        :raises ChildError: The method raised an error in the child.
        """
        self.ask(what, *args)
        return self.answer()

    def ask(self, what: str, *args: Any) -> None:
        """Begin :meth:`do` without waiting; :meth:`answer` returns the answer.
        """
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps({'do': what, 'args': args}) + '\n')
        self._child.stdin.flush()

    def answer(self) -> Any:
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        assert line, f'the child has ended: {self._child.wait(5)}'
        answer = json.loads(line)
        if 'error' in answer:
            raise ChildError(answer['error'])
        return answer['answer']

    def asked(self) -> list[Asked]:
        """Return the calls of get_subset since the last read, in order."""
        return [Asked(*one) for one in self.do('asked')]

    def asked_until_sure(self, after: float) -> list[Asked]:
        """Return all calls up to a successful one made later than *after*.

        :param after: Monotonic seconds.
        """
        found: list[Asked] = []

        def sure() -> bool:
            found.extend(self.asked())
            return any(one.known and one.at > after for one in found)
        wait_until(sure, 20, 'its view is still unknown')
        return found

    def signal(self, number: signal.Signals) -> float:
        """Send a signal to the process; return the time in monotonic seconds.

        The process received the signal at that time or later.
        """
        at = time.monotonic()
        os.kill(self.pid, number)
        return at

    def freeze(self) -> None:
        """Suspend the process at a time when it holds no lock on a file.

        A process that is suspended with a lock blocks all other members with
        ``file://``. Tests of a freeze must avoid this known limit.
        """
        freeze(self.pid, lambda: f' {self.pid} ' not in pathlib.Path(
            '/proc/locks').read_text())

    def thaw(self) -> float:
        return self.signal(signal.SIGCONT)

    def kill(self) -> float:
        """Kill the process with SIGKILL; return the time in monotonic seconds.
        """
        at = time.monotonic()
        self._child.kill()
        self._child.wait()
        return at

    def __enter__(self) -> 'Process':
        return self

    def __exit__(self, *exc: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.kill()
        for stream in (self._child.stdin, self._child.stdout):
            assert stream is not None
            with contextlib.suppress(OSError):
                stream.close()


class _Child:
    """The child's side. Each method executes one command of the parent."""

    def make(self, url, group, identity, options):
        from distperiodic import coordinator
        self.ring = coordinator.HashRing(
            url, group, member_id=identity, **options)
        self._asked = []
        return None

    def start(self):
        self.ring.start(20)
        threading.Thread(target=self._keep_asking, daemon=True).start()
        return self.entry()

    def stop(self, timeout):
        began = time.monotonic()
        self.ring.stop(timeout)
        return time.monotonic() - began

    def identity(self):
        return self.ring.member_id

    def entry(self):
        return self.ring._membership.me.entry

    def members(self):
        return self.ring.get_members(self.ring.group_id)

    def subset(self):
        return self.ring.get_subset(OBJECTS)

    def asked(self):
        asked, self._asked = self._asked, []
        return asked

    def _keep_asking(self):
        from distperiodic import exceptions
        while True:
            at = time.monotonic()
            try:
                mine = len(self.ring.get_subset(OBJECTS))
            except exceptions.ViewUnknown:
                mine = -1
            self._asked.append((at, time.monotonic(), mine, self.entry()))
            time.sleep(0.005)

    def fork(self, stay):
        """Fork, use the ring in the forked process, and return its answer.

        :param stay: True if the forked process ends without leaving the group.
        """
        into, out = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                told = {'answer': self._forked(stay)}
            except BaseException as exc:
                told = {'error': f'{type(exc).__name__}: {exc}'}
            os.write(out, json.dumps(told).encode())
            # multiprocessing ends its children like this, without clean-up.
            os._exit(0)
        os.close(out)
        with open(into) as answer:
            told = json.loads(answer.read())
        os.waitpid(pid, 0)
        if 'error' in told:
            raise RuntimeError(told['error'])
        return told['answer']

    def _forked(self, stay):
        before = self.ring.is_started()
        subset = self.ring.get_subset(OBJECTS)
        told = {'was started': before, 'identity': self.ring.member_id,
                'members': self.members(), 'subset': subset}
        if not stay:
            self.ring.stop()
        return told


def main() -> None:
    child = _Child()
    # Output of print() must not look like an answer.
    out = os.fdopen(os.dup(1), 'w')
    os.dup2(2, 1)
    for line in sys.stdin:
        order = json.loads(line)
        try:
            told = {'answer': getattr(child, order['do'])(*order['args'])}
        except Exception as exc:
            told = {'error': f'{type(exc).__name__}: {exc}'}
        out.write(json.dumps(told) + '\n')
        out.flush()


if __name__ == '__main__':
    main()
