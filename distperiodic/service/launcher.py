# SPDX-License-Identifier: Apache-2.0
"""Fork the processes of a service and replace those that end.

At SIGHUP oslo.service's own launcher ends a process, lets it finish its runs,
and only then forks another one. If a handler hangs, a member is missing for a
minute. If the configuration file has an error, every process ends for good.
With this launcher a process reads its options again and keeps running.
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
    """The program of a forked process.

    :param worker_id: Number of this process among those of its service.
    """

    def __init__(self, worker_id: Any, service: base.ServiceBase):
        super().__init__(worker_id)
        self._service = service

    def run(self) -> None:
        try:
            self._service.start()
            if isinstance(self._service, lifecycle.Lifecycle):
                # cotyledon's own title names the class, which all processes
                # share.
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
    """Run *service* in *workers* processes until SIGTERM or Ctrl-C; block.

    Either signal makes the processes finish their runs, for at most
    ``graceful_shutdown_timeout`` seconds. A second Ctrl-C ends them at once.
    SIGHUP reads the mutable options again: each process calls
    ``service.reset()`` and keeps running.

    Call this in the main thread. It makes this process the leader of its own
    process group.

    :param conf: Configuration of the service. The options of oslo.service are
        registered on it.
    :param service: Any service of oslo.service. Each forked process calls its
        ``start()``.
    :param workers: Number of processes.
    """
    service_opts.register_service_opts(conf)
    if conf.log_options:
        conf.log_opt_values(LOG, logging.DEBUG)
    _let_ctrl_c_end_it_cleanly()
    # The forked processes share the memory of these objects.
    heap.freeze()
    manager = cotyledon.ServiceManager(
        graceful_shutdown_timeout=conf.graceful_shutdown_timeout)
    # Processes that are forked later start with the options read last.
    manager.register_hooks(on_reload=lambda: lifecycle.read_again(conf))
    # ps shows the name of the class.
    name = type(service).__name__
    manager.add(type(name, (_Process,), {'name': name}), workers,
                args=(service,))
    manager.run()


def _let_ctrl_c_end_it_cleanly() -> None:
    """Treat SIGINT as SIGTERM, and a second SIGINT as SIGKILL.

    A terminal sends SIGINT to all processes at once, and the manager would end
    each of them in the middle of its work. SIGINT is blocked here and so in
    all processes that are forked later. Only the thread that this function
    starts receives it.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})

    def listen() -> None:
        signal.sigwait({signal.SIGINT})
        LOG.info('ending: finishing what was begun; Ctrl-C again ends it at '
                 'once')
        os.kill(os.getpid(), signal.SIGTERM)
        signal.sigwait({signal.SIGINT})
        # The manager has made this process the leader of its own group.
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=listen, name='distperiodic-ctrl-c',
                     daemon=True).start()
