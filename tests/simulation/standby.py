# SPDX-License-Identifier: Apache-2.0
"""Worlds whose partition has one active worker, on the real store in SQLite.

Some seeds have such a world in addition to their usual world. The usual world
of a seed is the same with and without it. The judge checks three rules. Only
the active worker begins runs. No two workers run at the same time. Another
worker takes over in time once the active worker has lost both signs of life:
its lease and its entry in the group.
"""

import dataclasses
import random
import types

from distperiodic import exceptions
from distperiodic.flow.worker.standby import RoleCallbacks
from distperiodic.operator import partitions
from distperiodic.operator.group_reader import GroupStore
from distperiodic.service.partition_role import PartitionRole
from tests.simulation import ensemble
from tests.simulation import members
from tests.simulation.world import SECOND

#: Share of the seeds that also have a world with one active worker.
SHARE = 0.03
#: Seeds whose standby world failed once, each with its error.
FAILED = {
    20: 'late: a worker that had stopped was in the group, and had no row',
    857: 'late: the judge did not know that a new worker in the group without '
         'a row prevents a take-over',
    56265: 'late: the judge did not know that a worker repeats a call only '
           'after a pause when the store is back',
    58024: 'late: a worker that read that the partition was released took it '
           'over only at its next sweep'}
#: Name of the partition of all workers.
PARTITION = 'default'
#: Seconds between two sweeps of a worker, and between two checks of the judge.
_LOOKS = 0.25
#: Seconds within which a standby worker must take over. They count from the
#: moment when it is allowed to.
_TAKES_OVER = 1.0
#: Faults that interrupt a sign of life, and choices of an operator.
FAULTS = (
    'kill worker', 'stop worker', 'freeze short', 'freeze long', 'cut',
    'cut from store', 'store away', 'ensemble away', 'all signs cut',
    'promote')
NOISE = 'answer lost', 'store slow', 'view lag', 'handlers slow'


def have(seed):
    """Return whether *seed* has a world with one active worker."""
    return seed in FAILED or (
        random.Random(f'standby in {seed}').random() < SHARE)


def draw(seed):
    """Draw the settings of a world with one active worker; see
    :func:`.draws.draw`.
    """
    drawn = random.Random(f'standby of {seed}')
    faults = [one for one in FAULTS if drawn.random() < 0.5]
    return dict(
        standby=True, tasks=False, sql=True, long=False, local=False,
        schedulers=drawn.choice([1, 2]), workers=drawn.choice([2, 3]),
        faults=faults or ['freeze long'],
        noise=[one for one in NOISE if drawn.random() < 0.2])


class Worker(members.Worker):
    """A worker that takes part in the election."""

    def _elect(self):
        self.member = dataclasses.replace(self.member, slots=0)
        self._slots = self.cluster.setup.slots
        setup = self.cluster.setup
        self.role = PartitionRole(
            PARTITION, self, self.group,
            settings=types.SimpleNamespace(
                session_timeout=setup.session,
                partitions={PARTITION: types.SimpleNamespace(
                    standby=True, preferred='')}),
            store=self.store, clock=self.clock, callbacks=RoleCallbacks(
                busy=self._is_busy, changed=self._show,
                lost=lambda: self.pool.cancel()))
        self.standby = self.role.standby
        self.later(_LOOKS, self._look_again)
        return self.standby

    @property
    def me(self):
        return self.member

    def view(self, group):
        """Return the view of *group*, as a membership does."""
        view = self.views.view(group)
        if self.world.t >= self.sure_until:
            view = dataclasses.replace(view, trusted_until=float('-inf'))
        return view

    def _is_busy(self):
        return bool(self.runs or self.pool.busy or self.grants.busy)

    def _look_again(self):
        self.later(_LOOKS, self._look_again)
        self.role.sweep()
        self._show()

    def _show(self):
        """Publish the number of runs that schedulers may send to this worker.
        It is 0 unless the worker is active.
        """
        slots = self._slots if self.role.open and not self.leaving else 0
        entry = self.cluster.ensemble.entry(self, self.group)
        if entry is not None:
            self.member = dataclasses.replace(entry, slots=slots)
            self.cluster.ensemble.publish(self, self.group)

    def viewed(self, view):
        self.role.hurry()

    def stop(self):
        super().stop()
        self.role.close()

    def end(self):
        if self.leaving and not self.runs:
            self.role.depart()
        super().end()


class Judge:
    """Judge of the partition of *cluster*."""

    def __init__(self, cluster):
        self._cluster = cluster
        self._world = cluster.world
        self.findings = []
        self.take_overs = 0
        #: Fence at the last check.
        self._fence = 0
        #: Time since which a standby worker has been allowed to take over.
        #: None means that no worker is allowed to.
        self._open_since = None
        #: Whether an operator has ever chosen a worker.
        self._chosen = False
        setup = cluster.setup
        self._patience = None if (
            {'answer lost', 'store slow'} & set(setup.noise)
        ) else _TAKES_OVER + setup.lag
        self._world.after(_LOOKS, self._look)

    def began(self, run, going):
        """Judge the start of *run* at a time when the runs *going* are in
        progress.
        """
        worker, fence, *_ = self._row()
        if worker != run.process:
            self._find(f'not active: {run.process} begins {run.job} '
                       f'{run.object}, but {worker or "none"} is active')
        for other in going:
            process = self._world.processes[other.process]
            if process.name != run.process and not self._excused(
                    process, other.start):
                self._find(f'two at work: {run.process} begins under fence '
                           f'{fence}, {other.process} is at work since '
                           f'{other.start - self._world.begin}')

    def victims(self, processes):
        """Return the processes that a fault may affect. With a probability of
        one half this is only the active worker, otherwise all of *processes*.
        """
        worker, *_ = self._row()
        return (self._world.random.random() < 0.5 and [
            one for one in processes if one.name == worker]) or processes

    def promote(self):
        """Make an operator choose any worker."""
        store = GroupStore(self._cluster.stores.url, 'group')
        names = sorted(name for name in self._cluster.here if name[0] == 'w')
        try:
            with self._cluster.stores.no_trouble():
                partitions.promote(
                    store, PARTITION, self._world.random.choice(names),
                    by='somebody', within=60.0)
        except exceptions.ConfigError:
            return
        finally:
            store.close()
        self._chosen = True

    def _excused(self, process, since):
        """Return whether *process* may run although another worker is active,
        because *process* could not detect the take-over.

        Such a process was frozen or cut off during its run. If an operator has
        chosen a worker at some time, this includes a process that was cut off
        from the store.
        """
        unaware = [*process.unable, *process.cuts]
        return (process.frozen or process.cut is not None
                or (self._chosen and (process.cut_from_store
                                      or process.reached_store >= since))
                or any(span.end >= since and span.why in ('frozen', 'cut')
                       for span in unaware))

    def _find(self, text):
        self.findings.append(
            f'{text} at {self._world.t / SECOND:.3f}')

    def _row(self):
        """Return the state of the partition: its active worker, its fence, the
        remaining seconds of the lease of the active worker, and the worker
        that an operator chose.
        """
        row = self._cluster.stores.partition(PARTITION)
        if row is None:
            return '', 0, 0.0, None
        worker, fence, until, promoted = row
        return (worker or '', fence, (until - self._world.t) / SECOND,
                promoted)

    def _look(self):
        self._world.after(_LOOKS, self._look)
        worker, fence, left, promoted = self._row()
        if fence != self._fence:
            self._fence, self._open_since = fence, None
            self.take_overs += 1
        group = self._cluster.ensemble
        gone = not worker or (left <= 0 and not any(
            one.name == worker for one in self._world.processes.values()
            if group.entry(one, ensemble.WORKERS) is not None))
        # Two things prevent a take-over. One is a worker that an operator
        # chose. The other is a process in the group without a row in the
        # store, because it may share the work of the partition.
        if promoted or self._unrecorded() or not (gone and any(
                map(self._able, self._cluster.here.values()))):
            self._open_since = None
        elif self._open_since is None:
            self._open_since = self._world.t
        elif self._patience is not None and self._world.t > (
                self._open_since + self._patience * SECOND):
            self._find('late: no worker has taken over since '
                       f'{self._open_since / SECOND:.3f}')
            self._open_since = self._world.t

    def _unrecorded(self):
        """Return whether a process in the group has no row in the store."""
        names = {
            one.name for one in self._world.processes.values()
            if self._cluster.ensemble.entry(one, ensemble.WORKERS) is not None}
        return bool(
            names - self._cluster.stores.partition_workers(PARTITION))

    def _able(self, process):
        """Return whether *process* is able to take over now.

        A process whose last call did not reach the store makes no other call
        before it has repeated this one after a pause.
        """
        cluster = self._cluster
        return (process is not None and process.alive and not process.leaving
                and process.group == ensemble.WORKERS and not process.frozen
                and process.cut is None and not cluster.ensemble.away
                and self._world.t < process.sure_until
                and cluster.reaches_store(process) and not process.store.away
                and cluster.ensemble.entry(
                    process, ensemble.WORKERS) is not None)
