# SPDX-License-Identifier: Apache-2.0
"""nodewatch-conductor: decides what is due, and has it run."""

import sys

from distperiodic import exceptions
from distperiodic import service
from nodewatch import tasks
from nodewatch.conf import GROUP
from nodewatch.conf import load
from nodewatch.service import ConductorService


def main():
    conf = load(sys.argv[1:])
    node_tasks = tasks.NodeTasks(conf)
    try:
        service.check(conf, node_tasks)
    except exceptions.ConfigError as exc:
        sys.exit(f'nodewatch-conductor: {exc}')
    service.launch(conf, ConductorService(conf, node_tasks),
                   workers=conf[GROUP].conductors)


if __name__ == '__main__':
    main()
