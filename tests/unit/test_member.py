# SPDX-License-Identifier: Apache-2.0
"""Entries of members, and the members that result from the entries of a group.
"""

import dataclasses

import pytest
from hypothesis import example
from hypothesis import given
from hypothesis import strategies as st

from distperiodic import exceptions
from distperiodic.core import member
from distperiodic.core import ring

IDENTITIES = st.from_regex(r'[A-Za-z0-9][A-Za-z0-9._:@-]{0,199}',
                           fullmatch=True)
NONCES = st.text('0123456789abcdef', min_size=16, max_size=16)
MEMBERS = st.builds(
    member.Member, IDENTITIES, NONCES, st.integers(0, 99_999),
    points=st.integers(0, member.MAX_POINTS), slots=st.integers(0, 99_999),
    tenure=st.integers(0, 99_999), ring_format=st.integers(1, 9),
    jobs=st.integers(0, 99_999), traces=st.booleans())


def a_member(identity='api-1', nonce='00c0ffee00c0ffee', generation=1,
             **attributes):
    attributes.setdefault('points', 40)
    return member.Member(identity, nonce, generation, **attributes)


# Identities.

@pytest.mark.parametrize('identity', [
    'a', '7', 'api-1', 'host.example.org:12', 'cell@host:3', 'A_b', 'x' * 200])
def test_an_identity_that_can_be_carried_is_given_back(identity):
    assert member.check_identity(identity) == identity


@pytest.mark.parametrize('identity', [
    '', 'a/b', '/', '..', '.hidden', '-dash', 'hôte', '主机', 'two words',
    'tab\t', 'line\n', 'nul\0', 'x' * 201, 'x' * 300, 'tilde~', 'a%20b',
    b'bytes', None, 7, '\ud800', '１'], ids=repr)
def test_an_identity_that_cannot_be_carried_is_refused_with_the_rule(
        identity):
    with pytest.raises(exceptions.InvalidMemberId) as told:
        member.check_identity(identity)

    text = str(told.value)
    assert f'member id {identity!r:.80}' in text
    assert 'use 1 to 200 of the characters A-Z a-z 0-9 . _ : @ -' in text
    assert len(text.splitlines()) == 1
    assert len(text) < 300


# Entries.

@given(MEMBERS)
def test_an_entry_contains_all_facts_about_a_member(one):
    assert member.parse_entry(one.entry) == one


@given(MEMBERS)
def test_an_entry_can_be_a_name_in_any_coordination_service(one):
    assert one.entry.isascii()
    assert '/' not in one.entry
    assert len(one.entry) <= 255, 'a file name can be no longer'


def test_an_entry_reads_as_the_documentation_shows_it():
    one = a_member('api-1', '9f2c41d07be3a655', 3, tenure=2)

    assert one.entry == 'api-1~9f2c41d07be3a655~3~f1.t2.r40'


@given(st.text(max_size=80))
@example('leader')
@example('')
@example('h\xf4te')
@example('api-1~9f2c41d07be3a655~3')
@example('api-1~9f2c41d07be3a655~3~')
@example('api-1~9f2c41d07be3a655~3~r40')
@example('api-1~9f2c41d07be3a655~3~f0.r40')
@example('api-1~9f2c41d07be3a655~3~f1.r-1')
@example('api-1~9f2c41d07be3a655~3~f1.r1e9')
@example('api-1~9f2c41d07be3a655~3~f1.r10001')
@example('api-1~9f2c41d07be3a655~3~f1.r999999999999999999999')
@example('api-1~9f2c41d07be3a655~3~f1.r40\n')
@example('api-1~9f2c41d07be3a655~3~f1.r٤٠')
@example('api-1~NONCE~3~f1.r40')
@example('a/b~9f2c41d07be3a655~3~f1.r40')
@example('~9f2c41d07be3a655~3~f1.r40')
def test_an_entry_of_another_format_is_ignored_without_an_error(entry):
    assert member.parse_entry(entry) is None


def test_attributes_of_a_later_release_are_left_out():
    one = member.parse_entry('api-1~9f2c41d07be3a655~3~f1.q7.r40.z9')

    assert one == a_member('api-1', '9f2c41d07be3a655', 3)


# Terms and tenures.

def test_the_next_term_is_the_same_process_under_another_entry():
    one = a_member(generation=4, tenure=2)

    without_gap, with_gap = one.next_term(False), one.next_term(True)

    assert without_gap.entry != one.entry
    assert without_gap.same_process(one)
    assert without_gap.holder == one.holder
    assert with_gap.same_process(one)
    assert with_gap.holder != one.holder
    assert with_gap.tenure == 3


# One member per identity.

@given(st.lists(MEMBERS, max_size=8), st.randoms())
def test_all_readers_of_the_same_entries_settle_on_the_same_members(
        members, random):
    entries = [one.entry for one in members]
    shuffled = list(entries)
    random.shuffle(shuffled)

    settled, strangers = member.resolve_entries(entries)

    assert member.resolve_entries(shuffled) == (settled, strangers)
    assert strangers == []
    assert [one.identity for one in settled] == sorted(
        {one.identity for one in members})


def test_the_later_of_two_terms_of_a_process_counts():
    earlier = a_member(generation=9, points=40)
    later = a_member(generation=10, points=80)

    for entries in ([earlier.entry, later.entry],
                    [later.entry, earlier.entry]):
        settled, _ = member.resolve_entries(entries)
        assert settled == (later,)
        assert member.ring_members(settled) == {'api-1': 80}


def test_two_processes_with_one_identity_are_resolved_alike_by_all_others():
    one = a_member(nonce='0' * 16, generation=1)
    other = a_member(nonce='f' * 16, generation=7)

    for entries in ([one.entry, other.entry], [other.entry, one.entry]):
        assert member.resolve_entries(entries) == ((one,), [])


@pytest.mark.parametrize('generation', [1, 2])
def test_two_processes_with_one_identity_each_see_themselves(generation):
    one = a_member(nonce='0' * 16)
    other = a_member(nonce='f' * 16, generation=generation)
    entries = [one.entry, other.entry]

    for listed in (entries, entries[::-1]):
        assert member.resolve_entries(listed, one)[0] == (one,)
        assert member.resolve_entries(listed, other)[0] == (other,)


def test_strange_entries_are_named_and_own_nothing():
    one = a_member()

    settled, strangers = member.resolve_entries(
        {one.entry, 'leader', 'h\xf4te', 'api-1~xx~1~f1.r40'})

    assert settled == (one,)
    assert sorted(strangers) == ['api-1~xx~1~f1.r40', 'h\xf4te', 'leader']


def test_a_member_without_points_is_not_on_the_ring():
    worker = a_member('worker-1', points=0, slots=10)

    settled, _ = member.resolve_entries([worker.entry, a_member().entry])

    assert [one.identity for one in settled] == ['api-1', 'worker-1']
    assert member.ring_members(settled) == {'api-1': 40}


# Views.

def a_view(members=(), me=None, trusted_until=0.0):
    return member.View('g', tuple(members), ring.Ring(
        member.ring_members(members)), 1, 0.0, me, trusted_until)


def test_trust_ends_at_its_instant_and_needs_a_place_in_the_group():
    one = a_member()
    view = a_view([one], me=one, trusted_until=10.0)

    assert view.trusted(9.999)
    assert not view.trusted(10.0)
    assert not dataclasses.replace(view, me=None).trusted(9.0)


def test_members_of_different_ring_formats_use_the_lowest_offered():
    new, old = a_member('a', ring_format=3), a_member('b', ring_format=2)

    assert a_view([new, old]).ring_format == 2
    assert a_view([new]).ring_format == 3
    assert a_view().ring_format == ring.RING_FORMAT


def test_a_view_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        a_view().version = 2
