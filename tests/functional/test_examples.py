# SPDX-License-Identifier: Apache-2.0
"""The examples run as a reader would run them, in several processes.

The tests judge each program by its log.
"""

import collections
import datetime
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import tomllib
import uuid

import pytest

from tests.functional import commands
from tests.programs import PYTHON
from tests.programs import ROOT
from tests.programs import Program
from tests.programs import write_config
from tests.waiting import wait_until

PORTED = ROOT / 'examples' / 'ported'
DISPENSER = ROOT / 'examples' / 'dispenser'
SERVICE = ROOT / 'examples' / 'openstack_service'

HOSTS = {f'192.168.10.{number}' for number in range(20)}
# The names of the members are random. With 20 hosts, one of three members has
# no host in one of 200 runs.
PORTED_HOSTS = {f'192.168.10.{number}' for number in range(60)}
# For the same reason there are more nodes here than in the example.
NODES = {f'node-{number:02d}' for number in range(60)}
# Nodes with their own schedule.
OWN = {'node-18', 'node-19'}

# A busy machine may take ten seconds for the imports.
PATIENCE = 60.0

_LINE = re.compile(
    r'(?P<at>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}) (?P<pid>\d+) INFO '
    r'(?:periodic|nodewatch\.tasks) \[-\] (?P<event>[a-z ]+): (?P<rest>.*)')


class Event:
    """One line of the log of an example."""

    def __init__(self, match):
        values = dict(word.split('=', 1) for word in match['rest'].split())
        self.pid = int(match['pid'])
        self.name = match['event']
        self.object = values.get('host') or values.get('node')
        if 'tick' in values:
            self.tick = datetime.datetime.fromisoformat(
                values['tick']).timestamp()
        else:
            # A method that a timer calls does not know its tick, so derive the
            # tick from the time.
            at = datetime.datetime.fromisoformat(match['at']).timestamp()
            self.tick = at // 6 * 6


class Example(Program):
    """One program that a reader would start in a terminal."""

    def events(self, name):
        matches = map(_LINE.fullmatch, self.said().splitlines())
        events = [Event(match) for match in matches if match]
        return [event for event in events if event.name == name]


class Programs:
    """All programs of one test."""

    def __init__(self, place):
        self._place = place
        self.all = []

    def start(self, command, cwd, **env):
        program = Example(
            [*PYTHON, *command],
            self._place / f'{len(self.all)}.log', cwd=cwd,
            env=os.environ | of_reader(self._place) | env)
        self.all.append(program)
        return program

    def runs(self, name, spacing):
        """Return the pids that ran each object, by tick and by object.

        Ticks that are not multiples of *spacing* are left out.
        """
        ticks = collections.defaultdict(
            lambda: collections.defaultdict(list))
        for program in self.all:
            for event in program.events(name):
                if event.tick % spacing == 0:
                    ticks[event.tick][event.object].append(event.pid)
        return ticks

    def wait_divided(self, name, spacing, objects, processes, after=0.0):
        """Wait for a tick whose objects were divided among this number of
        processes.

        The processes ran each object exactly once.
        """
        def divided():
            for tick, runs in self.runs(name, spacing).items():
                pids = [pid for found in runs.values() for pid in found]
                if (tick > after and runs.keys() == objects
                        and len(pids) == len(objects)
                        and len(set(pids)) == processes):
                    return tick
            return None

        try:
            return wait_until(
                divided, PATIENCE, f'no tick after {after} was divided among '
                f'{processes} processes', interval=0.2)
        except pytest.fail.Exception:
            # pytest shows this output with the failure.
            for program in self.all:
                print(program.said()[-5000:])
            raise

    def assert_complete(self, name, spacing, objects, first, last):
        """Check that every tick from *first* to *last* ran all objects."""
        runs = self.runs(name, spacing)
        tick = first
        while tick <= last:
            assert runs[tick].keys() >= objects, f'tick {tick}'
            tick += spacing

    def close(self):
        for program in self.all:
            program.kill()


@pytest.fixture
def programs(tmp_path):
    started = Programs(tmp_path)
    try:
        yield started
    finally:
        started.close()


def ends(program):
    program.terminate()
    return program.wait(40)


def with_decorators_of_oslo_service(place):
    """Write a variant of the ported program whose methods keep the decorator
    of oslo.service. Return its directory.
    """
    for name in ('main.py', 'service.py', 'periodic.py'):
        text = (PORTED / name).read_text()
        if name == 'periodic.py':
            count = text.count('@periodic_task.periodic_task(')
            assert count == 2
            text = text.replace(
                '@periodic_task.', '@oslo_periodic_task.').replace(
                'import time\n', 'import time\n'
                'from oslo_service import periodic_task as '
                'oslo_periodic_task\n')
        (place / name).write_text(text)
    return place


@pytest.mark.parametrize('decorators', [
    'distperiodic', pytest.param('oslo.service', marks=pytest.mark.full)])
def test_the_ported_program_divides_its_hosts(
        decorators, programs, zookeeper_server, tmp_path):
    place = PORTED if decorators == 'distperiodic' else (
        with_decorators_of_oslo_service(tmp_path))

    def start():
        return programs.start(['main.py'], place,
                              BACKEND_URL=zookeeper_server.url)

    def divided_by(processes, after=0.0):
        return programs.wait_divided(
            'pinged', 6, PORTED_HOSTS, processes, after)

    first, second = start(), start()
    two = divided_by(2)
    third = start()
    three = divided_by(3, after=two)
    assert ends(first) == 0
    left = divided_by(2, after=three)

    programs.assert_complete('pinged', 6, PORTED_HOSTS, two, left)
    assert [ends(program) for program in (second, third)] == [0, 0]


@pytest.fixture
def nodewatch(programs, zookeeper, tmp_path):
    """Return a function that starts a program of the example by the name of
    its script. Options of the section [DEFAULT] may follow the name; they make
    the dispatcher ``messaging``.
    """
    project = tomllib.loads((SERVICE / 'pyproject.toml').read_text())
    scripts = project['project']['scripts']
    options = tmp_path / 'here.conf'
    nodes = json.loads(
        (SERVICE / 'etc' / 'nodewatch' / 'nodes.json').read_text())
    listed = {node['name'] for node in nodes}
    inventory = tmp_path / 'nodes.json'
    inventory.write_text(json.dumps(
        nodes + [{'name': name} for name in sorted(NODES - listed)]))

    def start(script, **default):
        write_config(
            options, DEFAULT=default, nodewatch={'inventory': inventory},
            distperiodic={
                'dispatcher': 'messaging' if default else 'local',
                'backend_url': zookeeper.url, 'group': group,
                'state_path': tmp_path})
        module, function = scripts[script].split(':')
        return programs.start(
            ['-c', f'import sys; from {module} import {function}; '
             f'sys.exit({function}())',
             '--config-file', 'etc/nodewatch/nodewatch.conf',
             '--config-file', options], SERVICE)

    group = f'nodewatch-{uuid.uuid4().hex[:8]}'
    return start


def assert_once_in_the_group(programs, tick):
    assert [len(pids) for pids in programs.runs('reported', 4)[
        tick].values()] == [1]


def assert_own_schedules(programs, first, last):
    """Check that two of the nodes are also polled between the ticks of the
    others.
    """
    between = [runs.keys() for tick, runs in programs.runs(
        'polled', 2).items() if first < tick < last and tick % 4]

    assert OWN in between
    assert all(nodes <= OWN for nodes in between)


def test_the_service_divides_its_nodes_and_runs_them_itself(
        programs, nodewatch):
    first, second = (nodewatch('nodewatch-conductor') for _ in range(2))
    two = programs.wait_divided('polled', 4, NODES, 2)
    third = nodewatch('nodewatch-conductor')
    three = programs.wait_divided('polled', 4, NODES, 3, after=two)
    assert ends(first) == 0
    left = programs.wait_divided('polled', 4, NODES, 2, after=three)

    programs.assert_complete('polled', 4, NODES, two, left)
    assert_own_schedules(programs, two, left)
    for tick, members in ((two, 2), (three, 3), (left, 2)):
        assert_once_in_the_group(programs, tick)
        [pids] = programs.runs('cache cleaned', 4)[tick].values()
        assert len(set(pids)) == len(pids) == members
    assert [ends(program) for program in (second, third)] == [0, 0]


def test_the_service_sends_its_nodes_to_workers(
        programs, nodewatch, rabbitmq):
    def start(*scripts):
        return [nodewatch(script, transport_url=rabbitmq.url)
                for script in scripts]

    conductors = start('nodewatch-conductor', 'nodewatch-conductor')
    workers = start('nodewatch-worker', 'nodewatch-worker')
    two = programs.wait_divided('polled', 4, NODES, 2)
    conductors += start('nodewatch-conductor')
    workers += start('nodewatch-worker')
    three = programs.wait_divided('polled', 4, NODES, 3, after=two)
    assert ends(workers[0]) == 0
    assert ends(conductors[0]) == 0
    left = programs.wait_divided('polled', 4, NODES, 2, after=three)

    programs.assert_complete('polled', 4, NODES, two, left)
    assert_own_schedules(programs, two, left)
    for tick in (two, three, left):
        assert_once_in_the_group(programs, tick)
    for conductor in conductors:
        assert conductor.events('polled') == []
    assert [ends(program) for program in (
        *conductors[1:], *workers[1:])] == [0, 0, 0, 0]


def section(page, first):
    """Return the section [distperiodic] that a page shows, up to the next
    blank line. *first* is the first option of the section.
    """
    lines = (ROOT / page).read_text().splitlines()
    begin = next(at for at, line in enumerate(lines)
                 if line.strip() == '[distperiodic]' and (
                     lines[at + 1].strip() == first))
    shown = itertools.takewhile(str.strip, lines[begin:])
    return ''.join(f'{line.strip()}\n' for line in shown)


def start_first_program(place, *argv):
    return subprocess.Popen(
        [*commands.HEARS_CTRL_C, sys.executable, '-u', '-W', 'ignore',
         ROOT / 'doc' / 'source' / 'tutorial' / 'first_job.py', *argv],
        cwd=place, env=os.environ | of_reader(place),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def check_log(text):
    """Check that a program logs its guarantee first, and no problem."""
    lines = text.splitlines()
    assert 'guarantee=' in lines[0]
    assert [line for line in lines if not line.startswith('INFO:')] == []


def of_reader(place):
    return {'PYTHONPATH': str(ROOT), 'TMPDIR': str(place)}


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_the_first_program_of_the_tutorial_pings_all_hosts(
        number, tmp_path):
    """The program runs alone. The test stops it as a reader would. The record
    of its runs is kept.
    """
    (tmp_path / 'first_job.conf').write_text(section(
        'doc/source/tutorial/first-job.rst', 'group = first-job'))
    program = start_first_program(tmp_path)
    try:
        lines = [program.stdout.readline().split() for _ in HOSTS]
    finally:
        program.send_signal(number)
        _, errors = program.communicate(timeout=30)

    assert program.returncode == 0
    check_log(errors)
    assert {host for _, host in lines} == HOSTS
    assert len({tick for tick, _ in lines}) == 1
    asked = ['ping', '-f', 'json', '--config-file', 'first_job.conf']
    told = commands.run('history', *asked, cwd=tmp_path,
                        **of_reader(tmp_path))
    assert [tick['done'] for tick in json.loads(told.stdout)] == [len(HOSTS)]
    assert [path.name for path in tmp_path.glob('*/*.sqlite')] == [
        'first-job.sqlite']
    # A program without its configuration file must not continue the work of
    # another program.
    (tmp_path / 'first_job.conf').unlink()
    program = start_first_program(tmp_path)
    _, errors = program.communicate(timeout=30)
    assert program.returncode == 1
    assert 'first_job.conf' in errors.splitlines()[-1]


def test_the_first_workflow_of_the_tutorial_prints_the_output_on_its_page(
        tmp_path):
    tutorial = ROOT / 'doc' / 'source' / 'tutorial'
    page = (tutorial / 'first-workflow.rst').read_text()
    (tmp_path / 'first_workflow.conf').write_text(section(
        'doc/source/tutorial/first-workflow.rst', 'group = first-workflow'))
    shutil.copy(tutorial / 'first_workflow.yaml', tmp_path)
    shown = page.split('first_workflow.py 2>/dev/null\n', 1)[1]
    shown = shown.split('\n\n', 1)[0]

    ended = subprocess.run(
        [sys.executable, '-W', 'ignore', tutorial / 'first_workflow.py'],
        cwd=tmp_path, env=os.environ | of_reader(tmp_path), text=True,
        capture_output=True, timeout=60)

    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.rstrip('\n') == textwrap.dedent(shown)


def test_a_program_that_is_stopped_leaves_the_group_at_once(tmp_path):
    """The group does not wait until the session of the program expires."""
    (tmp_path / 'first_job.conf').write_text(
        '[distperiodic]\ngroup = leaves\nsession_timeout = 60\n'
        f'backend_url = file://{tmp_path}/members\n')
    program = start_first_program(tmp_path)

    def members():
        told = commands.run(
            'status', '-f', 'json', '--config-file', 'first_job.conf',
            cwd=tmp_path, **of_reader(tmp_path))
        return sum(row['role'] == 'member'
                   for row in json.loads(told.stdout))
    try:
        wait_until(lambda: members() == 1, 30, 'it did not join')
    finally:
        program.send_signal(signal.SIGTERM)
        _, errors = program.communicate(timeout=30)

    assert program.returncode == 0
    check_log(errors)
    assert members() == 0


@pytest.mark.parametrize(('example', 'told'), [
    ('provisioning', '21 tasks succeeded'),
    ('ordered_queue', 'only tasks of the killed process ran again'),
    pytest.param('partitions', 'as many as their partition has threads',
                 marks=pytest.mark.full),
])
def test_an_example_without_servers_reports_success(example, told):
    ran = subprocess.run(
        [*PYTHON, 'run.py'], cwd=ROOT / 'examples' / example,
        env=commands.ENVIRONMENT, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=150)

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert told in ran.stdout


@pytest.mark.parametrize(('example', 'told'), [
    pytest.param('standby', 'by 3 workers, one after the other',
                 marks=pytest.mark.full),
    pytest.param('control', 'the drained scheduler claimed nothing',
                 marks=pytest.mark.full),
    ('redis_bus', ', 0 are missing'),
])
def test_an_example_with_redis_reports_success(example, told, redis):
    ran = subprocess.run(
        [*PYTHON, 'run.py'], cwd=ROOT / 'examples' / example,
        env=commands.ENVIRONMENT | dict.fromkeys(
            ('TRANSPORT_URL', 'BACKEND_URL', 'REDIS_URL'), redis.url),
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=150)

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert told in ran.stdout


def run_provisioning(place, **environment):
    return subprocess.run(
        [*PYTHON, 'run.py'], cwd=place,
        env=commands.ENVIRONMENT | environment, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=150)


def test_provisioning_fails_if_a_rollback_does_nothing(tmp_path):
    place = shutil.copytree(
        ROOT / 'examples' / 'provisioning', tmp_path / 'provisioning')
    for file, old, new in (
            ('modules.py', "self.cloud.delete_instance(parameters['Name'])",
             'pass'),
            # Fewer tasks and no kill, so that the test is short.
            ('run.py', 'KILLS = 30, 3', 'KILLS = 10, 0')):
        text = (place / file).read_text()
        assert text.count(old) == 1
        (place / file).write_text(text.replace(old, new))

    ran = run_provisioning(place)

    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert ('the instances are not those of the succeeded tasks: '
            "['db6', 'db9']") in ran.stdout


def test_provisioning_runs_on_servers(zookeeper, rabbitmq, postgresql):
    ran = run_provisioning(
        ROOT / 'examples' / 'provisioning', BACKEND_URL=zookeeper.url,
        TRANSPORT_URL=rabbitmq.url, CONNECTION=postgresql.url)

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert '21 tasks succeeded' in ran.stdout
    assert 'a worker is killed' in ran.stdout


def test_three_reviewers_review_each_document_once(tmp_path):
    # On a busy machine, a reviewer that lives may pause for 2 s. Then others
    # would rightly get its documents.
    text = (DISPENSER / 'review.conf').read_text()
    assert text.count('bucket_timeout = 2\n') == 1
    config = tmp_path / 'review.conf'
    config.write_text(text.replace('bucket_timeout = 2\n',
                                   'bucket_timeout = 10\n'))
    for _ in range(2):
        told = subprocess.run(
            [*PYTHON, 'review.py', '--config-file', config],
            cwd=DISPENSER, env={**commands.ENVIRONMENT,
                                'TMPDIR': str(tmp_path)},
            capture_output=True, text=True, timeout=120)

        assert told.returncode == 0, told.stderr
        assert sorted(re.findall(r'reviewed (document\S+)', told.stdout)) == [
            f'document-{number:02d}' for number in range(30)]
        assert 'free=0, assigned=0, done=30' in told.stdout
        assert '30 documents were reviewed once each' in told.stdout
