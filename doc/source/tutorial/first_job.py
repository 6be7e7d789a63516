# SPDX-License-Identifier: Apache-2.0
"""The first program of the tutorial, and the one in README.rst."""

from oslo_config import cfg

from distperiodic import PeriodicTasks
from distperiodic import periodic_task
from distperiodic.service import SchedulerService


class Tasks(PeriodicTasks):

    def hosts(self, context):
        return [f'192.168.10.{number}' for number in range(20)]

    @periodic_task(spacing=5, objects='hosts')
    def ping(self, context, host):
        # In one piece: many hosts have their turn at a time.
        print(f'{context.tick:%H:%M:%S} {host}\n', end='')


if __name__ == '__main__':
    cfg.CONF()
    scheduler = SchedulerService(cfg.CONF, Tasks(cfg.CONF))
    scheduler.start()
    scheduler.wait()
