# SPDX-License-Identifier: Apache-2.0
"""Progress and failures of a run, recorded for its next attempt."""

import json
import threading

import pytest

from distperiodic import exceptions
from distperiodic.core.claim import HeldLease
from distperiodic.core.context import MAX_PROGRESS
from distperiodic.core.context import Context
from distperiodic.core.context import RunInput
from tests.unit import world as worlds
from tests.unit.test_run_leases import Desk
from tests.unit.test_runs import Bench
from tests.unit.test_runs import objects_job


def saved(bench):
    return [(index, json.loads(text)) for report, _ in bench.reports
            for index, text in report.progress]


def context(**options):
    return Context(RunInput('poll', 'a', 0, 1, 1), **options)


@pytest.mark.parametrize('value, reason', [
    (object(), 'object'), ({'at': float('nan')}, 'NaN'), (b'x', 'bytes'),
    ('x' * MAX_PROGRESS, '65538 characters'),
])
def test_progress_that_cannot_be_saved_is_refused_where_it_is_assigned(
        value, reason):
    mine = context(progress=7)

    with pytest.raises(exceptions.InvalidProgress) as error:
        mine.progress = value

    text = str(error.value)
    assert "job 'poll' object 'a'" in text
    assert mine.progress == 7
    assert mine.take_unsaved() is None
    assert '\n' not in text


def test_progress_that_was_assigned_is_taken_once_and_the_newest_counts():
    mine = context()

    mine.progress = {'page': 1}
    mine.progress = {'page': 2}

    assert mine.progress == {'page': 2}
    assert mine.take_unsaved() == '{"page": 2}'
    assert mine.take_unsaved() is None


def test_progress_is_reported_while_the_run_goes_on():
    pages = iter(range(1, 100))

    def handler(context, key):
        for _ in range(20):
            context.progress = next(pages)
            bench.pass_time(0.25)
    bench = Bench((objects_job(), handler))

    bench.accept(['a'])
    bench.pool.run_all()

    told = saved(bench)
    assert [index for index, _ in told] == [0] * len(told)
    values = [value for _, value in told]
    assert values == sorted(values)
    # The run lasts five seconds, and reports at most once a second.
    assert 4 <= len(values) <= 6


def test_how_far_a_failed_run_came_is_reported_with_its_failure():
    def handler(context, key):
        context.progress = f'half of {key}'
        raise OSError('the other half is away')
    bench = Bench((objects_job(retries=3), handler))

    batch = bench.accept(['a', 'b'])
    bench.pool.run_all()

    assert saved(bench) == [(0, 'half of a'), (1, 'half of b')]
    assert set(bench.told(batch)) == {0, 1}


def test_a_run_that_timed_out_leaves_its_progress():
    def handler(context, key):
        context.progress = 5
        while not context.cancelled:
            pass
    bench = Bench((objects_job(timeout=10.0), handler))
    bench.accept(['a'])
    thread = bench.pool.run_aside()

    for _ in range(1000):
        bench.pass_time(0.25)
        if any(report.failed for report, _ in bench.reports):
            break
    thread.join(10)

    assert saved(bench)[-1] == (0, 5)


def test_only_the_last_failure_has_its_traceback():
    def handler(context, key):
        raise LookupError('no such host')
    bench = Bench((objects_job(retries=1), handler))

    bench.accept(['a', 'b'], attempts=[1, 2])
    bench.pool.run_all()

    told = {}
    for report, _ in bench.reports:
        told.update(report.tracebacks)
    assert list(told) == [1]
    assert 'in handler' in told[1]
    assert told[1].endswith('LookupError: no such host\n')


def test_the_next_attempt_gets_the_progress_of_the_last_one():
    seen = []
    bench = Bench((objects_job(),
                   lambda context, key: seen.append(context.progress)))

    bench.accept(['a', 'b', 'c'], attempts=[2, 2, 1],
                 progress={'a': '{"page": 3}', 'b': 'null'})
    bench.pool.run_all()

    assert seen == [{'page': 3}, None, None]


# -- with a store

def test_progress_goes_to_the_store_and_to_the_next_attempt():
    desk = Desk(worlds.job('poll', retries=2))
    desk.accept('a', 'b')
    [run] = desk.runs

    desk.report(run, progress=[(1, '"first"')])
    desk.report(run, progress=[(1, '"second"')], failed=[(1, 'no')],
                done=[0])

    desk.clock.advance(100)
    [lease] = desk.overdue()
    assert [one.object for one in lease.claims] == ['b']
    batch = worlds.message.Batch(
        'again', 'poll', lease.tick, ['b'], [lease.claims[0].fence], [2],
        run.sender, run.worker, lease.id)
    desk.grants.accept(batch)
    assert desk.runs[-1].progress == {'b': '"second"'}


def test_progress_during_an_outage_of_the_store_is_saved_as_it_is_last():
    desk = Desk()
    desk.accept('a')
    [run] = desk.runs
    desk.line.slow = True

    for n in range(100):
        desk.report(run, progress=[(0, str(n))])

    assert len(desk.line.asked) == 1
    desk.line.answer()
    lease = HeldLease(desk.grants.lease_of(run), 'poll', run.tick)
    assert desk.store.load_progress(lease, ['a']) == {'a': '99'}


def test_the_traceback_of_a_final_failure_goes_to_the_store():
    desk = Desk()
    desk.accept('a')
    [run] = desk.runs
    told = []
    fail = desk.store.fail
    desk.store.fail = lambda lease, failures, *options: (
        told.extend(failures) or fail(lease, failures, *options))

    desk.report(run, failed=[(0, 'OSError: no')], tracebacks={0: 'at line 7'})

    [failure] = told
    assert (failure.error, failure.traceback) == ('OSError: no', 'at line 7')


def test_a_thread_that_goes_on_to_its_next_batch_takes_no_progress_along():
    """The executor reports progress together with the batch and the run to
    which it belongs.
    """
    began, go, ended = (threading.Event() for _ in range(3))
    over = threading.Event()

    def handler(context, key):
        context.progress = key
        if key == 'first':
            began.set()
            go.wait(10)
        else:
            ended.set()
            over.wait(10)
    bench = Bench((objects_job(), handler))
    one, two = bench.accept(['first']), bench.accept(['second'])
    thread = threading.Thread(target=bench.pool.run_all, daemon=True)
    thread.start()
    assert began.wait(10)

    save = bench.shop._save

    def switched(*args):
        go.set()
        assert ended.wait(10)
        save(*args)
    bench.shop._save = switched
    bench.clock.advance(2)
    bench.shop.watch()
    over.set()
    thread.join(10)

    told = {(report.batch, text) for report, _ in bench.reports
            for _, text in report.progress}
    assert told <= {(one.id, '"first"'), (two.id, '"second"')}
