# SPDX-License-Identifier: Apache-2.0
"""Program that runs one service with two partitions.

    python -m tests.benchmarks.partitioned \
        scheduler|worker CONFIG [PARTITION]

The environment variables PARTITIONED_RECORD and PARTITIONED_FLAG name two
files. The job ``quick`` records in the first file the due time of each of its
runs, and the number of seconds from this time to the start of the run. The
second file contains the behaviour of the job ``bad``: the file is empty or
contains a key of :data:`BAD`, and may change at any time.
"""

import os
import pathlib
import sys
import time

from oslo_config import cfg
from oslo_service import backend

backend.init_backend(backend.BackendType.THREADING)

from distperiodic import periodic  # noqa: E402
from distperiodic.core import ring  # noqa: E402
from distperiodic.core import schedule  # noqa: E402
from distperiodic.service import SchedulerService  # noqa: E402
from distperiodic.service import WorkerService  # noqa: E402

QUICK = 100
#: Number of objects of the job ``bad``, by its behaviour. Slow and hanging
#: objects fill the threads of the partition, so that other objects wait. One
#: object is enough to end its process.
BAD = {'slow': 15, 'hang': 15, 'crash': 1}


class Tasks(periodic.PeriodicTasks):
    """The class of the tasks. The processes of a partition also call
    Tasks(conf).
    """

    def __init__(self, conf):
        super().__init__(conf)
        self.flag = pathlib.Path(os.environ['PARTITIONED_FLAG'])
        self.record = os.open(
            os.environ['PARTITIONED_RECORD'],
            os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def quick_ones(self, context):
        return [f'quick-{number}' for number in range(QUICK)]

    def bad_ones(self, context):
        return [f'bad-{number}' for number in range(
            BAD.get(self.flag.read_text(), 0))]

    @periodic.periodic_task(
        spacing=1, objects='quick_ones', spread=True, topic='quick')
    def quick(self, context, name):
        due = context.tick.timestamp() + schedule.phase_us(
            ring.position_of(name), schedule.SECOND) / schedule.SECOND
        os.write(self.record, b'%.6f %.6f\n' % (due, time.time() - due))

    @periodic.periodic_task(
        spacing=3, objects='bad_ones', spread=True, topic='bad')
    def bad(self, context, name):
        deed = self.flag.read_text()
        if deed == 'crash':
            os._exit(3)
        time.sleep(1.0 if deed == 'slow' else 0.0)
        while deed == 'hang' and self.flag.read_text() == deed:
            time.sleep(1.0)


def main(kind, config, partition='default'):
    conf = cfg.ConfigOpts()
    conf(['--config-file', config])
    tasks = Tasks(conf)
    service = (SchedulerService(conf, tasks) if kind == 'scheduler'
               else WorkerService(conf, tasks, partition))
    service.run()


if __name__ == '__main__':
    # Use the importable name of the module, for the processes of a partition.
    from tests.benchmarks import partitioned
    partitioned.main(*sys.argv[1:])
