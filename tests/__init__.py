# SPDX-License-Identifier: Apache-2.0
"""The tests. They run on threads, as services do since eventlet's end.

oslo.service fixes its backend for the whole process at the first import
that needs one, so the choice stands here, ahead of every test module.
"""

from oslo_service import backend

backend.init_backend(backend.BackendType.THREADING)
