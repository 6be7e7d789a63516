# SPDX-License-Identifier: Apache-2.0
"""The tables of the store.

Each claim is one row that is changed in place. In the table of claims, only
columns that never change are indexed, so a change of a claim updates no index.
On PostgreSQL such a change is a HOT update, which costs half as much as a
normal update.

The options of the tables, such as storage engines and fill factors, are in the
migrations: no query depends on them.
"""

import sqlalchemy as sa

from distperiodic.adapters.sql import host_clock
from distperiodic.adapters.sql.column_types import Exact
from distperiodic.adapters.sql.column_types import LeaseName
from distperiodic.adapters.sql.column_types import LongBinary
from distperiodic.adapters.sql.column_types import LongText
from distperiodic.adapters.sql.column_types import RoleColumn
from distperiodic.adapters.sql.column_types import Serial
from distperiodic.adapters.sql.column_types import SkippedByColumn
from distperiodic.adapters.sql.column_types import StateColumn
from distperiodic.adapters.sql.column_types import StatusColumn
from distperiodic.core.attributes import Attributes
from distperiodic.core.outcomes import COLUMNS
from distperiodic.core.task_pool import LONGEST_KEY
from distperiodic.core.task_pool import LONGEST_POOL
from distperiodic.core.task_pool import LONGEST_WORKER

#: Maximum length of an object's id, in characters.
LONGEST_ID = 255
#: Maximum length of the name of a lease's holder, in characters.
LONGEST_HOLDER = 255
#: Maximum length of the reason for a skip or a pause, in characters.
LONGEST_REASON = 200
#: Maximum length of the text of an object's own schedule, in characters.
LONGEST_RULE = 300

#: Maximum length of the id of a task, in characters.
LONGEST_TASK = 64
#: Maximum length of the name of a type or a queue, in characters.
LONGEST_NAME = 200

#: Maximum length of the name of a partition and of a member, in characters.
LONGEST_PART = 100
LONGEST_MEMBER = 200

#: Maximum length of the text of a histogram, in characters.
LONGEST_HISTOGRAM = 800

#: Kinds of jobs: periodic jobs, and the commands that the steps of tasks run.
KIND = 'job'
COMMAND = 'task'

metadata = sa.MetaData()

#: Jobs. Other tables refer to a job by its number, since names are long.
job = sa.Table(
    'distperiodic_job', metadata,
    #: A random number, so that recreated tables do not reuse old numbers. A
    #: process that still uses a number of the old tables finds no rows.
    sa.Column('id', sa.Integer, primary_key=True),
    sa.Column('space', Exact(100), nullable=False),
    sa.Column('kind', Exact(20), nullable=False),
    sa.Column('name', Exact(200), nullable=False),
    #: When the job was paused, in microseconds of the store's clock. None
    #: means that the job is not paused.
    sa.Column('paused_since', sa.BigInteger),
    sa.Column('paused_by', sa.String(LONGEST_REASON)),
    sa.Column('paused_why', sa.String(LONGEST_REASON)),
    #: When the pause ends by itself. None means that it lasts until an
    #: operator ends it. If the job is not paused, this is the time at which
    #: its last pause has ended.
    sa.Column('paused_until', sa.BigInteger),
    #: Number of rows of the job in the table of paused objects. None means 0.
    #: So a scheduler reads that table only if the job has such rows.
    sa.Column('paused_objects', sa.Integer),
    #: Text of the schedule in force. None means that no schedule is recorded
    #: yet.
    sa.Column('schedule', Exact(LONGEST_RULE + 100)),
    #: Instant since which this schedule has been in force. For the first
    #: schedule of a job, this is core.due.ALWAYS.
    sa.Column('schedule_since', sa.BigInteger),
    #: Hexadecimal hashes of the schedules that have been in force, the newest
    #: definition first; see core.job_set.adopted(). None means that no
    #: schedule is recorded yet.
    sa.Column('definitions', sa.String(200)),
    #: Interval in which schedulers have attended the job, in microseconds of
    #: the store's clock. Schedulers attend a job as long as it is not paused
    #: and they read its state regularly, without a gap. None means that no
    #: scheduler has attended the job.
    sa.Column('attended_since', sa.BigInteger),
    sa.Column('attended_until', sa.BigInteger),
    #: Instant up to which all due ticks are known to be claimed, skipped or
    #: given up.
    sa.Column('checked', sa.BigInteger),
    #: Tick before which history may have been pruned. None means that no
    #: history was pruned.
    sa.Column('pruned_before', sa.BigInteger),
    #: Instant before which an object may have been listed whose claim was
    #: pruned. None means that no claim was pruned.
    sa.Column('claims_pruned', sa.BigInteger),
    sa.UniqueConstraint('space', 'kind', 'name', name='distperiodic_job_of'))

claim = sa.Table(
    'distperiodic_claim', metadata,
    # The object comes first, and no index begins with the job: as long as the
    # table has no statistics, PostgreSQL would otherwise read all rows of the
    # job to find 500 of them.
    sa.Column('object', Exact(LONGEST_ID), primary_key=True),
    sa.Column('job', sa.Integer, primary_key=True, autoincrement=False),
    #: Position of the object on the ring.
    sa.Column('position', sa.BigInteger, nullable=False),
    sa.Column('tick', sa.BigInteger, nullable=False),
    #: Tick that was claimed before this tick. None means that no earlier tick
    #: was claimed for the object.
    sa.Column('previous', sa.BigInteger),
    #: Watermark: the newest tick that can no longer be claimed. It is the tick
    #: of this claim, or a later instant: a tick that was skipped, or the last
    #: one before ``since``. If an operator triggered this claim, the watermark
    #: may be earlier than its tick: ticks that are due in between stay due.
    sa.Column('settled', sa.BigInteger, nullable=False),
    #: Cause of the last skip. None means that no tick was skipped.
    sa.Column('skipped_by', SkippedByColumn),
    sa.Column('state', StateColumn, nullable=False),
    sa.Column('fence', sa.BigInteger, nullable=False),
    sa.Column('attempt', sa.Integer, nullable=False),
    #: The lease that contains the claim, or last contained it.
    sa.Column('lease', LeaseName, nullable=False),
    #: Worker to which the last run of this tick was granted. None means that
    #: no run was granted yet.
    sa.Column('worker', Exact(LONGEST_HOLDER)),
    #: Instant since which the object waits for the start of a run, in
    #: microseconds of the store's clock. It is the time of the claim, or of
    #: the take-over that begins another attempt. A claim that supersedes an
    #: unstarted claim keeps the value, and so does a granted run that is
    #: returned unstarted. The value also stays when the run starts. If the run
    #: fails for good, it is the time of the failure. For a step of a task that
    #: has not failed, it is the instant at which the step became ready. None
    #: means that the object was never claimed.
    sa.Column('waiting', sa.BigInteger),
    #: When the last run of the object was granted, in microseconds of the
    #: store's clock. None means that no run was granted, or that the last one
    #: was returned unstarted. Of the waiting objects of a job, the one that
    #: was started first is sent first; see
    #: :attr:`distperiodic.core.claim.Claim.place`. The instant is too early by
    #: a small fraction of the time between two starts; see
    #: :data:`distperiodic.core.claim.STARTED_EARLIER`.
    sa.Column('started', sa.BigInteger),
    #: Number of the attempts whose run was lost; see
    #: :attr:`distperiodic.core.claim.Claim.losses`. None means 0.
    sa.Column('losses', sa.Integer),
    #: When a run of the object last succeeded, in microseconds of the store's
    #: clock. None means that no run has succeeded.
    sa.Column('served', sa.BigInteger),
    #: Progress that the run has saved. If a command ended its run in its own
    #: transaction, this is the result of the command. None means that nothing
    #: is saved.
    sa.Column('progress', LongText),
    #: Instant from which the object's schedule applies. None means that the
    #: object is not listed.
    sa.Column('since', sa.BigInteger),
    #: Instant of the reading of the catalogue that last delisted the object.
    #: None means that the object was never delisted.
    sa.Column('delisted', sa.BigInteger),
    #: Text of the object's own schedule. Empty means that the object follows
    #: the schedule of its job.
    sa.Column('rule', Exact(LONGEST_RULE), nullable=False),
    #: Index for queries of one job's objects on a part of the ring.
    sa.Index('distperiodic_claim_position', 'position', 'job'))
#: Columns of :class:`~distperiodic.core.attributes.Attributes`, in order.
ATTRIBUTES = tuple(claim.c[name] for name in Attributes._fields)

#: Objects that operators have paused, at most core.pause.MOST_OBJECTS of each
#: job. The columns are those of a paused job.
paused_object = sa.Table(
    'distperiodic_paused_object', metadata,
    sa.Column('job', sa.Integer, primary_key=True, autoincrement=False),
    sa.Column('object', Exact(LONGEST_ID), primary_key=True),
    sa.Column('paused_since', sa.BigInteger, nullable=False),
    sa.Column('paused_by', sa.String(LONGEST_REASON), nullable=False),
    sa.Column('paused_why', sa.String(LONGEST_REASON), nullable=False),
    sa.Column('paused_until', sa.BigInteger))

lease = sa.Table(
    'distperiodic_lease', metadata,
    sa.Column('id', LeaseName, primary_key=True),
    sa.Column('job', sa.Integer, nullable=False),
    sa.Column('tick', sa.BigInteger, nullable=False),
    #: State of the claims when they moved into the lease.
    sa.Column('state', StateColumn, nullable=False),
    #: Holder of the lease. Empty means that the lease has no holder.
    sa.Column('holder', Exact(LONGEST_HOLDER), nullable=False),
    #: When the lease expires, in microseconds of the lease clock.
    sa.Column('until', sa.BigInteger, nullable=False),
    #: When the lease was created, in microseconds of the lease clock. If the
    #: lease contains runs, they were granted at that time.
    sa.Column('made', sa.BigInteger, nullable=False),
    #: Number of claims in the lease, without those that are counted as ended.
    sa.Column('remaining', sa.Integer, nullable=False),
    #: Number of earlier claims that the claims of this lease superseded.
    sa.Column('superseded', sa.Integer, nullable=False),
    #: Ids of the objects that were put into the lease, as JSON. The table of
    #: claims has no index on the lease, so the rows of the claims are found by
    #: these ids.
    sa.Column('objects', LongText, nullable=False),
    sa.Index('distperiodic_lease_until', 'until'))

#: Results of each tick, as numbers of objects, with one row for each member
#: that took part. Summed over all members, ``due`` equals the number of
#: endings (done, dead, skipped, superseded, cancelled) plus the number of
#: claims that are open or committed.
history = sa.Table(
    'distperiodic_history', metadata,
    sa.Column('job', sa.Integer, primary_key=True, autoincrement=False),
    sa.Column('tick', sa.BigInteger, primary_key=True, autoincrement=False),
    #: The scheduler that claimed or skipped the objects, or the worker that
    #: ran them. Empty means that an operator triggered or requeued the
    #: objects, that their lease had no holder, or that the worker of a command
    #: was lost.
    sa.Column('member', Exact(LONGEST_HOLDER), primary_key=True),
    *(sa.Column(name, sa.BigInteger, nullable=False) for name in COLUMNS),
    #: Histograms of the first runs of the objects by the time from the instant
    #: at which the object was due to the start of its handler, and of all
    #: runs by their duration. The member replaces the whole text each time
    #: that it records results; see :mod:`distperiodic.core.histogram`. None
    #: means that the member has recorded no result of a run.
    sa.Column('started', sa.String(LONGEST_HISTOGRAM)),
    sa.Column('ran', sa.String(LONGEST_HISTOGRAM)),
    #: Object of the longest of these runs. None means that it is unknown.
    sa.Column('slowest', Exact(LONGEST_ID)),
    #: Reason for the last skip, or for ending claims that must not run again.
    #: None means that no reason is recorded.
    sa.Column('reason', sa.String(LONGEST_REASON)))

#: Objects that did not run as planned, beside the history, which counts them.
#: A transaction that counts such objects inserts one row for each outcome, and
#: no row changes. A tick of objects that all ran has no row. If a job has too
#: many ids, schedulers replace its oldest rows by rows without ids.
exception = sa.Table(
    'distperiodic_exception', metadata,
    sa.Column('id', Serial, primary_key=True),
    sa.Column('job', sa.Integer, nullable=False),
    #: The tick that counts the objects in the history.
    sa.Column('tick', sa.BigInteger, nullable=False),
    #: The objects missed all of their ticks after this instant, up to *tick*.
    sa.Column('after', sa.BigInteger, nullable=False),
    #: Class of the length of this interval; see core.tick_exceptions.span_of.
    sa.Column('span', sa.SmallInteger, nullable=False),
    #: Name of a column of the history, or REQUEUED or LATE of core.outcomes.
    sa.Column('outcome', sa.String(20), nullable=False),
    #: As in the history. A row that replaces others has neither.
    sa.Column('member', Exact(LONGEST_HOLDER), nullable=False),
    sa.Column('reason', sa.String(LONGEST_REASON)),
    #: When the row was inserted, in microseconds of the store's clock.
    sa.Column('at', sa.BigInteger, nullable=False),
    #: Number of objects.
    sa.Column('number', sa.Integer, nullable=False),
    #: Ids of the objects, packed by :mod:`distperiodic.core.tick_exceptions`.
    #: None means that they are not kept, because the tick or the job has too
    #: many.
    sa.Column('objects', LongBinary),
    sa.Index('distperiodic_exception_tick', 'job', 'tick'),
    sa.Index('distperiodic_exception_span', 'job', 'span', 'tick', 'after'))

#: One row, used with SQLite only. It holds the offsets of both clocks from the
#: time since the host's boot, in microseconds; see
#: :mod:`distperiodic.adapters.sql.host_clock`.
clock = sa.Table(
    host_clock.TABLE, metadata,
    sa.Column('boot', sa.String(64), primary_key=True),
    sa.Column('lease', sa.BigInteger, nullable=False),
    sa.Column('offset', sa.BigInteger, nullable=False),
    sa.Column('knee', sa.BigInteger),
    sa.Column('seen', sa.BigInteger, nullable=False))

#: Dead runs of periodic jobs: their last attempt failed, or they must not be
#: repeated. The row of a task has the errors of its steps.
failure = sa.Table(
    'distperiodic_failure', metadata,
    sa.Column('id', Serial, primary_key=True),
    sa.Column('job', sa.Integer, nullable=False),
    sa.Column('object', Exact(LONGEST_ID), nullable=False),
    sa.Column('tick', sa.BigInteger, nullable=False),
    sa.Column('fence', sa.BigInteger, nullable=False),
    sa.Column('attempt', sa.Integer, nullable=False),
    #: None means that the run was never started.
    sa.Column('worker', Exact(LONGEST_HOLDER)),
    sa.Column('error', LongText, nullable=False),
    sa.Column('traceback', LongText, nullable=False),
    #: Microseconds of the store's clock.
    sa.Column('at', sa.BigInteger, nullable=False),
    sa.Index('distperiodic_failure_object', 'job', 'object'),
    sa.Index('distperiodic_failure_at', 'at', 'id'))

#: Tasks: one-off work in steps.
task = sa.Table(
    'distperiodic_task', metadata,
    sa.Column('id', Exact(LONGEST_TASK), primary_key=True),
    sa.Column('space', Exact(100), nullable=False),
    sa.Column('type', Exact(LONGEST_NAME), nullable=False),
    #: The submitter's own name for the task. None means that the submitter
    #: gave no name.
    sa.Column('key', Exact(LONGEST_ID)),
    #: Digest of the arguments of a task that was submitted with a key.
    sa.Column('digest', LeaseName),
    #: Ordered queue of the task. None means that the task is in no queue.
    sa.Column('queue', Exact(LONGEST_NAME)),
    sa.Column('status', StatusColumn, nullable=False),
    #: Error of the step that failed. None means that no step failed.
    sa.Column('message', LongText),
    #: Position; see :class:`distperiodic.core.workflow.Position`.
    sa.Column('cursor', sa.Integer, nullable=False),
    sa.Column('step', sa.Integer, nullable=False),
    sa.Column('back', sa.SmallInteger, nullable=False),
    #: Number of commands that were made ready before the current command.
    sa.Column('move', sa.Integer, nullable=False),
    #: Tasks with a higher priority are claimed first.
    sa.Column('priority', sa.Integer, nullable=False),
    #: This time and the times below are in microseconds of the store's clock.
    sa.Column('created', sa.BigInteger, nullable=False),
    #: Earliest instant at which the first step may start. None means at once.
    sa.Column('due', sa.BigInteger),
    #: When a scheduler claimed the first command. The status is RUNNING from
    #: then on, but no handler has begun before the claim of the command is
    #: granted, and a thread of the worker is free.
    sa.Column('started', sa.BigInteger),
    sa.Column('ended', sa.BigInteger),
    #: Operator who requested the cancellation of the task, and the reason.
    #: None means that there was no such request.
    sa.Column('cancelled_by', sa.String(LONGEST_REASON)),
    #: The workflow with which the task began, as JSON.
    sa.Column('definition', LongText, nullable=False),
    #: Values that the steps share, as JSON.
    sa.Column('parameters', LongText, nullable=False),
    #: Record of each step, as JSON.
    sa.Column('records', LongText, nullable=False),
    sa.UniqueConstraint('space', 'key', name='distperiodic_task_key'),
    sa.Index('distperiodic_task_status', 'space', 'status', 'created', 'id'),
    sa.Index('distperiodic_task_queue', 'space', 'queue', 'status', 'created',
             'id'),
    sa.Index('distperiodic_task_type', 'space', 'type', 'status', 'created',
             'id'))

#: Steps of tasks that are ready to be claimed. A claim deletes the row.
ready = sa.Table(
    'distperiodic_ready', metadata,
    sa.Column('task', Exact(LONGEST_TASK), primary_key=True),
    #: Number of the command.
    sa.Column('job', sa.Integer, nullable=False),
    #: 1 while the step waits for its due time, otherwise 0.
    sa.Column('delayed', sa.SmallInteger, nullable=False),
    #: Steps with a lower precedence are claimed first.
    sa.Column('precedence', sa.Integer, nullable=False),
    #: When the step is due, in microseconds of the store's clock.
    sa.Column('due', sa.BigInteger, nullable=False),
    #: Tick of the command whose end made this step ready; 0 if there is none.
    sa.Column('after', sa.BigInteger, nullable=False),
    #: Same value as ``move`` in the row of the task.
    sa.Column('move', sa.Integer, nullable=False),
    #: 1 if the task waits, and starts when this step is claimed.
    sa.Column('starts', sa.SmallInteger, nullable=False),
    sa.Index('distperiodic_ready_job', 'job', 'delayed', 'precedence', 'due',
             'task'),
    sa.Index('distperiodic_ready_due', 'delayed', 'due'))

#: Ordered queues of tasks.
queue = sa.Table(
    'distperiodic_queue', metadata,
    sa.Column('space', Exact(100), primary_key=True),
    sa.Column('name', Exact(LONGEST_NAME), primary_key=True),
    #: The task that may run. None means that the next task is not chosen yet,
    #: or that the queue is empty or halted.
    sa.Column('head', Exact(LONGEST_TASK)),
    #: Number of changes of this row. A submission increases this number to
    #: lock the row, so that submissions commit in the order of their times.
    #: Submissions in a caller's own transaction do not increase it.
    sa.Column('changes', sa.BigInteger, nullable=False),
    #: 1 if the queue continues with the next task after a task has failed.
    sa.Column('goes_on', sa.SmallInteger, nullable=False),
    #: When the queue was halted. None means that it is not halted.
    sa.Column('halted', sa.BigInteger),
    sa.Column('halted_why', sa.String(LONGEST_REASON)),
    #: The task whose failure halted the queue. None means that an operator
    #: halted the queue, or that it is not halted.
    sa.Column('halted_by', Exact(LONGEST_TASK)))

#: Pools of tasks that workers pull.
pool = sa.Table(
    'distperiodic_pool', metadata,
    #: A random number, so that recreated tables do not reuse old numbers.
    sa.Column('id', sa.Integer, primary_key=True, autoincrement=False),
    sa.Column('space', Exact(100), nullable=False),
    sa.Column('name', Exact(LONGEST_POOL), nullable=False),
    #: When the pool was last recreated, in microseconds of the store's clock.
    #: A recreation changes this row first, so the recreations of a pool run
    #: one at a time.
    sa.Column('recreated', sa.BigInteger, nullable=False),
    sa.UniqueConstraint('space', 'name', name='distperiodic_pool_of'))

#: Buckets of workers. A worker without a row has an empty bucket.
bucket = sa.Table(
    'distperiodic_pool_bucket', metadata,
    sa.Column('worker', Exact(LONGEST_WORKER), primary_key=True),
    sa.Column('pool', sa.Integer, primary_key=True, autoincrement=False),
    #: A random number above 0 by which tasks refer to the bucket. A bucket
    #: that has expired is deleted, and the worker's next bucket has another
    #: number.
    sa.Column('id', sa.BigInteger, nullable=False),
    #: When the bucket expires, in microseconds of the lease clock.
    sa.Column('until', sa.BigInteger, nullable=False),
    #: Number of calls that have renewed the bucket.
    sa.Column('calls', sa.BigInteger, nullable=False),
    sa.Index('distperiodic_pool_bucket_until', 'until', 'pool'))


def free_of(pool: int) -> int:
    """Return the value of ``bucket`` for the free tasks of a pool."""
    return -2 * pool


def done_of(pool: int) -> int:
    """Return the value of ``bucket`` for the done tasks of a pool."""
    return -2 * pool - 1


#: Tasks of pools. A recreation of the pool inserts the row of a task, and the
#: row stays until the task is removed or its end is forgotten. Each task is
#: one row, so it cannot be in two buckets.
pool_task = sa.Table(
    'distperiodic_pool_task', metadata,
    # The task comes first, and no index begins with the pool: as long as the
    # table has no statistics, PostgreSQL would otherwise read all rows of the
    # pool to find some of them.
    sa.Column('task', Exact(LONGEST_KEY), primary_key=True),
    sa.Column('pool', sa.Integer, primary_key=True, autoincrement=False),
    #: The id of a bucket, above 0, or a value of free_of() or done_of().
    sa.Column('bucket', sa.BigInteger, nullable=False),
    #: Sort key among the tasks with the same bucket. The place of a done task
    #: is the time of its end, in microseconds of the store's clock. The place
    #: of any other task is its negative score.
    sa.Column('place', sa.Double, nullable=False),
    #: Random number of the call that last gave the task back or ended it.
    #: None means that there was no such call.
    sa.Column('mark', sa.BigInteger),
    #: Index for queries of the best free tasks, of the tasks in a bucket, and
    #: of the done tasks that ended first.
    sa.Index('distperiodic_pool_task_place', 'bucket', 'place', 'task'))

#: Partitions. With ``mode = standby``, a partition has an active worker.
partition = sa.Table(
    'distperiodic_partition', metadata,
    sa.Column('space', Exact(100), primary_key=True),
    sa.Column('name', Exact(LONGEST_NAME), primary_key=True),
    #: The process of the active worker. None means that no worker is active.
    sa.Column('worker', Exact(LONGEST_HOLDER)),
    #: Fence of the active worker. The fence grows when a worker acquires the
    #: partition, and when the partition is taken from a worker whose lease has
    #: expired.
    sa.Column('fence', sa.BigInteger, nullable=False),
    #: When the worker became active, in microseconds of the store's clock. If
    #: no worker is active, this is when the last active worker released or
    #: lost the partition.
    sa.Column('since', sa.BigInteger, nullable=False),
    #: When the lease of the worker expires, in microseconds of the lease
    #: clock.
    sa.Column('until', sa.BigInteger, nullable=False),
    #: Number of transactions that have locked the row.
    sa.Column('starts', sa.BigInteger, nullable=False),
    #: Member that an operator has chosen to become active next. None means
    #: that no member was chosen.
    sa.Column('promoted', Exact(LONGEST_HOLDER)),
    sa.Column('promoted_by', sa.String(LONGEST_REASON)))

#: Workers of partitions.
partition_worker = sa.Table(
    'distperiodic_partition_worker', metadata,
    sa.Column('space', Exact(100), primary_key=True),
    sa.Column('partition', Exact(LONGEST_NAME), primary_key=True),
    #: Process of the worker.
    sa.Column('worker', Exact(LONGEST_HOLDER), primary_key=True),
    sa.Column('role', RoleColumn, nullable=False),
    #: When the worker took this role, in microseconds of the store's clock.
    sa.Column('since', sa.BigInteger, nullable=False),
    #: When the worker last sent a heartbeat, in microseconds of the lease
    #: clock.
    sa.Column('seen', sa.BigInteger, nullable=False))

#: Members of a group, each with the desired state that operators have set, and
#: the state that the member reports. A process that restarts under the same
#: name finds the row of the earlier process.
member = sa.Table(
    'distperiodic_member', metadata,
    sa.Column('space', Exact(100), primary_key=True),
    #: Partition of a worker. Empty means that the member is a scheduler.
    sa.Column('part', Exact(LONGEST_PART), primary_key=True),
    sa.Column('name', Exact(LONGEST_MEMBER), primary_key=True),
    #: The process that reported last. Empty means that the process has
    #: stopped.
    sa.Column('process', Exact(LONGEST_HOLDER), nullable=False),
    #: When the member last reported, in microseconds of the store's clock.
    sa.Column('seen', sa.BigInteger, nullable=False),
    #: The state that the member reported, as JSON.
    sa.Column('state', LongText, nullable=False),
    #: Id of the action that drained the member. None means that the member is
    #: not drained.
    sa.Column('drained', LeaseName),
    #: Number of threads that an operator has set. None means the value of the
    #: option ``pool_size``.
    sa.Column('pool_size', sa.Integer))

#: Hosts that operators have drained. A member of such a host that has no row
#: yet is drained from its start.
drained_host = sa.Table(
    'distperiodic_drained_host', metadata,
    sa.Column('space', Exact(100), primary_key=True),
    sa.Column('host', Exact(LONGEST_MEMBER), primary_key=True),
    #: Id of the action that drained the host.
    sa.Column('action', LeaseName, nullable=False))

#: Actions of operators, one row for each.
action = sa.Table(
    'distperiodic_action', metadata,
    sa.Column('id', LeaseName, primary_key=True),
    sa.Column('space', Exact(100), nullable=False),
    #: Microseconds of the store's clock.
    sa.Column('at', sa.BigInteger, nullable=False),
    #: User and host of the operator.
    sa.Column('who', sa.String(LONGEST_REASON), nullable=False),
    sa.Column('host', sa.String(LONGEST_REASON), nullable=False),
    #: The command, such as ``job pause``, and its target.
    sa.Column('verb', sa.String(LONGEST_NAME), nullable=False),
    sa.Column('target', sa.String(LONGEST_ID), nullable=False),
    #: Arguments of the action, as JSON.
    sa.Column('arguments', LongText, nullable=False),
    sa.Column('why', sa.String(LONGEST_REASON), nullable=False),
    #: Text about the change that the action made, or the reason why nothing
    #: was changed. None means that the outcome is not recorded yet, or that
    #: the process of the operator died.
    sa.Column('outcome', LongText),
    sa.Index('distperiodic_action_at', 'space', 'at', 'id'))

#: Answers to actions, one row for each member that an action concerns.
answer = sa.Table(
    'distperiodic_answer', metadata,
    sa.Column('action', LeaseName, primary_key=True),
    sa.Column('part', Exact(LONGEST_PART), primary_key=True),
    sa.Column('name', Exact(LONGEST_MEMBER), primary_key=True),
    sa.Column('space', Exact(100), nullable=False),
    #: When the member answered, in microseconds of the store's clock. 0 means
    #: that the member has not answered.
    sa.Column('at', sa.BigInteger, nullable=False),
    #: The process that answered.
    sa.Column('process', Exact(LONGEST_HOLDER)),
    #: 1 if the member did what the action requested.
    sa.Column('done', sa.SmallInteger, nullable=False),
    sa.Column('outcome', LongText),
    #: Index for the actions that a member has not answered.
    sa.Index('distperiodic_answer_open', 'space', 'part', 'name', 'at'))
