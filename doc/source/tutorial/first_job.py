# SPDX-License-Identifier: Apache-2.0
"""The first program of the tutorial, and the one in README.rst."""

import logging

from oslo_config import cfg

from distperiodic import Context
from distperiodic import PeriodicTasks
from distperiodic import SchedulerService
from distperiodic import periodic_task


class Tasks(PeriodicTasks):

    def hosts(self, context: Context) -> list[str]:
        return [f'192.168.10.{number}' for number in range(20)]

    @periodic_task(spacing=5, objects='hosts')
    def ping(self, context: Context, host: str) -> None:
        # One write per line: several hosts are pinged in parallel.
        print(f'{context.tick:%H:%M:%S} {host}\n', end='')


if __name__ == '__main__':
    cfg.CONF(default_config_files=['first_job.conf'])
    logging.basicConfig(level=logging.INFO)
    SchedulerService(cfg.CONF, Tasks(cfg.CONF)).run()
