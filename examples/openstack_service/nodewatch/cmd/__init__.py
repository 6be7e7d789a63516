# SPDX-License-Identifier: Apache-2.0
"""The commands, which run on threads.

The first import of oslo.messaging, or of a name from oslo_service.service,
chooses the backend for the whole process. The default choice is eventlet, so
this package chooses threads before a command imports anything else.
"""

from oslo_service import backend

backend.init_backend(backend.BackendType.THREADING)
