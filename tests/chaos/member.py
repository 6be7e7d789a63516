# SPDX-License-Identifier: Apache-2.0
"""A scheduler or a worker of the cluster, as a program of its own.

    python -m tests.chaos.member scheduler|worker CONFIG LEDGER POINTS CLOCK
"""

import logging
import pathlib
import sys
import time

from oslo_service import backend

backend.init_backend(backend.BackendType.THREADING)

from oslo_config import cfg  # noqa: E402
from oslo_service import service  # noqa: E402

from distperiodic import opts  # noqa: E402
from distperiodic.service import SchedulerService  # noqa: E402
from distperiodic.service import WorkerService  # noqa: E402
from tests.chaos import failpoints  # noqa: E402
from tests.chaos import jobs  # noqa: E402
from tests.chaos.ledger import Ledger  # noqa: E402

# How long a process may not know that its clock is wrong, in seconds.
_NEXT_LOOK = 0.1


def falsify(path):
    """Have the wall clock of this process go wrong by what stands in a file.

    It does what libfaketime would do, which in its version 0.9.10 breaks
    Python's time.sleep(). The monotonic clocks stay as they are.
    """
    file = pathlib.Path(path)
    true_time, monotonic = time.time_ns, time.monotonic
    looked, wrong = -_NEXT_LOOK, 0

    def time_ns():
        nonlocal looked, wrong
        now = monotonic()
        if now - looked >= _NEXT_LOOK:
            looked, wrong = now, round(float(file.read_text()) * 1e9)
        return true_time() + wrong
    time.time_ns = time_ns
    time.time = lambda: time_ns() / 1e9


def main(kind, config, ledger, place, clock):
    falsify(clock)
    logging.basicConfig(
        level=logging.INFO,
        format='%(asctime)s %(process)d %(levelname)s %(name)s %(message)s')
    logging.getLogger('kazoo').setLevel(logging.ERROR)
    conf = cfg.ConfigOpts()
    opts.register_opts(conf)
    conf(['--config-file', config])
    told = Ledger(ledger, conf.distperiodic.member_id)
    own = (failpoints.SCHEDULER if kind == 'scheduler'
           else failpoints.WORKER)
    failpoints.Points(place, told).install(own | failpoints.BOTH)
    tasks = jobs.make_tasks(conf, jobs.Hands(
        told, conf.distperiodic.connection))
    made = {'scheduler': SchedulerService, 'worker': WorkerService}[kind]
    launcher = service.launch(conf, made(conf, tasks), workers=1,
                              restart_method='mutate')
    return launcher.wait()


if __name__ == '__main__':
    sys.exit(main(*sys.argv[1:]))
