# SPDX-License-Identifier: Apache-2.0
"""The service's own work, beside the periodic tasks."""

from oslo_service import service


class ConductorService(service.Service):
    """A service of oslo.service that knows nothing of distperiodic."""

    def start(self):
        super().start()
        # Here a real service starts its RPC server.
