# SPDX-License-Identifier: Apache-2.0
"""Commands that do nothing, or record when they were entered."""

import os
import time

from distperiodic import PeriodicTasks
from distperiodic import tasks


def tell(path, n):
    """Record in the file *path* that run *n* is entered now."""
    entered = time.time()
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, f'{n} {entered}\n'.encode())
    os.close(handle)


class Commands(PeriodicTasks):

    @tasks.command('bench', 'nothing')
    def nothing(self, context, parameters):
        return None

    @tasks.command('bench', 'tell')
    def tell(self, context, parameters):
        tell(parameters['path'], parameters['n'])
        time.sleep(parameters.get('takes', 0.0))


NOTHING = {'normal': {'module': 'bench', 'command': 'nothing'}}
WORKFLOWS = {'three': [NOTHING] * 3, 'one': [NOTHING]}
