# SPDX-License-Identifier: Apache-2.0
"""Commands of a platform that provisions database instances.

Three kinds of parameters make a task fail, each kind in a different step. The
second and the third step fail after they have changed the platform, so that
their rollbacks have something to undo. Each run is recorded in a journal.
"""

import functools
import os
import pathlib
import time

from cloud import Cloud

from distperiodic import PeriodicTasks
from distperiodic import tasks


def recorded(command):
    """Write the start and the outcome of each run into the journal."""
    @functools.wraps(command)
    def run(self, context, parameters):
        self.record('begin', context)
        outcome = 'failed'
        try:
            result = command(self, context, parameters)
            outcome = 'done'
            return result
        finally:
            self.record(outcome, context)
    return run


class Modules(PeriodicTasks):

    def __init__(self, conf):
        super().__init__(conf)
        place = pathlib.Path(conf.distperiodic.state_path)
        self.cloud = Cloud(place / 'cloud.sqlite')
        self.journal = place / 'journal'

    @tasks.command('resource', 'check_resource')
    @recorded
    def check_resource(self, context, parameters):
        if parameters['Cpu'] > 32:
            raise RuntimeError(f'no host has {parameters["Cpu"]} CPUs')
        return {'Host': f'h{parameters["Name"][-1]}'}

    @tasks.command('mysql', 'init_instance')
    @recorded
    def init_instance(self, context, parameters):
        time.sleep(0.05)
        self.cloud.create_instance(parameters['Name'], parameters['Host'])
        if parameters['Memory'] < 2:
            raise RuntimeError(f'{parameters["Name"]} does not start with '
                               f'{parameters["Memory"]} GB of memory')
        return {'Port': 3306}

    @tasks.command('mysql', 'clean_instance')
    @recorded
    def clean_instance(self, context, parameters):
        self.cloud.delete_instance(parameters['Name'])

    @tasks.command('resource', 'deduct_resource')
    @recorded
    def deduct_resource(self, context, parameters):
        self.cloud.deduct(context.task, parameters['Storage'])
        time.sleep(0.02)
        if parameters['Storage'] > 1000:
            raise RuntimeError(f'{parameters["Host"]} has no room for '
                               f'{parameters["Storage"]} GB')

    @tasks.command('resource', 'restore_resource')
    @recorded
    def restore_resource(self, context, parameters):
        self.cloud.restore(context.task)

    @tasks.command('monitor', 'report_event')
    @recorded
    def report_event(self, context, parameters):
        self.cloud.report(context.key, f'{parameters["Name"]} was not created')

    def record(self, event, context):
        """Write one line into the journal, in one write."""
        command = 'rollback' if context.rollback else 'normal'
        journal = os.open(self.journal, os.O_WRONLY | os.O_APPEND)
        os.write(journal, f'{event} {os.getpgrp()} {context.task} '
                          f'{context.step} {command} {context.fence}\n'
                          .encode())
        os.close(journal)
