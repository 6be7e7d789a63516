# SPDX-License-Identifier: Apache-2.0
"""Handlers that raise, hang, return junk or end their process.

The tests check the outcome of these runs, and that other runs are not
affected.
"""

import collections
import re

import pytest

from distperiodic.adapters.sql import schema
from tests import waiting
from tests.functional import commands
from tests.functional import judged
from tests.functional.cluster import Cluster

FAILS, HANGS, JUNK, LEAVES, EXITS, SHOUTS, HOARDS = (
    f'192.168.10.{n}' for n in range(1, 8))


@pytest.fixture
def cluster(tmp_path, zookeeper, rabbitmq, postgresql):
    schema.sync(postgresql.url)
    made = Cluster(
        tmp_path, zookeeper.url, rabbitmq.url, connection=postgresql.url,
        lease=5, send_timeout=2, objects=12, misfire='latest')
    yield made
    made.close()


def wait_account(cluster, tick, **expected):
    """Wait until the history of *tick* has the expected numbers. Return it."""
    return waiting.wait_until(
        lambda: (lambda told: told and all(
            told[name] == number for name, number in expected.items())
            and told)(judged.account(cluster).get(judged.us(tick))),
        60, f'the history of tick {tick} does not reach {expected}',
        interval=0.2)


def starts(cluster, tick):
    return collections.Counter(
        run.object for run in cluster.runs() if run.tick == tick)


def test_handlers_that_raise_hang_or_return_junk_harm_no_other_run(cluster):
    # The runs of a tick take four seconds. A pause of the machine must neither
    # make the next tick be skipped, nor end a session during a run.
    cluster.set(
        spacing=10, retries=1, timeout=1, pool_size=2, session_timeout=10,
        lease=20, behaves=(
            f'{FAILS}:fail,{HANGS}:hang,{JUNK}:junk,{LEAVES}:leave,'
            f'{SHOUTS}:shout,{HOARDS}:hoard'))
    cluster.start('scheduler')
    worker = cluster.start('worker')

    ticks = sorted({run.tick for run in cluster.wait_begun()})
    cluster.wait_begun(after=ticks[0] + 10)
    for tick in (ticks[0] + 10, ticks[0] + 20):
        told = wait_account(cluster, tick, due=12, done=7, dead=5, retried=5)
        assert told['skipped'] == told['superseded'] == 0
        assert starts(cluster, tick) == {
            f'192.168.10.{n}': 2 if n in (1, 2, 4, 6, 7) else 1
            for n in range(12)}
    # Threads that hung were replaced, in the same process.
    assert len({run.pid for run in cluster.runs()}) == 1
    assert worker.process.poll() is None
    assert any(line.has(job='ping', object=repr(HANGS), timeout=1.0)
               for line in worker.logged('run timed out'))
    failed = {line['object']: line for line in reversed(
        worker.logged('run failed'))}
    assert failed[repr(FAILS)].has(
        job='ping', attempt=1, error=f'RuntimeError: {FAILS} always fails')
    # The error contains the length of the progress as JSON.
    assert ' 100002 ' in failed[repr(HOARDS)]['error']
    assert repr(LEAVES) in failed
    assert repr(JUNK) not in failed
    assert worker.logged(
        'a part of a batch failed in the library itself') == []


def test_a_handler_that_ends_its_process_is_dead_and_harms_no_other(cluster):
    """The object is dead after its handler has ended six workers."""
    cluster.set(spacing=40, takes=0.05, behaves=f'{EXITS}:exit')
    cluster.start('scheduler')
    for _ in range(2):
        cluster.start('worker')

    tick = max(run.tick for run in cluster.wait_begun(timeout=60))
    wait_account(cluster, tick, due=12, done=11, dead=1)

    assert starts(cluster, tick)[EXITS] <= 6
    assert any(line.has(job='ping', objects=1, first=repr(EXITS))
               for line in cluster.logged('not repeated'))


def test_a_handler_that_ends_its_process_in_each_tick_costs_one_of_them_then(
        cluster):
    """The time between two ticks may be too short for six losses of a worker,
    so the losses in earlier ticks count, too.
    """
    cluster.set(spacing=10, takes=0.05, behaves=f'{EXITS}:exit')
    cluster.start('scheduler')
    for _ in range(2):
        cluster.start('worker')

    def given_up():
        return [tick for tick, told in judged.account(cluster).items()
                if told['dead'] == 1]
    waiting.wait_until(given_up, 90, 'it is not given up', interval=0.2)

    # A tick that came due before the object was given up is skipped.
    first, *later = waiting.wait_until(
        lambda: (ticks := sorted(given_up())) and len(ticks) > 2 and ticks,
        60, 'its later ticks do not end', interval=0.2)
    assert len([run for run in cluster.runs() if run.object == EXITS
                and run.tick <= first / 1_000_000]) <= 6
    for tick in later:
        assert starts(cluster, tick / 1_000_000) == {
            f'192.168.10.{n}': 1 for n in range(12)}
    lost = [run for run in cluster.runs() if run.object == EXITS
            and run.tick > first / 1_000_000]
    assert len(lost) == len({run.tick for run in lost})
    for command in (['dead', 'list'],
                    ['ring', 'explain', 'ping', EXITS]):
        told = commands.run(
            *command, '--config-file', cluster.config, '-f', 'json')
        assert re.search(r'\bworkers\b.*\btick\b', told.stdout), told
