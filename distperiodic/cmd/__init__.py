# SPDX-License-Identifier: Apache-2.0
"""The command line, and the one decision that must come before all others.

oslo.service falls back to eventlet when the first of its modules is loaded,
and oslo.messaging loads one. The hook below says otherwise without loading
either, so that ``distperiodic --help`` stays quick.
"""

import warnings

from oslo_service import backend

# futurist imports eventlet where it is installed; nothing here uses it.
warnings.filterwarnings('ignore', r'\s*Eventlet is deprecated')

backend.register_backend_default_hook(lambda: backend.BackendType.THREADING)
