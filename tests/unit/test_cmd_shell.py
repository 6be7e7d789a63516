# SPDX-License-Identifier: Apache-2.0
"""The program: its commands, and its one-line errors."""

import os
import re
import subprocess
import sys

import pytest

from distperiodic import exceptions
from distperiodic.adapters.sql import schema
from distperiodic.cmd import configured
from distperiodic.cmd import deferred_imports
from distperiodic.cmd import member
from distperiodic.cmd import selection
from distperiodic.cmd import session
from distperiodic.cmd import shell
from distperiodic.operator.member_rows import MemberRow

# An empty text counts as not set.
BUFFERED = {**os.environ, 'PYTHONUNBUFFERED': ''}


@pytest.mark.parametrize(('argv', 'told'), [
    (['ring', 'shwo'], "no command 'ring shwo'; did you mean ring show"),
    (['job', 'lst'], "no command 'job lst'; did you mean job list"),
    (['job'], "no command 'job'; did you mean one of job list, job pause"),
    (['help', 'job', 'lst'], "no command 'job lst'"),
    (['xyzzy'], "no command 'xyzzy'; see: distperiodic --help"),
    (['--xyzzy'], "no option '--xyzzy'")], ids=' '.join)
def test_a_command_that_is_not_there_is_one_line(argv, told, capsys):
    assert shell.main(argv) == 2

    said = capsys.readouterr()
    assert said.out == ''
    assert said.err.count('\n') == 1
    assert told in said.err


@pytest.mark.parametrize(('argv', 'code', 'ending'), [
    (['ring', 'show', '--members', 'a'], 0, ['collects: False']),
    (['worker', '--config-file', '/none'], 2, ['collects: True', 'deleted'])],
    ids=['short', 'service'])
def test_only_a_program_that_runs_a_service_deletes_its_garbage(
        argv, code, ending):
    """A short command ends before it would take long to delete its objects,
    but no thread and no handler is lost.
    """
    told = subprocess.run(
        [sys.executable, '-c', ENDING, *argv], capture_output=True, text=True,
        env=BUFFERED)

    assert told.returncode == code
    assert told.stdout.splitlines()[-1 - len(ending):] == [
        'thread', *ending]


ENDING = """
import atexit, concurrent.futures, gc, os, sys, time
from distperiodic.cmd import shell

class Kept:
    def __del__(self, write=os.write):
        write(1, b'deleted\\n')

class Shell(shell.Shell):
    def run(self, argv):
        code = super().run(argv)
        executor.submit(work)
        return code

def work():
    time.sleep(0.2)
    print('thread')

kept, shell.Shell = Kept(), Shell
executor = concurrent.futures.ThreadPoolExecutor(1)
atexit.register(lambda: print('collects:', gc.isenabled()))
sys.exit(shell.main())
"""


@pytest.mark.parametrize('argv', [
    '--version', 'help', 'ring show --members a',
    'ring show --members a -f json',
    'ring show --members a=900,b=900 --arcs',
    'ring show --members a=900,b=900 --arcs -f json'])
def test_output_that_cannot_be_written_is_one_line(argv):
    with open('/dev/full', 'w') as full:
        told = subprocess.run(
            [sys.executable, '-m', 'distperiodic.cmd.shell', *argv.split()],
            stdout=full, stderr=subprocess.PIPE, text=True,
            env=BUFFERED)

    assert told.returncode == 1
    # For programs, the number of points precedes this line.
    assert told.stderr.splitlines()[-1] == (
        'distperiodic: the output cannot be written: No space left on device')
    assert 'Traceback' not in told.stderr


@pytest.mark.parametrize(('closed', 'argv', 'code'), [
    ('>&-', 'ring show --members a', 0), ('2>&-', 'job lst', 2),
    ('2>/dev/full', 'job lst', 2)])
def test_a_command_without_an_output_ends_as_with_one(closed, argv, code):
    told = subprocess.run(
        ['sh', '-c', f'exec "$@" {closed}', 'sh', sys.executable,
         '-m', 'distperiodic.cmd.shell', *argv.split()],
        capture_output=True, env=BUFFERED)

    assert (told.returncode, told.stdout, told.stderr) == (code, b'', b'')


def commands():
    return [name for name, _ in shell.Shell().command_manager]


@pytest.mark.parametrize('name', commands())
def test_each_command_has_its_own_help(name, capsys, monkeypatch):
    monkeypatch.setenv('COLUMNS', '200')
    monkeypatch.setenv('PAGER', 'false')
    for argv in ([*name.split(), '--help'], [*name.split(), '-h'],
                 ['help', *name.split()]):
        assert shell.main(argv) == 0

        told = capsys.readouterr().out
        assert told.startswith(f'usage: distperiodic {name} [-h]')
        assert 'Run:' not in told


def test_a_half_of_a_command_lists_those_that_begin_so(capsys):
    assert shell.main(['job', '--help']) == 0

    told = capsys.readouterr().out
    assert told.startswith('\njob:\n')
    assert re.findall(r'^  (\w+ \w+)', told, re.MULTILINE) == [
        'job list', 'job pause', 'job resume', 'job trigger']


@pytest.mark.parametrize('columns', [60, 80])
def test_the_help_lists_each_command_once_in_a_group(
        columns, capsys, monkeypatch):
    monkeypatch.setenv('COLUMNS', str(columns))
    assert shell.main(['--help']) == 0

    told = capsys.readouterr().out
    listed = re.findall(r'^  ([a-z]+(?: [a-z]+)?) +[A-Z]', told, re.MULTILINE)
    assert sorted(listed) == sorted(commands())
    assert {name for _, names in shell.GROUPS for name in names} == set(
        commands())
    assert max(map(len, told.splitlines())) <= columns
    # Each command's summary is shown in full, even if it wraps.
    assert re.search(
        r'audit +Show whether .* objects\s+and\s+of\s+tasks\n', told,
        re.DOTALL)


@pytest.mark.parametrize('argv', [
    ['--nonsense'],
    ['--log-file'],
    ['status', '--nonsense'],
    ['ring', 'simulate', '--members', '0'],
    ['ring', 'simulate', '--members', 'many'],
    ['ring', 'simulate', '--members', '9' * 20],
    ['status', '--watch', '1e12'],
    ['ring', 'explain'],
    ['scheduler'],
    ['demo', '--seconds', '5'],
    ['status', '--config-file', '/does/not/exist.conf'],
    ['ring', 'simulate', '-f', 'nonsense'],
    ['ring', 'show', '--members', 'a', '-c', 'nonsense'],
], ids=' '.join)
def test_a_wrong_option_is_one_line_and_code_2(argv, capsys):
    assert shell.main(argv) == 2

    said = capsys.readouterr()
    assert said.out == ''
    assert said.err.startswith('distperiodic: ')
    assert said.err.count('\n') == 1


@pytest.mark.parametrize('argv', [
    ['\udcff'],
    ['--log-file', '\udcff', 'status'],
    ['queue', 'show', 'q\udcff'],
    ['queue', 'halt', 'q', '--reason', 'wegen \udce4nderung'],
    ['queue', 'set', '\udcff', '--on-failure', 'halt'],
    ['task', 'list', '--queue=\udcff'],
    ['task', 'list', '--type', '\udcff'],
    ['task', 'show', '\udcff'],
    ['task', 'submit', 'm.\udcff'],
    ['task', 'submit', 'm.ok', '--reason', '\udcff'],
    ['task', 'submit', 'm.ok', '--param', 'a=\udcff' + 'x' * 1000],
    ['partition', 'promote', '\udcff', 'host'],
], ids=ascii)
def test_an_argument_that_is_no_unicode_is_named(argv, capsys):
    [number] = [at for at, word in enumerate(argv, 1)
                if r'\udc' in ascii(word)]

    assert shell.main(argv) == 2

    said = capsys.readouterr()
    assert said.out == ''
    assert said.err.startswith(f'distperiodic: argument {number}, ')
    assert r'\udc' in said.err
    assert 'give it in UTF-8' in said.err
    assert said.err.count('\n') == 1
    assert len(said.err) < 200


def test_a_byte_that_is_not_utf_8_is_an_argument_that_is_refused():
    told = subprocess.run(
        [sys.executable, '-m', 'distperiodic.cmd.shell', 'task', 'show',
         b'a\xff'], env={**os.environ, 'PYTHONUTF8': '1'},
        capture_output=True, check=False)

    assert (told.returncode, told.stdout) == (2, b'')
    assert told.stderr.startswith(
        b"distperiodic: argument 3, 'a\\udcff', is not valid utf-8; give")


@pytest.mark.parametrize('content', [None, b'group = \xff\n'], ids=[
    'directory', 'no text'])
def test_a_file_that_cannot_be_read_is_named(content, tmp_path, capsys):
    place = tmp_path
    if content is not None:
        place = tmp_path / 'latin.conf'
        place.write_bytes(b'[distperiodic]\n' + content)

    assert shell.main(['job', 'list', '--config-file', str(place)]) == 2

    said = capsys.readouterr().err
    assert said.startswith(f'distperiodic: {place}: ')
    assert 'correct --config-file' in said
    assert said.count('\n') == 1


@pytest.mark.parametrize('argv', [
    ['ring', 'show', '--arcs', '--members', 'a=9000,b=9000'],
    ['ring', 'show', '--members', 'a,b'],
    ['status', '--config-file', '{place}/group.conf']],
    ids=['much', 'little', 'status'])
def test_a_closed_pipe_ends_a_command_quietly(argv, tmp_path):
    (tmp_path / 'group.conf').write_text(
        f'[distperiodic]\nbackend_url = file://{tmp_path}/members\n')
    with subprocess.Popen(
            [sys.executable, '-m', 'distperiodic.cmd.shell',
             *(word.format(place=tmp_path) for word in argv)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        running.stdout.close()

        assert running.stderr.read() == b''
        assert running.wait(60) == 141


def test_text_that_a_terminal_cannot_show_is_escaped():
    told = subprocess.run(
        [sys.executable, '-m', 'distperiodic.cmd.shell', 'ring', 'explain',
         'prüfen', 'größe', '--members', 'a,b', '-f', 'value', '-c', 'object'],
        env={**os.environ, 'PYTHONUTF8': '1', 'PYTHONIOENCODING': 'ascii'},
        capture_output=True, check=True)

    assert told.stdout == b'gr\\xf6\\xdfe\n'


def test_an_error_of_ours_is_one_line_even_if_its_text_is_not(
        capsys, monkeypatch):
    def fail(*args):
        raise exceptions.CoordinationUnavailable('no\nanswer; start it')
    monkeypatch.setattr(session, 'configuration', fail)

    assert shell.main(['ring', 'simulate']) == 1
    assert capsys.readouterr().err == 'distperiodic: no answer; start it\n'


def test_an_unexpected_error_names_its_kind_and_how_to_see_more(
        capsys, monkeypatch):
    def fail(*args):
        raise KeyError('x')
    monkeypatch.setattr(session, 'configuration', fail)

    assert shell.main(['ring', 'simulate']) == 255
    said = capsys.readouterr().err
    assert said.startswith("distperiodic: KeyError: 'x'; ")
    assert '--debug' in said
    assert said.count('\n') == 1


def test_with_debug_an_error_has_its_traceback(capsys, monkeypatch):
    def fail(*args):
        raise exceptions.ConfigError('wrong')
    monkeypatch.setattr(session, 'configuration', fail)

    assert shell.main(['--debug', 'ring', 'simulate']) == 2
    assert 'Traceback' in capsys.readouterr().err


def test_without_a_command_the_commands_are_listed(capsys):
    assert shell.main([]) == 0

    told = capsys.readouterr().out
    for name in ('demo', 'doctor', 'ring explain', 'ring show',
                 'ring simulate', 'scheduler', 'status', 'worker'):
        assert f'\n  {name} ' in told


@pytest.mark.parametrize('argv', [
    ['ring', 'simulate', '--objects', '10'], ['--help'],
    ['doctor', '--offline']], ids=' '.join)
def test_a_command_that_needs_no_server_loads_nothing_slow(argv, tmp_path):
    slow = ['eventlet', 'futurist', 'kazoo', 'kombu', 'netaddr.core',
            'oslo_messaging', 'oslo_utils.strutils', 'rfc3986.api', 'rich',
            'sqlalchemy', 'tooz']
    file = tmp_path / 'service.conf'
    file.write_text(
        '[distperiodic]\nbackend_url = zookeeper://127.0.0.1:9\n'
        f'connection = sqlite:///{tmp_path}/claims\n'
        f'state_path = {tmp_path}/state\n')
    if argv != ['--help']:
        argv = [*argv, '--config-file', str(file)]
    loaded = subprocess.run(
        [sys.executable, '-c',
         'import sys; from distperiodic.cmd import shell; '
         f'shell.main({argv!r}); '
         f'print([n for n in {slow!r} if n in sys.modules])'],
        capture_output=True, text=True, check=True).stdout

    assert loaded.splitlines()[-1] == '[]'


@pytest.mark.parametrize('argv', [
    ['status'], ['job', 'list'], ['task', 'list'], ['why', 'ping', 'node-1']],
    ids=' '.join)
def test_a_command_that_reads_the_group_loads_no_eventlet_and_no_broker(
        argv, tmp_path):
    """The import of eventlet takes a quarter of the time of a command."""
    unused = ['alembic', 'distperiodic.cmd.demo', 'eventlet',
              'oslo_messaging', 'oslo_utils.strutils', 'rfc3986.api', 'rich',
              'sqlalchemy.dialects.mysql', 'sqlalchemy.dialects.postgresql',
              'sqlalchemy.orm']
    file = tmp_path / 'service.conf'
    file.write_text(
        f'[distperiodic]\nbackend_url = file://{tmp_path}/group\n'
        f'connection = sqlite:///{tmp_path}/claims.sqlite\n')
    schema.sync(f'sqlite:///{tmp_path}/claims.sqlite')

    assert told_by(argv, file, unused, 'import eventlet') == 'True [] True'


def told_by(argv, file, unused, after='pass'):
    """Run a command in a process of its own. Return whether SQLAlchemy is
    loaded, which of the modules *unused* are, and whether few modules are.

    :param after: statement that must work after the command.
    """
    return subprocess.run(
        [sys.executable, '-c',
         'import sys; from distperiodic.cmd import shell; '
         f'shell.main([*{argv!r}, "--config-file", {str(file)!r}]); '
         'print("sqlalchemy" in sys.modules, '
         f'[n for n in {unused!r} if n in sys.modules], '
         f'len(sys.modules) < 800, flush=True); {after}'],
        capture_output=True, text=True, check=True).stdout.splitlines()[-1]


@pytest.mark.parametrize('argv', [
    ['job', 'list'], ['dead', 'list'], ['history'], ['member', 'list']],
    ids=' '.join)
def test_a_command_without_tasks_loads_no_messages_of_the_services(
        argv, tmp_path):
    """The ports of the services load a dozen modules of values."""
    unused = ['distperiodic.adapters.sql.jobs', 'distperiodic.core.message',
              'distperiodic.core.task', 'distperiodic.ports']
    file = tmp_path / 'service.conf'
    file.write_text(
        f'[distperiodic]\nconnection = sqlite:///{tmp_path}/claims.sqlite\n')
    schema.sync(f'sqlite:///{tmp_path}/claims.sqlite')

    assert told_by(argv, file, unused) == 'True [] True'


def test_a_list_reads_no_metadata_of_all_installed_packages(tmp_path):
    """Without a cache, this takes as long as all the rest of a command."""
    url = f'sqlite:///{tmp_path}/claims.sqlite'
    file = tmp_path / 'service.conf'
    file.write_text(f'[distperiodic]\nconnection = {url}\n')
    schema.sync(url)
    subprocess.run(
        [sys.executable, '-m', 'distperiodic.cmd.shell', 'job', 'list',
         '-f', 'json', '--config-file', str(file)], check=True,
        env={**os.environ, 'XDG_CACHE_HOME': str(tmp_path / 'cache')})

    # Stevedore keeps there what it has read.
    assert not (tmp_path / 'cache').exists()


def told_with_deferred_imports(code):
    """Return what *code* prints in a process with deferred imports."""
    return subprocess.run(
        [sys.executable, '-c',
         'from distperiodic.cmd import deferred_imports; '
         f'deferred_imports.defer_imports(); {code}'],
        capture_output=True, text=True, check=True).stdout


def test_a_handler_of_a_service_can_use_a_deferred_library():
    told = told_with_deferred_imports(
        'import sys, oslo_config.types; print("netaddr.core" in sys.modules); '
        'import netaddr.core; from rfc3986 import uri_reference; '
        'print(netaddr.IPAddress("::1"), uri_reference("a://b/c").path, '
        'oslo_config.types.IPAddress()("127.0.0.1"))')

    assert told == 'False\n::1 /c 127.0.0.1\n'


def test_a_handler_of_a_service_finds_the_models_of_oslo_db_as_usual():
    told = told_with_deferred_imports(
        'import sys, distperiodic.adapters.sql.engine; '
        'print("sqlalchemy.orm" in sys.modules); '
        'from oslo_db.sqlalchemy import models, utils; '
        'from oslo_db.sqlalchemy.models import ModelBase; '
        'import oslo_db.sqlalchemy.models as again; '
        'print(models.ModelBase is utils.models.ModelBase is ModelBase '
        'is again.ModelBase, "sqlalchemy.orm" in sys.modules)')

    assert told == 'False\nTrue True\n'


def test_a_deferred_module_has_its_spec_and_is_an_attribute_of_its_package():
    told = told_with_deferred_imports(
        'import importlib.util; '
        'print(importlib.util.find_spec("netaddr").name); '
        'import oslo_db.sqlalchemy.models; '
        'print(oslo_db.sqlalchemy.models.ModelBase.__name__)')

    assert told == 'netaddr\nModelBase\n'


@pytest.mark.parametrize(('argv', 'deferred'), [
    (['audit', '--tasks', 'service:Tasks'], False),
    (['job', 'list', '--tasks', 'service:Tasks'], False),
    (['scheduler', '--tasks', 'service:Tasks'], False),
    (['worker'], False), (['web'], False), (['job', 'list'], True),
    (['db', 'prune', '--tasks', '3'], True)])
def test_only_short_commands_without_the_code_of_a_service_defer_imports(
        argv, deferred, monkeypatch, tmp_path):
    calls = []
    monkeypatch.setattr(
        deferred_imports, 'defer_imports', lambda: calls.append(argv))

    assert shell.main([*argv, '--config-file', str(tmp_path / 'none')]) == 2
    assert bool(calls) == deferred


def test_the_status_of_a_group_without_a_store_loads_no_sqlalchemy(tmp_path):
    file = tmp_path / 'service.conf'
    file.write_text(
        f'[distperiodic]\nbackend_url = file://{tmp_path}/group\n')
    told = subprocess.run(
        [sys.executable, '-c',
         'import sys; from distperiodic.cmd import shell; '
         f'code = shell.main(["status", "--config-file", {str(file)!r}]); '
         'print(code, "tooz" in sys.modules, "sqlalchemy" in sys.modules)'],
        capture_output=True, text=True, check=True).stdout

    assert told.splitlines()[-1] == '2 True False'


def test_a_host_that_uses_eventlet_through_futurist_still_can():
    loaded = subprocess.run(
        [sys.executable, '-W', 'ignore', '-c',
         'from distperiodic.coordinator import Coordinator; '
         'import distperiodic.adapters.coordination.driver, futurist; '
         'futurist.GreenThreadPoolExecutor().shutdown(); print("fine")'],
        capture_output=True, text=True, check=True).stdout

    assert loaded == 'fine\n'


MEMBERS = [MemberRow(part, name, '', 0, {'host': host}, False, None, '', '',
                     None)
           for name, part, host in (
    ('vm:0', '', 'vm'), ('vm:0', 'default', ''), ('vm:1', 'default', ''),
    ('vm:0', 'mysql', ''), ('vm-2:0', '', ''), ('api', 'default', ''),
    ('worker-1', 'default', 'vm-3'))]


@pytest.mark.parametrize(('arguments', 'found'), [
    (['--host', 'vm'], [0, 1, 2, 3]),
    (['--host', 'vm', '--schedulers'], [0]),
    (['--host', 'vm', '--partition', 'default'], [1, 2]),
    (['vm:0', '--host', 'vm'], [0, 1, 3]),
    (['--host', 'vm-2'], [4]),
    (['--host', 'api'], [5]),
    (['--host', 'vm-3'], [6]),
])
def test_the_members_of_a_host_are_selected_at_once(arguments, found):
    command = member.MemberDrain(None, None)
    parsed = command.get_parser('drain').parse_args(arguments)

    assert selection.select(MEMBERS, parsed) == [MEMBERS[at] for at in found]


def test_a_host_without_members_is_one_line_with_those_that_have_some():
    command = member.MemberDrain(None, None)
    parsed = command.get_parser('drain').parse_args(['--host', 'wm'])

    with pytest.raises(exceptions.ConfigError,
                       match="on host 'wm'.*vm"):
        selection.select(MEMBERS, parsed)


def test_the_commands_choose_the_threading_backend_first():
    chosen = subprocess.run(
        [sys.executable, '-W', 'ignore', '-c',
         'import distperiodic.cmd.shell, oslo_messaging; '
         'from oslo_service import backend; '
         'print(backend.get_backend_type().value)'],
        capture_output=True, text=True, check=True).stdout

    assert chosen.strip() == 'threading'


@pytest.mark.parametrize(('number', 'word', 'text'), [
    (1, 'member', '1 member'), (3, 'member', '3 members'),
    (2, 'entry', '2 entries'), (1200, 'object', '1,200 objects')])
def test_numbers_are_printed_with_their_word(number, word, text):
    assert configured.plural(number, word) == text
