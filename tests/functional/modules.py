# SPDX-License-Identifier: Apache-2.0
"""Commands under test, for ``--tasks tests.functional.modules:Modules``.

Each run appends lines to the file that ``RECORD`` names. The handlers write
these lines themselves. So the lines show what happened, even if the library's
state is wrong. The parameter ``behaves`` maps a step to a behaviour: ``'1'``
is the second step, and ``'1r'`` is its rollback. Any other step returns the
result ``done-INDEX``.
"""

import os
import pathlib
import signal
import threading
import time

from distperiodic import PeriodicTasks
from distperiodic import tasks
from tests.functional import effects
from tests.functional.served import Recorder


def _fail(context, parameters):
    raise RuntimeError(f'step {context.step} fails')


def _fail_once(context, parameters):
    if context.attempt == 1:
        raise RuntimeError('the first attempt fails')


def _hang(context, parameters):
    threading.Event().wait()


def _exit(context, parameters):
    os._exit(3)


def _exit_once(context, parameters):
    if context.attempt == 1:
        os._exit(3)


def _junk(context, parameters):
    return ['not', 'a', 'dictionary']


def _unserialisable(context, parameters):
    return {'at': object()}


def _hoard(context, parameters):
    return {'data': 'x' * 1_000_001}


def _until(context, parameters):
    """Run until the file that *parameters* name exists."""
    while not pathlib.Path(parameters['gate']).exists():
        time.sleep(0.01)


def _until_of_attempt(context, parameters):
    """Run until the file of this attempt exists. Record repeatedly that the
    attempt still runs.
    """
    gate = pathlib.Path(f'{parameters["gate"]}-{context.attempt}')
    beat = gate.with_name(f'{gate.name}.beat')
    while not gate.exists():
        beat.touch()
        time.sleep(0.01)
    return {'attempt': context.attempt}


def _until_cancelled(context, parameters):
    """Run until the handler learns that its task was cancelled."""
    while not context.cancelled:
        time.sleep(0.01)


def _late(context, parameters):
    """In the first attempt, continue for some seconds after the timeout."""
    if context.attempt == 1:
        time.sleep(parameters['late'])
        return {'late': True}
    return {'attempt': context.attempt}


def _continue(context, parameters):
    if context.attempt == 1:
        context.progress = {'half': True}
        raise RuntimeError('half of it is done')
    return {'progress': context.progress}


def _continue_after_timeout(context, parameters):
    if context.attempt == 1:
        context.progress = {'half': True}
        threading.Event().wait()
    return {'progress': context.progress}


def _watch(context, parameters):
    """Record when the run is no longer current, and then hang."""
    gate = pathlib.Path(parameters['gate'])
    if context.attempt == 1:
        while context.is_current():
            time.sleep(0.05)
        gate.with_suffix('.silent').touch()
        threading.Event().wait()


def _tick(context, parameters):
    """Record repeatedly that the first attempt still runs."""
    while context.attempt == 1:
        pathlib.Path(parameters['gate']).touch()
        time.sleep(0.02)


def _finish(context, parameters):
    """Write an effect and end the run in one transaction.

    The first attempt is killed before or after the commit, if *parameters*
    require this.
    """
    dies = parameters.get('dies') if context.attempt == 1 else None

    def die_before(moment):
        if dies == moment:
            os.kill(os.getpid(), signal.SIGKILL)
    ledger = effects.Ledger(parameters['effects'])
    ledger.finish(context, {'fence': context.fence},
                  lambda: die_before('commit'))
    die_before('end')
    ledger.close()


BEHAVIOURS = {
    'finish': _finish,
    'continue_after_timeout': _continue_after_timeout, 'watch': _watch,
    'tick': _tick,
    'continue': _continue,
    'fail': _fail, 'fail_once': _fail_once, 'hang': _hang, 'exit': _exit,
    'exit_once': _exit_once, 'junk': _junk, 'late': _late,
    'unserialisable': _unserialisable, 'hoard': _hoard, 'until': _until,
    'until_of_attempt': _until_of_attempt,
    'until_cancelled': _until_cancelled}


class Modules(PeriodicTasks):

    def __init__(self, conf=None):
        super().__init__(conf)
        self._record = Recorder(os.environ['RECORD'])

    def _run(self, context, parameters):
        told = {'task': context.task, 'step': context.step,
                'back': context.rollback, 'fence': context.fence,
                'key': context.key, 'attempt': context.attempt}
        self._record(event='start', **told)
        name = f'{context.step}{"r" if context.rollback else ""}'
        found = None
        try:
            time.sleep(parameters.get('takes', 0))
            behaviour = parameters.get('behaves', {}).get(name)
            if behaviour is None:
                found = {f'done-{name}': True}
            else:
                found = BEHAVIOURS[behaviour](context, parameters)
        finally:
            self._record(event='end', **told)
        return found

    @tasks.command('a', 'run')
    def run_a(self, context, parameters):
        return self._run(context, parameters)

    @tasks.command('b', 'run')
    def run_b(self, context, parameters):
        return self._run(context, parameters)


def step(module, rollback=True, **options):
    """Return a step of a workflow."""
    found = {'normal': {'module': module, 'command': 'run', **options}}
    if rollback:
        found['rollback'] = {'module': module, 'command': 'run'}
    return found


#: Workflows by type.
WORKFLOWS = {
    'five': [step('a'), step('b'), step('a'), step('b'), step('a')],
    'three': [step('a'), step('b', retry=1), step('a', rollback=False)],
    'once': [step('a'), step('a', delivery='at_most_once')],
    'short': [step('a'), step('b', timeout=0.5)],
    'hasty': [step('b', timeout=0.5, retry=1)],
    'patient': [step('b', timeout=30, rollback=False)],
    'endless': [step('b', rollback=False)],
    'repeated': [step('b', timeout=4, retry=1, rollback=False)],
    'killed': [step('a'), step('b', timeout=2, rollback=False)],
    'single': [step('a', rollback=False)],
    'pair': [step('a'), step('a')],
    'forth': [step('a'), step('a'), step('b')],
    'other': [step('b', rollback=False)],
}
