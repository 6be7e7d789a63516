# SPDX-License-Identifier: Apache-2.0
"""nodewatch-conductor: runs due work, or sends it to workers."""

import sys

from distperiodic.service import SchedulerService
from distperiodic.service import launch
from nodewatch.conf import GROUP
from nodewatch.conf import load
from nodewatch.service import ConductorService
from nodewatch.tasks import NodeTasks


def main():
    conf = load(sys.argv[1:])
    launch(conf, ConductorService(), SchedulerService(conf, NodeTasks(conf)),
           workers=conf[GROUP].conductors)


if __name__ == '__main__':
    main()
