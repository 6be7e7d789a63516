# SPDX-License-Identifier: Apache-2.0
"""A scheduler's record of the objects that it has sent to its workers."""

from distperiodic.core import credit
from distperiodic.core import message
from distperiodic.core import partition
from distperiodic.core.claim import Authority
from distperiodic.core.claim import Claim
from distperiodic.core.claim_request import NewLease
from distperiodic.flow.counters import Counters
from distperiodic.flow.scheduler import in_flight
from tests.unit import world as worlds
from tests.unit.world import worker

SECOND = 1_000_000


def claims(*names):
    return [Claim(name, fence, 1, 60) for fence, name
            in enumerate(names, 1)]


def sent(*names):
    of = in_flight.WorkerState(
        worker('w'), credit.CreditWindow(10, credit.RunTimeAverage()), 0.0,
        own=False)
    batch = message.Batch(
        '1', 'poll', 60, [*names], [*range(1, len(names) + 1)],
        [1] * len(names), 'me', 'w', 'lease')
    return in_flight.SentBatch(batch, claims(*names), of, None, 0.0, 0.0)


def test_an_object_reported_twice_is_taken_once():
    batch = sent('a', 'b', 'c')

    assert batch.take([0, 2, 0]) == [0, 2]
    assert batch.take([0, 1]) == [1]
    assert batch.left == 0


def test_its_claims_are_those_that_it_was_sent_with():
    assert sent('a', 'b', 'c').claims([0, 2]) == [
        claims('a', 'b', 'c')[i] for i in (0, 2)]


def test_an_object_that_was_never_in_a_batch_is_not_taken():
    batch = sent('a')

    assert batch.take([-1, 1, 7]) == []
    assert batch.left == 1


def test_objects_that_are_claimed_and_not_settled_are_recognised():
    jobs = {name: worlds.job(name, objects=True) for name in ('poll', 'other')}
    known = in_flight.InFlight(
        jobs, partition.NONE, counters=Counters(),
        authorities=dict.fromkeys(jobs, Authority.RING))
    lease = NewLease('lease', 'me', 60.0)
    known.put(jobs['poll'], lease, claims('waiting'))
    known.put(jobs['other'], lease, claims('another'))
    known.put_quarantined(jobs['poll'], lease, claims('suspect'), 1)
    batch = sent('done', 'running')
    batch.queue = known.queues['poll']
    batch.take([0])
    known.sent['1'] = batch

    assert known.objects('poll') == {'waiting', 'suspect', 'running'}


def test_a_job_whose_waiting_claims_are_lost_has_no_turn():
    jobs = {name: worlds.job(name, objects=True) for name in ('poll', 'other')}
    known = in_flight.InFlight(
        jobs, partition.NONE, counters=Counters(),
        authorities=dict.fromkeys(jobs, Authority.RING))
    lost, held = (NewLease(id_, 'me', 60.0) for id_ in ('lost', 'held'))
    for lease, waiting in (lost, 1), (held, 3):
        known.put(jobs['poll'], lease, [
            claim._replace(place=waiting * SECOND, waiting=waiting * SECOND)
            for claim in claims(lease.id)])
    known.put(jobs['other'], held, [
        claim._replace(place=2 * SECOND, waiting=2 * SECOND)
        for claim in claims('another')])
    poll, other = (known.queues[name] for name in ('poll', 'other'))
    assert known.first('default') is poll

    known.discard_leases(poll, {'lost'})

    assert known.first('default') is other
    known.discard_leases(other, {'held'})
    assert known.first('default') is poll
    known.discard_leases(poll, {'held'})
    assert known.first('default') is None
    assert known.waiting == 0


def test_an_object_whose_claim_was_superseded_waits_once():
    jobs = {name: worlds.job(name, objects=True, topic=topic)
            for name, topic in (('poll', 'a'), ('other', 'a'), ('far', 'b'))}
    known = in_flight.InFlight(
        jobs, partition.NONE, counters=Counters(),
        authorities=dict.fromkeys(jobs, Authority.RING))
    lease = NewLease('lease', 'me', 60.0)
    known.put(jobs['poll'], lease, claims(*'abcde'))
    known.put(jobs['poll'], lease,
              [claim._replace(fence=7) for claim in claims('a', 'b')], 2)
    known.put(jobs['other'], lease, claims('another'))
    known.put_quarantined(jobs['other'], lease, claims('suspect'), 1)
    known.put(jobs['far'], lease, claims(*'xyz'))

    assert [known.objects_waiting(one) for one in 'ab'] == [7, 3]
