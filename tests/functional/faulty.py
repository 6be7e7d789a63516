# SPDX-License-Identifier: Apache-2.0
"""A group of real processes, with faults that files inject."""

import contextlib
import json
import time
import uuid

import psutil
from oslo_config import cfg

import distperiodic.tasks
from tests import programs
from tests import waiting
from tests.functional import commands

TASKS = '''
import pathlib
import time

from distperiodic import PeriodicTasks
from distperiodic import periodic_task
from distperiodic import tasks

FAULTS = pathlib.Path(__file__).parent / 'faults'


def injected(name):
    return (FAULTS / name).exists()


def wait_while(name):
    while injected(name):
        time.sleep(0.05)


class Service(PeriodicTasks):
    """Each job has its own fault."""

    def one(self, context):
        return ['h1']

    def two(self, context):
        return ['h1', 'h2']

    def six(self, context):
        return [f'h{number}' for number in range(6)]

    def raising(self, context):
        if injected('raising'):
            raise RuntimeError('no connection to the inventory')
        return ['h1']

    def hanging(self, context):
        wait_while('hanging')
        return ['h1']

    @periodic_task(spacing=1, objects='raising')
    def reads_badly(self, context, key):
        pass

    @periodic_task(spacing=1, objects='hanging')
    def reads_slowly(self, context, key):
        pass

    @periodic_task(spacing=1, objects='two')
    def fails(self, context, key):
        if key == 'h2' and injected('failing'):
            raise RuntimeError('it is ill')

    @periodic_task(spacing=1, objects='two')
    def stays(self, context, key):
        if key == 'h2':
            wait_while('staying')

    @periodic_task(spacing=1, objects='two', timeout=0.5)
    def ignores_its_timeout(self, context, key):
        if key == 'h2':
            wait_while('staying')

    @periodic_task(spacing=1, objects='six', topic='narrow')
    def fills(self, context, key):
        if injected('full'):
            time.sleep(0.7)

    @tasks.command('default', 'step')
    def step(self, context, parameters):
        if injected('failing'):
            raise RuntimeError('no room')
'''
WORKFLOWS = {'undone': [{
    half: {'module': 'default', 'command': 'step', 'timeout': 10, 'retry': 0}
    for half in ('normal', 'rollback')}]}
SESSION = 3.0
#: Time in which a fault must be found (G13).
IN_TIME = SESSION + 10.0


class Group:
    """The processes of one group.

    :param tasks: Text of the module with the class ``Service``.
    :param options: Options of the section [distperiodic], and the
        ``transport_url``.
    """

    def __init__(self, place, tasks=TASKS, **options):
        self.place = place
        self.faults = place / 'faults'
        self.faults.mkdir()
        (place / 'ill.py').write_text(tasks)
        (place / 'workflows.json').write_text(json.dumps(WORKFLOWS))
        self.name = f'health-{uuid.uuid4().hex[:8]}'
        transport_url = options.pop('transport_url')
        self.config = programs.write_config(
            place / 'service.conf', DEFAULT={'transport_url': transport_url},
            distperiodic={
                'group': self.name,
                'session_timeout': SESSION, 'dispatcher': 'messaging',
                'workflows': place / 'workflows.json',
                'state_path': place / 'state', **options},
            **{'partition:narrow': {'pool_size': 1}})
        self.programs = []
        self._clients = contextlib.ExitStack()

    def client(self):
        """Return a client of tasks, which is closed with the group."""
        conf = cfg.ConfigOpts()
        conf(['--config-file', str(self.config)])
        return self._clients.enter_context(
            contextlib.closing(distperiodic.tasks.Client(conf)))

    def start(self, kind, *more, config=None, **environment):
        return self.run(kind, '--tasks', 'ill:Service', *more, config=config,
                        **environment)

    def run(self, *argv, config=None, **environment):
        """Run a command until it is stopped, or until the group is closed.

        :param config: File with its options. None means that of the group.
        """
        program = commands.Running(
            self.place / f'{argv[0]}-{len(self.programs)}.log', *argv,
            '--config-file', config or self.config, cwd=self.place,
            **environment)
        self.programs.append(program)
        return program

    def ask(self, *argv):
        return commands.run(*argv, '--config-file', self.config,
                            cwd=self.place)

    def found(self):
        """Return the findings, by code and what they are about."""
        self.told = self.ask('status', '-f', 'json')
        rows = json.loads(self.told.stdout)
        return {(row['code'], row['about']): row for row in rows
                if row['role'] == 'finding'}

    def members(self):
        """Return the number of members in the last answer."""
        return sum(row['role'] in ('member', 'worker')
                   for row in json.loads(self.told.stdout))

    def wait_well(self, seconds=60):
        try:
            waiting.wait_until(
                lambda: self.found() == {} and self.told.returncode == 0,
                seconds, 'the group was not well')
        finally:
            print(self.told.stdout)

    def wait_ill(self, *expected):
        """Wait until all of these are found.

        Fail if a command that begins after IN_TIME does not find them. A
        command that began earlier may answer later on a busy machine.
        """
        began = time.monotonic()
        ill = {}

        def all_found():
            ill.update(self.found())
            return not set(expected) - ill.keys() and (
                self.told.returncode == 2)
        try:
            waiting.wait_until(all_found, IN_TIME, 'a fault was not found')
        finally:
            print(f'{time.monotonic() - began:.1f} s', self.told.stdout)
        return ill

    def close(self):
        for path in self.faults.iterdir():
            path.unlink()
        for program in self.programs:
            program.kill()
        self._clients.close()


def member(program):
    """Return the name of a member, from the title of its process."""
    [child] = program.children
    return ' '.join(psutil.Process(child).cmdline()).split()[-1]
