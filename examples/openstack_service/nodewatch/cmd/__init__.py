# SPDX-License-Identifier: Apache-2.0
"""The commands. They run on threads.

The first import of oslo.messaging or of a part of oslo.service chooses the
backend for the whole process, and would choose eventlet; so the choice is
made here, before any command imports anything else.
"""

from oslo_service import backend

backend.init_backend(backend.BackendType.THREADING)
