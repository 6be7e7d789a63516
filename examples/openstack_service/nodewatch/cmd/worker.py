# SPDX-License-Identifier: Apache-2.0
"""nodewatch-worker: runs the work that the conductors send.

This command is needed only with ``[distperiodic] dispatcher = messaging``.
"""

import sys

from distperiodic.service import WorkerService
from distperiodic.service import launch
from nodewatch.conf import GROUP
from nodewatch.conf import load
from nodewatch.tasks import NodeTasks


def main():
    conf = load(sys.argv[1:])
    launch(conf, WorkerService(conf, NodeTasks(conf)),
           workers=conf[GROUP].workers)


if __name__ == '__main__':
    main()
