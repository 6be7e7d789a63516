# SPDX-License-Identifier: Apache-2.0
"""The service: whatever else it does, it has a scheduler inside."""

from oslo_service import service

from distperiodic.service import SchedulerService


class ConductorService(service.Service):
    """Does the service's own work, and has its periodic jobs scheduled.

    :param tasks: an instance of NodeTasks.
    """

    def __init__(self, conf, tasks):
        super().__init__()
        # Connects in start(): __init__ runs in the master, which forks.
        self.scheduler = SchedulerService(conf, tasks)

    def start(self):
        super().start()
        # Here a real service starts its RPC server.
        self.scheduler.start()

    def stop(self, graceful=False):
        # First, while all that the handlers need is still there.
        self.scheduler.stop(graceful)
        super().stop(graceful)

    def wait(self):
        # Raises what ended the scheduler, so that the process ends too and
        # is started again.
        self.scheduler.wait()
        super().wait()

    def reset(self):
        self.scheduler.reset()
        super().reset()
