# SPDX-License-Identifier: Apache-2.0
"""A service under test, as a program of its own.

    python -m tests.functional.served scheduler|worker CONFIG RECORD WORKERS

Every run appends one line to RECORD: what ran, where and when. The lines are
the handlers' own side effect, so they tell what happened and not what the
library believes.
"""

import json
import logging
import os
import sys
import time

from oslo_service import backend

backend.init_backend(backend.BackendType.THREADING)

from oslo_config import cfg  # noqa: E402
from oslo_service import service  # noqa: E402

from distperiodic import periodic  # noqa: E402
from distperiodic.service import SchedulerService  # noqa: E402
from distperiodic.service import WorkerService  # noqa: E402

OPTS = [
    cfg.IntOpt('objects', default=60),
    cfg.FloatOpt('spacing', default=1.0),
    cfg.FloatOpt('takes', default=0.0, help='Seconds that a run takes.'),
    cfg.IntOpt('retries', default=0),
    cfg.StrOpt('misfire', default='latest'),
    cfg.StrOpt('overlap', default='skip'),
]


class Recorder:
    """Appends lines; one write each, so processes may share the file."""

    def __init__(self, path):
        self._handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def __call__(self, **line):
        line.update(pid=os.getpid(), at=time.time())
        os.write(self._handle, (json.dumps(line) + '\n').encode())


def make_tasks(conf, record):
    """The tasks; the options decide how often and how long they run."""

    class Tasks(periodic.PeriodicTasks):

        def hosts(self, context):
            return [f'192.168.10.{i}' for i in range(conf.objects)]

        @periodic.periodic_task(spacing=conf.spacing, objects='hosts',
                                retries=conf.retries,
                                misfire=conf.misfire, overlap=conf.overlap)
        def ping(self, context, host):
            record(event='start', job='ping', object=host,
                   tick=context.tick.timestamp(), fence=context.fence,
                   attempt=context.attempt)
            time.sleep(conf.takes)
            record(event='end', job='ping', object=host,
                   tick=context.tick.timestamp(), fence=context.fence)

        @periodic.periodic_task(spacing=conf.spacing, scope='group')
        def once(self, context):
            record(event='start', job='once', object='',
                   tick=context.tick.timestamp())

        @periodic.periodic_task(spacing=conf.spacing)
        def each(self, context):
            record(event='start', job='each', object='',
                   tick=context.tick.timestamp())

    return Tasks(conf)


def main(kind, config, path, workers):
    logging.basicConfig(
        level=logging.INFO,
        format='%(asctime)s %(process)d %(levelname)s %(name)s %(message)s')
    logging.getLogger('kazoo').setLevel(logging.ERROR)
    conf = cfg.ConfigOpts()
    conf.register_opts(OPTS)
    conf(['--config-file', config])
    tasks = make_tasks(conf, Recorder(path))
    made = {'scheduler': SchedulerService, 'worker': WorkerService}[kind]
    launcher = service.launch(conf, made(conf, tasks), workers=int(workers),
                              restart_method='mutate')
    return launcher.wait()


if __name__ == '__main__':
    sys.exit(main(*sys.argv[1:]))
