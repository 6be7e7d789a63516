# SPDX-License-Identifier: Apache-2.0
"""The page of a service behind the log-in of a web server.

Serve ``application`` with mod_wsgi or uWSGI. OS_SERVICE_CONFIG names the
configuration file, in which web_identity is remote_user.
"""

import os

from oslo_config import cfg
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from werkzeug.wrappers import Response

from distperiodic import web

CONF = cfg.ConfigOpts()
CONF(['--config-file', os.environ['OS_SERVICE_CONFIG']], project='nodewatch')

application = DispatcherMiddleware(
    Response('nodewatch\n'), {'/periodic': web.application(CONF)})
