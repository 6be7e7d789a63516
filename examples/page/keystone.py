# SPDX-License-Identifier: Apache-2.0
"""The page of a service of OpenStack, behind keystonemiddleware.

Serve ``application`` with any WSGI server. OS_SERVICE_CONFIG names the
configuration file, with the sections [keystone_authtoken] and [distperiodic].
"""

import os

from keystonemiddleware import auth_token
from oslo_config import cfg
from oslo_middleware import http_proxy_to_wsgi

from distperiodic import web

CONF = cfg.ConfigOpts()
CONF(['--config-file', os.environ['OS_SERVICE_CONFIG']], project='nodewatch')

# The first filter of a request is the last one here.
application = web.application(CONF)
application = auth_token.AuthProtocol(application, {
    'oslo_config_config': CONF, 'delay_auth_decision': False})
application = http_proxy_to_wsgi.HTTPProxyToWSGI(application, CONF)
