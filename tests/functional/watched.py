# SPDX-License-Identifier: Apache-2.0
"""The tasks of the group whose page the tests open in a browser.

``--tasks tests.functional.watched:Nodes``. Some objects have ids that a
browser could obey, and some fail.
"""

import threading

from distperiodic import PeriodicTasks
from distperiodic import periodic_task
from distperiodic import tasks

HOSTILE = ('<script>document.title="obeyed"</script>', 'a/b%2fc?d#e', '..',
           '\u202eevil', 'x' * 255, 'line\nfeed')
WORKFLOWS = {'create_instance': [
    {'normal': {'module': 'vm', 'command': 'reserve'},
     'rollback': {'module': 'vm', 'command': 'release'}},
    {'normal': {'module': 'vm', 'command': 'boot'}}]}


class Nodes(PeriodicTasks):

    def hosts(self, context):
        return [*(f'host-{n}' for n in range(20)), *HOSTILE]

    @periodic_task(spacing=2, objects='hosts')
    def ping_hosts(self, context, host):
        if host == 'host-7':
            raise OSError('no route to <host-7>')

    def racks(self, context):
        return ['rack-a', 'rack-b']

    @periodic_task(spacing=3600, objects='racks', run_immediately=True)
    def rebalance(self, context, rack):
        while not context.cancelled:
            threading.Event().wait(0.2)

    @periodic_task(cron='0 3 * * *', timezone='Europe/Berlin', scope='group')
    def nightly_report(self, context):
        pass

    @tasks.command('vm', 'reserve')
    def reserve(self, context, parameters):
        return {'Host': 'host-3'}

    @tasks.command('vm', 'boot')
    def boot(self, context, parameters):
        if parameters.get('Fail'):
            raise RuntimeError('no valid host was found')

    @tasks.command('vm', 'release')
    def release(self, context, parameters):
        raise RuntimeError('cannot release <host-3>')
