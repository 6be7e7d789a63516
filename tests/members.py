# SPDX-License-Identifier: Apache-2.0
"""A member as a process of its own, which can be frozen, killed and forked.

    parent                                   child: python -m tests.members
      |--- {"do": "subset", "args": [...]} -->|
      |<-- {"answer": ...} or {"error": ...} -|

While it runs, a thread of the child asks for its subset every few
milliseconds and writes down when it asked and what it was told: that is what
a program does that starts work by the ring. Times are of CLOCK_MONOTONIC,
which all processes of a host share.
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
from typing import Any
from typing import NamedTuple

from tests.waiting import wait_until

ROOT = pathlib.Path(__file__).parents[1]

#: The objects that a child keeps asking about.
OBJECTS = [f'object-{n}' for n in range(200)]


class Asked(NamedTuple):
    """One call of get_subset in the child."""

    at: float  #: monotonic seconds at which it was asked
    told: float  #: and at which the answer was there
    mine: int  #: how many objects it was told; -1: the view is not known
    entry: str  #: under which the child stood then

    @property
    def known(self) -> bool:
        return self.mine >= 0


class ChildError(Exception):
    """What was raised in the child; the text begins with its class."""


class Process:
    """A member in a child process. It is started, and joined by ``start``."""

    def __init__(self, url: str, group: str, identity: str | None = None,
                 **options: Any):
        """Start the process; it does not connect yet.

        :param options: of HashRing.
        """
        self._child = subprocess.Popen(
            [sys.executable, '-W', 'ignore', '-m', 'tests.members'],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True)
        self.pid = self._child.pid
        self.do('make', url, group, identity, options)

    def do(self, what: str, *args: Any) -> Any:
        """Call that method of :class:`_Child` with *args* in the child.

        :raises ChildError: the child raised.
        """
        self.ask(what, *args)
        return self.answer()

    def ask(self, what: str, *args: Any) -> None:
        """Begin :meth:`do` and wait for nothing; see :meth:`answer`."""
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
        """What it asked since the last time, oldest first."""
        return [Asked(*one) for one in self.do('asked')]

    def asked_until_sure(self, after: float) -> list[Asked]:
        """The same, up to a view that it knows, asked for after an
        instant.
        """
        found: list[Asked] = []

        def sure() -> bool:
            found.extend(self.asked())
            return any(one.known and one.at > after for one in found)
        wait_until(sure, 20, 'it did not come to know its view')
        return found

    def signal(self, number: signal.Signals) -> float:
        """Send it a signal; returns when, in monotonic seconds."""
        os.kill(self.pid, number)
        return time.monotonic()

    def freeze(self) -> float:
        """Stop it, but not while it holds a lock on a file: with
        ``file://`` that would hold up all others, which is a known limit
        and no part of what a freeze is to show.
        """
        while True:
            at = self.signal(signal.SIGSTOP)
            while self._state() != 'T':
                time.sleep(0.001)
            locks = pathlib.Path('/proc/locks').read_text()
            if f' {self.pid} ' not in locks:
                return at
            self.signal(signal.SIGCONT)
            time.sleep(0.001)

    def _state(self) -> str:
        stat = pathlib.Path(f'/proc/{self.pid}/stat').read_text()
        return stat.rpartition(')')[2].split()[0]

    def thaw(self) -> float:
        return self.signal(signal.SIGCONT)

    def kill(self) -> float:
        """End it with -9; returns when, in monotonic seconds."""
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
    """Inside the child: one method for each thing that it can be told."""

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
        """Fork, use the ring in the forked process, and tell of it.

        :param stay: end without leaving the group.
        """
        into, out = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                told = {'answer': self._forked(stay)}
            except BaseException as exc:
                told = {'error': f'{type(exc).__name__}: {exc}'}
            os.write(out, json.dumps(told).encode())
            # As a child of multiprocessing ends: without clean-up.
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
    # Whoever prints must not be taken for an answer.
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
