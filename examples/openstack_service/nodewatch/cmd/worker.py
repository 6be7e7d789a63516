# SPDX-License-Identifier: Apache-2.0
"""nodewatch-worker: runs what the conductors send.

Only needed with ``[distperiodic] dispatcher = messaging``.
"""

import sys

from distperiodic import service
from nodewatch import conf as conf_
from nodewatch import tasks


def main():
    conf = conf_.load(sys.argv[1:])
    service.launch(conf, service.WorkerService(conf, tasks.NodeTasks(conf)),
                   workers=conf[conf_.GROUP].workers)


if __name__ == '__main__':
    main()
