# SPDX-License-Identifier: Apache-2.0
"""The job of the demo: ping every host of a network, every two seconds."""

import threading
import zlib
from typing import Any

from distperiodic import ports
from distperiodic.core import schedule
from distperiodic.core.context import Context
from distperiodic.demo import record
from distperiodic.periodic import PeriodicTasks
from distperiodic.periodic import periodic_task

#: Seconds between two ticks.
PERIOD = 2.0


def hosts(number: int) -> list[str]:
    """Return the addresses of *number* hosts, from 192.168.10.0 on."""
    return [f'192.168.{10 + n // 256}.{n % 256}' for n in range(number)]


class Pings(PeriodicTasks):
    """Class with the job, whose pings only sleep, for 20 to 50 ms per host.

    :param number: Number of hosts.
    :param written: Writer that records each ping.
    """

    def __init__(self, conf: Any, number: int, written: record.Writer,
                 clock: ports.Clock):
        super().__init__(conf)
        self._hosts = hosts(number)
        self._written = written
        self._now = clock.now
        self._never = threading.Event()

    def list_hosts(self, context: Context) -> list[str]:
        return self._hosts

    # Run every tick of each host in order, even if the run is late.
    @periodic_task(spacing=PERIOD, objects='list_hosts', misfire='all',
                   overlap='wait')
    def ping(self, context: Context, host: str) -> None:
        started = self._now()
        self._never.wait(0.02 + zlib.crc32(host.encode()) % 31 / 1000)
        if not context.is_current():
            # This process was frozen during the ping, and another process has
            # taken over the run.
            return
        # Record the ping when it ends: a ping does not count if its process
        # died before that.
        self._written.add(host, schedule.instant_of(context.tick), started)
