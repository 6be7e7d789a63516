# SPDX-License-Identifier: Apache-2.0
"""The tests. They run on threads, as distperiodic's services do.

The first module that needs a backend of oslo.service fixes this backend for
the whole process. So this package chooses the backend before any test module
is imported.
"""

from oslo_service import backend

backend.init_backend(backend.BackendType.THREADING)
