# SPDX-License-Identifier: Apache-2.0
"""Fork the processes of a service, and replace processes that end.

At SIGHUP, oslo.service's own launcher stops each process, waits until the runs
of the process have ended, and only then forks a new process. If a handler
hangs, the group lacks a member for a minute. If the configuration file has an
error, every process ends for good. With the launcher in this module, a process
reads its options again at SIGHUP and keeps running.
"""

import contextlib
import logging
import os
import queue
import signal
import sys
import threading
from typing import Any

import cotyledon
import setproctitle
from oslo_config import cfg
from oslo_service import opts as service_opts
from oslo_service.backend import base

from distperiodic.service import checks
from distperiodic.service import heap
from distperiodic.service import lifecycle

LOG = logging.getLogger(__name__)


class _Process(cotyledon.Service):
    """The main program of a forked process.

    :param worker_id: Number of this process among the processes of its
        service.
    """

    def __init__(self, worker_id: Any, *services: base.ServiceBase):
        super().__init__(worker_id)
        self._services = services
        #: Each service that has ended, and the error that ended it. None means
        #: that the service was stopped.
        self._ends: queue.SimpleQueue[
            tuple[base.ServiceBase, Exception | None]] = queue.SimpleQueue()

    def run(self) -> None:
        for service in self._services:
            try:
                service.start()
            except Exception as exc:
                self._failed(service, exc)
            if isinstance(service, lifecycle.Lifecycle):
                # cotyledon's own title contains only the name of the class,
                # which all processes share.
                setproctitle.setproctitle(service.title)
        # An error of one service ends the process, so wait for all services at
        # the same time.
        for service in self._services:
            threading.Thread(target=self._wait, args=(service,), daemon=True,
                             name='distperiodic-wait').start()
        for _ in self._services:
            service, error = self._ends.get()
            if error is not None:
                self._failed(service, error)

    def _wait(self, service: base.ServiceBase) -> None:
        try:
            service.wait()
        except Exception as exc:
            self._ends.put((service, exc))
        else:
            self._ends.put((service, None))

    def _failed(self, service: base.ServiceBase, error: Exception) -> None:
        LOG.critical(
            'ended: service=%s error=%s: %s; another process replaces this '
            'one', type(service).__name__, type(error).__name__, error)
        LOG.debug('ended', exc_info=error)
        # The other services leave their groups, so that other members need not
        # wait until the sessions of these services have expired.
        for other in reversed(self._services):
            if other is not service:
                with contextlib.suppress(Exception):
                    other.stop()
        sys.exit(1)

    def terminate(self) -> None:
        for service in reversed(self._services):
            service.stop()

    def reload(self) -> None:
        for service in self._services:
            service.reset()


def launch(conf: cfg.ConfigOpts, *services: base.ServiceBase,
           workers: int = 1) -> None:
    """Run *services* in *workers* processes, until SIGTERM or Ctrl-C.

    Each process runs all of the services. It starts them in the given order
    and stops them in the reverse order. ``start()`` of a service must return,
    and ``wait()`` may block until the service has stopped. If one of these
    methods raises an error, the process ends, and a new process replaces it.

    SIGTERM and Ctrl-C make the processes finish their runs, for at most
    ``graceful_shutdown_timeout`` seconds. A second Ctrl-C ends them at once.
    SIGHUP makes each process read the mutable options again: the process calls
    ``reset()`` of its services and keeps running.

    Call this function in the main thread. It makes this process the leader of
    its own process group.

    :param conf: Configuration of the service. The options of oslo.service are
        registered on it.
    :param services: Any services of oslo.service: your own services, and
        services of distperiodic. Services of distperiodic are checked before
        the fork, as by :func:`distperiodic.service.check`.
    :param workers: Number of processes.
    :raises SystemExit: An option, a URL, a job or the tables of one of
        distperiodic's services cannot be used. The text is one line.
    :raises TypeError: *services* is empty, or contains an object that is not a
        service.
    :raises RuntimeError: This is not the main thread.
    """
    checks.check_main_thread(
        'launch()', 'start, stop and wait for the services one by one')
    for service in services or (None,):
        if not isinstance(service, base.ServiceBase):
            raise TypeError(
                f'launch() runs services, and {service!r} is not a service; '
                'give the number of processes as workers=N')
    for service in services:
        if isinstance(service, lifecycle.Lifecycle):
            service.exit_if_unusable(workers)
    service_opts.register_service_opts(conf)
    if conf.log_options:
        conf.log_opt_values(LOG, logging.DEBUG)
    _handle_ctrl_c()
    # The forked processes share the memory of these objects.
    heap.freeze()
    manager = cotyledon.ServiceManager(
        graceful_shutdown_timeout=conf.graceful_shutdown_timeout)
    # Processes that are forked later start with the options that were last
    # read.
    manager.register_hooks(on_reload=lambda: lifecycle.read_again(conf))
    # Name the class of the processes after the service, because ps shows the
    # name of the class.
    name = type(services[0]).__name__
    manager.add(type(name, (_Process,), {'name': name}), workers,
                args=services)
    manager.run()


def _handle_ctrl_c() -> None:
    """Treat SIGINT as SIGTERM, and a second SIGINT as SIGKILL.

    A terminal sends SIGINT to all processes at the same time, and the manager
    would end each of them in the middle of its work. So this function blocks
    SIGINT. All processes that are forked later inherit this. Only the thread
    that this function starts receives SIGINT.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})

    def listen() -> None:
        signal.sigwait({signal.SIGINT})
        LOG.info('ending: finishing what was begun; Ctrl-C again ends the '
                 'process at once')
        os.kill(os.getpid(), signal.SIGTERM)
        signal.sigwait({signal.SIGINT})
        # The manager has made this process the leader of its own group.
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=listen, name='distperiodic-ctrl-c',
                     daemon=True).start()
