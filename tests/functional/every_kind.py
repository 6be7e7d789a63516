# SPDX-License-Identifier: Apache-2.0
"""A scheduler with a job of each kind, all due every minute.

Usage: ``python -m tests.functional.every_kind CONFIG RECORD``.
"""

import sys

from oslo_config import cfg

from distperiodic import periodic
from distperiodic.core import ring
from distperiodic.core import schedule
from tests.functional import served

SPACING = 60
JOBS = ('grid', 'spread', 'own', 'cron', 'group', 'immediate')


def early():
    """Return an object whose phase is in the first second of its period."""
    return next(key for key in map(str, range(999)) if schedule.phase_us(
        ring.position_of(key), SPACING * schedule.SECOND) < schedule.SECOND)


class Own:
    id = 'own'
    spacing = SPACING


def make_tasks(conf, record):
    def run(context):
        record(event='start', job=context.job, object=context.object,
               tick=context.tick.timestamp())

    class Tasks(periodic.PeriodicTasks):

        def one(self, context):
            return [early()]

        def owning(self, context):
            return [Own()]

        @periodic.periodic_task(spacing=SPACING, objects='one')
        def grid(self, context, key):
            run(context)

        @periodic.periodic_task(spacing=SPACING, objects='one', spread=True)
        def spread(self, context, key):
            run(context)

        @periodic.periodic_task(spacing=3600, objects='owning')
        def own(self, context, key):
            run(context)

        @periodic.periodic_task(cron='* * * * *', objects='one')
        def cron(self, context, key):
            run(context)

        @periodic.periodic_task(spacing=SPACING, scope='group')
        def group(self, context):
            run(context)

        @periodic.periodic_task(
            spacing=SPACING, objects='one', run_immediately=True)
        def immediate(self, context, key):
            run(context)

    return Tasks(conf)


def main(config, path):
    served.log()
    conf = cfg.ConfigOpts()
    conf(['--config-file', config])
    return served.serve(
        'scheduler', conf, make_tasks(conf, served.Recorder(path)))


if __name__ == '__main__':
    sys.exit(main(*sys.argv[1:]))
