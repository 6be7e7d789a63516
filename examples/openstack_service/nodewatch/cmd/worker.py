# SPDX-License-Identifier: Apache-2.0
"""nodewatch-worker: runs what the conductors send.

Only needed with ``[distperiodic] dispatcher = messaging``.
"""

import sys

from oslo_service import service

from distperiodic.service import WorkerService
from nodewatch import conf as conf_
from nodewatch import tasks


def main():
    conf = conf_.load(sys.argv[1:])
    launcher = service.launch(
        conf, WorkerService(conf, tasks.NodeTasks(conf)),
        workers=conf[conf_.GROUP].workers, restart_method='mutate')
    return launcher.wait()


if __name__ == '__main__':
    sys.exit(main())
