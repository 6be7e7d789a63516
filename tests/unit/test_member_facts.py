# SPDX-License-Identifier: Apache-2.0
"""Facts in the report of a process: any report can be read."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distperiodic.core import member
from distperiodic.core.member_facts import CatalogueFact
from distperiodic.core.member_facts import PoolFact
from distperiodic.core.member_facts import ProcessReport
from distperiodic.core.member_facts import RunFact
from distperiodic.core.member_facts import StoreFact
from distperiodic.core.member_facts import SubscriberFact
from distperiodic.core.member_facts import ViewFact
from distperiodic.operator.member_rows import MemberRow
from distperiodic.operator.member_rows import by_process
from distperiodic.operator.member_rows import topics

AT = 1_000_000_000


def row(part, name, process='p~1', seen=AT, **state):
    return MemberRow(part, name, process, 0, state, False, None, '', '', None,
                     seen)


def test_ages_become_instants_before_the_report():
    run = {'job': 'poll', 'object': 'a', 'tick': 7, 'age_s': 2.0,
           'timeout_s': None}
    report = ProcessReport({
        'up_s': 10.0, 'unhealthy_s': 1.5, 'clock_ahead_s': -2.5,
        'catalogues': [{'job': 'poll', 'error': 'no', 'failing_s': 3.0,
                        'reading_s': None, 'read_s': 4}],
        'pools': {'disks': {'size': 3, 'busy': 2, 'hanging': 1, 'queued': 9},
                  'nets': {'size': 1, 'busy': 0, 'hanging': 0}},
        'slots': {'disks': {'oldest': run, 'hanging': 2, 'hanging_runs': [
            {**run, 'timeout_s': 0.5}]}},
        'store': {'calls': 4, 'p50_s': 0.1, 'max_s': 2, 'queued': 5,
                  'waits_s': 0.5, 'slow_s': 6.0, 'away': True},
        'view': {'digest': 'abc', 'members': 2, 'age_s': 8, 'trusted': True},
        'metrics': 'in use',
        'subscribers': [{'name': 'f', 'calling_s': 9},
                        {'name': 'g', 'error': 'no', 'dropped': 3}],
        }, AT)

    assert report.started == AT - 10_000_000
    assert report.unhealthy_since == AT - 1_500_000
    assert report.clock_ahead == -2.5
    assert report.catalogues == [CatalogueFact(
        'poll', 'no', AT - 3_000_000, None, AT - 4_000_000)]
    disks, nets = report.pools
    oldest = RunFact('poll', 'a', 7, AT - 2_000_000, None)
    assert disks == PoolFact('disks', 3, 2, 9, 2, oldest, [
        oldest._replace(timeout=0.5)])
    assert (disks.free, nets.free, nets.oldest, nets.hanging) == (
        1, 1, None, 0)
    assert report.store == StoreFact(
        4, 0.1, 2.0, 5, 0.5, AT - 6_000_000, True)
    assert report.view == ViewFact('abc', 2, AT - 8_000_000, True)
    assert report.metrics == 'in use'
    assert report.subscribers == [
        SubscriberFact('f', '', 0, AT - 9_000_000),
        SubscriberFact('g', 'no', 3, None)]


def test_a_field_that_a_report_lacks_is_unknown():
    report = ProcessReport({}, AT)

    assert (report.started, report.unhealthy_since, report.clock_ahead,
            report.catalogues, report.pools, report.store, report.view,
            report.broker, report.metrics, report.subscribers) == (
                None, None, None, [], [], None, None, '', '', [])


NAMES = ('up_s', 'broker', 'unhealthy_s', 'clock_ahead_s', 'catalogues',
         'pools', 'slots', 'store', 'view', 'size', 'oldest', 'hanging_runs',
         'age_s', 'failing_s', 'metrics', 'subscribers', 'calling_s')
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4))


@given(st.dictionaries(st.sampled_from(NAMES), JSON))
def test_no_report_of_another_form_raises(state):
    report = ProcessReport(json.loads(json.dumps(state)), AT)

    assert isinstance(report.catalogues, list)
    assert isinstance(report.pools, list)
    assert isinstance(report.clock_ahead, float | None)
    for one in (report.started, report.unhealthy_since):
        assert one is None or type(one) is int
    assert report.store is None or report.store.p50 >= 0
    assert report.view is None or report.view.members is not None


def test_members_of_one_name_differ_by_role_and_partition():
    rows = [row('', 'vm:0', 'vm:0~1'), row('default', 'vm:0', 'vm:0~2'),
            row('mysql', 'vm:0', 'vm:0~3'), row('mysql', 'vm:1', '')]

    assert [one.label for one in rows] == [
        'scheduler vm:0', 'worker default/vm:0', 'worker mysql/vm:0',
        'worker mysql/vm:1']
    assert {process: one.label for process, one in by_process(rows).items()
            } == {'vm:0~1': 'scheduler vm:0', 'vm:0~2': 'worker default/vm:0',
                  'vm:0~3': 'worker mysql/vm:0'}


def test_the_newest_report_names_the_partition_of_a_job():
    rows = [row('', 'b', seen=2, topics={'disks': ['poll']}),
            row('', 'a', seen=1, topics={'nets': ['poll', 'old']}),
            row('disks', 'w', seen=3), row('', 'c', topics=[7])]

    assert topics(rows) == {'poll': 'disks', 'old': 'nets'}


@pytest.mark.parametrize(('other', 'same'), [
    ({'a': 40, 'b': 40}, True), ({'a': 40, 'b': 41}, False),
    ({'a': 40}, False), ({'a': 40, 'b': 40, 'worker': 0}, True)])
def test_views_with_the_same_ring_have_the_same_digest(other, same):
    def digest(points):
        return member.ring_digest(
            member.Member(name, '0' * 16, 1, number)
            for name, number in points.items())

    assert (digest({'b': 40, 'a': 40}) == digest(other)) is same
