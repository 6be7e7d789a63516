# SPDX-License-Identifier: Apache-2.0
"""URLs of coordination services: parts that the driver would ignore are
rejected, and errors do not show passwords.
"""

import sys

import pytest
from kazoo.protocol import serialization
from tooz import coordination

from distperiodic import exceptions
from distperiodic.adapters.coordination import driver
from distperiodic.adapters.coordination import url as backend_url
from distperiodic.core import redaction
from tests import logged
from tests.services import ports


@pytest.fixture
def file(tmp_path):
    path = tmp_path / 'ca.pem'
    path.touch()
    return str(path)


@pytest.mark.parametrize(('url', 'told'), [
    ('zookeeper://h/nova', ['has a path', 'write ?namespace=nova instead']),
    ('zookeeper://h1,h2:2181/a/b/?timeout=4',
     ['write ?namespace=a/b instead']),
    ('kazoo://h/nova', ['write ?namespace=nova']),
    ('redis://h:6379/1', ['has a path', 'write ?db=1']),
    ('etcd3+http://h/nova', ['has a path', 'remove it']),
    ('file://var/lib/x', ['names a host', 'three slashes']),
    ('zookeeper://u:a/hunter2@h', ['"/" or a "?" before its last "@"']),
    ('zookeeper://u@h', ['user without a password', 'USER:PASSWORD@']),
    ('zookeeper://u:@h', ['user without a password']),
    ('kazoo://:hunter2@h', ['password without a user']),
    ('zookeeper://u:a?hunter2@h', ['"/" or a "?" before its last "@"']),
    ('zookeeper://u:a#hunter2@h', ['contains a "#"']),
    ('zookeeper://[::1', ['is not a URL']),
    ('zookeeper://h?timout=4',
     ['does not know: timout, did you mean timeout?', 'it has ca, ']),
    ('zookeeper://h?hosts=b', ['does not know: hosts']),
    ('redis://h?namespce=a', ['did you mean namespace?']),
    ('file:///x?namespace=a', ['does not know: namespace']),
    ('etcd3+http://h?ca=x', ['does not know: ca']),
    ('zookeeper://h?timeout', ['timeout= has no value']),
    ('zookeeper://h1:2181,h2:99999', ['has a port 99999; ports are from 1']),
    ('redis://:hunter2@[::1]:0', ['has a port 0; ports are from 1']),
    ('zookeeper://h?timeout=', ['timeout= has no value']),
    ('zookeeper://h?timeout=soon', ['timeout=soon is not a whole number']),
    ('zookeeper://h?timeout=0', ['timeout=0 is not a whole number']),
    ('zookeeper://h?use_ssl=ture', ['use_ssl=ture is neither true nor']),
    ('zookeeper://h?use_ssl=true&ca=/no/where',
     ['ca=/no/where is not a file that this user can read']),
    ('redis://h?ssl=true&ssl_ca_certs=/no/where',
     ['ssl_ca_certs=/no/where is not a file']),
    ('etcd3+https://h?ca_cert=/no/where', ['ca_cert=/no/where is not a f']),
    ('zookeeper://h?ca=FILE', ['ca, which has no effect without use_ssl',
                               'add use_ssl=true']),
    ('zookeeper://h?ca=FILE&use_ssl=no', ['without use_ssl']),
    ('zookeeper://h?use_ssl=1&certfile=FILE',
     ['certfile, which has no effect without keyfile', 'add keyfile=FILE']),
    ('redis://h?ssl_ca_certs=FILE', ['without ssl', 'add ssl=true']),
    ('zookeeper://h?namespace=a//b', ['namespace=a//b is not a valid name']),
    ('zookeeper://h?namespace=..', ['namespace=.. is not a valid name']),
])
def test_an_option_that_a_driver_would_ignore_is_refused_in_one_line(
        url, told, file):
    with pytest.raises(exceptions.ConfigError) as raised:
        backend_url.check_backend_url(url.replace('FILE', file))

    text = str(raised.value)
    assert [part for part in told if part not in text.replace(
        file, 'FILE')] == []
    assert '; ' in text
    assert '\n' not in text
    assert 'hunter2' not in text


@pytest.mark.parametrize('url', [
    'zookeeper://h/', 'zookeeper://h1,h2:2181,[::1]:2181?timeout=4',
    'zookeeper://h?namespace=my/place&randomize_hosts=false',
    'zookeeper://u:p@h?use_ssl=true&ca=FILE&certfile=FILE&keyfile=FILE',
    'redis://:p@h?db=1&namespace=x&ssl=true&ssl_ca_certs=FILE',
    'redis://h?sentinel=m&sentinel_fallback=a:1&sentinel_fallback=b:2',
    'etcd3+https://h?ca_cert=FILE&api_version=v3', 'file:///x?timeout=4'])
def test_an_option_that_a_driver_knows_is_accepted(url, file):
    backend_url.check_backend_url(url.replace('FILE', file))


@pytest.mark.parametrize(('url', 'shown'), [
    ('zookeeper://u:hunter2@h?timeout=4', 'zookeeper://u:***@h?timeout=4'),
    ('redis://:hunter2@h', 'redis://:***@h'),
    ('zookeeper://h?keyfile_password=hunter2&ca=x',
     'zookeeper://h?keyfile_password=***&ca=x'),
    ('redis://h?sentinel_password=hunter2', 'redis://h?sentinel_password=***'),
    ('zookeeper://u:a?hunter2@h', 'zookeeper://u:***@h'),
    ('u:hunter2@h', 'u:***@h'), ('u:hunter2@h://', 'u:***@h://'),
    ('mysql://u@h/db?ssl_key_passwd=hunter2',
     'mysql://u@h/db?ssl_key_passwd=***'),
    ('zookeeper://h', 'zookeeper://h'), ('file:///x', 'file:///x'),
    ('', '')])
def test_a_url_is_shown_without_its_passwords(url, shown):
    assert redaction.redact(url) == shown


def test_a_refused_option_is_named_without_its_password():
    with pytest.raises(exceptions.ConfigError) as raised:
        backend_url.check_backend_url('redis://h?sentinel_password=hunter2&sentinel=')

    assert 'hunter2' not in str(raised.value)


@pytest.mark.parametrize(('url', 'whole'), [
    ('zookeeper://h', 'zookeeper://h?namespace=distperiodic&timeout=4'),
    ('zookeeper://h?namespace=mine&timeout=6',
     'zookeeper://h?namespace=mine&timeout=6'),
    ('redis://h?db=1',
     'redis://h?db=1&namespace=distperiodic&membership_timeout=4'),
    ('etcd3+http://h', 'etcd3+http://h?membership_timeout=4'),
    ('file:///x', 'file:///x/distperiodic?timeout=4'),
    ('file:///x/?timeout=6', 'file:///x/distperiodic?timeout=6')])
def test_a_driver_is_given_our_namespace_and_the_session_timeout(url, whole):
    assert backend_url.complete_url(url, 4.0) == whole


@pytest.mark.parametrize(('url', 'place'), [
    ('zookeeper://h', '/distperiodic'),
    ('zookeeper://h?namespace=my/place', '/my/place')])
def test_zookeeper_keeps_ours_below_a_place_of_its_own(url, place):
    assert driver.make(url, b'a', 4)._base_path() == place


def test_etcd_keeps_ours_below_a_place_of_its_own():
    pytest.importorskip('etcd3gw')

    assert driver.make('etcd3+http://h', b'a', 4)._prefix_group(b'g') == (
        b'distperiodic/groups/g/')


@pytest.mark.parametrize('error', [RuntimeError, ModuleNotFoundError])
def test_a_driver_that_cannot_be_loaded_is_named(monkeypatch, error):
    def missing(url, entry):
        raise error("No 'tooz.backends' driver found")
    monkeypatch.setattr(driver.coordination, 'get_coordinator', missing)

    with pytest.raises(exceptions.ConfigError,
                       match="the driver 'zookeeper' cannot be loaded"):
        driver.make('zookeeper://u:hunter2@h', b'a', 4)


@pytest.mark.parametrize('url', ['zookeeper://h?use_ssl=on', 'redis://h?ssl=1',
                                 'etcd3+https://h'])
def test_an_encrypted_url_is_recognised(url):
    assert backend_url.has_tls(url)


@pytest.mark.parametrize('url', ['zookeeper://h?use_ssl=off', 'redis://h',
                                 'etcd3+http://h'])
def test_an_unencrypted_url_is_recognised(url):
    assert not backend_url.has_tls(url)


@pytest.mark.parametrize('secret', [
    'hunter2', "hun'ter2", 'hun"ter2', "hu'nt\"er2", 'hun\\ter2', 'hunter2\''])
def test_no_log_line_of_kazoo_contains_a_credential(secret, caplog):
    client = driver.make(f'zookeeper://me:{secret}@h', b'a', 4)._coord
    digest = client.default_acl[0].id.id.partition(':')[2]
    lines = [serialization.Auth(0, *client.auth_data.copy().pop()),
             serialization.Create('/a', b'', client.default_acl, 0),
             serialization.Connect(0, 0, 4, 7, secret.encode(), False)]
    caplog.set_level(1, 'kazoo')

    for line in lines:
        client._connection.logger.debug('Sending request(xid=%s): %s', 1, line)
    client.logger.log(5, 'session_id: %r session_passwd: %s', 7, b'68756e')

    told = caplog.text
    assert [part for part in (secret, repr(secret)[1:-1], digest, 'ter2',
                              '68756e') if part in told] == []
    assert "path='/a'" in told
    assert 'session_id: 7' in told


@pytest.mark.parametrize(('url', 'module', 'extra'), [
    ('redis://me:hunter2@h', 'redis', 'redis'),
    ('etcd3+http://h', 'etcd3gw', 'etcd'),
    ('etcd3+https://h', 'etcd3gw', 'etcd'),
])
def test_a_driver_that_is_not_installed_is_one_line(
        url, module, extra, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)

    with pytest.raises(exceptions.ConfigError) as told:
        backend_url.check_backend_url(url)

    assert f'needs the package {module}' in str(told.value)
    assert f"pip install 'distperiodic[{extra}]'" in str(told.value)
    assert 'hunter2' not in str(told.value)


def test_a_server_that_cannot_be_reached_is_named_at_once_and_once(caplog):
    server = f'{ports.HOST}:{ports.free_port()}'
    url = f'zookeeper://{server}'
    for _ in range(2):  # two terms
        coordinator = driver.make(url, b'a', 4)
        driver.Explainer(coordinator, url)
        coordinator.timeout = 1
        with pytest.raises(coordination.ToozError):
            coordinator.start()

    assert logged.events(caplog) == ['server not reached']
    assert logged.lines(caplog)[0]['server'] == server
