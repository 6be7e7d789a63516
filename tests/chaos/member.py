# SPDX-License-Identifier: Apache-2.0
"""Program that runs one scheduler or worker of the cluster.

    python -m tests.chaos.member \
        scheduler|worker CONFIG LEDGER POINTS CLOCK CARRIER

CARRIER is the class of the product that carries messages over the bus.
"""

import pathlib
import sys
import time

from oslo_config import cfg

from distperiodic import opts
from tests import wall_clock
from tests.chaos import failpoints
from tests.chaos import jobs
from tests.chaos.ledger import Ledger
from tests.functional import served


def main(kind, config, ledger, place, clock, carrier):
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
    return served.serve(kind, conf, tasks)


if __name__ == '__main__':
    sys.exit(main(*sys.argv[1:]))
