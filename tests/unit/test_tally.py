# SPDX-License-Identifier: Apache-2.0
"""Values of metrics: counted from events, and added up over processes."""

import pytest

from distperiodic.core import metric_table as table
from distperiodic.core import telemetry
from distperiodic.core.claim import SkippedBy
from distperiodic.core.tally import BUCKETS
from distperiodic.core.tally import Key
from distperiodic.core.tally import Tally
from distperiodic.core.workflow import Status

EVENTS = (
    telemetry.TickDue('poll', 60),
    telemetry.ObjectsClaimed('poll', 60, 5, telemetry.ClaimPath.RING, 0.2),
    telemetry.BatchDispatched('poll', 60, '1', 5, 'w'),
    telemetry.RunsStarted('poll', 60, '1', 5, [(0.3, 4), (7.0, 1)]),
    telemetry.RunsTimed('poll', 60, [(0.001, 3), (-1.0, 1), (1e6, 1)],
                        [(2.0, 5)]),
    telemetry.RunsEnded('poll', 60, telemetry.RunOutcome.DONE, 4),
    telemetry.RunsRetried('poll', 60, 1),
    telemetry.ResultsRejected('poll', 60, 2),
    telemetry.LeaseLost('poll', 60, 2),
    telemetry.ClaimsTakenOver('poll', 60, 3),
    telemetry.ClaimsReclaimed('poll', 60, 3, 'gone'),
    telemetry.TicksSkipped('poll', 60, SkippedBy.MISFIRE, 2, 6),
    telemetry.TicksLost('poll', 60, 2, 7),
    telemetry.CatalogueListed('poll', 5, 0.1),
    telemetry.CatalogueFailed('poll', 'OSError'),
    telemetry.MemberJoined('g', telemetry.MemberRole.SCHEDULER, 'm'),
    telemetry.MemberLeft('g', telemetry.MemberRole.WORKER, 'm'),
    telemetry.MemberActive('mysql', 'm', 1),
    telemetry.TaskMoved('t', 'create', Status.SUCCEEDED, 2),
    telemetry.QueueHalted('q', 't'),
    telemetry.MessageRefused('m', 'forged'))


def tally():
    made = Tally()
    for event in EVENTS:
        made.add(event)
    return made


def values(made):
    return {(key.metric.removeprefix('distperiodic_'), *key.labels): value
            for key, value in made.values.items()}


def test_the_events_of_this_test_are_all_events():
    assert tuple(map(type, EVENTS)) == telemetry.KINDS


def test_each_event_counts_its_objects_or_ticks():
    assert values(tally()) == {
        ('ticks_due_total', 'poll'): 1,
        ('claims_total', 'poll', 'ring'): 5,
        ('dispatched_total', 'poll'): 5,
        ('runs_started_total', 'poll'): 5,
        ('runs_total', 'poll', 'done'): 4,
        ('runs_total', 'poll', 'retried'): 1,
        ('fenced_total', 'poll'): 2,
        ('leases_lost_total', 'poll'): 2,
        ('taken_over_total', 'poll'): 3,
        ('reclaimed_total', 'poll'): 3,
        ('ticks_skipped_total', 'poll', 'misfire'): 6,
        ('ticks_lost_total', 'poll'): 7,
        ('catalogue_reads_total', 'poll', 'read'): 1,
        ('catalogue_reads_total', 'poll', 'failed'): 1,
        ('catalogue_objects', 'poll'): 5,
        ('member_changes_total', 'scheduler', 'joined'): 1,
        ('member_changes_total', 'worker', 'left'): 1,
        ('task_moves_total', 'create', 'succeeded'): 1,
        ('queues_halted_total',): 1,
        ('rejected_messages_total',): 1}


def test_a_counter_begins_at_zero_before_its_first_event():
    begun, counted = Tally(), tally()
    for one in begun, counted:
        one.begin(['poll', 'task:default.step'])

    assert set(begun.values.values()) == {0}
    found = values(begun)
    assert len(found) == 2 * 19 + 4 + 3
    assert ('rejected_messages_total',) in found
    assert ('runs_total', 'task:default.step', 'dead') in found
    # Only the types of tasks are not known before.
    assert {key for key in values(tally()) if key[0].endswith(
        '_total')} - found.keys() == {
            ('task_moves_total', 'create', 'succeeded')}
    assert values(counted)['claims_total', 'poll', 'ring'] == 5


def test_a_histogram_has_each_time_in_its_bucket():
    found = tally().distributions[Key(table.RUN_LATENESS.name, ('poll',))]

    # A run that begins before its tick, by another clock, is not late.
    assert found.buckets == [4] + [0] * (len(BUCKETS) - 1) + [1]
    assert found.sum == pytest.approx(1e6 + 0.003)
    waited = tally().distributions[Key(table.RUN_WAITING.name, ('poll',))]
    assert waited.buckets[BUCKETS.index(0.5)] == 4
    assert waited.buckets[BUCKETS.index(10.0)] == 1


def test_the_label_values_match_the_labels_of_each_metric():
    made = tally()
    for key in [*made.values, *made.distributions]:
        assert len(key.labels) == len(
            table.BY_NAME[key.metric].labels), key


def test_processes_are_added_up_and_the_largest_gauge_of_some_counts():
    total, other = tally(), tally()
    other.set(table.CATALOGUE_OBJECTS, 'poll', value=9)
    for one in total, other:
        one.count(table.SLOTS, 'default', 'free', number=3)

    total.merge(other)

    found = values(total)
    assert found['claims_total', 'poll', 'ring'] == 10
    assert found['slots', 'default', 'free'] == 6
    assert found['catalogue_objects', 'poll'] == 9
    lateness = total.distributions[Key(table.RUN_LATENESS.name, ('poll',))]
    assert sum(lateness.buckets) == 10
    # The values of the other process have not changed.
    assert values(other)['claims_total', 'poll', 'ring'] == 5


def test_a_tally_is_read_back_from_its_text():
    made = tally()
    read = Tally.parse(made.text())

    assert read.values == made.values
    assert {key: (one.buckets, one.sum)
            for key, one in read.distributions.items()} == {
                key: (one.buckets, one.sum)
                for key, one in made.distributions.items()}


@pytest.mark.parametrize('text', [
    '', 'nonsense', '[]', '{}', '{"values": [[1]], "distributions": []}',
    '{"values": 7, "distributions": []}'])
def test_a_text_of_another_form_is_refused(text):
    with pytest.raises(ValueError):
        Tally.parse(text)


def test_metrics_of_another_release_are_left_out():
    read = Tally.parse('{"values": [["distperiodic_new_total", ["x"], 1]], '
                       '"distributions": [["distperiodic_run_lateness_seconds"'
                       ', ["poll"], [1, 2], 3.0]]}')

    assert not read.values
    assert not read.distributions


def test_gauges_end_with_their_process():
    kept = tally().without_gauges()

    assert ('catalogue_objects', 'poll') not in values(kept)
    assert values(kept)['claims_total', 'poll', 'ring'] == 5
    assert kept.distributions
