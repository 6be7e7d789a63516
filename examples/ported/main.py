# SPDX-License-Identifier: Apache-2.0
"""Start one member: BACKEND_URL=zookeeper://HOST:2181 python main.py

If you start another member, here or on another host, the members divide the
hosts again.
"""

import sys

from oslo_service import backend

# Choose the backend before the first import that needs one. Otherwise that
# import would choose eventlet.
backend.init_backend(backend.BackendType.THREADING)

import service as ported  # noqa: E402
from oslo_config import cfg  # noqa: E402
from oslo_log import log  # noqa: E402
from oslo_service import service  # noqa: E402

CONF = cfg.CONF


def main():
    log.register_options(CONF)
    CONF(sys.argv[1:], project='ported')
    log.setup(CONF, 'ported')
    launcher = service.launch(CONF, ported.Service(), workers=1,
                              restart_method='mutate')
    return launcher.wait()


if __name__ == '__main__':
    sys.exit(main())
