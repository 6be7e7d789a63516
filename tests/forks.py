# SPDX-License-Identifier: Apache-2.0
"""Starts ``python -m MODULE`` in a fork of a process that has imported the
product::

    test ── python -m tests.forks ──┬── fork, which runs a module
                                    └── fork

The imports take a second of a processor, which is more than most of these
processes need for all else. A fork runs its module as ``__main__``, and ends
like any program. But it is no child of the test, and its command line names
this module.
"""

import contextlib
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile

from tests import programs
from tests.programs import PYTHON
from tests.programs import ROOT

IMPORTED = (
    'distperiodic.adapters.coordination.membership',
    'distperiodic.adapters.messaging.connection',
    'distperiodic.adapters.redis.driver',
    'distperiodic.adapters.sql.store', 'distperiodic.cmd.shell',
    'distperiodic.dispenser', 'distperiodic.adapters.sql.task_store',
    'distperiodic.service', 'distperiodic.tasks', 'kazoo.client',
    'kombu.transport.pyamqp', 'oslo_messaging',
    'oslo_messaging._drivers.impl_rabbit', 'psycopg', 'pymysql',
    'tests.functional.served', 'tests.oracle.facts', 'tests.services',
    'tests.waiting', 'tooz.drivers.zookeeper')
#: Maximum size of a request in bytes.
_MOST = 100_000


class Popen:
    """A fork, with those methods of :class:`subprocess.Popen` that the tests
    use. Pipes are text.

    :param argv: A command that begins with ``[*PYTHON, '-m', MODULE]``.
    """

    def __init__(self, argv, *, stdin, stdout, stderr, cwd=ROOT, env=None):
        assert argv[:len(PYTHON) + 1] == [*PYTHON, '-m'], argv
        request = json.dumps([
            argv[len(PYTHON) + 1:], str(cwd), dict(env or os.environ)])
        self._told, status = os.pipe()
        self.stdin = self.stdout = None
        with contextlib.ExitStack() as stack:
            status = stack.enter_context(open(status, 'wb'))
            nothing = stack.enter_context(open(os.devnull, 'r+b'))
            if stdin == subprocess.PIPE:
                reader, writer = os.pipe()
                stdin = stack.enter_context(open(reader))
                self.stdin = open(writer, 'w')
            if stdout == subprocess.PIPE:
                reader, writer = os.pipe()
                stdout = stack.enter_context(open(writer, 'w'))
                self.stdout = open(reader)
            socket.send_fds(_server(), [request.encode()], [
                nothing.fileno() if one == subprocess.DEVNULL else
                one if isinstance(one, int) else one.fileno()
                for one in (stdin, stdout, stderr, status)])
        self.args = argv
        self.returncode = None
        self.pid = self._read()

    def __del__(self):
        os.close(self._told)

    def _read(self):
        return int.from_bytes(os.read(self._told, 4), signed=True)

    def poll(self):
        """Return the exit code, or None if the process still runs."""
        return self._poll(0)

    def wait(self, timeout=None):
        if self._poll(timeout) is None:
            raise subprocess.TimeoutExpired(self.args, timeout)
        return self.returncode

    def _poll(self, timeout):
        if self.returncode is None and select.select(
                [self._told], [], [], timeout)[0]:
            self.returncode = self._read()
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)


class Program(programs.Program):
    """A program whose launcher is a fork."""

    popen = Popen


@functools.cache
def _server():
    """Start the process that forks; return the socket for requests to it. The
    process ends when this one does.
    """
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        subprocess.Popen(
            [*PYTHON, '-m', __name__, str(its.fileno())], cwd=ROOT,
            pass_fds=[its.fileno()], stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL)
    return ours


def main(number):
    """Fork for each request, until the test ends. Only a fork returns."""
    for name in IMPORTED:
        importlib.import_module(name)
    # Otherwise each fork would visit all these objects, and copy their pages.
    gc.freeze()
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests = socket.socket(fileno=number)
    poller = select.poll()
    poller.register(requests, select.POLLIN)
    running = {}
    while True:
        for fd, _ in poller.poll():
            if fd in running:
                _report(fd, *running.pop(fd))
                poller.unregister(fd)
                continue
            request, files, *_ = socket.recv_fds(requests, _MOST, 4)
            if not request:
                sys.exit()
            *files, status = files
            if (pid := os.fork()) == 0:
                signal.signal(signal.SIGINT, interrupt)
                for one, (_, other) in running.items():
                    os.close(one)
                    os.close(other)
                os.close(status)
                requests.close()
                return _begin(files, *json.loads(request))
            for one in files:
                os.close(one)
            os.write(status, pid.to_bytes(4))
            ends = os.pidfd_open(pid)
            running[ends] = pid, status
            poller.register(ends, select.POLLIN)


def _report(fd, pid, status):
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    try:
        os.write(status, code.to_bytes(4, signed=True))
    except BrokenPipeError:
        pass  # the test does not want to know
    os.close(status)
    os.close(fd)


def _begin(files, argv, cwd, environment):
    """Make this process like a new one; return its arguments."""
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    tempfile.tempdir = None
    sys.path[:1] = [cwd, *filter(
        None, environment.get('PYTHONPATH', '').split(os.pathsep))]
    return argv


if __name__ == '__main__':
    sys.argv[:] = main(int(sys.argv[1]))
    runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)
