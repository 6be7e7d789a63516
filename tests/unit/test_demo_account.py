# SPDX-License-Identifier: Apache-2.0
"""The demo prints correct figures."""

from distperiodic.core.ring import Ring
from distperiodic.demo import member
from distperiodic.demo.account import PingedTick
from distperiodic.demo.account import lateness
from distperiodic.demo.account import moves

HOSTS = member.hosts_of(500)


def owners(**points):
    ring = Ring(points)
    return {host: ring.owner_of(host) for host in HOSTS}


def test_a_second_ping_counts_the_host_twice_and_not_the_ping():
    tick = PingedTick()
    for host, process in (('h1', 'a'), ('h2', 'a'), ('h2', 'b'), ('h2', 'b')):
        tick.runs[host].append(process)

    assert (len(tick.runs), tick.twice) == (2, 1)
    assert tick.served_by() == {'a': 1, 'b': 1}


def test_only_hosts_of_a_new_member_move_when_it_joins():
    after = owners(a=40, b=40, c=40, d=40)

    assert moves(owners(a=40, b=40, c=40), after, ['d']) == (
        (list(after.values()).count('d'),) * 2)


def test_moves_between_remaining_members_are_counted():
    moved, least = moves(
        owners(a=40, b=40, c=40), owners(a=80, b=40), ['c'])

    assert moved > least > 0


def test_the_first_member_moves_no_hosts():
    assert moves({}, owners(a=40), ['a']) == (0, 0)


def test_lateness_is_printed_in_quantiles():
    assert lateness([n / 100 for n in range(100, 0, -1)]) == (
        'p50 510 ms, p99 1,000 ms')
    assert lateness([]) == 'p50 0 ms, p99 0 ms'


def test_hosts_are_the_addresses_of_the_article():
    assert HOSTS[0] == '192.168.10.0'
    assert HOSTS[499] == '192.168.11.243'
    assert len(set(member.hosts_of(5000))) == 5000
