# SPDX-License-Identifier: Apache-2.0
"""The real store in a simulated world, and the operator who uses it."""

import contextlib

import sqlalchemy as sa
from sqlalchemy import pool

from distperiodic.adapters.sql import tables
from distperiodic.adapters.sql.column_types import SKIPPED_CODES
from distperiodic.adapters.sql.column_types import STATE_CODES
from distperiodic.adapters.sql.jobs import kind_and_name
from distperiodic.adapters.sql.session import finish_in
from distperiodic.adapters.sql.store import SqlClaimStore
from distperiodic.adapters.sql.task_store import SqlTaskStore
from distperiodic.core.claim import ENDINGS
from distperiodic.core.claim import OPEN
from distperiodic.core.claim import State
from distperiodic.core.job import COMMAND_PREFIX
from distperiodic.core.pruning import Ages
from distperiodic.core.workflow import CODES
from distperiodic.operator import admin
from distperiodic.operator import dead_objects
from distperiodic.operator.auditing import Actor
from distperiodic.operator.group_reader import GroupStore
from tests.oracle.tasks import Row
from tests.simulation import sqlite
from tests.simulation import stores
from tests.simulation.journal import Journal

_SPACE = 'group'
_STATES = {code: state for state, code in STATE_CODES.items()}
# If a handler has committed the end of its run, the run is done, even before
# the store has counted it.
_STATES[STATE_CODES[State.COMMITTED]] = State.DONE
_STATUSES = {code: str(status) for status, code in CODES.items()}
_BY = {code: by.value for by, code in SKIPPED_CODES.items()}


class InSqlite:
    """One database. All processes share one store object. This object keeps no
    state that belongs to a process.
    """

    def __init__(self, cluster):
        self._world = cluster.world
        self.triggered = set()
        #: Instants at which an operator requeued dead claims.
        self.requeues = []
        self.sessions = (
            0.3 if 'ends in its session' in cluster.setup.noise else 0.0)
        share = 0.004 if 'store errors' in cluster.setup.noise else 0.0
        self._trouble = sqlite.Trouble(cluster.world, cluster.clock, share)
        self._path = sqlite.directory().new(self._trouble)
        self.url = url = f'sqlite:///{self._path}'
        self._store = cluster.bug.sql_store(SqlClaimStore)(
            url, namespace=_SPACE)
        if self._world.log is not None:
            stores.tell_calls(self._store, self._world.tell)
        self.operator = Operator(url, self)
        self._own = sqlite.directory().open(self._path)
        self._sessions = sa.create_engine(url, poolclass=pool.NullPool)
        self.tasks = cluster.bug.task_store(SqlTaskStore)(
            url, namespace=_SPACE)
        #: close() fills these journals and lists.
        self.journal = self.steps_journal = None
        self.task_rows = self.grants = self.recoveries = ()

    def store_of(self, process):
        return self._store

    def holders(self):
        """Return the holder of each lease that has one, by the lease.

        A retry is only kept for a process, which need not do anything for it.
        """
        return dict(self._own.execute(
            'SELECT id, holder FROM distperiodic_lease '
            "WHERE holder != '' AND state != ?",
            (STATE_CODES[State.RETRY],)).fetchall())

    def heal(self):
        self._trouble.share = 0.0

    def fence_of(self, job, name):
        """Return the fence under which a run of this object may begin now.
        None means that no run may.
        """
        found = self._own.execute(
            'SELECT fence FROM distperiodic_claim WHERE object = ? AND '
            'state = ? AND job = (SELECT id FROM distperiodic_job WHERE '
            'kind = ? AND name = ?)', (
                name, STATE_CODES[State.RUNNING],
                *kind_and_name(job))).fetchone()
        return found and found[0]

    def due_of(self, task):
        """Return the earliest start of a task. None means at once."""
        found = self._own.execute(
            'SELECT due FROM distperiodic_task WHERE id = ?',
            (task,)).fetchone()
        return found and found[0]

    def partition(self, name):
        """Return the state of a partition: its active worker, its fence, the
        end of the lease of the active worker, and the worker that an operator
        chose.
        """
        return self._own.execute(
            'SELECT worker, fence, until, promoted FROM '
            'distperiodic_partition WHERE name = ?', (name,)).fetchone()

    def partition_workers(self, name):
        """Return the processes that have a row for the partition."""
        return {worker for worker, in self._own.execute(
            'SELECT worker FROM distperiodic_partition_worker '
            'WHERE partition = ?', (name,))}

    @contextlib.contextmanager
    def no_trouble(self):
        """Cause no store errors within this context. After such an error, an
        operator would simply repeat the command.
        """
        trouble, share = self._trouble, self._trouble.share
        trouble.share = 0.0
        try:
            yield
        finally:
            trouble.share = share

    def finish(self, run, lease, result=None):
        """End *run* in a database session of its handler. Return whether the
        end was committed; None means unknown.

        :param result: result of a command, as JSON.
        """
        try:
            with self._sessions.connect() as session:
                counted = finish_in(
                    session, namespace=_SPACE, job=run.job, key=run.object,
                    lease=lease, result=result)
                if counted and self._world.random.random() < 0.9:
                    session.commit()
                    return True
        except sa.exc.SQLAlchemyError:
            # The error ends the handler, too. The commit may or may not have
            # taken effect.
            return None
        return False

    def close(self):
        """Read the committed records, and delete the database."""
        self._read()
        self.totals = self._own.execute(
            'SELECT name, sum(due), sum(done), sum(dead), sum(skipped) FROM '
            'distperiodic_history h JOIN distperiodic_job j ON j.id = h.job '
            'GROUP BY name').fetchall()
        self._own.close()
        self._trouble.close()
        self._store.close()
        self.operator.close()
        self.tasks.close()
        self._sessions.dispose()
        sqlite.directory().delete(self._path)

    def _read(self):
        jobs = {number: (COMMAND_PREFIX if kind == tables.COMMAND else '')
                + name for number, kind, name in self._own.execute(
                    'SELECT id, kind, name FROM distperiodic_job')}
        at = 0
        self.journal = journal = Journal(lambda: at, self.requeues)
        self.steps_journal = Journal(lambda: at)
        self.grants = []
        self.recoveries = []
        running = STATE_CODES[State.RUNNING]
        claimed = STATE_CODES[State.CLAIMED]
        unended = {STATE_CODES[state] for state in OPEN}
        for row in self._own.execute(
                'SELECT at, job, object, was_tick, tick, was_settled, '
                'settled, was_state, state, was_fence, fence, was_lease, '
                'lease, by, relisted FROM sim_journal ORDER BY n'):
            at, job = row[0], jobs[row[1]]
            if not job.startswith(COMMAND_PREFIX):
                _note(journal, job, *row[2:])
                continue
            _note(self.steps_journal, job, *row[2:])
            before, after = row[7:9]
            if after == running != before:
                self.grants.append((row[2], at, row[10]))
            if after == claimed and before in unended:
                self.recoveries.append((row[2], at))
        self.task_rows = [Row(
            at, task, _STATUSES[status], step, bool(back), *rest)
            for at, task, status, step, back, *rest in self._own.execute(
                'SELECT at, task, status, step, back, cursor, queue, '
                'created, cancelling, parameters, due FROM sim_task '
                'ORDER BY n')]
        journal.adopted = self._own.execute(
            'SELECT at, job, text FROM sim_adopted ORDER BY n').fetchall()


def _note(journal, job, name, was_tick, tick, was_settled, settled, was_state,
          state, was_fence, fence, was_lease, lease, by, relisted):
    """Record a change of a row in *journal*."""
    before, after = _STATES.get(was_state), _STATES[state]
    if tick != was_tick:
        if was_tick is not None and before not in ENDINGS and (
                before.value != 'listed'):
            journal.end(job, name, was_tick, 'superseded')
        if after.value != 'listed':
            journal.claim(job, name, tick, lease)
        return
    if settled != was_settled:
        # An object that is listed again, or gets a new schedule, has not
        # missed a tick by this change, so the change is not a skip.
        if not relisted:
            journal.skip(job, name, was_settled, settled, _BY.get(by, ''))
        return
    if after is before and (after in ENDINGS or fence == was_fence):
        return
    if after is State.RUNNING:
        journal.grant(job, name, tick, fence, lease)
    elif after in ENDINGS:
        journal.end(job, name, tick, after.value, fence)
    elif before in ENDINGS:
        journal.reopen(job, name, tick)


class Operator:
    """The operator who pauses, triggers and requeues jobs, and prunes the
    store.
    """

    def __init__(self, url, stores):
        self._group = GroupStore(url, _SPACE)
        self._stores = stores

    def close(self):
        self._group.close()

    def _try(self, call, *arguments, **options):
        with self._stores.no_trouble():
            return call(self._group, *arguments, **options)

    def pause(self, job, why):
        self._try(admin.pause, job, by='somebody', why=why)

    def resume(self, job):
        self._try(admin.resume, job)

    def trigger(self, job):
        found = self._try(admin.trigger, job, key=None)
        self._stores.triggered.add((job, found.tick))

    def requeue(self):
        self._stores.requeues.append(self._stores._world.now)
        self._try(dead_objects.requeue, dead_objects.DeadFilter(),
                  Actor('somebody', 'a host'))

    def prune(self):
        self._try(admin.prune, Ages(history=0.01, dead=0.01))
