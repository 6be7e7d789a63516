# SPDX-License-Identifier: Apache-2.0
"""A process that runs the handlers of a partition, one at a time.

The process is the leader of a session and a process group, which contain
everything that its handlers start. The process ends with this group: when the
time limit of a run passes, when it gets SIGTERM, and when the link to its
service is closed. A handler that calls ``setsid`` leaves the group.

One thread reads the link, and the main thread runs the handlers.
"""

import contextlib
import ctypes
import functools
import importlib
import json
import math
import os
import pickle
import queue
import select
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

from distperiodic import exceptions
from distperiodic.adapters.local import forks
from distperiodic.adapters.local import process_links
from distperiodic.adapters.local import tracing
from distperiodic.adapters.local.clock import SystemClock
from distperiodic.adapters.local.process_links import Call
from distperiodic.adapters.local.process_links import Recipe
from distperiodic.core.context import Context
from distperiodic.core.job import check_ended
from distperiodic.core.task_values import result_text

#: Seconds without a message from the service after which a handler must assume
#: that the lease of its run has expired. A suspended service renews no lease.
SILENT = 3.0
# prctl(2): set the signal that this process gets when its parent dies.
_PR_SET_PDEATHSIG = 1


class HandlerRun:
    """The run of a handler in this process."""

    __slots__ = ('call', 'confirmed', 'context', 'heard', 'until')

    def __init__(self, call: Call, now: float):
        self.call = call
        #: None until the main thread begins the run.
        self.context: Context | None = None
        #: Monotonic time at which the service sent its last message, in
        #: seconds.
        self.heard = now
        #: Deadline of the run on the monotonic clock, in seconds. The service
        #: confirms a run that it sent before this process had started.
        self.until = call.until if call.until > now else now + SILENT
        #: Set once the service has confirmed the run.
        self.confirmed = threading.Event()
        if call.until > now:
            self.confirmed.set()


class Link:
    """The end of a link in a process that runs handlers.

    It starts a thread, which lives as long as the link.

    :param connection: Socket that is connected to the service.
    :param end: Ends this process. It is called if the time limit of a run has
        passed, or if the link is closed.
    """

    def __init__(self, connection: socket.socket, end: Callable[[], None]):
        self._connection = connection
        self._inode = os.fstat(connection.fileno()).st_ino
        self._end = end
        self._monotonic = SystemClock().monotonic
        self._frames = process_links.Frames()
        #: Runs that the service has sent.
        self._sent: queue.SimpleQueue[HandlerRun] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._run: HandlerRun | None = None

    def recipe(self) -> Recipe:
        """Wait for the recipe, and return it. Call this before :meth:`start`.

        :raises EOFError: The service has ended.
        :raises OSError: The link is broken.
        """
        while True:
            for message in self._received():
                if isinstance(message, Recipe):
                    return message

    def start(self) -> None:
        """Report that this process can run handlers, and read the link."""
        self._send('ready')
        threading.Thread(target=self._listen, daemon=True,
                         name='distperiodic-link').start()

    def next_run(self) -> HandlerRun:
        """Wait for the next run."""
        return self._sent.get()

    def begin(self, run: HandlerRun, context: Context) -> None:
        """Send the progress of *context* until :meth:`finish` is called.

        If the time limit of the run has already passed, because this process
        took long to start, wait until the service confirms the run.
        """
        run.context = context
        if not run.confirmed.wait(SILENT):
            self._expire()
        self._send('began')

    def is_current(self) -> bool:
        """Return whether the service has recently sent a message for the run.

        If a message reports that the run has lost its lease or is cancelled,
        the link cancels the context of the run.
        """
        run = self._run
        return run is not None and self._monotonic() - run.heard < SILENT

    def finish(self, outcome: str, *content: Any) -> None:
        """Send the outcome of the run, after its last progress."""
        run, self._run = self._run, None
        assert run is not None
        with self._lock:
            self._send_progress(run)
            self._send(outcome, *content)

    def _send_progress(self, run: HandlerRun) -> None:
        text = run.context and run.context.take_unsaved()
        if text is not None:
            self._send('progress', text)

    def _send(self, kind: str, *content: Any) -> None:
        try:
            self._own().sendall(process_links.frame(
                json.dumps([kind, *content]).encode()))
        except OSError:
            # The service cannot learn the outcome of any run.
            self._end()

    def _own(self) -> socket.socket:
        """Return the socket of the link.

        :raises OSError: A handler has closed its descriptor, and may have
            opened another file with that descriptor.
        """
        if os.fstat(self._connection.fileno()).st_ino != self._inode:
            raise OSError('the descriptor of the link is another file')
        return self._connection

    def _expire(self) -> None:
        """End this process, because the lease of its run has ended."""
        # Do not wait for a service that is suspended.
        with contextlib.suppress(OSError):
            self._own().send(process_links.frame(b'["expired"]'),
                             socket.MSG_DONTWAIT)
        self._end()

    def _listen(self) -> None:
        while True:
            run = self._run
            timeout = None
            if run is not None and run.until != math.inf:
                timeout = max(0.0, run.until - self._monotonic())
            try:
                if self._arrived(timeout):
                    for message in self._received():
                        self._handle(message)
                elif run is not None and run is self._run:
                    self._expire()
                    run.until = math.inf
            except (EOFError, OSError, ValueError):
                self._end()
                return

    def _arrived(self, timeout: float | None) -> bool:
        """Wait for bytes from the service; return False after *timeout*."""
        poll = select.poll()
        poll.register(self._own().fileno(), select.POLLIN)
        return bool(poll.poll(
            None if timeout is None else math.ceil(1000 * timeout)))

    def _received(self) -> Iterator[Any]:
        data = self._own().recv(1 << 16)
        if not data:
            raise EOFError
        for content in self._frames.feed(data):
            # Only the service writes to this socket.
            yield pickle.loads(content)  # noqa: S301

    def _handle(self, message: Any) -> None:
        """Handle a message from the service.

        Progress is sent only in response to a message, so this thread never
        waits for a service that does not read.
        """
        if isinstance(message, Call):
            run = self._run = HandlerRun(message, self._monotonic())
            self._sent.put(run)
        elif self._run is not None:
            run = self._run
            run.heard, run.until = message.at, message.until
            if run.until > self._monotonic():
                run.confirmed.set()
            if message.cancelled and run.context is not None:
                run.context.cancelled = True
            with self._lock:
                if self._run is run:
                    self._send_progress(run)


def found(module: str, name: str) -> Any:
    """Return the class *name* of a module. None means that there is none."""
    try:
        found: Any = sys.modules.get(module) or (
            importlib.import_module(module))
        return functools.reduce(getattr, name.split('.'), found)
    except (ImportError, AttributeError):
        return None


def end_group() -> None:
    """Kill this process, and everything that its handlers have started."""
    os.killpg(0, signal.SIGKILL)


def _on_sigterm(process: int) -> None:
    if os.getpid() == process:
        end_group()
    # A child that a handler forked has this signal handler, too.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)


def main(connection: socket.socket) -> None:
    """Run handlers until the service ends.

    :param connection: Socket that is connected to the service.
    """
    connection.set_inheritable(False)
    me = os.getpid()
    signal.signal(signal.SIGTERM, lambda number, frame: _on_sigterm(me))
    link = Link(connection, end_group)
    try:
        recipe = link.recipe()
    except (EOFError, OSError):
        return
    if sys.platform == 'linux':
        # A forked copy of the service may keep the link open.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != recipe.parent:
            return
    from oslo_config import cfg
    from oslo_log import log
    conf = cfg.ConfigOpts()
    log.register_options(conf)
    conf([], project='distperiodic', default_config_files=list(recipe.files),
         default_config_dirs=[])
    log.setup(conf, 'distperiodic')
    tasks = found(recipe.module, recipe.name)(conf)
    link.start()
    while True:
        run_handler(tasks, link, link.next_run(), recipe.namespace)


def run_handler(tasks: Any, link: Link, run: HandlerRun,
                namespace: str) -> None:
    """Run a handler, and send its outcome."""
    call = run.call
    job = call.run.job
    context = Context(
        call.run, held=link.is_current,
        finish=_finisher(call, namespace) if call.lease else None,
        progress=json.loads(call.progress))
    link.begin(run, context)
    try:
        handler = forks.ends_forked(tasks.handler(job))
        with tracing.continued(call.trace):
            returned = handler(context, *call.arguments)
        check_ended(job, returned)
        outcome: list[Any] = [
            'done', None if call.run.step is None else result_text(returned)]
    except BaseException as exc:
        outcome = ['failed', type(exc).__name__, _text(str, exc)[:10_000],
                   _text(_traceback, exc)[-20_000:]]
    link.finish(*outcome)


def _traceback(exc: BaseException) -> str:
    return ''.join(traceback.format_exception(exc))


def _text(convert: Callable[[BaseException], str],
          exc: BaseException) -> str:
    """Return a text about an exception whose own methods may fail."""
    try:
        return ''.join(convert(exc))
    except BaseException:
        return 'an exception without a text'


def _finisher(call: Call, namespace: str
              ) -> Callable[[str, Any, str | None], None]:
    def finish(key: str, session: Any, result: str | None) -> None:
        from distperiodic.adapters.sql.session import finish_in
        if not finish_in(session, namespace=namespace, job=call.run.job,
                         key=key, lease=call.lease, result=result):
            raise exceptions.RunReplaced(
                f'the run of job {call.run.job!r} object {key!r} was given to '
                'another worker; roll back its changes')
    return finish
