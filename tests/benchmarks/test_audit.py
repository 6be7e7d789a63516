# SPDX-License-Identifier: Apache-2.0
"""``distperiodic audit`` of one job, for different numbers of objects.

The command is measured as an operator runs it: a process that starts, loads
the jobs, reads the catalogue, and computes the due ticks of the last 24 hours.
No object has run since 2001, so each object misses all ticks of the day.

    pytest -s -o timeout=0 tests/benchmarks/test_audit.py
"""

import pytest

from tests.benchmarks import filled
from tests.benchmarks import measuring
from tests.functional import commands

FEW, MANY = 1_000, 1_000_000
TASKS = """
import random
import uuid

from distperiodic import PeriodicTasks
from distperiodic import periodic_task


class Tasks(PeriodicTasks):
    def nodes(self, context):
        chance = random.Random(17)
        return [str(uuid.UUID(int=chance.getrandbits(128)))
                for _ in range(%d)]

    @periodic_task(%s, objects='nodes', name='%s')
    def poll(self, context, node):
        pass
"""


def audited(url, folder, schedule, number):
    """Return the seconds of the command on a database that is full of claims.
    """
    job = f'poll-{number}'
    filled.fill(url, filled.object_ids(number), job)
    folder.mkdir()
    (folder / 'tasks.py').write_text(TASKS % (number, schedule, job))
    (folder / 'jobs.conf').write_text(
        f'[distperiodic]\nconnection = {url}\ngroup = {filled.SPACE}\n')
    (folder / 'jobs.conf').chmod(0o600)

    def act():
        told = commands.run(
            'audit', job, '--tasks', 'tasks:Tasks', '--config-file',
            'jobs.conf', cwd=folder, timeout=600)
        assert told.stderr == '', told.stderr
        assert job in told.stdout
    return measuring.in_turns({'': lambda: act})['']


@pytest.mark.parametrize('schedule', [
    'spacing=3600', 'spacing=3600, spread=True'])
def test_seconds_of_an_audit(database, tmp_path, schedule):
    kind, url = database
    with measuring.table(
            f'audit of 24 hours in {kind}, {schedule}, s', 'objects',
            'seconds', 'least-most', file=__file__,
            versions=('SQLAlchemy',)) as row:
        for number in (FEW, MANY):
            took = audited(
                url, tmp_path / f'{number}', schedule, number)
            row(f'{number:,}', f'{took.median:.2f}',
                f'{took.least:.2f}-{took.most:.2f}')
