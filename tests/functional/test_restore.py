# SPDX-License-Identifier: Apache-2.0
"""A service whose database is restored from a backup, as the page "Back up and
restore" says.
"""

import collections
import subprocess
import time

import pytest
import sqlalchemy as sa

from distperiodic.adapters.sql import schema
from tests import services
from tests.functional import commands
from tests.functional.cluster import Cluster

OBJECTS = 40


@pytest.fixture
def database():
    # The restore drops all tables.
    with services.postgresql(its_own=True) as server:
        yield server


@pytest.fixture
def cluster(tmp_path, zookeeper, rabbitmq, database):
    schema.sync(database.url)
    made = Cluster(tmp_path, zookeeper.url, rabbitmq.url, objects=OBJECTS,
                   connection=database.url)
    yield made
    made.close()


@pytest.mark.timeout(300)
def test_a_restored_group_goes_on_with_higher_fences(
        cluster, database, tmp_path):
    """Services run during the backup, and ticks pass after it."""
    backup, url = tmp_path / 'backup', postgresql_url(database)
    start(cluster)
    cluster.wait_complete(3)

    subprocess.run(['pg_dump', '--format=custom', f'--file={backup}', url],
                   check=True)
    cluster.wait_complete(3, after=time.time())
    stop(cluster)
    before = collections.defaultdict(int)
    for run in cluster.runs():
        before[run.object] = max(before[run.object], run.fence)
    restored_at = time.time()
    subprocess.run(['pg_restore', '--clean', f'--dbname={url}', backup],
                   check=True)
    told = commands.run('db', 'sync', '--restored', '--config-file',
                        cluster.config)
    assert (told.returncode, told.stderr) == (0, '')
    start(cluster)

    cluster.wait_complete(3, after=restored_at)
    after = [run for run in cluster.runs() if run.at > restored_at]
    assert [run for run in after if run.fence <= before[run.object]] == []
    started = collections.Counter((run.object, run.tick) for run in after)
    assert set(started.values()) == {1}


def start(cluster):
    for kind in 'scheduler', 'scheduler', 'worker':
        cluster.start(kind)


def stop(cluster):
    for program in cluster.programs:
        program.terminate()
    for program in cluster.programs:
        assert program.wait() == 0
    cluster.programs.clear()


def postgresql_url(database):
    """Return the URL of *database* as the programs of PostgreSQL read it."""
    return sa.make_url(database.url).set(
        drivername='postgresql').render_as_string(hide_password=False)
