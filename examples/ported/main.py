# SPDX-License-Identifier: Apache-2.0
"""Start one member: BACKEND_URL=zookeeper://HOST:2181 python main.py

Start it again, here or on another host, and the hosts are divided anew.
"""

import sys

from oslo_service import backend

# Before the first import that needs a backend, which would choose eventlet.
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
