# SPDX-License-Identifier: Apache-2.0
"""The two services that an OpenStack-style service launches::

    service.launch(conf, SchedulerService(conf, tasks), workers=3)

A service keeps no connection open before ``start()``, which runs in the
process that does the work. So any number of processes may be forked before
that. Both services derive from the base class that all backends of
oslo.service share, so an import of this package does not select a backend.

This package runs :mod:`distperiodic.flow`, in one main thread per service.
Apart from the test kit, only this package imports both ``flow`` and
``adapters``.
"""

from distperiodic.core.member import worker_group
from distperiodic.service.checks import check
from distperiodic.service.launcher import launch
from distperiodic.service.scheduler import SchedulerService
from distperiodic.service.worker import WorkerService

__all__ = ['SchedulerService', 'WorkerService', 'check', 'launch',
           'worker_group']
