# SPDX-License-Identifier: Apache-2.0
"""The commands, which run on threads.

The first import of oslo.messaging, or of a name from oslo_service.service,
chooses the backend for the whole process. The default choice is eventlet, so
this package chooses threads before a command imports anything else.
"""

import warnings

from oslo_service import backend

# A library that oslo.service uses imports eventlet if it is installed.
warnings.filterwarnings('ignore', r'\s*Eventlet is deprecated')
backend.init_backend(backend.BackendType.THREADING)
