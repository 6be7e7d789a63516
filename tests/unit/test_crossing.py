# SPDX-License-Identifier: Apache-2.0
"""The files whose functions are called for one object, from its tick until its
outcome is counted.
"""

import itertools
import pathlib
import re
import sys

import pytest

import distperiodic
from distperiodic.adapters.local.memory import MemoryClaimStore
from distperiodic.core import message
from distperiodic.core.member import parse_entry
from distperiodic.flow import events
from distperiodic.flow.worker import runs
from tests.threadless_pool import ThreadlessPool
from tests.unit import world as worlds

PACKAGE = pathlib.Path(distperiodic.__file__).parent
SOURCE = PACKAGE.parent / 'doc' / 'source'
#: Maximum number of files of the flow that one object may cross.
MOST = 18


class Member:
    """A scheduler and a worker, connected by a store and a broker."""

    def __init__(self):
        self.ran = 0
        self._to_worker, self._to_scheduler = [], []
        numbers = itertools.count()
        world = worlds.World()
        job = worlds.job('poll', objects=True)
        self._scheduler = world.scheduler(
            job, store=MemoryClaimStore(world.clock), bus=self,
            catalogues={'poll': ['a']}, workers=[worlds.worker()],
            finishes=False, grants_here=False)
        self.flow = self._scheduler.flow
        self._grants = worlds.run_leases(
            {'poll': job}, store=self._scheduler.queue, clock=world.clock,
            lease=60.0, run=lambda batch: self._shop.accept(batch),
            report=self._report, new_lease=lambda: f'run-{next(numbers)}',
            shared=True)
        self._pool = ThreadlessPool()
        self._shop = runs.Executor(
            {'poll': runs.Handled(job, self._handle)}, clock=world.clock,
            pool=self._pool, callbacks=runs.RunCallbacks(
                self._grants.reported, self._grants.may_start))
        self.flow.dispatcher.schedulers_changed(
            [parse_entry(self.flow.dispatcher.entry())])

    def send(self, batch):
        self._to_worker.append(message.encode_batch(batch))

    def _report(self, report, to_entry):
        self._to_scheduler.append(
            message.encode_reports([report], to=to_entry))

    def _handle(self, context, key):
        self.ran += 1

    def turn(self):
        """Let one second pass in both processes."""
        self._scheduler.world.clock.advance(1)
        self._scheduler.step()
        while self._to_worker:
            self._grants.accept(message.decode(self._to_worker.pop(0)))
        self._pool.run_all()
        while self._to_scheduler:
            self.flow.handle(events.Reported(
                message.decode(self._to_scheduler.pop(0)).reports))

    @property
    def done(self):
        return self.flow.counters['poll', 'done']


@pytest.fixture(scope='module')
def crossed():
    """The files of the package that one object crosses in an ordinary tick.

    In each of these files, a function was called after the tick of the only
    object and before its outcome was counted.
    """
    member = Member()
    while not member.done:
        member.turn()
        member.flow.sweep()
    before = member.done
    files = set()

    def note(frame, event, arg):
        if event == 'call':
            files.add(frame.f_code.co_filename)
    while member.done == before:
        files.clear()
        profile = sys.getprofile()
        sys.setprofile(note)
        try:
            member.turn()
        finally:
            sys.setprofile(profile)
    assert member.ran == member.done == before + 1
    return {str(pathlib.Path(name).relative_to(PACKAGE)) for name in files
            if name.startswith(f'{PACKAGE}/')}


def listed():
    page = (SOURCE / 'contributor' / 'where.rst').read_text()
    section = page.split('Files that handle one object')[1].split('\n---')[1]
    return re.findall(r'^   \* - ``(flow/\S+\.py)``', section, re.MULTILINE)


def test_one_object_crosses_few_files_of_the_flow(crossed):
    assert len([name for name in crossed
                if name.startswith('flow/')]) <= MOST, (
        'put the new code into a file that an object crosses already')


def test_the_files_that_an_object_crosses_are_listed(crossed):
    assert sorted(listed()) == sorted(
        name for name in crossed if name.startswith('flow/')), (
        'correct the table "Files that handle one object" in '
        'doc/source/contributor/where.rst')


def test_the_files_that_an_object_crosses_are_in_the_picture(crossed):
    picture = (SOURCE / 'images' / 'crossing.svg').read_text()

    assert set(re.findall(r'flow/[\w/]+\.py', picture)) == {
        name for name in crossed if name.startswith('flow/')}, (
        'correct the steps in doc/pictures.py; then run: '
        'python doc/pictures.py')
