# SPDX-License-Identifier: Apache-2.0
"""Program that runs one scheduler or worker of the cluster.

    python -m tests.chaos.member \
        scheduler|worker PARTITION CONFIG LEDGER POINTS CLOCK CARRIER

PARTITION is the partition of a worker. POINTS is the directory of the files
that arm failpoints. CLOCK is the file that sets the wall clock. CARRIER is the
class of the product that carries messages over the bus.
"""

import functools
import pathlib
import sys
import time

from oslo_config import cfg

from distperiodic import opts
from distperiodic.flow.worker.standby import Standby
from tests import wall_clock
from tests.chaos import failpoints
from tests.chaos import jobs
from tests.chaos.ledger import Ledger
from tests.functional import served


def main(kind, partition, config, ledger, place, clock, carrier):
    time_ns = wall_clock.follow(pathlib.Path(clock))
    time.time = lambda: time_ns() / 1e9
    served.log()
    conf = cfg.ConfigOpts()
    opts.register_opts(conf)
    conf(['--config-file', config])
    told = Ledger(ledger, conf.distperiodic.member_id)
    own = (failpoints.SCHEDULER if kind == 'scheduler'
           else failpoints.WORKER)
    failpoints.Points(place, told, carrier).install(own | failpoints.BOTH)
    tasks = jobs.make_tasks(conf, jobs.Hands(
        told, conf.distperiodic.connection))
    if kind == 'scheduler':
        return served.serve(kind, conf, tasks)
    _announce(told)
    return served.serve(kind, conf, tasks, partition=partition)


def _announce(ledger):
    """Make each process that takes part in an election record its name.

    The store knows the active worker by this name.
    """
    init = Standby.__init__

    @functools.wraps(init)
    def announce(self, partition, me, **options):
        init(self, partition, me, **options)
        ledger.tell('candidate', process=me.process)
    Standby.__init__ = announce


if __name__ == '__main__':
    sys.exit(main(*sys.argv[1:]))
