# SPDX-License-Identifier: Apache-2.0
"""Mistakes are reported before the first fork, in one line each."""

import pytest

from distperiodic import exceptions
from distperiodic import loading
from distperiodic.cmd import shell

TASKS = '''
from distperiodic import PeriodicTasks, periodic_task

class Good(PeriodicTasks):
    def nodes(self, context):
        return ['a']
    @periodic_task(spacing=60, objects='nodes', topic='slow')
    def poll(self, context, node):
        pass

class Disabled(PeriodicTasks):
    @periodic_task(spacing=60, enabled=False)
    def poll(self, context):
        pass

class Raises(Good):
    def __init__(self, conf):
        super().__init__(conf)
        self.pause = {}['pause']

class NoSuper(Good):
    def __init__(self, conf):
        pass

class Empty(PeriodicTasks):
    pass

class Other:
    pass

NUMBER = 7
'''
BROKEN = {
    'imports': 'import no_such_package\n',
    'syntax': 'def broken(:\n',
    'raises': '1 / 0\n',
    'spacing': '''
from distperiodic import PeriodicTasks, periodic_task
class T(PeriodicTasks):
    @periodic_task(spacing=0)
    def poll(self, context):
        pass
''',
    'cron': '''
from distperiodic import PeriodicTasks, periodic_task
class T(PeriodicTasks):
    @periodic_task(cron='61 * * * *')
    def poll(self, context):
        pass
''',
    'twice': '''
from distperiodic import PeriodicTasks, periodic_task
class T(PeriodicTasks):
    @periodic_task(spacing=1)
    def poll(self, context):
        pass
    @periodic_task(spacing=1, name='poll')
    def look(self, context):
        pass
''',
}


@pytest.fixture(autouse=True)
def service(tmp_path, monkeypatch):
    """Make a directory with modules of tasks, and change into it."""
    (tmp_path / 'good_tasks.py').write_text(TASKS)
    for name, text in BROKEN.items():
        (tmp_path / f'broken_{name}.py').write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.fixture(autouse=True)
def never_launched(monkeypatch):
    from oslo_service import service as launcher

    def launch(*args, **kwargs):
        pytest.fail('a mistake was not found before the launch')
    monkeypatch.setattr(launcher, 'launch', launch)


@pytest.mark.parametrize(('path', 'said'), [
    ('good_tasks', 'is not MODULE:CLASS'),
    (':Good', 'is not MODULE:CLASS'),
    ('no_such_module:T', "there is no module 'no_such_module'"),
    ('good_tasks.deeper:T', "there is no module 'good_tasks.deeper'"),
    ('good_tasks:Godo', "no class 'Godo'; did you mean 'Good'?"),
    ('good_tasks:NUMBER', 'is not a PeriodicTasks class'),
    ('good_tasks:Other', 'is not a PeriodicTasks class'),
    ('good_tasks:Empty', 'has no jobs'),
    ('good_tasks:Raises', "raised KeyError: 'pause' (good_tasks.py:"),
    ('good_tasks:NoSuper', 'super().__init__(conf)'),
    ('good_tasks:Disabled', 'all jobs are disabled'),
    ('broken_imports:T', "No module named 'no_such_package' "
                         '(broken_imports.py:1)'),
    ('broken_syntax:T', 'SyntaxError: invalid syntax (broken_syntax.py:1)'),
    ('broken_raises:T', 'ZeroDivisionError: division by zero '
                        '(broken_raises.py:1)'),
    ('broken_spacing:T', 'spacing is 0'),
    ('broken_cron:T', '61'),
    ('broken_twice:T', "job 'poll' is defined twice"),
])
def test_tasks_that_cannot_be_had_are_one_line(path, said, capsys):
    assert shell.main(['scheduler', '--tasks', path]) == 2

    told = capsys.readouterr().err
    assert said in told
    assert told.startswith('distperiodic: ')
    assert told.count('\n') == 1


@pytest.mark.parametrize(('argv', 'options', 'said'), [
    (['scheduler'], {'backend_url': 'zokeeper://x'}, "driver 'zokeeper'"),
    (['scheduler'], {'backend_url': 'memcached://x'}, 'group membership'),
    (['scheduler'], {'hash_ring_replicas_count': '0'},
     'hash_ring_replicas_count'),
    (['scheduler'], {'hash_ring_replicas_count': '-3'},
     'hash_ring_replicas_count'),
    (['scheduler'], {'send_timeout': '70', 'lease': '60'}, 'send_timeout'),
    (['scheduler'], {'dispatcher': 'messaging'}, 'backend_url is empty'),
    (['scheduler'], {'dispatcher': 'smoke'}, 'dispatcher'),
    (['scheduler', '--workers', '2'], {}, 'backend_url'),
    (['scheduler', '--workers', '2'],
     {'backend_url': 'file:///tmp/x', 'member_id': 'a'}, "member_id 'a'"),
    (['scheduler'], {'member_id': 'a/b'}, "member id 'a/b'"),
    (['scheduler'], {'group': 'a/b'}, "'a/b'"),
    (['scheduler'], {'state_path': '/proc/nowhere'}, 'state_path'),
    (['scheduler'], {'dispatcher': 'messaging',
                     'backend_url': 'file:///tmp/x'}, 'names no broker'),
    (['worker', '--partition', 'slow'], {}, 'backend_url is empty'),
    (['worker'], {'backend_url': 'file:///tmp/x'},
     "--partition 'default': no job"),
    (['worker', '--partition', 'slow'], {'backend_url': 'file:///tmp/x'},
     'names no broker'),
], ids=str)
def test_options_that_cannot_be_used_are_one_line(
        argv, options, said, service, capsys):
    config = service / 'service.conf'
    config.write_text('[distperiodic]\n' + ''.join(
        f'{k} = {v}\n' for k, v in options.items()))

    assert shell.main([*argv, '--tasks', 'good_tasks:Good',
                       '--config-file', str(config)]) == 2

    told = capsys.readouterr().err
    assert said in told
    assert told.count('\n') == 1


@pytest.mark.parametrize('url', [
    'rabbit://user:sesame@host:port/', 'smoke://user:sesame@host/',
    'user:sesame@host'])
def test_a_wrong_transport_url_is_one_line_without_its_password(
        url, service, capsys):
    config = service / 'service.conf'
    config.write_text(
        f'[DEFAULT]\ntransport_url = {url}\n[distperiodic]\n'
        'backend_url = file:///tmp/x\ndispatcher = messaging\n')

    assert shell.main(['scheduler', '--tasks', 'good_tasks:Good',
                       '--config-file', str(config)]) == 2

    told = capsys.readouterr().err
    assert 'transport_url' in told
    assert 'sesame' not in told
    assert told.count('\n') == 1


def test_the_class_is_built_with_the_configuration_and_found_here():
    conf = object()

    tasks = loading.load_tasks('good_tasks:Good', conf)

    assert tasks.conf is conf
    assert list(tasks.jobs) == ['poll']


def test_an_error_keeps_its_cause():
    with pytest.raises(exceptions.ConfigError) as caught:
        loading.load_class('broken_raises:T')

    assert isinstance(caught.value.__cause__, ZeroDivisionError)
