# SPDX-License-Identifier: Apache-2.0
"""Forks the processes of a service and replaces those that end.

oslo.service's own launcher has a process end at SIGHUP, finish what it runs,
and forks another one then: beside a handler that hangs that is a minute
without a member. And where the file has a mistake, all of them end for good.
Under this one a process reads its options again and goes on.
"""

import logging
import os
import signal
import sys
import threading
from typing import Any

import cotyledon
import setproctitle
from oslo_config import cfg
from oslo_service import opts as service_opts
from oslo_service.backend import base

from distperiodic.service import heap
from distperiodic.service import lifecycle

LOG = logging.getLogger(__name__)


class _Process(cotyledon.Service):
    """What a forked process does.

    :param worker_id: its number among those of its kind.
    """

    def __init__(self, worker_id: Any, service: base.ServiceBase):
        super().__init__(worker_id)
        self._service = service

    def run(self) -> None:
        try:
            self._service.start()
            if isinstance(self._service, lifecycle.Lifecycle):
                # cotyledon's names the class, and all are of one.
                setproctitle.setproctitle(self._service.title)
            self._service.wait()
        except Exception as exc:
            LOG.critical(
                'ended: service=%s error=%s: %s; another process takes its '
                'place', type(self._service).__name__, type(exc).__name__,
                exc)
            LOG.debug('ended', exc_info=True)
            sys.exit(1)

    def terminate(self) -> None:
        self._service.stop()

    def reload(self) -> None:
        self._service.reset()


def launch(conf: cfg.ConfigOpts, service: base.ServiceBase,
           workers: int = 1) -> None:
    """Run *service* in so many processes until SIGTERM or Ctrl-C; blocks.

    Both have the processes finish what they run, for
    ``graceful_shutdown_timeout`` seconds at most; a second Ctrl-C ends them at
    once. SIGHUP reads the mutable options again: each process calls
    ``service.reset()`` and goes on.

    Call it in the main thread. It makes this process the leader of a process
    group of its own.

    :param service: any service of oslo.service's. ``start()`` is called in
        each forked process.
    """
    service_opts.register_service_opts(conf)
    if conf.log_options:
        conf.log_opt_values(LOG, logging.DEBUG)
    _let_ctrl_c_end_it_cleanly()
    # The forked processes share what is here by now.
    heap.freeze()
    manager = cotyledon.ServiceManager(
        graceful_shutdown_timeout=conf.graceful_shutdown_timeout)
    # Processes that are forked later begin with what was read last.
    manager.register_hooks(on_reload=lambda: lifecycle.read_again(conf))
    # The name of the class is what ps shows.
    name = type(service).__name__
    manager.add(type(name, (_Process,), {'name': name}), workers,
                args=(service,))
    manager.run()


def _let_ctrl_c_end_it_cleanly() -> None:
    """Make SIGINT what SIGTERM is, and the second one an end at once.

    A terminal sends SIGINT to all processes at once, and the manager would
    have each end in the middle of its work. Blocked here, it is blocked in
    all processes that are forked from now on, and only this thread hears it.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})

    def listen() -> None:
        signal.sigwait({signal.SIGINT})
        LOG.info('ending: finishing what was begun; Ctrl-C again ends it at '
                 'once')
        os.kill(os.getpid(), signal.SIGTERM)
        signal.sigwait({signal.SIGINT})
        # The manager made us leader of our own group, if we were not.
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=listen, name='distperiodic-ctrl-c',
                     daemon=True).start()
