# SPDX-License-Identifier: Apache-2.0
"""The job of the demo, and one process that runs it.

    python -m distperiodic.demo.member KIND NAME DIRECTORY HOSTS PARENT

KIND is member or worker. The job pings every host of a network, every two
seconds. The record of a finished ping is a line of a file, which all processes
share: the host, the tick, the microseconds from the tick to the start, and the
process.

The process runs the same service as ``distperiodic scheduler`` or ``worker``,
but without a launcher, so that the demo kills or freezes the member itself. On
Linux, the process ends when its parent ends, even if the parent is killed.
"""

import contextlib
import ctypes
import logging
import os
import signal
import sys
import threading
from typing import Any

from oslo_config import cfg

from distperiodic import opts
from distperiodic import service
from distperiodic.adapters.local.clock import SystemClock
from distperiodic.core import schedule
from distperiodic.core.context import Context
from distperiodic.periodic import PeriodicTasks
from distperiodic.periodic import periodic_task

#: Seconds between two ticks.
PERIOD = 2.0
# Seconds for which a ping sleeps.
_DURATION = 0.03
_PR_SET_PDEATHSIG = 1  # <sys/prctl.h>


def hosts_of(number: int) -> list[str]:
    """Return the addresses of *number* hosts, from 192.168.10.0 on."""
    return [f'192.168.{10 + n // 256}.{n % 256}' for n in range(number)]


class Pings(PeriodicTasks):
    """Class with the job.

    :param hosts: The hosts to ping.
    :param records: Path of the file with the records.
    """

    def __init__(self, conf: Any, hosts: list[str], records: str):
        super().__init__(conf)
        self._hosts = hosts
        self._process = conf.distperiodic.member_id
        self._records = os.open(records, os.O_WRONLY | os.O_APPEND)
        self._now = SystemClock().now
        self._never = threading.Event()

    def list_hosts(self, context: Context) -> list[str]:
        return self._hosts

    # Run every tick of each host in order, even if the run is late.
    @periodic_task(spacing=PERIOD, objects='list_hosts', misfire='all',
                   overlap='wait')
    def ping(self, context: Context, host: str) -> None:
        started = self._now()
        self._never.wait(_DURATION)
        # If this process was frozen during the ping, another process has taken
        # over the run. Record the ping when it ends: a ping does not count if
        # its process died before that. One write appends the whole line.
        if context.is_current():
            tick = schedule.instant_of(context.tick)
            os.write(self._records, (
                f'{host} {tick} {started - tick} {self._process}\n').encode())


def main(kind: str, name: str, place: str, hosts: str, parent: str) -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):
        # The parent ended before the call above.
        sys.exit(1)
    # The demo shows the last line of the log if this process fails.
    logging.basicConfig(level=logging.ERROR, format='%(message)s')
    conf = cfg.ConfigOpts()
    conf(['--config-file', f'{place}/demo.conf'], use_env=False)
    opts.register_opts(conf)
    conf.set_override('member_id', name, group=opts.GROUP)
    tasks = Pings(conf, hosts_of(int(hosts)), f'{place}/records')
    (service.SchedulerService if kind == 'member' else service.WorkerService)(
        conf, tasks).run()


if __name__ == '__main__':
    main(*sys.argv[1:])
