# SPDX-License-Identifier: Apache-2.0
"""The service: a timer that runs whatever task is due."""

import periodic
from oslo_service import service


class Service(service.Service):

    def __init__(self):
        super().__init__()
        self.tasks = periodic.PeriodicTasks()

    def start(self):
        super().start()
        # The call returns the seconds until the next task is due, and the
        # timer sleeps for so long.
        self.tg.add_dynamic_timer_args(
            self.tasks.run_periodic_tasks, kwargs={'context': None},
            initial_delay=1, periodic_interval_max=10)

    def stop(self, graceful=False):
        # The hosts at hand are still ours; only then leave the ring.
        super().stop(graceful=True)
        self.tasks.hr.stop()
