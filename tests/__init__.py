# SPDX-License-Identifier: Apache-2.0
"""The tests. They run on threads, as distperiodic's services do.

oslo.service fixes its backend for the whole process when a module first needs
it. So this package chooses the backend before any test module is imported.
"""

from oslo_service import backend

backend.init_backend(backend.BackendType.THREADING)
