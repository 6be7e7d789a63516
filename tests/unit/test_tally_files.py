# SPDX-License-Identifier: Apache-2.0
"""The processes of a host add up their metrics, also when some have ended."""

import contextlib
import os
import pathlib
import signal
import stat
import subprocess
import sys

import pytest

from distperiodic import exceptions
from distperiodic.adapters.local import tally_files
from distperiodic.adapters.local.tally_files import TallyFiles
from distperiodic.core import metric_table as table
from distperiodic.core.tally import Key
from distperiodic.core.tally import Tally

# A process that writes its values, and prints whether it serves.
PROGRAM = """
import sys
from distperiodic.adapters.local.tally_files import TallyFiles
from distperiodic.core import metric_table as table
from distperiodic.core.tally import Tally
files = TallyFiles(sys.argv[1])
tally = Tally()
tally.count(table.RUNS, 'poll', 'done', number=int(sys.argv[2]))
tally.count(table.SLOTS, 'default', 'free', number=1)
tally.observe(table.RUN_DURATION, 'poll', amounts=[(1.0, int(sys.argv[2]))])
files.write(tally)
print(files.serve(), flush=True)
for line in sys.stdin:
    print(files.serve(), flush=True)
"""


class Process:
    def __init__(self, path, runs):
        self._process = subprocess.Popen(
            [sys.executable, '-c', PROGRAM, path, str(runs)], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.serves = self._answer()

    def _answer(self):
        return self._process.stdout.readline() == 'True\n'

    def serve(self):
        self._process.stdin.write('\n')
        self._process.stdin.flush()
        return self._answer()

    def kill(self):
        self._process.send_signal(signal.SIGKILL)
        self._process.communicate()


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / 'state' / 'metrics')


@pytest.fixture
def start(path):
    with contextlib.ExitStack() as stack:
        def begin(runs):
            made = Process(path, runs)
            stack.callback(made.kill)
            return made
        yield begin


@pytest.fixture
def server(path):
    files = TallyFiles(path)
    assert files.serve()
    yield files
    files.close()


def numbers(tally):
    """Return the runs, the free slots, and the runs of the histogram."""
    found = tally.distributions.get(Key(table.RUN_DURATION.name, ('poll',)))
    return (tally.values.get(Key(table.RUNS.name, ('poll', 'done')), 0),
            tally.values.get(Key(table.SLOTS.name, ('default', 'free')), 0),
            sum(found.buckets) if found else 0)


def test_three_processes_are_added_up(server, start):
    for runs in 1, 20, 300:
        assert not start(runs).serves

    assert numbers(server.others()) == (321, 3, 321)


def test_the_counts_of_a_killed_process_stay_and_its_gauges_do_not(
        server, start):
    one, _, other = (start(runs) for runs in (1, 20, 300))

    one.kill()
    for _ in range(2):
        assert numbers(server.others()) == (321, 2, 321)
    other.kill()
    assert numbers(server.others()) == (321, 1, 321)


def test_a_process_counts_once_also_if_the_server_ends_before_it_has_cleaned(
        path, start):
    server = TallyFiles(path)
    assert server.serve()
    start(1)
    start(20).kill()
    before = {file: file.read_bytes() for file in pathlib.Path(path).iterdir()}
    assert numbers(server.others()) == (21, 1, 21)
    removed = {file: text for file, text in before.items()
               if not file.exists()}
    assert len(removed) == 2

    for file, text in removed.items():
        file.write_bytes(text)
    server.close()
    later = TallyFiles(path)
    assert later.serve()

    for _ in range(2):
        assert numbers(later.others()) == (21, 1, 21)
        assert not any(file.exists() for file in removed)
    later.close()


def test_another_process_serves_when_the_server_is_killed(path, start):
    one = start(1)
    other = start(20)
    assert one.serves
    assert not other.serves

    one.kill()

    assert other.serve()
    assert tally_files.served(path)


def test_a_stopped_server_leaves_its_counts_to_the_next_one(path, start):
    first = TallyFiles(path)
    assert first.serve()
    assert start(20).serves is False
    tally = Tally()
    tally.count(table.RUNS, 'poll', 'done', number=5)
    first.write(tally)
    first.close()

    second = TallyFiles(path)
    assert second.serve()

    assert numbers(second.others()) == (25, 1, 20)
    second.close()


def test_counts_begin_at_zero_when_all_processes_have_ended(path, start):
    start(1).kill()
    assert not tally_files.served(path)

    files = TallyFiles(path)
    assert files.serve()

    assert numbers(files.others()) == (0, 0, 0)
    files.close()


def test_the_files_of_a_live_process_are_never_old(server, path):
    for _ in range(2):
        server.write(Tally())
        files = [*pathlib.Path(path).iterdir()]
        assert len(files) == 3
        assert all(file.stat().st_mtime > 0 for file in files)
        for file in files:
            os.utime(file, (0, 0))

    for file in files:
        file.unlink()
        with pytest.raises(FileNotFoundError):
            server.write(Tally())


def test_a_server_has_written_when_it_begins_to_serve(path, start):
    start(1).kill()
    os.utime(os.path.join(path, 'server.lock'), (0, 0))
    files = TallyFiles(path)
    files.write(Tally())
    assert files.server_silent() > 30.0

    assert files.serve()

    assert files.server_silent() < 30.0
    files.close()


def test_a_file_that_cannot_be_read_counts_nothing(server, start, path):
    start(20)
    with open(os.path.join(path, 'ended.json'), 'w') as file:
        file.write('{')

    assert numbers(server.others()) == (20, 1, 20)


def test_a_child_that_a_handler_forks_does_not_keep_the_lock(path):
    files = TallyFiles(path)
    assert files.serve()
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(write)
        os.read(read, 1)
        os._exit(0)
    files.close()

    assert not tally_files.served(path)
    os.close(write)
    os.waitpid(child, 0)
    os.close(read)


def test_the_directory_is_private_and_a_public_one_is_refused(
        server, path, tmp_path):
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o700
    public = tmp_path / 'public'
    public.mkdir()
    public.chmod(0o777)

    with pytest.raises(exceptions.ConfigError, match='all users'):
        TallyFiles(str(public / 'metrics'))
