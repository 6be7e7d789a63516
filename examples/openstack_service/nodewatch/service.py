# SPDX-License-Identifier: Apache-2.0
"""The work of the service other than its periodic tasks."""

from oslo_service import service


class ConductorService(service.Service):
    """A service of oslo.service that does not use distperiodic."""

    def start(self):
        super().start()
        # A real service starts its RPC server here.
