# SPDX-License-Identifier: Apache-2.0
"""Commands of a platform that provisions database instances.

A command creates or deletes a file in a directory, so that its effect is easy
to see.
"""

import pathlib
import time

from distperiodic import PeriodicTasks
from distperiodic import tasks


class Modules(PeriodicTasks):

    def __init__(self, conf):
        super().__init__(conf)
        self.hosts = pathlib.Path(conf.distperiodic.state_path) / 'hosts'
        self.hosts.mkdir(exist_ok=True)

    @tasks.command('resource', 'check_resource')
    def check_resource(self, context, parameters):
        return {'Host': f'h{parameters["Name"][-1]}'}

    @tasks.command('mysql', 'init_instance')
    def init_instance(self, context, parameters):
        time.sleep(0.05)
        if parameters['Storage'] > 1000:
            raise RuntimeError(f'{parameters["Host"]} has no room for '
                               f'{parameters["Storage"]} GB')
        # This step is idempotent: a second run changes nothing.
        (self.hosts / parameters['Name']).write_text(parameters['Host'])
        return {'Port': 3306}

    @tasks.command('mysql', 'clean_instance')
    def clean_instance(self, context, parameters):
        (self.hosts / parameters['Name']).unlink(missing_ok=True)

    @tasks.command('resource', 'deduct_resource')
    def deduct_resource(self, context, parameters):
        time.sleep(0.02)

    @tasks.command('resource', 'restore_resource')
    def restore_resource(self, context, parameters):
        pass

    @tasks.command('monitor', 'report_event')
    def report_event(self, context, parameters):
        pass
