# SPDX-License-Identifier: Apache-2.0
"""The worker's side, from a received batch to its reports, in virtual time."""

import collections
import datetime
import logging
import random
import threading

import pytest

from distperiodic import exceptions
from distperiodic.adapters.local.pool import ThreadPool
from distperiodic.core import message
from distperiodic.core.claim import Authority
from distperiodic.core.refusal import Refusal
from distperiodic.core.workflow import StepInput
from distperiodic.flow.worker import runs
from tests import waiting
from tests.kept import kept
from tests.logged import lines
from tests.threadless_pool import ThreadlessPool
from tests.unit.world import BEGIN
from tests.unit.world import Clock
from tests.unit.world import job

LIMIT = 20.0
SENDER = 'scheduler~0000000000000000~1~f1.t1.r40'
WORKER = 'worker~0000000000000000~1~f1.t1.s10'


class Bench:
    """One executor with its handlers and its reports.

    :param jobs: (job, handler) pairs.
    """

    def __init__(self, *jobs, pool=None, timed=None, **options):
        self.clock = Clock()
        self.pool = ThreadlessPool() if pool is None else pool
        self.reports = []
        self.reason = None
        self.shop = runs.Executor(
            {j.name: runs.Handled(j, handler) for j, handler in jobs},
            clock=self.clock, pool=self.pool, callbacks=runs.RunCallbacks(
                self._take, lambda batch: self.may_start(batch), timed),
            **options)
        self.numbers = iter(range(1, 10 ** 6))

    def may_start(self, batch):
        return self.reason

    def _take(self, report, to_entry):
        self.shop.address(report, to_entry)
        self.reports.append((report, to_entry))

    def batch(self, objects=3, name='poll', **fields):
        if isinstance(objects, int):
            objects = [f'object-{n}' for n in range(objects)]
        made = message.Batch(
            f'batch-{next(self.numbers)}', name,
            BEGIN * 1_000_000 + 60_000_000, objects,
            [7 + n for n in range(len(objects))], [1] * len(objects),
            SENDER, WORKER, 'lease-1')
        for field, value in fields.items():
            setattr(made, field, value)
        return made

    def accept(self, *args, **fields):
        batch = self.batch(*args, **fields)
        self.shop.accept(batch)
        return batch

    def others(self, sender):
        """Let 0.75 s pass, and return the numbers of runs for other senders
        of which the executor has informed *sender* meanwhile.
        """
        self.reports.clear()
        for _ in range(3):
            self.clock.advance(0.25)
            self.shop.send_changes()
        assert not any(report.size for report, _ in self.reports)
        return [report.others for report, to_entry in self.reports
                if to_entry == sender]

    def pass_time(self, seconds):
        """Let time pass; the executor checks its runs every 0.25 s."""
        end = self.clock.monotonic() + seconds
        while (left := round(end - self.clock.monotonic(), 6)) > 0:
            self.clock.advance(min(0.25, left))
            self.shop.watch()

    def told(self, batch):
        """The outcome of each object of *batch*, by the index of the object.

        Assert that no object has two outcomes.
        """
        became = {}
        for report, to_entry in self.reports:
            if report.batch == batch.id:
                assert (report.worker, to_entry) == (
                    batch.worker, batch.sender)
                for index, word in [
                        *((i, 'done') for i in report.done),
                        *report.failed, *report.refused]:
                    assert index not in became
                    became[index] = word
        return became


def objects_job(**options):
    return job(objects=True, **options)


# -- calls of handlers

def test_a_handler_gets_a_context_of_its_run():
    seen = []
    bench = Bench((objects_job(timeout=30.0),
                   lambda context, key: seen.append((context, key))))

    bench.accept(['node/ä'], fences=[42], attempts=[3])
    bench.pool.run_all()

    (context, key), = seen
    assert key == context.object == 'node/ä'
    assert (context.job, context.fence, context.attempt) == ('poll', 42, 3)
    tick = datetime.datetime(2023, 11, 16, 0, 1, tzinfo=datetime.UTC)
    assert context.tick == tick
    assert context.tick.tzinfo is datetime.UTC
    assert context.deadline == tick - datetime.timedelta(seconds=30)
    assert context.key == f'poll/node/ä/{int(tick.timestamp()) * 10 ** 6}'
    assert context.cancelled is False
    assert context.progress is None
    assert 'job=poll' in repr(context)


def test_a_job_without_a_timeout_has_no_deadline():
    seen = []
    bench = Bench((objects_job(), lambda context, key: seen.append(context)))

    bench.accept(1)
    bench.pool.run_all()

    assert seen[0].deadline is None


@pytest.mark.parametrize('scope', ['member', 'group'])
def test_a_job_without_objects_gets_the_context_alone(scope):
    seen = []
    bench = Bench((job(scope=scope), lambda *args: seen.append(args)))

    bench.accept(['me'])
    bench.pool.run_all()

    assert [len(args) for args in seen] == [1]


# -- duplicates and rejected batches

def test_a_batch_that_comes_twice_runs_once(caplog):
    caplog.set_level(logging.INFO, 'distperiodic.flow.worker.runs')
    ran = []
    bench = Bench((objects_job(), lambda context, key: ran.append(key)))
    batch = bench.batch(3)

    bench.shop.accept(batch)
    bench.shop.accept(batch)
    bench.pool.run_all()
    bench.shop.accept(batch)
    bench.pool.run_all()

    assert ran == ['object-0', 'object-1', 'object-2']
    assert len(lines(caplog, 'batch dropped')) == 2
    assert bench.told(batch) == dict.fromkeys(range(3), 'done')


def test_two_schedulers_may_use_the_same_number_for_a_batch():
    ran = []
    bench = Bench((objects_job(), lambda context, key: ran.append(key)))

    bench.accept(1, id='1', sender='a~0000000000000000~1~f1')
    bench.accept(1, id='1', sender='b~0000000000000000~1~f1')
    bench.pool.run_all()

    assert len(ran) == 2


def test_the_batches_that_a_worker_remembers_are_bounded():
    bench = Bench((job(), lambda context: None))

    batches = []
    for _ in range(12_000):
        batches.append(bench.accept(['me']))
        bench.pool.run_all()

    assert bench.shop.busy == 0
    assert kept(bench.shop, runs.BatchRun) == 0
    assert kept(bench.shop, runs.ThreadActivity) == 1
    for ago, remembered in (10_000, True), (10_001, False):
        bench.shop.accept(batches[-ago])
        assert (bench.pool.take() is None) is remembered


def test_an_unknown_job_is_refused_and_logged_once(caplog):
    bench = Bench((objects_job(), lambda context, key: None))

    batches = [bench.accept(2, name=f'strange-{n}') for n in range(100)]

    for batch in batches:
        assert bench.told(batch) == dict.fromkeys(
            range(2), Refusal.UNKNOWN_JOB)
    # The log throttle has one key for all names, and stores none of them.
    [line] = lines(caplog, 'work refused')
    assert line['job'] == 'strange-0'


def test_a_worker_that_may_not_start_work_refuses_the_work_at_its_start():
    ran = []
    bench = Bench((objects_job(), lambda context, key: ran.append(key)))
    batch = bench.accept(3)
    bench.pool.run_one()

    bench.reason = Refusal.NOT_A_MEMBER
    bench.pool.run_all()
    bench.pass_time(0.25)

    assert ran == ['object-0']
    assert bench.told(batch) == {
        0: 'done', 1: Refusal.NOT_A_MEMBER, 2: Refusal.NOT_A_MEMBER}


# -- failing handlers

class _Unheard(BaseException):
    pass


class _Wordless(Exception):
    def __str__(self):
        raise RuntimeError('no text')


@pytest.mark.parametrize('error,text', [
    (ValueError('no such node'), 'ValueError: no such node'),
    (SystemExit(3), 'SystemExit: 3'),
    (KeyboardInterrupt(), 'KeyboardInterrupt:'),
    (GeneratorExit(), 'GeneratorExit:'),
    (_Unheard('x'), '_Unheard: x'),
    (_Wordless(), '_Wordless: an exception without a text'),
    (ValueError('not there:\n\t\x1b[31mnode-1\n'),
     'ValueError: not there: [31mnode-1'),
    (ValueError('x' * 10 ** 6), 'ValueError: ' + 'x' * 988)])
def test_any_error_of_a_handler_fails_its_own_object_only(error, text):
    def handler(context, key):
        if key == 'object-1':
            raise error
    bench = Bench((objects_job(), handler))

    batch = bench.accept(3)
    bench.pool.run_all()
    bench.pass_time(0.25)

    assert bench.told(batch) == {0: 'done', 1: text, 2: 'done'}
    assert bench.shop.busy == 0


@pytest.mark.parametrize('batches', [
    4, pytest.param(20, marks=pytest.mark.full)])
def test_many_objects_that_fail_alike_are_one_warning(caplog, batches):
    caplog.set_level(logging.DEBUG, 'distperiodic.flow.worker.runs')

    def handler(context, key):
        if key.endswith('7'):
            raise KeyError(key)
        raise ConnectionError('the database is away')
    bench = Bench((objects_job(), handler))

    for _ in range(batches):
        bench.accept(500)
    bench.pool.run_all()

    told = lines(caplog, 'run failed')
    assert len(told) == 500 * batches
    assert [(line.level, line['error'].partition(':')[0]) for line in told
            if line.level != 'DEBUG' or 'Traceback' in line.text] == [
        ('WARNING', 'ConnectionError'), ('WARNING', 'KeyError')]


def test_a_traceback_in_the_log_has_its_lines_but_no_control_characters(
        caplog):
    def handler(context, key):
        try:
            raise OSError('\x1b]0;cause\x07')
        except OSError as exc:
            exc.add_note('\ra note')
            raise ValueError('red \x1b[31m\nline two \udcff') from exc
    bench = Bench((objects_job(), handler))

    bench.accept(1)
    bench.pool.run_all()

    [line] = lines(caplog, 'run failed')
    first, *traceback = line.text.splitlines()
    assert first.endswith('for a while')
    assert all(text.isprintable() for text in caplog.text.splitlines())
    assert [text for text in traceback if not text.startswith(' ')] == [
        'Traceback (most recent call last):', r'OSError: \x1b]0;cause\x07',
        r'\ra note', '',
        'The above exception was the direct cause of the following exception:',
        '', 'Traceback (most recent call last):',
        r'ValueError: red \x1b[31m', r'line two \udcff']
    assert any(', in handler' in text for text in traceback)


def test_an_error_of_the_library_itself_loses_no_object():
    bench = Bench((objects_job(), lambda context, key: None))
    batch = bench.accept(3)

    def fail(batch):
        raise LookupError('a bug')
    bench.may_start = fail
    bench.pool.run_all()
    bench.pass_time(0.25)

    assert bench.told(batch) == dict.fromkeys(
        range(3), 'LookupError: a bug')


# -- slow handlers

class Hanging:
    """A handler that hangs for object-1 and is quick for all others."""

    def __init__(self, others=lambda: None):
        self.until, self._began = threading.Event(), threading.Event()
        self._others = others
        #: For each object, the context of its run.
        self.seen = {}

    def __call__(self, context, key):
        self.seen[key] = context
        self._others()
        if key == 'object-1':
            self._began.set()
            assert self.until.wait(LIMIT)

    def begin(self, bench):
        """Start a part in a thread, wait until it hangs, return the thread."""
        thread = bench.pool.run_aside()
        assert self._began.wait(LIMIT)
        return thread


def warm(bench, name='poll'):
    """Run a short handler until the executor makes long chunks of its runs."""
    for _ in range(30):
        bench.accept(['warm'] * 2, name=name)
        bench.pool.run_all()
    assert bench.shop.chunk_size(name) == 64
    bench.reports.clear()


def test_a_run_past_its_timeout_is_given_up_and_the_rest_goes_on(caplog):
    handler = Hanging()
    bench = Bench((objects_job(timeout=5.0), handler))
    warm(bench)
    batch = bench.accept(10)
    thread = handler.begin(bench)

    bench.pass_time(4.75)
    assert not bench.pool.written_off
    bench.pass_time(0.5)
    bench.pool.run_all()
    bench.pass_time(0.25)

    assert bench.pool.written_off == [thread.ident]
    assert handler.seen['object-1'].cancelled
    assert bench.told(batch) == {
        n: 'done' if n != 1 else 'timeout after 5 s' for n in range(10)}
    [line] = lines(caplog, 'run timed out')
    assert line.has(object="'object-1'", timeout=5.0, hanging=1)
    assert bench.shop.busy == 0

    # The handler returns after all, too late to count.
    handler.until.set()
    thread.join(LIMIT)
    bench.pass_time(1)
    assert len(bench.told(batch)) == 10
    assert not any(context.cancelled for key, context in handler.seen.items()
                   if key != 'object-1')


def test_a_timeout_may_be_shorter_than_the_time_between_two_checks():
    handler = Hanging()
    bench = Bench((objects_job(timeout=0.1), handler))
    warm(bench)
    batch = bench.accept(100)
    thread = handler.begin(bench)

    bench.pass_time(0.25)
    bench.pool.run_all()
    bench.pass_time(0.25)

    assert bench.told(batch) == {
        n: 'done' if n != 1 else 'timeout after 0.1 s' for n in range(100)}
    handler.until.set()
    thread.join(LIMIT)


def test_a_run_that_ends_at_its_timeout_counts_one_way_or_the_other():
    """The handler ends at the moment when its timeout is checked. The run
    still has exactly one outcome.
    """
    for _ in range(200):
        handler = Hanging()
        bench = Bench((objects_job(timeout=5.0), handler))
        batch = bench.accept(['object-1'])
        thread = handler.begin(bench)
        bench.clock.advance(5)

        handler.until.set()
        bench.shop.watch()
        thread.join(LIMIT)
        bench.shop.watch()

        assert list(bench.told(batch)) == [0]
        assert bench.shop.busy == 0


class Steps:
    """Runs of a step, the first of which exceeds its timeout of 5 s."""

    def __init__(self, number=1):
        self.until, self._began = threading.Event(), threading.Event()
        self.finished = []
        self.bench = Bench((objects_job(), self._run), lease=30.0, finish=(
            lambda *arguments: self.finished.append(arguments)))
        keys = [f'object-{n}' for n in range(number)]
        self.batch = self.bench.accept(keys, steps={
            key: StepInput(key, 1, False, 5.0, {'key': key})
            for key in keys})
        self.thread = self.bench.pool.run_aside()
        assert self._began.wait(LIMIT)
        self.bench.pass_time(5.25)

    def _run(self, context, parameters):
        if parameters['key'] != 'object-0':
            return {'n': 1}
        self.context = context
        self._began.set()
        assert self.until.wait(LIMIT)
        context.progress = 'too late'
        with pytest.raises(exceptions.RunReplaced, match='its timeout'):
            context.finish(None)
        return {'late': True}

    def end(self):
        self.until.set()
        self.thread.join(LIMIT)

    def told(self):
        return self.bench.told(self.batch)


def test_a_step_that_timed_out_fails_when_its_handler_returns(caplog):
    steps = Steps()
    steps.bench.pass_time(20)

    assert steps.context.cancelled
    assert steps.told() == {}
    steps.end()
    steps.bench.pass_time(0.25)

    assert steps.told() == {0: 'timeout after 5 s'}
    assert not any(report.results for report, _ in steps.bench.reports)
    assert steps.finished == []
    [line] = lines(caplog, 'run timed out')
    assert line.has(waits=30.0)
    steps.bench.pass_time(60)
    assert steps.told() == {0: 'timeout after 5 s'}
    assert steps.bench.shop.busy == 0


def test_a_step_that_hangs_fails_a_lease_after_its_timeout():
    steps = Steps()

    steps.bench.pass_time(29.5)
    assert steps.told() == {}
    assert steps.bench.shop.busy == 1
    steps.bench.pass_time(1)

    assert steps.told() == {0: 'timeout after 5 s'}
    assert steps.bench.shop.busy == 0
    steps.end()
    steps.bench.pass_time(1)
    assert steps.told() == {0: 'timeout after 5 s'}


def test_the_other_steps_of_a_batch_do_not_wait_for_one_that_hangs():
    steps = Steps(number=4)

    steps.bench.pool.run_all()
    steps.bench.pass_time(0.5)

    assert steps.told() == {n: 'done' for n in (1, 2, 3)}
    steps.end()


def test_nothing_waits_behind_a_short_handler_that_became_a_long_one():
    """The job has no timeout, and the thread holds all 60 objects."""
    handler = Hanging()
    bench = Bench((objects_job(), handler))
    warm(bench)
    batch = bench.accept(60)
    thread = handler.begin(bench)
    assert bench.pool.take() is None

    bench.pass_time(0.5)
    bench.pool.run_all()
    bench.pass_time(0.25)

    assert bench.told(batch) == {n: 'done' for n in range(60) if n != 1}
    assert bench.shop.busy == 1
    handler.until.set()
    thread.join(LIMIT)
    assert len(bench.told(batch)) == 60


def test_work_that_is_offered_to_other_threads_is_offered_once():
    """If the work were offered more than once, it could make those other
    threads hang as well.
    """
    handler = Hanging()
    bench = Bench((objects_job(), handler))
    warm(bench)
    batch = bench.accept(60)
    thread = handler.begin(bench)

    bench.pass_time(60)

    assert [len(lane.batch_runs) for lane in bench.pool.queue] == [1]
    bench.pool.run_all()
    bench.pass_time(0.25)
    assert bench.told(batch) == {n: 'done' for n in range(60) if n != 1}
    handler.until.set()
    thread.join(LIMIT)


def test_work_that_found_no_thread_is_begun_when_there_is_one(monkeypatch):
    """The work begins even if no other work is submitted to the pool."""
    def refuse(thread):
        raise RuntimeError("can't start new thread")
    pool = ThreadPool(2, 'test')
    bench = Bench((objects_job(), lambda context, key: None), pool=pool)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, 'start', refuse)
        batch = bench.accept(3)

    def over():
        bench.shop.watch()
        return bench.shop.busy == 0
    waiting.wait_until(over)

    assert bench.told(batch) == dict.fromkeys(range(3), 'done')
    pool.stop()


def test_results_do_not_wait_for_a_run_that_takes_long():
    handler = Hanging(lambda: bench.clock.advance(0.005))
    bench = Bench((objects_job(), handler))
    batch = bench.accept(3)
    bench.pool.run_one()
    thread = handler.begin(bench)
    bench.pool.run_one()

    bench.pass_time(0.25)

    assert bench.told(batch) == {0: 'done', 2: 'done'}
    handler.until.set()
    thread.join(LIMIT)


def test_handlers_are_notified_when_their_results_are_no_longer_wanted():
    """Handlers with a timeout and handlers without a timeout learn this."""
    for options in ({}, {'timeout': 100.0}):
        handler = Hanging()
        bench = Bench((objects_job(**options), handler))
        bench.accept(['object-1'])
        handler.begin(bench)

        bench.shop.cancel()

        assert handler.seen['object-1'].cancelled
        handler.until.set()


def test_the_backlog_of_one_job_does_not_keep_another_waiting():
    order = []

    def handler(context, key):
        bench.clock.advance(1)
        order.append('slow')
    pool = ThreadPool(1, 'one-by-one')
    bench = Bench((objects_job(), handler),
                  (job('quick'), lambda context: order.append('quick')),
                  pool=pool)
    gate = threading.Event()
    pool.submit(9, _Gate(gate))
    batches = [bench.accept(50) for _ in range(4)]
    batches.append(bench.accept(['me'], name='quick'))
    gate.set()

    waiting.wait_until(lambda: bench.shop.busy == 0, LIMIT,
                       'the work was not done')
    pool.stop()

    assert len(order) == 201
    assert order.index('quick') <= 2


class _Gate:
    """Work that blocks a thread of a pool until the event is set."""

    def __init__(self, event):
        self.event = event

    def take(self):
        return 1, False

    def run(self, part):
        assert self.event.wait(LIMIT)


# -- drain and stop

def test_drain_returns_waiting_objects_and_finishes_running_ones():
    handler = Hanging()
    bench = Bench((objects_job(), handler))
    first = bench.accept(['object-1', 'object-2'])
    second = bench.accept(5)
    thread = handler.begin(bench)

    bench.shop.drain()
    third = bench.accept(2)
    bench.pool.run_all()
    bench.pass_time(0.25)

    assert bench.told(first) == {1: Refusal.DRAINING}
    assert bench.told(second) == dict.fromkeys(range(5), Refusal.DRAINING)
    assert bench.told(third) == dict.fromkeys(range(2), Refusal.DRAINING)
    assert bench.shop.busy == 1
    handler.until.set()
    thread.join(LIMIT)
    assert bench.told(first) == {0: 'done', 1: Refusal.DRAINING}
    assert bench.shop.busy == 0


def test_a_part_that_a_thread_holds_is_handed_back_too():
    handler = Hanging()
    bench = Bench((objects_job(), handler))
    warm(bench)
    batch = bench.accept(100)
    thread = handler.begin(bench)

    bench.shop.drain()
    handler.until.set()
    thread.join(LIMIT)
    bench.pass_time(0.25)

    assert bench.told(batch) == {
        n: 'done' if n < 2 else Refusal.DRAINING for n in range(100)}


def test_the_rest_of_a_part_is_handed_back_while_its_thread_runs():
    """The run in progress may take long."""
    handler = Hanging()
    bench = Bench((objects_job(), handler))
    warm(bench)
    batch = bench.accept(100)
    thread = handler.begin(bench)

    bench.shop.drain()

    bench.pass_time(0.25)
    assert bench.shop.busy == 1
    assert sorted(bench.told(batch))[-1] == 99
    handler.until.set()
    thread.join(LIMIT)
    assert bench.shop.busy == 0


def test_only_the_runs_of_the_shared_store_are_handed_back():
    """No other process can run those that the store does not contain."""
    ran = []
    bench = Bench((objects_job(), lambda context, key: ran.append(key)))
    ours = bench.accept(['ours'], authority=Authority.RING)
    other = bench.accept(['theirs'], authority=Authority.STORE)

    bench.shop.drain(Authority.STORE)
    late = bench.accept(['late'], authority=Authority.RING)
    bench.pool.run_all()
    bench.pass_time(0.25)

    assert ran == ['ours', 'late']
    assert bench.told(other) == {0: Refusal.DRAINING}
    assert bench.told(ours) == bench.told(late) == {0: 'done'}


def test_jobs_of_each_member_stay_when_the_membership_is_in_doubt():
    ran = []
    bench = Bench((objects_job(), lambda context, key: ran.append('ours')),
                  (job('mine'), lambda context: ran.append('mine')))
    ours, mine = bench.accept(3), bench.accept(['me'], name='mine')

    bench.shop.return_unstarted(Refusal.NOT_A_MEMBER)
    bench.pool.run_all()
    bench.pass_time(0.25)

    assert ran == ['mine']
    assert bench.told(ours) == dict.fromkeys(range(3), Refusal.NOT_A_MEMBER)
    assert bench.told(mine) == {0: 'done'}


# -- reports

def test_the_results_of_short_runs_are_reported_together():
    bench = Bench((objects_job(), lambda context, key: None))
    warm(bench)

    batch = bench.accept(500)
    bench.pool.run_all()

    assert len(bench.reports) == 1
    assert bench.told(batch) == dict.fromkeys(range(500), 'done')


def test_the_results_of_longer_runs_are_reported_every_now_and_then():
    def handler(context, key):
        bench.clock.advance(0.005)
    bench = Bench((objects_job(), handler))

    batch = bench.accept(100)
    bench.pool.run_all()

    assert 20 <= len(bench.reports) <= 30
    assert bench.told(batch) == dict.fromkeys(range(100), 'done')
    assert sum(r.seconds for r, _ in bench.reports) == pytest.approx(0.5)


def test_a_thread_takes_long_runs_one_by_one():
    def handler(context, key):
        bench.clock.advance(0.005)
    bench = Bench((objects_job(), handler))
    assert bench.shop.chunk_size('poll') == 1

    bench.accept(10)
    bench.pool.run_all()

    assert bench.shop.chunk_size('poll') == 1


def test_a_sign_of_life_is_given_for_each_batch_that_is_here():
    bench = Bench((objects_job(), lambda context, key: None))
    batches = [bench.accept(2) for _ in range(3)]

    bench.shop.send_heartbeats()

    assert [(r.batch, r.size) for r, _ in bench.reports] == [
        (b.id, 0) for b in batches]
    bench.pool.run_all()
    bench.reports.clear()
    bench.shop.send_heartbeats()
    assert bench.reports == []


# -- contention

@pytest.mark.parametrize('seed', range(4))
def test_under_contention_each_object_is_reported_exactly_once(seed):
    """The threads are real, some handlers fail, and batches are returned at
    the same time.
    """
    chance = random.Random(seed)
    pool = ThreadPool(chance.randint(1, 8), f'shop-{seed}')
    ran = collections.Counter()
    lock = threading.Lock()

    def handler(context, key):
        with lock:
            ran[context.fence] += 1
        if context.fence % 13 == 0:
            raise SystemExit(key)
    bench = Bench((objects_job(), handler), (job('mine'), lambda c: None),
                  pool=pool)
    fences = iter(range(10 ** 6))
    batches = []

    for number in range(200):
        size = chance.choice([1, 2, 30, 300])
        batches.append(bench.accept(
            size, fences=[next(fences) for _ in range(size)],
            priority=chance.randint(0, 2)))
        if number % 7 == 0:
            bench.accept(['me'], name='mine')
        if number % 50 == 17:
            bench.shop.return_unstarted(Refusal.NOT_A_MEMBER)
        if number % 5 == 0:
            bench.clock.advance(chance.random() / 10)
            bench.shop.watch()
    bench.shop.return_unstarted(Refusal.NOT_A_MEMBER)
    bench.clock.advance(1)

    def over():
        bench.shop.watch()
        return bench.shop.busy == 0
    waiting.wait_until(over, LIMIT, 'objects got lost')
    pool.stop()

    assert set(ran.values()) == {1}
    for batch in batches:
        told = bench.told(batch)
        assert sorted(told) == [*range(len(batch.objects))]
        for index, fence in enumerate(batch.fences):
            expected = 'done' if fence % 13 else (
                f'SystemExit: object-{index}')
            assert told[index] == (
                expected if fence in ran else Refusal.NOT_A_MEMBER)


# -- the list of current runs for operators

def test_a_run_in_progress_is_reported_with_its_age_and_progress():
    began, go = threading.Event(), threading.Event()

    def handler(context, key):
        context.progress = {'page': 7}
        began.set()
        assert go.wait(LIMIT)
    bench = Bench((objects_job(), handler))
    batch = bench.accept(['a', 'b', 'c'], attempts=[3, 3, 3])
    thread = bench.pool.run_aside()
    assert began.wait(LIMIT)
    assert bench.shop.queued() == {'default': 2}

    bench.pass_time(5.0)

    [run] = bench.shop.in_progress()
    assert (run.job, run.object, run.tick, run.attempt, run.age,
            run.progress, run.authority) == (
        'poll', 'a', batch.tick, 3, 5.0, '{"page": 7}', batch.authority)
    go.set()
    thread.join(LIMIT)
    assert bench.shop.in_progress() == []


def test_a_run_after_its_timeout_hangs_until_its_handler_returns():
    began, go = threading.Event(), threading.Event()

    def handler(context, key):
        began.set()
        assert go.wait(LIMIT)
    bench = Bench((objects_job(timeout=2.0), handler), lease=60.0)
    bench.accept(['a'])
    thread = bench.pool.run_aside()
    assert began.wait(LIMIT)
    assert bench.shop.hanging_runs() == []

    bench.pass_time(3600.0)

    # It does not count as possibly running any more, but it still hangs.
    assert bench.shop.hanging == 0
    assert bench.shop.in_progress() == []
    [run] = bench.shop.hanging_runs()
    assert (run.job, run.object, run.timeout, run.topic) == (
        'poll', 'a', 2.0, 'default')
    assert run.age == pytest.approx(3600, abs=1)
    go.set()
    thread.join(LIMIT)
    assert bench.shop.hanging_runs() == []


@pytest.mark.parametrize(('every', 'usual', 'hangs_after'), [
    (60.0, 0.0, 120), (1.0, 0.0, 5), (1.0, 8.0, 40)])
def test_a_run_without_a_timeout_hangs_if_it_lasts_unusually_long(
        every, usual, hangs_after):
    began, go = threading.Event(), threading.Event()

    def handler(context, key):
        if key == 'a':
            bench.clock.advance(usual)
            return
        began.set()
        assert go.wait(LIMIT)
    bench = Bench((objects_job(every=every), handler))
    bench.accept(['a'])
    bench.pool.run_all()
    bench.accept(['b'])
    thread = bench.pool.run_aside()
    assert began.wait(LIMIT)

    bench.pass_time(hangs_after)
    assert bench.shop.hanging_runs() == []
    bench.pass_time(0.5)
    assert [one.object for one in bench.shop.hanging_runs()] == ['b']
    go.set()
    thread.join(LIMIT)
    assert bench.shop.hanging_runs() == []


def test_the_progress_of_a_run_is_not_that_of_the_one_before_it():
    began, go = threading.Semaphore(0), threading.Semaphore(0)

    def handler(context, key):
        if key == 'a':
            context.progress = 1
        began.release()
        assert go.acquire(timeout=LIMIT)
    pool = ThreadPool(1, 'progress')
    bench = Bench((objects_job(), handler), pool=pool)
    bench.accept(['a'])
    bench.accept(['b'])
    assert began.acquire(timeout=LIMIT)
    bench.pass_time(2.0)
    assert [one.progress for one in bench.shop.in_progress()] == ['1']
    go.release()
    assert began.acquire(timeout=LIMIT)

    bench.pass_time(2.0)

    assert [(one.object, one.progress)
            for one in bench.shop.in_progress()] == [('b', None)]
    go.release()
    pool.stop()


def test_the_queue_of_each_partition_is_counted_apart():
    bench = Bench((objects_job(), print),
                  (objects_job(name='bill', topic='bills'), print))
    bench.accept(3)
    bench.accept(4)
    bench.accept(2, name='bill')

    assert bench.shop.queued() == {'default': 7, 'bills': 2}

    bench.shop.drain()
    assert not any(bench.shop.queued().values())


# -- slots for several schedulers

OTHER = 'scheduler-2~0000000000000000~1~f1.t1.r40'


def test_a_scheduler_learns_how_many_slots_the_others_use():
    bench = Bench((job(objects=True), lambda context, key: None))
    bench.accept(3)
    assert bench.others(SENDER) == [0]
    assert bench.others(SENDER) == []

    bench.accept(4, sender=OTHER)

    assert bench.others(SENDER) == [4]
    assert bench.others(SENDER) == bench.others(OTHER) == []
    assert others_in_report(bench, OTHER) == 3


def others_in_report(bench, sender):
    report = message.Report('batch', WORKER)
    bench.shop.address(report, sender)
    return report.others


def test_a_scheduler_that_begins_does_not_use_the_slots_of_the_others():
    """The others may be about to send their runs."""
    bench = Bench((job(objects=True), lambda context, key: None))
    bench.accept(3)

    assert others_in_report(bench, SENDER) is None
    bench.clock.advance(0.25)
    bench.shop.send_changes()
    assert not bench.reports
    bench.clock.advance(0.5)
    assert others_in_report(bench, SENDER) == 0


def test_a_slot_counts_as_used_while_its_scheduler_sends_the_next_run():
    bench = Bench((job(objects=True), lambda context, key: None))
    bench.accept(3)
    assert bench.others(SENDER) == [0]
    bench.accept(4, sender=OTHER)
    assert bench.others(SENDER) == [4]

    bench.shop.return_unstarted(Refusal.NOT_A_MEMBER)
    bench.accept(3)
    assert others_in_report(bench, SENDER) == 4

    assert bench.others(SENDER)[-1] == 0
    assert bench.others(OTHER) == []


def test_schedulers_take_turns_at_a_worker_with_fewer_slots():
    bench = Bench((job(objects=True), lambda context, key: None),
                  slots=lambda: 1)
    first, second = (bench.batch(1, sender=sender, waiting=3)
                     for sender in (SENDER, OTHER))

    def informed():
        found = [(to, report.others) for report, to in bench.reports
                 if report.batch == message.NO_BATCH]
        bench.reports.clear()
        return found
    bench.shop.accept(first)
    bench.shop.accept(second)
    bench.pool.run_one()
    assert bench.told(first) and not informed()
    bench.shop.send_heartbeats()
    assert (SENDER, 1) in informed()

    bench.pool.run_one()

    assert informed() == [(SENDER, 0)]
    bench.clock.advance(1.0)
    bench.shop.send_changes()
    # The first one has not used its turn.
    assert informed() == [(SENDER, None), (OTHER, 0)]


def test_a_worker_does_not_inform_itself_of_its_slots():
    """It has sent the next steps of tasks to itself."""
    bench = Bench((job(objects=True), lambda context, key: None))
    bench.accept(3, sender=WORKER)

    assert bench.others(WORKER) == []
    bench.accept(3)
    assert bench.others(SENDER) == [3]
    assert {to for _, to in bench.reports} == {SENDER}
