# SPDX-License-Identifier: Apache-2.0
"""The command line, and the choice of the backend of oslo.service.

oslo.service chooses eventlet as the backend when a component of oslo.service
that needs a backend is first loaded, and oslo.messaging loads such a
component. The hook below selects threads without loading a backend or
oslo.messaging, so ``distperiodic --help`` stays fast.
"""

import warnings

from oslo_service import backend

from distperiodic.adapters.coordination import eventlet_import

# The commands run on threads. Other libraries may still import eventlet.
eventlet_import.wanted = False
warnings.filterwarnings('ignore', r'\s*Eventlet is deprecated')

backend.register_backend_default_hook(lambda: backend.BackendType.THREADING)
