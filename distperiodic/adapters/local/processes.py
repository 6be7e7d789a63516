# SPDX-License-Identifier: Apache-2.0
"""Processes in which the handlers of a partition run.

A handler that takes too long is killed with its process, and another process
replaces it. The processes are started by ``spawn``, so they share nothing with
the service. Each process builds its own instance of the tasks, as
``CLASS(conf)``. Progress and cancellation are sent over a separate link.

A single thread starts all pools with their first processes, and lives as long
as the service. A thread of the pool starts the processes that replace others,
and lives as long as the pool. This is necessary because each process sets
PR_SET_PDEATHSIG: the kernel kills it when the thread that started it ends.
"""

import contextlib
import ctypes
import functools
import importlib
import json
import logging
import math
import multiprocessing
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import Any
from typing import NamedTuple

from distperiodic import exceptions
from distperiodic import ports
from distperiodic.adapters.local import process_links
from distperiodic.adapters.local.clock import SystemClock
from distperiodic.core.context import Context
from distperiodic.core.job import check_ended
from distperiodic.core.task_values import result_text
from distperiodic.core.workflow import StepInput

LOG = logging.getLogger(__name__)

# Maximum number of pools that are tried for one run.
_TRIES = 3
# prctl(2): set the signal that this process gets when its parent dies.
_PR_SET_PDEATHSIG = 1


class Recipe(NamedTuple):
    """Data from which a process builds the tasks."""

    module: str
    #: Qualified name of the class.
    name: str
    #: Configuration files.
    files: Sequence[str]
    #: Group of the service.
    namespace: str
    #: Address and key of the link to the service.
    address: str
    key: bytes


class Call(NamedTuple):
    """One run of a handler."""

    job: str
    object: str
    tick: int
    fence: int
    attempt: int
    deadline: int | None
    #: Progress of an earlier attempt, as JSON.
    progress: str
    step: StepInput | None
    #: Lease of the run. Empty means that there is no store.
    lease: str
    #: Deadline of the run on the monotonic clock, in seconds. The service may
    #: extend it.
    until: float
    #: Arguments of the handler, without the context.
    arguments: tuple[Any, ...]


class _Failed(NamedTuple):
    """An exception of a handler, as text, since it may not be picklable."""

    kind: str
    text: str
    traceback: str
    #: JSON text of the last progress that the handler has assigned, if any.
    progress: str | None


class _HandlerTraceback(Exception):
    """The traceback of a handler in its process; the cause of its error."""

    def __str__(self) -> str:
        return f'\n{self.args[0]}'


class Processes:
    """A pool of processes for the handlers of one partition.

    :param tasks: Instance of the service's tasks. Its class must be a global
        name of an importable module.
    :param size: Number of processes.
    :raises ConfigError: The class cannot be imported by name, or the package
        ``pebble`` is not installed.
    """

    def __init__(self, tasks: Any, files: Sequence[str], namespace: str,
                 size: int):
        try:
            from pebble import ProcessPool
        except ImportError:
            raise exceptions.ConfigError(
                "executor = process needs the package pebble; install it: "
                "pip install 'distperiodic[process]'") from None
        cls = type(tasks)
        module, name = cls.__module__, cls.__qualname__
        if module == '__main__' or _found(module, name) is not cls:
            raise exceptions.ConfigError(
                f'executor = process cannot import {module}.'
                f'{name}; define the class in a module of its own, at '
                'the top level')
        self._hub = process_links.Hub()
        recipe = Recipe(module, name, tuple(files), namespace,
                        self._hub.address, self._hub.key)
        self._new_pool = lambda: ProcessPool(
            size, initializer=_begin, initargs=(recipe,),
            context=multiprocessing.get_context('spawn'))
        self._lock = threading.Lock()
        self._closed = False
        self._pool: Any = None
        #: Pools to start, each with an event that is set after the start. None
        #: ends the thread.
        self._starts: queue.SimpleQueue[
            tuple[Any, threading.Event] | None] = queue.SimpleQueue()
        threading.Thread(target=self._start_pools, daemon=True,
                         name='distperiodic-processes').start()

    def _start_pools(self) -> None:
        while (found := self._starts.get()) is not None:
            pool, started = found
            # If the start fails, the run that needs the pool fails as well.
            with contextlib.suppress(OSError):
                # Reading this property starts the processes.
                pool.active  # noqa: B018
            started.set()

    def _usable(self, broken: Any) -> Any:
        """Return a started pool.

        If this object is closed, the result is a stopped pool, or None if
        there was no pool.

        :param broken: Pool that must be replaced. None means that no pool is
            known to be broken.
        """
        with self._lock:
            if self._pool is broken and not self._closed:
                if broken is not None:
                    LOG.warning('processes replaced: reason=a process ended '
                                'while it was idle; other processes run the '
                                'handlers that have not begun')
                    # End the other processes of the pool, too. One of them may
                    # just have taken a run that is going to be repeated.
                    broken.stop()
                    broken.join()
                started = threading.Event()
                pool = self._new_pool()
                self._starts.put((pool, started))
                started.wait()
                self._pool = pool
            return self._pool

    def _run_in_pool(self, *args: Any, timeout: float | None) -> Any:
        """Run a call in a process, and return the result.

        :raises ChildProcessError: Each process ended as soon as it had
            started, or the service stops.
        """
        pool = None
        for _ in range(_TRIES):
            pool = self._usable(pool)
            if pool is None:
                break
            # If a process dies while no process has a run, the whole pool
            # breaks. A run that is being scheduled at that time has not begun,
            # so schedule it in another pool.
            try:
                future = pool.schedule(_run, args=args, timeout=timeout)
            except RuntimeError:
                continue
            with contextlib.suppress(BrokenProcessPool):
                return future.result()
        raise ChildProcessError(
            'the processes of its partition end as soon as they start; see '
            'their errors in the output of this service')

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
        from pebble import ProcessExpired
        try:
            with self._hub.run(context, until) as number:
                result = self._run_in_pool(call, number, timeout=timeout)
        except TimeoutError:
            raise TimeoutError(
                f'timeout after {timeout:g} s; its process was killed'
            ) from None
        except ProcessExpired as exc:
            if exc.exitcode == process_links.LEASE_ENDED:
                raise ports.LeaseEnded from None
            raise ChildProcessError(
                f'its process ended with exit code {exc.exitcode}') from None
        if isinstance(result, _Failed):
            if result.progress is not None:
                context.receive_progress(result.progress)
            error = type(result.kind, (Exception,), {})
            raise error(result.text) from _HandlerTraceback(result.traceback)
        found: str | None = result
        return found

    def close(self) -> None:
        """End all processes at once."""
        with self._lock:
            self._closed = True
            if self._pool is not None:
                self._pool.stop()
                self._pool.join()
        self._starts.put(None)
        self._hub.close()


def _found(module: str, name: str) -> Any:
    try:
        found: Any = sys.modules.get(module) or (
            importlib.import_module(module))
        return functools.reduce(getattr, name.split('.'), found)
    except (ImportError, AttributeError):
        return None


# -- in the process

_tasks: Any = None
_namespace = ''
_link: process_links.Link | None = None


def _begin(recipe: Recipe) -> None:
    """Prepare a new process."""
    global _tasks, _namespace, _link
    # Ctrl-C sends SIGINT to all processes of a terminal. Ignore it, because
    # the service ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == 'linux':
        # A handler that hangs must not outlive a service that was killed.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    from oslo_config import cfg
    from oslo_log import log
    conf = cfg.ConfigOpts()
    log.register_options(conf)
    conf([], project='distperiodic', default_config_files=list(recipe.files),
         default_config_dirs=[])
    log.setup(conf, 'distperiodic')
    _namespace = recipe.namespace
    _tasks = _found(recipe.module, recipe.name)(conf)
    try:
        _link = process_links.Link(recipe.address, recipe.key, _end)
    except (OSError, EOFError) as exc:
        LOG.warning(
            'process without a link: reason=%s: %s; its handlers save their '
            'progress only when they fail, do not learn that they are '
            'cancelled, and end with the first lease of their run',
            type(exc).__name__, exc)


def _end() -> None:
    """End this process, because the lease of its run has ended."""
    os._exit(process_links.LEASE_ENDED)


def _run(call: Call, number: int) -> str | _Failed | None:
    """Run a handler in this process.

    :param number: Number that identifies the run in the service.
    :returns: For a command, the JSON text of its result. If the handler
        failed, its exception.
    """
    context = Context(
        call.job, call.object, call.tick, call.fence, call.attempt,
        call.deadline, _is_current,
        _finisher(call) if call.lease else None, json.loads(call.progress),
        call.step)
    timer = None
    if _link is not None:
        _link.begin(number, context, call.until)
    elif call.until != math.inf:
        timer = threading.Timer(
            max(0.0, call.until - SystemClock().monotonic()), _end)
        timer.daemon = True
        timer.start()
    result: str | _Failed | None
    try:
        returned = _tasks.handler(call.job)(context, *call.arguments)
        check_ended(call.job, returned)
        result = None if call.step is None else result_text(returned)
    except BaseException as exc:
        result = _Failed(type(exc).__name__, str(exc)[:10_000],
                         traceback.format_exc()[-20_000:], None)
    progress = context.take_unsaved() if _link is None else _link.end()
    if timer is not None:
        timer.cancel()
    if isinstance(result, _Failed):
        result = result._replace(progress=progress)
    return result


def _is_current() -> bool:
    return _link is None or _link.is_current()


def _finisher(call: Call) -> Callable[[str, Any, str | None], None]:
    def finish(key: str, session: Any, result: str | None) -> None:
        from distperiodic.adapters.sql.session import finish_in
        if not finish_in(session, namespace=_namespace, job=call.job,
                         key=key, lease=call.lease, result=result):
            raise exceptions.RunReplaced(
                f'the run of job {call.job!r} object {key!r} was given to '
                'another worker; roll back its changes')
    return finish
