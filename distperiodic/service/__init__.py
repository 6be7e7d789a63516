# SPDX-License-Identifier: Apache-2.0
"""The two services that an OpenStack-style service launches.

    service.launch(conf, SchedulerService(conf, tasks), workers=3)

Nothing connects before ``start()``, which runs in the process that does the
work, so any number of workers may be forked. The base class is the one that
all backends of oslo.service share: importing this package fixes no backend.

This is the only place that owns threads and that knows both the flow and the
adapters.
"""

from distperiodic.service.launcher import launch
from distperiodic.service.lifecycle import check
from distperiodic.service.lifecycle import worker_group
from distperiodic.service.scheduler import SchedulerService
from distperiodic.service.worker import WorkerService

__all__ = ['SchedulerService', 'WorkerService', 'check', 'launch',
           'worker_group']
