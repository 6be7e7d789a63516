# SPDX-License-Identifier: Apache-2.0
"""The sentence and the exit code of the status command agree."""

import contextlib

import pytest
from oslo_config import cfg

from distperiodic import opts
from distperiodic.adapters.sql import schema
from distperiodic.adapters.sql.store import SqlClaimStore
from distperiodic.cmd import status
from distperiodic.core.member import Member
from distperiodic.core.member import ring_members
from distperiodic.core.ring import Ring
from distperiodic.operator.activity import Failing
from distperiodic.operator.partitions import Partition


def settings(**values):
    conf = cfg.ConfigOpts()
    conf([], use_env=False, default_config_files=[])
    opts.register_opts(conf)
    for name, value in values.items():
        conf.set_override(name, value, group=opts.GROUP)
    return opts.settings(conf)


def member(name, points=40, ring_format=1):
    return Member(name, '0' * 16, 1, points=points,
                  ring_format=ring_format)


def worker(name, slots=10):
    return Member(name, '0' * 16, 1, slots=slots)


def group(members=(), workers=None, strangers=(), groups=()):
    return status.Group(
        'nodes', tuple(members),
        Ring(ring_members(members)), workers or {}, {},
        list(strangers), list(groups), {})


def test_members_in_their_places_are_fine():
    code, text = status.judge(
        group([member('a', 400), member('b', 400)]), settings())

    assert code == status.FINE
    assert text == "Group 'nodes': 2 members; all is well."


def test_nobody_there_is_a_failure_and_told_plainly():
    code, text = status.judge(group(), settings())

    assert code == status.FAILURE
    assert text.startswith('No members: ')


def test_whoever_looks_for_the_wrong_group_is_shown_the_others():
    _, text = status.judge(
        group(groups=['nova', 'nova.workers.default']), settings())

    assert 'has the groups nova.' in text


def test_workers_without_schedulers_are_a_failure():
    code, text = status.judge(
        group(workers={'default': (worker('w'),)}), settings())

    assert code == status.FAILURE
    assert text.startswith('No schedulers: ')


@pytest.mark.parametrize('workers', [
    {}, {'default': ()}, {'default': (worker('w', slots=0),)}])
def test_schedulers_that_wait_for_workers_are_a_warning(workers):
    code, text = status.judge(
        group([member('a')], workers), settings(dispatcher='messaging'))

    assert code == status.WARNING
    assert 'start distperiodic worker' in text


def test_a_member_with_far_too_much_is_a_warning():
    # With few points the shares differ. Search for names whose shares differ
    # widely.
    for number in range(100):
        found = group([member(f'm-{number}-{n}', 2) for n in range(6)])
        worst = max(found.of_fair(m.identity) for m in found.members)
        if worst > status.UNEVEN:
            break
    code, text = status.judge(found, settings())

    assert code == status.WARNING
    assert f'{worst:.2f} times its fair share' in text


def test_an_upgrade_that_is_not_finished_is_a_warning():
    code, text = status.judge(
        group([member('a', 400), member('b', 400, ring_format=2)]),
        settings())

    assert code == status.WARNING
    assert 'use 1' in text


def test_a_fair_share_goes_by_points():
    found = group([member('a', 1000), member('b', 3000)])

    assert found.of_fair('a') == pytest.approx(1, abs=0.2)
    assert found.of_fair('b') == pytest.approx(1, abs=0.2)


def failing(job='poll', objects=1):
    return Failing(job, objects, 'h7')


def test_fewer_than_expected_is_a_warning():
    code, text = status.judge(
        group([member('a', 400)], {'default': (worker('w'),)}), settings(),
        expected=3, expected_workers=2)

    assert code == status.WARNING
    assert '3 members expected, 2 missing; 2 workers expected, 1 missing' in (
        text)


def test_as_many_as_expected_are_fine():
    code, _ = status.judge(
        group([member('a', 400)], {'default': (worker('w'),)}), settings(),
        expected=1, expected_workers=1)

    assert code == status.FINE


def test_who_was_there_a_minute_ago_is_missed():
    book = status.Book(gone={'host-2:1': 5})
    code, text = status.judge(group([member('a', 400)]), settings(), book)

    assert code == status.WARNING
    assert 'gone within the last 10 minutes: host-2:1; unless you' in text


@pytest.mark.parametrize(('holder', 'missed'), [
    ('b~0011223344556677~t1', ['b']),
    # A new process with the same name has joined.
    ('a~0011223344556677~t1', []),
    ('w~0011223344556677~t2', [])])
def test_a_process_that_came_back_is_not_missed(holder, missed, tmp_path):
    url = f'sqlite:///{tmp_path}/claims.sqlite'
    schema.sync(url)
    with contextlib.closing(SqlClaimStore(url, namespace='nodes')) as store:
        tick = store.now()
        store.claim('poll', tick, ['h1'], lease='l', holder=holder,
                    seconds=60.0, supersede=False)

    book = status.read_book(
        settings(connection=url, group='nodes'),
        group([member('a')], {'default': (worker('w'),)}))

    assert (book.trouble, book.gone) == ('', dict.fromkeys(missed, tick))


def test_objects_that_die_at_every_tick_are_a_warning():
    code, text = status.judge(
        group([member('a', 400)]), settings(),
        status.Book(failing=[failing(), failing('sync', 3)]))

    assert code == status.WARNING
    assert ("1 object of job poll failed for good and has not "
            "succeeded") in text
    assert ("3 objects of job sync failed for good and have not "
            "succeeded") in text
    assert "such as 'h7': see distperiodic dead list poll" in text


def test_a_store_that_cannot_be_asked_is_a_warning():
    code, text = status.judge(
        group([member('a', 400)]), settings(),
        status.Book(trouble='database x: refused'))

    assert code == status.WARNING
    assert 'the store cannot be read: database x: refused' in text


def test_a_paused_job_is_named():
    code, text = status.judge(
        group([member('a', 400)]), settings(), status.Book(paused=['poll']))

    assert code == status.FINE
    assert text.endswith('all is well; paused: poll.')


@pytest.mark.parametrize(('active', 'fine'), [('w~1', True), ('', False)])
def test_a_partition_without_an_active_worker_is_a_warning(active, fine):
    """The missing slots of the partition's workers cause no second warning."""
    code, text = status.judge(
        group([member('a', 400)], {'p': (worker('w', 0),)}),
        settings(dispatcher='messaging', backend_url='file:///tmp/x'),
        status.Book(partitions=[Partition(
            'p', active, 1, 0, 5.0, '', '', ())]))

    assert (code == status.FINE) is fine
    assert ('partition p has no active worker' in text) is not fine
    assert 'no worker accepts work' not in text
