# SPDX-License-Identifier: Apache-2.0
"""A thousand jobs with a spacing of 1 s in one process, compared with other
schedulers.

The handlers only record the time. Two schedulers run at the same time, each on
its own core, in the order of the table. The lateness of a run counts from its
own tick: start + k s, or the k-th point of the grid if the scheduler has a
grid. A job has one tick per second in the measured window, and it has missed
as many ticks as it lacks runs in this window.

    pytest -s -o timeout=0 tests/benchmarks/test_ticks.py
"""

import concurrent.futures
import datetime
import itertools
import math
import statistics
import tempfile
import threading
import time
import traceback

from tests.benchmarks import measuring

JOBS = 1000
SECONDS = 30
THREADS = 10
# Seconds from the last tick of the window to the end of the window. Runs that
# begin later do not count.
END = 0.75


class Runs:
    """The times of the runs of each job, and their statistics."""

    def __init__(self, clock=time.time):
        self.clock = clock
        self.at = [[] for _ in range(JOBS)]

    def noting(self, number):
        """Return a handler that records when job *number* ran."""
        note, clock = self.at[number].append, self.clock

        def run(*args):
            note(clock())
        return run

    def judge(self, first_ticks, cpu, wall):
        """Return the statistics of all runs.

        :param first_ticks: first tick of each job, by the same clock.
        """
        late, intervals, drifts = [], [], []
        runs = missed = 0
        for at, first in zip(self.at, first_ticks, strict=True):
            # Do not count runs before the first tick of the window.
            at = [t for t in at if first - 0.001 <= t
                  < first + SECONDS - 1 + END][:SECONDS]
            runs += len(at)
            missed += SECONDS - len(at)
            of_job = [t - first - k for k, t in enumerate(at)]
            late += of_job
            intervals += [b - a for a, b in itertools.pairwise(at)]
            part = len(of_job) // 3
            drifts.append((statistics.median(of_job[-part:])
                           - statistics.median(of_job[:part])) / (2 * part))
        late.sort()

        def at_percent(percent):
            return late[min(len(late) - 1, int(len(late) * percent / 100))]

        return {
            'runs': runs, 'missed': missed, 'p50': at_percent(50),
            'p99': at_percent(99), 'max': late[-1],
            'interval': statistics.median(intervals),
            'drift': statistics.median(drifts), 'cpu': cpu / wall}


def next_second(clock=time.time, ahead=1.0):
    return math.ceil(clock() + ahead)


def until(moment, clock=time.time):
    """Sleep until *moment*. Return the CPU seconds and the wall seconds until
    then.
    """
    cpu, began = time.process_time(), clock()
    time.sleep(max(0.0, moment - clock()))
    return time.process_time() - cpu, clock() - began


def ours(conf_and_tasks, connection='none'):
    """Run a SchedulerService with the tasks that *conf_and_tasks* returns.

    :param connection: 'none' keeps claims in memory, like the other
        schedulers. Empty keeps claims in a file, which is the default of the
        product.
    """
    from oslo_service import backend

    backend.init_backend(backend.BackendType.THREADING)
    from oslo_config import cfg

    from distperiodic import opts
    from distperiodic import service

    runs = Runs()
    conf = cfg.ConfigOpts()
    conf([])
    opts.register_opts(conf)
    place = tempfile.TemporaryDirectory()
    conf.set_override('state_path', place.name, opts.GROUP)
    conf.set_override('connection', connection, opts.GROUP)
    conf.set_override('pool_size', THREADS, opts.GROUP)
    tasks, phases = conf_and_tasks(conf, runs)
    scheduler = service.SchedulerService(conf, tasks)
    first = next_second()
    scheduler.start()
    cpu, wall = until(first + SECONDS + END)
    scheduler.stop()
    place.cleanup()
    return runs.judge([first + phase for phase in phases], cpu, wall)


def jobs_of(runs, **options):
    import distperiodic

    class Tasks(distperiodic.PeriodicTasks):
        pass

    def job(number):
        note = runs.noting(number)

        def run(self, context):
            note()
        return distperiodic.periodic_task(
            run, **options) if not options else distperiodic.periodic_task(
                name=f'job-{number}', **options)(run)

    return Tasks, [job(n) for n in range(JOBS)]


def ours_at_once():
    def make(conf, runs):
        tasks_class, jobs = jobs_of(runs, spacing=1)
        tasks = tasks_class(conf)
        for job in jobs:
            tasks.add_periodic_task(job)
        return tasks, [0.0] * JOBS
    return ours(make)


def ours_spread(connection='none'):
    import distperiodic
    from distperiodic.core import ring
    from distperiodic.core import schedule

    def make(conf, runs):
        names = [f'node-{n}' for n in range(JOBS)]
        notes = {name: runs.noting(n) for n, name in enumerate(names)}

        class Tasks(distperiodic.PeriodicTasks):

            def nodes(self, context):
                return names

            @distperiodic.periodic_task(
                spacing=1, objects='nodes', spread=True)
            def poll(self, context, name):
                notes[name]()

        return Tasks(conf), [schedule.phase_us(
            ring.position_of(name), schedule.SECOND) / schedule.SECOND
            for name in names]
    return ours(make, connection)


def ours_spread_and_kept():
    return ours_spread(connection='')


def ours_driven():
    """Measure a service that calls run_periodic_tasks itself."""
    from oslo_service import backend

    backend.init_backend(backend.BackendType.THREADING)
    from oslo_service import loopingcall

    runs = Runs()
    tasks_class, jobs = jobs_of(runs, spacing=1)
    tasks = tasks_class(None)
    for job in jobs:
        tasks.add_periodic_task(job)
    first = next_second()
    loop = loopingcall.DynamicLoopingCall(tasks.run_periodic_tasks, None)
    loop.start(initial_delay=0)
    cpu, wall = until(first + SECONDS + END)
    loop.stop()
    return runs.judge([first] * JOBS, cpu, wall)


def apscheduler(phase_of):
    from apscheduler.executors.pool import ThreadPoolExecutor
    from apscheduler.schedulers.background import BackgroundScheduler

    runs = Runs()
    scheduler = BackgroundScheduler(
        executors={'default': ThreadPoolExecutor(THREADS)},
        timezone=datetime.UTC)
    first = next_second(ahead=2.0)
    for number in range(JOBS):
        scheduler.add_job(
            runs.noting(number), 'interval', seconds=1,
            start_date=datetime.datetime.fromtimestamp(
                first + phase_of(number), datetime.UTC))
    scheduler.start()
    cpu, wall = until(first + SECONDS + END)
    scheduler.shutdown(wait=False)
    return runs.judge([first + phase_of(n) for n in range(JOBS)], cpu, wall)


def apscheduler_at_once():
    return apscheduler(lambda number: 0.0)


def apscheduler_spread():
    return apscheduler(lambda number: number / JOBS)


def futurist_aligned():
    return futurist_worker('aligned_last_finished')


def futurist_default():
    return futurist_worker('last_started')


def futurist_worker(strategy):
    import futurist
    from futurist import periodics

    # futurist uses the monotonic clock.
    clock = time.monotonic
    runs = Runs(clock)
    callables = [
        (periodics.periodic(1)(runs.noting(n)), (), {}) for n in range(JOBS)]
    pool = futurist.ThreadPoolExecutor(max_workers=THREADS)
    worker = periodics.PeriodicWorker(
        callables, executor_factory=periodics.ExistingExecutor(pool),
        schedule_strategy=strategy)
    began = clock()
    threading.Thread(target=worker.start, daemon=True).start()
    if strategy == 'last_started':
        first = began + 1
    else:
        # The first run comes a second after the start, and the later runs
        # follow the grid.
        first = math.floor(began) + 2
    cpu, wall = until(first + SECONDS + END, clock)
    worker.stop()
    pool.shutdown(wait=False)
    return runs.judge([first] * JOBS, cpu, wall)


def oslo_service():
    from oslo_service import backend

    backend.init_backend(backend.BackendType.THREADING)
    from oslo_config import cfg
    from oslo_service import loopingcall
    from oslo_service import periodic_task

    runs = Runs()
    conf = cfg.ConfigOpts()
    conf([])

    class Tasks(periodic_task.PeriodicTasks):
        pass

    def job(number):
        note = runs.noting(number)

        def run(self, context):
            note()
        return periodic_task.periodic_task(
            spacing=1, name=f'job-{number}')(run)

    tasks = Tasks(conf)
    for number in range(JOBS):
        tasks.add_periodic_task(job(number))
    loop = loopingcall.DynamicLoopingCall(tasks.run_periodic_tasks, None)
    # The first runs come a second after the call of the decorator.
    first = time.time() + 1
    loop.start(initial_delay=0)
    cpu, wall = until(first + SECONDS + END)
    loop.stop()
    return runs.judge([first] * JOBS, cpu, wall)


CASES = {
    'distperiodic SchedulerService, all due at once': ours_at_once,
    'APScheduler 3, all due at once': apscheduler_at_once,
    'futurist aligned_last_finished': futurist_aligned,
    'futurist last_started (its default)': futurist_default,
    'distperiodic SchedulerService, objects spread': ours_spread,
    'APScheduler 3, due times spread': apscheduler_spread,
    'distperiodic, objects spread, kept in SQLite': ours_spread_and_kept,
    'distperiodic run_periodic_tasks': ours_driven,
    'oslo.service run_periodic_tasks': oslo_service,
}


def run_pinned(name, core):
    """Run a case on one core, in its own process."""
    measuring.pinned(core)
    try:
        return CASES[name]()
    except BaseException:
        traceback.print_exc()
        raise


def in_a_process(name, core):
    with concurrent.futures.ProcessPoolExecutor(
            1, mp_context=measuring.SPAWN) as pool:
        return pool.submit(run_pinned, name, core).result()


def test_a_thousand_jobs():
    names = list(CASES)
    answers = {name: [] for name in names}
    with concurrent.futures.ThreadPoolExecutor(2) as pairs:
        for turn in range(measuring.rounds(1)):
            for start in range(0, len(names), 2):
                # The two cases of a pair swap their cores in each round.
                pair = names[start:start + 2][::1 if turn % 2 else -1]
                for name, answer in zip(pair, pairs.map(
                        in_a_process, pair, range(2)), strict=True):
                    answers[name].append(answer)
    expected = JOBS * SECONDS
    with measuring.table(
            f'{JOBS:,} jobs, 1 s apart, {SECONDS} s, pool of {THREADS}: '
            f'lateness in ms', 'scheduler', 'runs', 'missed', 'p50', 'p99',
            'max', 'interval p50', 'drift us/tick', 'CPU', file=__file__,
            versions=('APScheduler', 'futurist', 'oslo.service')) as row:
        for name in names:
            of = {key: statistics.median(a[key] for a in answers[name])
                  for key in answers[name][0]}
            row(name, f'{of["runs"]:,.0f}/{expected:,}',
                f'{of["missed"]:,.0f}', f'{of["p50"] * 1e3:.1f}',
                f'{of["p99"] * 1e3:.1f}', f'{of["max"] * 1e3:.1f}',
                f'{of["interval"] * 1e3:.1f}', f'{of["drift"] * 1e6:.0f}',
                f'{of["cpu"]:.1%}')
