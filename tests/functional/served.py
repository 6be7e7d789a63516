# SPDX-License-Identifier: Apache-2.0
"""Program that runs one service under test.

    python -m tests.functional.served \
        scheduler|worker CONFIG RECORD WORKERS [AHEAD]

AHEAD is a file of :mod:`tests.wall_clock`, which sets the wall clock of the
product. Every run appends lines to RECORD, with its job, object, process and
time. The handlers write these lines themselves. So the lines show what
happened, even if the library's state is wrong.
"""

import json
import logging
import os
import pathlib
import sys
import threading
import time

import sqlalchemy as sa
from oslo_config import cfg
from oslo_service import service

from distperiodic import periodic
from distperiodic.adapters.sql import database
from distperiodic.service import SchedulerService
from distperiodic.service import WorkerService
from tests import wall_clock
from tests.functional import effects

OPTS = [
    cfg.IntOpt('objects', default=60),
    cfg.FloatOpt('spacing', default=1.0),
    cfg.FloatOpt('takes', default=0.0, help='Seconds that a run takes.'),
    cfg.IntOpt('retries', default=0),
    cfg.IntOpt('max_in_flight'),
    cfg.ListOpt('twins', default=[], help='Other jobs that are like ping.'),
    cfg.StrOpt('misfire', default='latest'),
    cfg.StrOpt('overlap', default='skip'),
    cfg.FloatOpt('timeout'),
    cfg.DictOpt('behaves', default={},
                help='Behaviour of the handler by object; see make_tasks().'),
    cfg.StrOpt('effects', help='Database for the effects; see effects.py.'),
    cfg.StrOpt('keeps', help='Database in which a session is kept open.'),
    cfg.StrOpt('spans', help='File of the spans; see tests/spans.py.'),
]


def fail(context):
    raise RuntimeError(f'{context.object} always fails')


def shout(context):
    # Only the first error of each exception class is logged as a warning. So
    # raise a class that no other handler raises.
    raise ValueError('\0\ud800' + 5_000_000 * 'x')


def hoard(context):
    context.progress = 'x' * 100_000


def hang(context):
    threading.Event().wait()


def exit_(context):
    os._exit(3)


def leave(context):
    sys.exit('a handler may say so')


def say(context):
    context.progress = {'by': os.getpid(), 'of': context.object}


def return_junk(context):
    return Junk()


class Junk:
    """An object that cannot be printed, compared or read."""

    def __getattribute__(self, name):
        raise RuntimeError('junk')

    __repr__ = __str__ = __bool__ = __iter__ = __eq__ = __hash__ = (
        lambda self, *args: 1 / 0)


def keep(url, idle):
    """Return a handler that ends the run in a session that stays open for 25
    s.
    """
    def run(context):
        with database.make_engine(url, bounded=False).begin() as connection:
            context.finish(connection)
            for _ in range(50):
                time.sleep(0.5)
                if not idle:
                    connection.execute(sa.text('SELECT 1'))
    return run


BEHAVIOURS = {
    'well': lambda context: None, 'fail': fail, 'hang': hang, 'exit': exit_,
    'hoard': hoard, 'junk': return_junk, 'leave': leave, 'say': say,
    'shout': shout}


class Recorder:
    """Appends lines to a file. Each line is one write, so processes may share
    the file.
    """

    def __init__(self, path):
        self._handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def __call__(self, **line):
        line.update(pid=os.getpid(), at=time.time())
        os.write(self._handle, (json.dumps(line) + '\n').encode())


def make_tasks(conf, record):
    """Return the tasks. The options set the objects, the spacing and the
    duration of the runs.
    """

    ledger = effects.Ledger(conf.effects) if conf.effects else None
    behaviours = BEHAVIOURS | {
        'keep': keep(conf.keeps, idle=False),
        'keep-idle': keep(conf.keeps, idle=True)}

    class Tasks(periodic.PeriodicTasks):

        def hosts(self, context):
            return [f'192.168.10.{i}' for i in range(conf.objects)]

        @periodic.periodic_task(spacing=conf.spacing, objects='hosts',
                                retries=conf.retries, timeout=conf.timeout,
                                misfire=conf.misfire, overlap=conf.overlap,
                                max_in_flight=conf.max_in_flight)
        def ping(self, context, host):
            record(event='start', job='ping', object=host,
                   tick=context.tick.timestamp(), fence=context.fence,
                   attempt=context.attempt, progress=context.progress)
            answer = behaviours[conf.behaves.get(host, 'well')](context)
            time.sleep(conf.takes)
            told = ledger.write(context) if ledger else {}
            record(event='end', job='ping', object=host,
                   tick=context.tick.timestamp(), fence=context.fence,
                   attempt=context.attempt, **told)
            return answer

        @periodic.periodic_task(spacing=conf.spacing, scope='group')
        def once(self, context):
            record(event='start', job='once', object='',
                   tick=context.tick.timestamp())

        @periodic.periodic_task(spacing=conf.spacing)
        def each(self, context):
            record(event='start', job='each', object='',
                   tick=context.tick.timestamp())

    def twin(name):
        @periodic.periodic_task(
            name=name, spacing=conf.spacing, objects='hosts',
            misfire=conf.misfire, overlap=conf.overlap)
        def run(self, context, host):
            record(event='start', job=name, object=host,
                   tick=context.tick.timestamp(), fence=context.fence)
            time.sleep(conf.takes)
            record(event='end', job=name, object=host,
                   tick=context.tick.timestamp(), fence=context.fence)
        return run

    for name in conf.twins:
        setattr(Tasks, name, twin(name))
    return Tasks(conf)


def log():
    logging.basicConfig(
        level=logging.INFO,
        format='%(asctime)s %(process)d %(levelname)s %(name)s %(message)s')
    logging.getLogger('kazoo').setLevel(logging.ERROR)


def serve(kind, conf, tasks, workers=1, **options):
    """Run a service until it is stopped. Return the exit code.

    :param options: further arguments of the service.
    """
    made = {'scheduler': SchedulerService, 'worker': WorkerService}[kind]
    launcher = service.launch(conf, made(conf, tasks, **options),
                              workers=workers, restart_method='mutate')
    return launcher.wait()


def main(kind, config, path, workers, ahead=None):
    log()
    if ahead is not None:
        # The records use the clock of the host, so time.time() is not
        # replaced.
        wall_clock.follow(pathlib.Path(ahead))
    conf = cfg.ConfigOpts()
    conf.register_opts(OPTS)
    conf(['--config-file', config])
    if conf.spans:
        # Loads the SDK, which no other program needs.
        from tests import spans
        spans.write_to(conf.spans)
    tasks = make_tasks(conf, Recorder(path))
    return serve(kind, conf, tasks, int(workers))


if __name__ == '__main__':
    sys.exit(main(*sys.argv[1:]))
