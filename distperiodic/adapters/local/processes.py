# SPDX-License-Identifier: Apache-2.0
"""Processes in which the handlers of a partition run.

A handler that takes too long is killed with its process and with everything
that it has started. Another process replaces it. The processes share nothing
with the service: each is a new interpreter, which builds its own instance of
the tasks, as ``CLASS(conf)``.

::

    a thread of the pool                        process
      run ─── take a process, send the call ────► handler
      run ◄── progress, outcome, or its end ─────

The thread that needs the outcome of a run also watches the process of the run.
So each run ends, whatever happens to its process: the process may end, stop,
close its link or never answer.

A thread starts the processes, and lives as long as the service. This is
necessary because each process sets PR_SET_PDEATHSIG: the kernel ends it when
the thread that started it ends.
"""

import atexit
import collections
import contextlib
import json
import logging
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from collections.abc import Sequence
from multiprocessing import spawn
from typing import Any
from typing import NoReturn

from distperiodic import exceptions
from distperiodic import ports
from distperiodic.adapters.local import handler_process
from distperiodic.adapters.local import process_links
from distperiodic.adapters.local.clock import SystemClock
from distperiodic.adapters.local.process_links import Call
from distperiodic.adapters.local.process_links import Recipe
from distperiodic.adapters.local.process_links import RunState
from distperiodic.core.context import Context

LOG = logging.getLogger(__name__)

# Maximum number of processes that are tried for one run.
_TRIES = 3
# Maximum seconds until a process has started and begins a run.
_STARTING = 60.0
# Maximum seconds for which a process may be stopped by a signal during a run.
_STOPPED = 2.0
# Seconds between two checks of a process.
_CHECK = 0.25
# Seconds between two checks of the idle processes.
_CHECK_IDLE = 1.0
# Longest pause, in seconds, before more processes are started, if the last
# ones have ended as soon as they had started.
_LONGEST_PAUSE = 10.0
# Maximum seconds for which the end of killed processes is awaited.
_KILLED = 5.0
# Program of a process. It reads the module search path first, to find this
# library.
_PROGRAM = """\
import json, socket, struct, sys
link = socket.socket(fileno=int(sys.argv[2]))
length, = struct.unpack('!I', link.recv(4, socket.MSG_WAITALL))
sys.path[:], sys.argv[:] = json.loads(link.recv(length, socket.MSG_WAITALL))
from distperiodic.adapters.local import handler_process
handler_process.main(link)
"""


class _HandlerTraceback(Exception):
    """The traceback of a handler in its process; the cause of its error."""

    def __str__(self) -> str:
        return f'\n{self.args[0]}'


class _Lost(Exception):
    """The process of a run has ended, or cannot report the outcome."""


class _Process:
    """A process, and the service's end of its link.

    One thread at a time uses a process. Any thread may kill it.

    :raises OSError: The process cannot be started.
    """

    def __init__(self, recipe: Recipe):
        self._monotonic = SystemClock().monotonic
        self._socket, theirs = socket.socketpair()
        with theirs, contextlib.ExitStack() as stack:
            stack.callback(self._socket.close)
            self._socket.setblocking(False)
            self._process = subprocess.Popen(  # noqa: S603
                [os.fsdecode(spawn.get_executable()),
                 *subprocess._args_from_interpreter_flags(),  # type: ignore
                 '-c', _PROGRAM, 'distperiodic-handler', str(theirs.fileno())],
                stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()],
                start_new_session=True)
            stack.pop_all()
        self._frames = process_links.Frames()
        self._to_send = bytearray(process_links.frame(json.dumps(
            [[path or os.getcwd() for path in sys.path], sys.argv]).encode()))
        self._post(recipe)
        #: True once the process has built the tasks.
        self.ready = False
        #: True if the process must not get another run.
        self.ended = False
        #: Monotonic time since which the process is stopped, in seconds.
        self._stopped: float | None = None
        self._lock = threading.Lock()

    def run(self, call: Call, context: Context, timeout: float | None,
            until: Callable[[], float]) -> list[Any]:
        """Run a handler.

        :returns: Kind and content of the outcome.
        :raises TimeoutError: The run has exceeded its timeout.
        :raises _Lost: The process has ended. The attribute ``args`` contains
            the reason, and True if the handler had begun.
        """
        self._post(call)
        now = self._monotonic()
        limit, began, next_state = now + _STARTING, False, now
        while True:
            if now >= next_state and not self._to_send:
                next_state = now + process_links.EVERY
                self._post(RunState(now, until(), not context.is_current()))
            try:
                messages = self._exchange(
                    max(0.0, min(limit, next_state, now + _CHECK) - now))
            except _Lost as exc:
                raise _Lost(exc.args[0], began) from None
            now = self._monotonic()
            for kind, *content in messages:
                if kind == 'began':
                    began, limit = True, float('inf')
                    if timeout is not None:
                        limit = now + timeout
                elif kind == 'progress':
                    context.receive_progress(content[0])
                elif kind != 'ready':
                    if kind == 'expired':
                        self.kill()
                    return [kind, *content]
            if now < limit:
                continue
            self.kill()
            if began:
                raise TimeoutError
            raise _Lost(f'it did not begin within {_STARTING:g} s', False)

    def is_usable(self) -> bool:
        """Return whether the process can run a handler, while it is idle."""
        with contextlib.suppress(_Lost):
            # A process that is about to begin a run may be stopped.
            self._exchange(0.0)
        return not self.ended

    def _post(self, message: Any) -> None:
        self._to_send += process_links.frame(pickle.dumps(message))

    def _exchange(self, seconds: float) -> list[list[Any]]:
        """Send what waits, and return the messages that have arrived.

        :param seconds: Maximum number of seconds to wait.
        :raises _Lost: The process has ended, is stopped, or has closed its
            link. It is killed then.
        """
        poll = select.poll()
        poll.register(self._socket, select.POLLIN | (
            select.POLLOUT if self._to_send else 0))
        try:
            for _, events in poll.poll(1000 * seconds):
                if events & select.POLLOUT:
                    del self._to_send[:self._socket.send(self._to_send)]
                if events & (select.POLLIN | select.POLLHUP):
                    return self._receive()
        except BlockingIOError:
            pass
        except OSError:
            self._lose('it has closed its link')
        except (ValueError, process_links.Malformed):
            self._lose('it has written something else to its link')
        self._check()
        return []

    def _receive(self) -> list[list[Any]]:
        data = self._socket.recv(1 << 16)
        if not data:
            self._lose('it has closed its link')
        found = []
        for content in self._frames.feed(data):
            message = json.loads(content)
            if not isinstance(message, list) or not message:
                raise ValueError('not a message')
            self.ready = True
            found.append(message)
        return found

    def _check(self) -> None:
        """Check that the process runs.

        A child that a handler forked may keep the link open after the process
        has ended.

        :raises _Lost: The process has ended, or is stopped.
        """
        try:
            state = os.waitid(os.P_PID, self._process.pid, os.WEXITED
                              | os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            self._lose('it has ended')
        if state is None:
            self._stopped = None
        elif state.si_code != os.CLD_STOPPED:
            self._lose('it has ended')
        elif self._stopped is None:
            self._stopped = self._monotonic()
        elif self._monotonic() - self._stopped > _STOPPED:
            self._lose(f'it was stopped by a signal for {_STOPPED:g} s')

    def _lose(self, reason: str) -> NoReturn:
        """Kill the process, and raise an exception with the reason.

        :param reason: Reason if the process has not ended by itself.
        :raises _Lost: Always.
        """
        code = self._exit_code()
        self.kill()
        if code is not None:
            reason = (f'its process ended with exit code {code}' if code >= 0
                      else f'its process was ended by signal {-code}')
        raise _Lost(reason)

    def _exit_code(self) -> int | None:
        """Return the exit code, or minus the signal that ended the process.

        None means that the process has not ended. The link of a process is
        closed shortly before the process ends, so this method waits.
        """
        pause = threading.Event()
        for _ in range(50):
            try:
                state = os.waitid(os.P_PID, self._process.pid, os.WEXITED
                                  | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return None
            if state is not None:
                code: int = state.si_status
                return code if state.si_code == os.CLD_EXITED else -code
            pause.wait(0.01)
        return None

    def kill(self, seconds: float = _KILLED) -> None:
        """Kill the process, and everything that its handlers have started.

        :param seconds: Maximum number of seconds to wait for the end.
        """
        with self._lock:
            if not self.ended:
                self.ended = True
                # The process is not reaped yet, so no other group has its id.
                with contextlib.suppress(OSError):
                    os.killpg(self._process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)

    def close(self) -> None:
        """Kill the process, and close the link; no thread may use it."""
        self.kill()
        self._socket.close()


class Processes:
    """A pool of processes for the handlers of one partition.

    The processes start at once, in a thread.

    :param tasks: Instance of the service's tasks. Its class must be a global
        name of an importable module.
    :param size: Number of processes.
    :raises ConfigError: The class cannot be imported by name.
    """

    def __init__(self, tasks: Any, files: Sequence[str], namespace: str,
                 size: int):
        cls = type(tasks)
        module, name = cls.__module__, cls.__qualname__
        if module == '__main__' or (
                handler_process.found(module, name) is not cls):
            raise exceptions.ConfigError(
                f'executor = process cannot import {module}.'
                f'{name}; define the class in a module of its own, at '
                'the top level')
        self._recipe = Recipe(
            module, name, tuple(files), namespace, os.getpid())
        self._size = size
        self._monotonic = SystemClock().monotonic
        self._lock = threading.Lock()
        #: Notified if a process is idle, if none can be started, and when this
        #: object closes.
        self._changed = threading.Condition(self._lock)
        self._closing = threading.Event()
        #: Set if a process is missing.
        self._missing = threading.Event()
        self._all: set[_Process] = set()
        #: Idle processes. The last one is the first to get a run.
        self._idle: collections.deque[_Process] = collections.deque()
        #: Number of processes that could not be started, or ended before they
        #: had built the tasks, since a process has built them.
        self._failures = 0
        threading.Thread(target=self._keep_whole, daemon=True,
                         name='distperiodic-processes').start()
        # A program may end without stopping its services.
        atexit.register(self._close_at_exit)

    def _keep_whole(self) -> None:
        """Start the processes, and replace those that have ended."""
        while not self._closing.is_set():
            self._missing.clear()
            for process in list(self._idle):
                with self._lock:
                    if process not in self._idle:
                        continue
                    self._idle.remove(process)
                if not process.is_usable() and process.ready:
                    LOG.warning('process replaced: reason=it ended while it '
                                'was idle; another process runs the handlers')
                self._give_back(process)
            while (len(self._all) < self._size and self._start()
                   and not self._closing.is_set()):
                pass
            beyond = self._failures - _TRIES
            if beyond < 0:
                self._missing.wait(_CHECK_IDLE)
            else:
                self._closing.wait(
                    min(_LONGEST_PAUSE, _CHECK_IDLE * 2.0 ** min(beyond, 10)))

    def _start(self) -> bool:
        """Start a process, and return whether it was started."""
        try:
            process = _Process(self._recipe)
        except (OSError, subprocess.SubprocessError) as exc:
            LOG.error('process not started: reason=%s: %s; the service tries '
                      'again, and runs that need the process fail until then',
                      type(exc).__name__, exc)
            with self._lock:
                self._failures += 1
                self._changed.notify_all()
            return False
        with self._lock:
            self._all.add(process)
        self._give_back(process)
        return True

    def _take(self) -> _Process:
        """Return an idle process.

        :raises ChildProcessError: There is none, or the service stops.
        """
        end = self._monotonic() + _STARTING
        while True:
            with self._lock:
                while not (self._idle or self._closing.is_set()):
                    left = end - self._monotonic()
                    if self._failures >= _TRIES or left <= 0:
                        raise _none_starts()
                    self._changed.wait(left)
                if self._closing.is_set():
                    raise ChildProcessError('its service stops')
                process = self._idle.pop()
            if process.is_usable():
                return process
            self._give_back(process)

    def _give_back(self, process: _Process) -> None:
        """Make *process* available to runs, or forget it if it has ended."""
        with self._lock:
            usable = not (process.ended or self._closing.is_set())
            if usable:
                if process.ready:
                    self._failures = 0
                    self._idle.append(process)
                else:
                    self._idle.appendleft(process)
            else:
                self._all.discard(process)
                self._failures += not process.ready
                self._missing.set()
            self._changed.notify_all()
        if not usable:
            process.close()

    def run(self, call: Call, context: Context, timeout: float | None,
            until: Callable[[], float]) -> str | None:
        """Run a handler in a process.

        :param context: Context of the run in this process. It receives the
            progress of the handler. If the run loses its lease or is
            cancelled, the context of the handler is cancelled.
        :param timeout: Seconds after which the process of the handler is
            killed.
        :param until: Returns the deadline of the run on the monotonic clock,
            in seconds. The process of the handler ends itself then.
        :returns: For a command, the JSON text of its result.
        :raises LeaseEnded: The process ended itself at the time limit.
        :raises Exception: The handler raised an exception, took too long or
            ended its process, or the result of a command is invalid.
        """
        reason = ''
        for _ in range(_TRIES):
            process = self._take()
            try:
                kind, *content = process.run(call, context, timeout, until)
                break
            except TimeoutError:
                raise TimeoutError(
                    f'timeout after {timeout:g} s; its process was killed'
                ) from None
            except _Lost as exc:
                reason, begun = exc.args
                if begun or self._closing.is_set():
                    raise ChildProcessError(reason) from None
            except BaseException:
                process.kill()
                raise
            finally:
                self._give_back(process)
        else:
            raise _none_starts(reason)
        if kind == 'expired':
            raise ports.LeaseEnded
        if kind == 'failed':
            name, text, traceback = content
            error = type(name if name.isidentifier() else 'Exception',
                         (Exception,), {})
            raise error(text) from _HandlerTraceback(traceback)
        result: str | None = content[0]
        return result

    def close(self) -> None:
        """End all processes, and everything that their handlers have started.

        The call takes at most some seconds.
        """
        atexit.unregister(self._close_at_exit)
        with self._lock:
            self._closing.set()
            self._missing.set()
            self._changed.notify_all()
            processes, idle = list(self._all), list(self._idle)
            self._idle.clear()
        # A thread that runs a handler closes the process of its run itself.
        for process in processes:
            process.kill(0.0)
        end = self._monotonic() + _KILLED
        for process in processes:
            process.kill(max(0.0, end - self._monotonic()))
        for process in idle:
            process.close()

    def _close_at_exit(self) -> None:
        # A child that was forked has the exit handlers of the service, too.
        if os.getpid() == self._recipe.parent:
            self.close()


def _none_starts(reason: str = '') -> ChildProcessError:
    return ChildProcessError(
        'the processes of its partition end as soon as they start'
        f'{reason and f" ({reason})"}; see their errors in the output of this '
        'service')
