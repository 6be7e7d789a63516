# SPDX-License-Identifier: Apache-2.0
"""The bus between the scheduler and the worker of one process."""

import logging
from collections.abc import Callable
from collections.abc import Container

from distperiodic import ports
from distperiodic.core import message

LOG = logging.getLogger(__name__)


class LocalBus:
    """A bus that passes batches directly to the worker of its own process.

    See :class:`distperiodic.ports.WorkBus`.

    :param accept: Passes a batch to the worker of this process.
    :param here: Names of the jobs that run in this process.
    :param remote: The bus for batches of all other jobs. None means that
        there are no other jobs.
    """

    def __init__(self, accept: Callable[[message.Batch], None],
                 here: Container[str],
                 remote: ports.WorkBus | None = None):
        self._accept = accept
        self._here = here
        self._remote = remote

    def send(self, batch: message.Batch) -> None:
        if self._remote is None or batch.job in self._here:
            self._accept(batch)
        else:
            self._remote.send(batch)
