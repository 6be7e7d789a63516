# SPDX-License-Identifier: Apache-2.0
"""Each check finds its fault, and names a remedy."""

import json

import pytest

from distperiodic.cmd import checks
from distperiodic.cmd import findings
from distperiodic.cmd import shell
from distperiodic.cmd.check import Check


@pytest.fixture(autouse=True)
def no_configuration_of_this_machine(tmp_path, monkeypatch):
    monkeypatch.setenv('HOME', str(tmp_path))


@pytest.fixture
def doctor(tmp_path, capsys):
    """Return a function that runs the offline checks on some options."""
    def ask(text='', default='', *argv):
        path = tmp_path / 'service.conf'
        path.write_text(f'[DEFAULT]\n{default}\n[distperiodic]\n{text}\n')
        path.chmod(0o600)
        code = shell.main(['doctor', '--offline', '--config-file', str(path),
                           '-f', 'json', *argv])
        told = json.loads(capsys.readouterr().out)
        return code, {row['check']: row for row in told}
    return ask


def test_every_check_has_a_text_that_is_a_sentence():
    assert len({c.name for c in checks.CHECKS}) == len(checks.CHECKS)
    for check in checks.CHECKS:
        assert check.text.endswith('.'), check.name


def test_nothing_wrong_is_code_0(doctor):
    code, found = doctor()

    assert code == 0
    assert {row['result'] for row in found.values()} <= {'ok', 'skip'}


def test_checks_that_need_a_server_are_skipped_offline(doctor):
    _, found = doctor('backend_url = zookeeper://127.0.0.1:9')

    assert found['coordination_servers']['finding'] == '--offline'
    assert found['options_usable']['result'] == 'ok'


def test_an_option_that_cannot_be_used_is_a_failure(doctor):
    code, found = doctor('send_timeout = 70\nlease = 60')

    assert code == 2
    assert found['options_usable']['result'] == 'fail'
    assert 'lower send_timeout' in found['options_usable']['remedy']
    # A check that needs valid options is skipped, and does not fail as well.
    assert found['state_path_writable']['result'] == 'skip'


def test_a_misspelt_option_is_found_with_a_suggestion(doctor):
    code, found = doctor('hash_ring_replica_count = 3')

    assert code == 1
    assert "'hash_ring_replicas_count'" in found['options_known']['finding']


def test_an_option_of_a_partition_is_sent_to_its_section(doctor):
    code, found = doctor('executor = process')

    assert code == 1
    assert 'section [partition:NAME]' in found['options_known']['finding']


def test_a_misspelt_section_is_found(doctor):
    code, found = doctor('[distperiodc]\nlease = 3')

    assert code == 1
    assert "'distperiodic'" in found['options_known']['finding']


def test_a_file_with_a_password_that_all_may_read_is_found(
        tmp_path, capsys):
    path = tmp_path / 'open.conf'
    path.write_text('[distperiodic]\n'
                    'backend_url = zookeeper://me:sesame@127.0.0.1:9\n')
    path.chmod(0o644)
    code = shell.main(['doctor', '--offline', '--config-file', str(path)])

    said = capsys.readouterr()
    assert code == 1
    # The path may be too long for one line of the table.
    assert f'do:chmodo-r{path}' in ''.join(said.out.split())
    assert 'sesame' not in said.out + said.err


MESSAGING = 'dispatcher = messaging\nbackend_url = file:///tmp/x'


@pytest.mark.parametrize(('default', 'options', 'check'), [
    ('transport_url = rabbit://u:p@broker.example/', MESSAGING,
     'connections_private'),
    ('', 'backend_url = zookeeper://zk.example:2181', 'connections_private'),
    ('transport_url = rabbit://guest:guest@broker.example/', MESSAGING,
     'broker_user'),
    ('transport_url = rabbit://u:p@broker.example/', MESSAGING,
     'messages_signed'),
])
def test_a_setting_that_is_open_to_others_is_a_warning(
        default, options, check, doctor):
    code, found = doctor(options, default)

    assert code == 1
    assert found[check]['result'] == 'warn'
    assert found[check]['remedy']


@pytest.mark.parametrize(('default', 'options', 'check'), [
    ('transport_url = rabbit://u:p@broker.example/?ssl=1', MESSAGING,
     'connections_private'),
    ('transport_url = rabbit://u:p@localhost/', MESSAGING,
     'connections_private'),
    ('', 'backend_url = zookeeper://zk.example:2281?use_ssl=true',
     'connections_private'),
    ('transport_url = rabbit://guest:guest@127.0.0.1/', MESSAGING,
     'broker_user'),
    ('transport_url = rabbit://u:p@broker.example/',
     MESSAGING + '\nsigning_key = sesame', 'messages_signed'),
])
def test_a_private_setting_is_fine(default, options, check, doctor):
    _, found = doctor(options, default)

    assert found[check]['result'] == 'ok'
    assert 'sesame' not in str(found)


def test_a_wrong_transport_url_fails_once(doctor):
    code, found = doctor(MESSAGING, 'transport_url = rabbit://u:p@h:port/')

    assert code == 2
    assert [n for n, row in found.items() if row['result'] == 'fail'] == [
        'options_usable']


def test_a_check_that_raises_our_error_found_something():
    def broken(case):
        """The thing works."""
        from distperiodic import exceptions
        raise exceptions.BusUnavailable('it is away; start it')
    check = Check('broken', 'test', True, broken)

    found = check.run(None)

    assert found == findings.CheckResult(
        findings.Result.FAIL, 'it is away', 'start it')


# -- partitions

def test_a_partition_of_no_job_is_found(doctor, tmp_path, monkeypatch):
    (tmp_path / 'of_doctor.py').write_text(
        'import distperiodic\n\n\n'
        'class Some(distperiodic.PeriodicTasks):\n'
        '    @distperiodic.periodic_task(spacing=60, topic="bills")\n'
        '    def bill(self, context):\n        pass\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    text = '[partition:bills]\npool_size = 2\n'

    code, found = doctor(text, '', '--tasks', 'of_doctor:Some')
    assert (code, found['partition_jobs']['result']) == (0, 'ok')
    code, found = doctor(text + '[partition:bill]\npool_size = 2\n', '',
                         '--tasks', 'of_doctor:Some')
    assert (code, found['partition_jobs']['result']) == (1, 'warn')
    assert '[partition:bill]' in found['partition_jobs']['finding']
    assert 'bills' in found['partition_jobs']['finding']


def test_a_class_of_handlers_that_cannot_be_loaded_is_found(doctor):
    code, found = doctor('[partition:bills]\nhandler = nothing_here:Bills\n')

    assert (code, found['partition_handlers']['result']) == (2, 'fail')
    assert 'PYTHONPATH' in found['partition_handlers']['remedy']


def test_a_contradiction_of_partitions_is_found(doctor):
    code, found = doctor('[partition:bills]\nmode = standby\n')

    assert (code, found['options_usable']['result']) == (2, 'fail')
    assert 'needs dispatcher = messaging' in (
        found['options_usable']['finding'])
