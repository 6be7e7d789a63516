# SPDX-License-Identifier: Apache-2.0
"""Partitions of a scheduler that runs the jobs itself."""

import os
import subprocess
import textwrap

import pytest

from tests import forks
from tests import programs
from tests import waiting

SCHEDULED = """
    import pathlib, threading, time
    import distperiodic

    def note(name):
        with open({record!r}, 'a') as file:
            file.write(name + '\\n')

    class Scheduled(distperiodic.PeriodicTasks):
        def many(self, context):
            return [f'{{n}}' for n in range(20)]

        @distperiodic.periodic_task(spacing=0.5, scope='group', topic='own')
        def ping(self, context):
            note('the class of the scheduler')

        @distperiodic.periodic_task(spacing=0.5, objects='many', topic='bad')
        def hang(self, context, one):
            note('hanging')
            threading.Event().wait()

    class Own(distperiodic.PeriodicTasks):
        @distperiodic.periodic_task(spacing=0.5, scope='group', topic='own')
        def ping(self, context):
            note('its own class')

    class Other(distperiodic.PeriodicTasks):
        @distperiodic.periodic_task(spacing=0.5, scope='group', topic='own')
        def pong(self, context):
            pass
"""


@pytest.fixture
def service(tmp_path):
    """Return a function that writes a configuration and returns the arguments
    of a scheduler.
    """
    record = tmp_path / 'record'
    record.touch()
    (tmp_path / 'jobs_here.py').write_text(
        textwrap.dedent(SCHEDULED).format(record=str(record)))

    def arguments(**sections):
        config = programs.write_config(
            tmp_path / 'service.conf',
            distperiodic={'state_path': tmp_path / 'state'}, **sections)
        return [*programs.PYTHON, '-m', 'distperiodic.cmd.shell',
                'scheduler', '--tasks', 'jobs_here:Scheduled',
                '--config-file', config]
    arguments.options = {'cwd': tmp_path, 'env': os.environ | {
        'PYTHONPATH': str(programs.ROOT)}}
    arguments.record = record
    yield arguments


def test_a_scheduler_runs_the_handlers_of_a_partition_s_own_class(
        service, tmp_path):
    with forks.Program(
            service(**{'partition:own': {'handler': 'jobs_here:Own'}}),
            tmp_path / 'log', **service.options):
        waiting.wait_until(
            lambda: 'its own class' in service.record.read_text(), 30)

    assert 'the class of the scheduler' not in service.record.read_text()


def test_a_class_without_a_job_of_the_partition_is_one_line(
        service, tmp_path):
    ended = subprocess.run(
        service(**{'partition:own': {'handler': 'jobs_here:Other'}}),
        capture_output=True, text=True, timeout=60, check=False,
        **service.options)

    assert ended.returncode == 2
    line = ended.stderr.strip().splitlines()[-1]
    assert "has no job 'ping'" in line
    assert 'Traceback' not in ended.stderr


def test_a_partition_whose_threads_all_hang_leaves_others_theirs(
        service, tmp_path):
    """The test also checks that the partition has as many threads as its
    section sets.
    """
    with forks.Program(
            service(**{'partition:bad': {'pool_size': 3},
                       'partition:own': {'pool_size': 1}}),
            tmp_path / 'log', **service.options):
        waiting.wait_until(
            lambda: service.record.read_text().count('hanging') == 3, 30)
        before = service.record.read_text().count('scheduler')
        waiting.wait_until(
            lambda: service.record.read_text().count('scheduler')
            >= before + 4, 30)

    assert service.record.read_text().count('hanging') == 3
