# SPDX-License-Identifier: Apache-2.0
"""The service: a timer that runs the due tasks."""

import periodic
from oslo_service import service


class Service(service.Service):

    def __init__(self):
        super().__init__()
        self.tasks = periodic.PeriodicTasks()

    def start(self):
        super().start()
        # run_periodic_tasks() returns the seconds until the next task is due,
        # and the timer sleeps for this time.
        self.tg.add_dynamic_timer_args(
            self.tasks.run_periodic_tasks, kwargs={'context': None},
            initial_delay=1, periodic_interval_max=10)

    def stop(self, graceful=False):
        # Finish the tasks in progress before this process leaves the ring:
        # until then no other process pings the same hosts.
        super().stop(graceful=True)
        self.tasks.hr.stop()
