# SPDX-License-Identifier: Apache-2.0
"""The demo prints correct figures."""

import os

import pytest

from distperiodic.core.ring import Ring
from distperiodic.demo import pings
from distperiodic.demo import record
from distperiodic.demo.account import Account
from distperiodic.demo.account import Change
from distperiodic.demo.account import Total
from distperiodic.demo.account import movement
from distperiodic.demo.account import quantiles

PERIOD = 2_000_000
HOSTS = pings.hosts(3)


def account(*served):
    """An account of the ticks at 0, 2 and 4 s.

    :param served: (tick in seconds, index of the host) for each run.
    """
    made = Account(HOSTS, PERIOD)
    made.first, made.last = 0, 4_000_000
    for tick, host in served:
        made.add(record.Run(HOSTS[host], tick * 1_000_000,
                            tick * 1_000_000 + 10_000, 7))
    return made


ALL = [(t, h) for t in (0, 2, 4) for h in range(3)]


def test_all_served_once():
    assert account(*ALL).total() == Total(3, 9, 9, 0, 0)


def test_a_host_without_a_ping_is_missed_also_in_a_tick_without_any():
    assert account((0, 0), (0, 1), (0, 2), (4, 0)).total() == (
        Total(3, 9, 4, 0, 5))


def test_a_second_ping_counts_the_host_twice_and_not_the_ping():
    assert account(*ALL, (2, 1), (2, 1)).total() == (
        Total(3, 9, 8, 1, 0))


def test_ticks_before_the_first_and_after_the_last_do_not_count():
    assert account(*ALL, (-2, 0), (6, 0)).total().once == 9


def test_a_missed_tick_is_counted_for_the_change_before_it():
    made = account(*(run for run in ALL if run != (2, 1)), (4, 0))
    one = Change('one', 'a', 1_000_000)
    two = Change('two', 'b', 3_800_000)
    made.changes += [one, two]

    assert made.after(one).missed == 1
    assert made.after(one).twice == 0
    assert made.after(two).missed == 0
    assert made.after(two).twice == 1


def test_a_tick_just_before_a_change_feels_it():
    made = account(*(run for run in ALL if run != (2, 1)))
    made.changes.append(Change('killed', 'a', 2_100_000))

    assert made.after(made.changes[0]).missed == 1


def test_movement_compares_two_rings():
    hosts = pings.hosts(500)
    before = Ring({'a': 40, 'b': 40, 'c': 40})
    after = before.changed_to({'a': 40, 'b': 40, 'c': 40, 'd': 40})

    found = movement(hosts, before, after, ['d'])

    assert found.moved == found.least == sum(
        after.owner_of(h) == 'd' for h in hosts)
    assert found.between_others == 0


def test_moves_between_remaining_members_are_counted():
    hosts = pings.hosts(500)
    found = movement(
        hosts, Ring({'a': 40, 'b': 40, 'c': 40}),
        Ring({'a': 80, 'b': 40}), ['c'])

    assert found.between_others > 0


def test_quantiles():
    values = [float(n) for n in range(100, 0, -1)]

    assert quantiles(values, 0.5, 0.99, 1.0) == [51.0, 100.0, 100.0]
    assert quantiles([], 0.5) == [0.0]


def test_a_record_is_read_as_it_grows(tmp_path):
    reader = record.Reader(tmp_path)
    one = record.Writer(tmp_path / 'a.runs')
    two = record.Writer(tmp_path / 'b.runs')
    one.add('h1', 2_000_000, 2_010_000)

    assert list(reader.news()) == [
        record.Run('h1', 2_000_000, 2_010_000, os.getpid())]
    assert list(reader.news()) == []
    two.add('h2', 2_000_000, 2_020_000)
    one.add('h3', 2_000_000, 2_030_000)
    assert [run.object for run in reader.news()] == ['h3', 'h2']


def test_half_a_line_waits_for_its_other_half(tmp_path):
    reader = record.Reader(tmp_path)
    with open(tmp_path / 'a.runs', 'ab', buffering=0) as file:
        file.write(b'h1 2000000 20100')
        assert list(reader.news()) == []
        file.write(b'00 7\n')
        assert list(reader.news()) == [
            record.Run('h1', 2_000_000, 2_010_000, 7)]


def test_hosts_are_the_addresses_of_the_article():
    assert pings.hosts(200)[0] == '192.168.10.0'
    assert pings.hosts(200)[-1] == '192.168.10.199'
    assert len(set(pings.hosts(5000))) == 5000


@pytest.mark.parametrize(('late', 'text'), [
    (0.0123, '12 ms'), (1.5, '1500 ms'), (12.3, '12.3 s')])
def test_lateness_is_printed_in_words(late, text):
    from distperiodic.demo import report
    assert report.milliseconds(late) == text
