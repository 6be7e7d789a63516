# SPDX-License-Identifier: Apache-2.0
"""Options that contradict each other are rejected with a one-line error."""

import dataclasses

import pytest
from oslo_config import cfg
from oslo_db import options

from distperiodic import exceptions
from distperiodic import opts
from distperiodic.core import partition
from distperiodic.core import times
from tests.configured import configuration

STORE = 'sqlite:////claims.sqlite'


def settings(**options):
    return opts.settings(configuration(**options))


@pytest.mark.parametrize(('options', 'told'), [
    ({'lease': 12.0, 'sweep_interval': 4.0},
     'sweep_interval 4 s must be less than a third of lease 12 s'),
    ({'session_timeout': 1.5, 'sweep_interval': 1.0},
     'sweep_interval 1 s must be at most half of session_timeout 1.5 s'),
    ({'session_timeout': 4.0, 'late_claim_after': 5.0},
     'late_claim_after 5 s must be at most session_timeout 4 s'),
    ({'session_timeout': 90.0, 'lease': 60.0},
     'session_timeout 90 s must be at most lease 60 s'),
    ({'late_claim_after': 20.0, 'lease': 15.0},
     'late_claim_after 20 s must be at most session_timeout 15 s (default)'),
    ({'send_timeout': 60.0, 'lease': 60.0},
     'send_timeout 60 s must be less than lease 60 s'),
    ({'group': 'g' * 101}, 'has 101 characters, but a store allows 100'),
], ids=str)
def test_a_relation_that_cannot_hold_is_refused_in_one_line(options, told):
    with pytest.raises(exceptions.ConfigError) as raised:
        settings(connection=STORE, **options)

    text = str(raised.value)
    assert told in text
    assert '; lower ' in text or '; give ' in text
    assert '\n' not in text


@pytest.mark.parametrize('backend_url', ['', 'file:///x'])
def test_a_group_that_no_service_can_store_is_called_a_group(backend_url):
    with pytest.raises(exceptions.ConfigError,
                       match=r"^\[distperiodic\] group 'a b/c' \(5 char"):
        settings(group='a b/c', backend_url=backend_url)


@pytest.mark.parametrize(('section', 'option'), [
    ('distperiodic', 'connection'), ('distperiodic', 'backend_url'),
    ('database', 'connection')])
def test_a_dollar_in_a_password_is_named_with_its_remedy(
        tmp_path, section, option):
    line = f'[{section}]\n{option} = postgresql://u:pa$word@h/x\n'
    with pytest.raises(exceptions.ConfigError) as raised:
        read(tmp_path, line)

    text = str(raised.value)
    assert text.startswith(f'[{section}] {option}: ')
    assert 'write "$$"' in text
    assert 'word' not in text


def test_a_doubled_dollar_is_a_dollar(tmp_path):
    found = read(tmp_path, '[distperiodic]\nbackend_url = file:///x\n'
                 'connection = postgresql://u:pa$$word@h/x\n')

    assert found == 'postgresql://u:pa$word@h/x'


def test_all_contradictions_are_in_one_message():
    with pytest.raises(exceptions.ConfigError) as raised:
        settings(connection=STORE, session_timeout=4.0, late_claim_after=5.0,
                 sweep_interval=3.0, lease=3.0, send_timeout=9.0)

    found, _, remedy = str(raised.value).rpartition('; ')
    assert found.count(' must be ') == remedy.count('lower ') == 5
    assert '(default)' not in found


def test_all_values_that_cannot_be_used_are_in_one_message(tmp_path):
    with pytest.raises(exceptions.ConfigError) as raised:
        read(tmp_path, '[distperiodic]\nlease = soon\npool_size = 0\n'
                       'session_timeout = nan\nsend_timeout = inf\n')

    text = str(raised.value)
    assert [name for name in ('lease', 'pool_size', 'session_timeout',
                              'send_timeout')
            if f'[distperiodic] {name}: ' not in text] == []


NUMBERS = [opt for opt in opts.OPTS if isinstance(
    opt, (cfg.IntOpt, cfg.FloatOpt))]
EXTREMES = [pytest.param({opt.dest: value}, id=f'{opt.dest}={value:g}')
            for opt in NUMBERS for value in (opt.type.min, opt.type.max)]
PLACES = {
    'store': {'backend_url': 'zookeeper://zk', 'connection': STORE},
    'no store': {'backend_url': 'zookeeper://zk', 'connection': 'none'},
    'alone': {},
}


@pytest.mark.parametrize('place', PLACES)
@pytest.mark.parametrize('option', EXTREMES)
def test_an_option_can_be_set_alone_to_its_least_and_its_most(option, place):
    found = settings(**PLACES[place], **option)

    for name, value in option.items():
        assert getattr(found, name) == value
    for relation in times.RELATIONS:
        if place == 'store' or not relation.store:
            assert relation.holds(dataclasses.asdict(found))
    for opt in NUMBERS:
        assert opt.type.min <= getattr(found, opt.dest) <= opt.type.max


@pytest.mark.parametrize('place', PLACES)
def test_where_no_time_is_set_each_has_its_default(place):
    found = settings(**PLACES[place])

    assert {opt.dest: getattr(found, opt.dest) for opt in NUMBERS} == {
        opt.dest: opt.default for opt in NUMBERS}


@pytest.mark.parametrize(('given', 'follow'), [
    ({'session_timeout': 4.0},
     {'late_claim_after': 2.0, 'sweep_interval': 0.4, 'send_timeout': 2.0,
      'lease': 60.0}),
    ({'session_timeout': 90.0},
     {'late_claim_after': 5.0, 'sweep_interval': 1.0, 'send_timeout': 5.0,
      'lease': 180.0}),
    ({'lease': 8.0},
     {'session_timeout': 8.0, 'late_claim_after': 4.0,
      'sweep_interval': 0.8, 'send_timeout': 4.0}),
    ({'late_claim_after': 20.0}, {'session_timeout': 20.0, 'lease': 60.0}),
    ({'sweep_interval': 12.0}, {'session_timeout': 24.0, 'lease': 72.0}),
    ({'send_timeout': 60.0}, {'session_timeout': 10.0, 'lease': 120.0}),
], ids=str)
def test_an_option_that_is_not_set_follows_the_options_that_are(given, follow):
    found = settings(connection=STORE, **given)

    assert {name: getattr(found, name) for name in follow} == follow


def test_a_default_that_is_set_explicitly_gives_way_no_more():
    with pytest.raises(exceptions.ConfigError, match='lease 60 s, so'):
        settings(connection=STORE, session_timeout=90.0, lease=60.0)


def test_the_default_of_a_host_counts_as_set():
    conf = cfg.ConfigOpts()
    conf([])
    opts.register_opts(conf)
    conf.set_default('lease', 30.0, opts.GROUP)
    conf.set_override('session_timeout', 20.0, opts.GROUP)

    assert opts.settings(conf).lease == 30.0


@pytest.mark.parametrize('given', [
    {'session_timeout': 2.0, 'late_claim_after': 2.0},
    {'lease': 8.0, 'sweep_interval': 2.0, 'session_timeout': 8.0},
    {'lease': 12.0, 'sweep_interval': 3.9}], ids=str)
def test_a_relation_that_holds_is_fine(given):
    assert settings(connection=STORE, **given).connection == STORE


@pytest.mark.parametrize('given', [
    {'session_timeout': 1.5, 'sweep_interval': 1.0},
    {'lease': 8.0, 'session_timeout': 10.0},
    {'lease': 12.0, 'sweep_interval': 4.0}], ids=str)
def test_an_option_that_only_a_store_needs_is_free_without_a_store(given):
    assert settings(**given).embedded


@pytest.mark.parametrize('relation', times.RELATIONS, ids=str)
def test_the_help_of_an_option_names_its_bounds(relation):
    told = {opt.dest: opt.help for opt in opts.OPTS}

    assert relation.greater in told[relation.lesser]


@pytest.mark.parametrize('opt', NUMBERS, ids=lambda opt: opt.dest)
def test_a_number_has_a_least_and_a_most(opt):
    assert opt.type.min <= opt.default <= opt.type.max


# -- which database the service uses

def read(tmp_path, text, register=None):
    path = tmp_path / 'my-service.conf'
    path.write_text(text)
    conf = cfg.ConfigOpts()
    if register is not None:
        register(conf)
    conf(['--config-file', str(path)])
    return opts.settings(conf).connection


@pytest.mark.parametrize('register', [
    None, lambda conf: conf.register_opts(
        options.database_opts, group='database')],
    ids=['unknown here', 'service'])
@pytest.mark.parametrize(('text', 'url'), [
    ('[distperiodic]\nbackend_url = zookeeper://localhost\n', ''),
    ('[distperiodic]\nconnection = none\n', ''),
    ('[distperiodic]\nstate_path = /var/lib/mine\ngroup = ours\n',
     'sqlite:////var/lib/mine/ours.sqlite'),
    (f'[database]\nconnection = {STORE}\n', STORE),
    (f'[distperiodic]\nconnection =\n[database]\nconnection = {STORE}\n',
     STORE),
    (f'[distperiodic]\nconnection = none\n[database]\n'
     f'connection = {STORE}\n', ''),
    (f'[distperiodic]\nconnection = {STORE}\n[database]\n'
     'connection = mysql://other/other\n', STORE),
], ids=['none', 'refused', 'alone', 'theirs', 'theirs, ours empty',
        'theirs, refused', 'ours'])
def test_the_store_is_in_the_database_of_the_service_by_default(
        tmp_path, text, url, register):
    assert read(tmp_path, text, register) == url


@pytest.mark.parametrize(('options', 'told'), [
    ({'state_path': '/var/lib/what?'},
     "state_path '/var/lib/what\\?' contains"),
    ({'group': 'a/b'}, "group 'a/b'"),
    ({'group': 'g' * 101}, 'has 101 characters, but a store allows 100'),
], ids=['question mark', 'group', 'long group'])
def test_an_option_that_cannot_name_a_file_is_reported(options, told):
    with pytest.raises(exceptions.DistperiodicError, match=told) as found:
        settings(**options)

    assert len(str(found.value).splitlines()) == 1


# -- sections of partitions

def settings_of(tmp_path, text):
    path = tmp_path / 'service.conf'
    path.write_text(text)
    conf = cfg.ConfigOpts()
    conf(['--config-file', str(path)], default_config_files=[])
    return opts.settings(conf)


def test_a_partition_has_a_section_of_its_own(tmp_path):
    found = settings_of(tmp_path, '[partition:slow]\nmax_in_flight = 5\n'
                           '[partition:Net.2]\nmax_in_flight = 7\n'
                           '[partition:empty]\n')

    assert found.partitions == {
        'slow': partition.Partition('slow', 5),
        'Net.2': partition.Partition('Net.2', 7)}


def test_a_partition_may_have_a_broker_of_its_own(tmp_path):
    found = settings_of(tmp_path, '[partition:slow]\n'
                        'transport_url = redis://:s3cr3t@h/0\n')

    assert found.partitions['slow'].transport_url == 'redis://:s3cr3t@h/0'
    assert 's3cr3t' not in repr(found)


def test_an_error_about_an_option_of_a_partition_contains_no_password(
        tmp_path):
    with pytest.raises(exceptions.ConfigError) as raised:
        settings_of(tmp_path, '[partition:slow]\n'
                    'transprt_url = redis://:s3cr3t@h/0\n')

    assert 'transprt_url = redis://:***@h/0' in str(raised.value)


def test_without_a_section_nothing_is_known_of_partitions(tmp_path):
    assert settings_of(tmp_path, '[distperiodic]\n').partitions == {}


@pytest.mark.parametrize(('text', 'told'), [
    ('[partition:slow]\nmax_in_flight = 0\n',
     ['[partition:slow] max_in_flight: ', 'greater than or equal to 1']),
    ('[partition:slow]\nmax_in_flight = many\n',
     ['[partition:slow] max_in_flight: ', "'many'"]),
    ('[partition:slow]\nmax_inflight = 3\n',
     ['[partition:slow] max_inflight = 3 in ', 'it has max_in_flight']),
    ('[partition: slow]\n', ["[partition: slow]: ' slow'", 'give the topic']),
    ('[partition:]\n', ["[partition:]: ''", 'give the topic']),
    ('[partition:slow]\n[partition:Slow]\n',
     ['[partition:Slow] and [partition:slow]', 'rename one']),
    ('[Partition:slow]\nmax_in_flight = x\n', ['max_in_flight: ', "'x'"]),
    ('[partition:slow]\npool_size = 0\n',
     ['[partition:slow] pool_size: ', 'greater than or equal to 1']),
    ('[partition:slow]\npool_size = -3\n',
     ['[partition:slow] pool_size: ', 'greater than or equal to 1']),
    ('[partition:slow]\nmode = alone\n',
     ['[partition:slow] mode: ', "'alone'"]),
    ('[partition:slow]\ntopic = a/b\n',
     ["[partition:slow] topic = 'a/b'", 'give 1 to 100']),
    ('[partition:slow]\npreferred = host-a\n',
     ['[partition:slow] preferred = host-a', 'only with mode = standby']),
    ('[partition:slow]\npool_size = 3\n[partition:slow]\npool_size = 4\n',
     ['[partition:slow] pool_size has several values in ', '3, 4']),
    ('[partition:slow]\npool_size = 3\n[partition:b]\ntopic = slow\n'
     'max_in_flight = 4\n',
     ["[partition:b] and [partition:slow] both describe topic 'slow'",
      'max_in_flight is 4 in one and unset in the other']),
    ('[partition:slow]\nmode = standby\n',
     ['[partition:slow] mode = standby needs dispatcher = messaging',
      'a backend_url']),
    ('[distperiodic]\ndispatcher = messaging\nbackend_url = file:///tmp/x\n'
     '[partition:slow]\nmode = standby\n',
     ['[partition:slow] mode = standby needs a connection in']),
])
def test_a_section_that_would_be_no_limit_is_refused_in_one_line(
        tmp_path, text, told):
    with pytest.raises(exceptions.ConfigError) as raised:
        settings_of(tmp_path, text)

    line = str(raised.value)
    assert [part for part in told if part not in line] == []
    assert '\n' not in line


@pytest.mark.parametrize('name', ['b', 'z'])
def test_two_sections_of_one_topic_may_have_the_same_options(tmp_path, name):
    found = settings_of(
        tmp_path, '[partition:slow]\npool_size = 3\n'
        f'[partition:{name}]\ntopic = slow\npool_size = 3\n')

    assert list(found.partitions) == ['slow']
    assert found.pool_size_of('slow') == 3
    assert found.pool_size_of('other') == found.pool_size == 10
    assert found.topic_of(name) == 'slow'


def test_a_section_may_name_its_topic(tmp_path):
    found = settings_of(
        tmp_path, '[partition:bills]\ntopic = billing\npool_size = 2\n')

    assert found.partitions == {
        'billing': partition.Partition('bills', pool_size=2)}
    assert found.topic_of('bills') == 'billing'
    assert found.topic_of('billing') == 'billing'
