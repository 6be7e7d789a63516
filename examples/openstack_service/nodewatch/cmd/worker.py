# SPDX-License-Identifier: Apache-2.0
"""nodewatch-worker: runs what the conductors send.

Only needed with ``[distperiodic] dispatcher = messaging``.
"""

import sys

from distperiodic import service
from nodewatch import tasks
from nodewatch.conf import GROUP
from nodewatch.conf import load


def main():
    conf = load(sys.argv[1:])
    service.launch(conf, service.WorkerService(conf, tasks.NodeTasks(conf)),
                   workers=conf[GROUP].workers)


if __name__ == '__main__':
    main()
