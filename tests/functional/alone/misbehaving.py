# SPDX-License-Identifier: Apache-2.0
"""Commands that harm the process in which they run.

Handler processes import this module, so it imports little: not even the
package ``tests``, which takes seconds.
"""

import math
import os
import signal
import subprocess
import sys
import time

from distperiodic import PeriodicTasks
from distperiodic import tasks
from distperiodic.adapters.local.process_links import Call
from distperiodic.core.context import Context
from distperiodic.core.context import RunInput
from distperiodic.core.workflow import StepInput


class Unpleasant(Exception):

    def __str__(self):
        raise RuntimeError('no text')

    __repr__ = __reduce__ = __str__


class Modules(PeriodicTasks):
    """Commands whose parameters say how they behave."""

    def __init__(self, conf):
        super().__init__(conf)
        if os.environ.get('TEST_HANDLERS_FAIL'):
            raise RuntimeError('the tasks cannot be built')

    @tasks.command('m', 'run')
    def run(self, context, parameters):
        how = parameters.get('how')
        if parameters.get('told'):
            with open(parameters['told'], 'a') as file:
                file.write(f'{os.getpid()}\n')
        if how is not None:
            getattr(self, f'_{how}')(context, parameters)
        return {'pid': os.getpid()}

    def _sleep(self, context, parameters):
        time.sleep(parameters['seconds'])

    def _trace(self, context, parameters):
        from opentelemetry import trace
        found = trace.get_current_span().get_span_context()
        with open(parameters['trace'], 'w') as file:
            file.write(f'0x{found.trace_id:032x} 0x{found.span_id:016x}')

    def _exit(self, context, parameters):
        os._exit(3)

    def _crash(self, context, parameters):
        os.kill(os.getpid(), signal.SIGSEGV)

    def _stop(self, context, parameters):
        os.kill(os.getpid(), signal.SIGSTOP)

    def _close(self, context, parameters):
        os.closerange(3, 200)
        time.sleep(60)

    def _reopen(self, context, parameters):
        os.closerange(3, 200)
        for _ in range(50):
            os.open(parameters['file'], os.O_RDWR)

    def _leave(self, context, parameters):
        raise SystemExit(7)

    def _interrupt(self, context, parameters):
        raise KeyboardInterrupt

    def _unpleasant(self, context, parameters):
        raise Unpleasant

    def _strange(self, context, parameters):
        raise type('a b', (BaseException,), {})('\ud800')

    def _start(self, context, parameters):
        """Start a program, and hang."""
        subprocess.Popen([sys.executable, '-c', (
            'import os, time\n'
            f'open({parameters["told"]!r}, "a").write(f"{{os.getpid()}}\\n")\n'
            'time.sleep(60)')])
        time.sleep(60)

    def _fork(self, context, parameters):
        """Fork a child that keeps the link, and end."""
        if os.fork() == 0:
            with open(parameters['told'], 'a') as file:
                file.write(f'{os.getpid()}\n')
            time.sleep(60)
        os._exit(4)

    def _fork_and_return(self, context, parameters):
        if os.fork() == 0 and parameters.get('raises'):
            raise SystemExit(0)

    def _cancelled(self, context, parameters):
        while not context.cancelled:
            time.sleep(0.01)

    def _fork_and_wait(self, context, parameters):
        child = os.fork()
        if child:
            _, status = os.waitpid(child, 0)
            raise RuntimeError(f'status {os.waitstatus_to_exitcode(status)}')


def run(processes, timeout=30.0, until=math.inf, context=None, **parameters):
    """Run the command. Return its result, which contains the pid, as JSON."""
    made = RunInput('task:m.run', 't', 0, 1, 1,
                    step=StepInput('t', 0, False, 30.0, parameters))
    return processes.run(
        Call(made, 'null', '', until, (parameters,)),
        context or Context(made), timeout, lambda: until)
