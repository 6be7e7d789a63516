# SPDX-License-Identifier: Apache-2.0
"""Ports: the interfaces between the flow and everything outside the flow.

Each port is a contract. Adapters implement a port, and the conformance suite
of the port tests every adapter. The flow depends only on ports.
"""

import types
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple
from typing import Protocol
from typing import TypeVar

from distperiodic import exceptions
from distperiodic.core import due
from distperiodic.core import message
from distperiodic.core import telemetry
from distperiodic.core import workflow
from distperiodic.core.attributes import Attributes
from distperiodic.core.claim import Claim
from distperiodic.core.claim import Claimed
from distperiodic.core.claim import Failure
from distperiodic.core.claim import HeldLease
from distperiodic.core.claim import Lease
from distperiodic.core.claim import State
from distperiodic.core.claim_request import ClaimRequest
from distperiodic.core.claim_request import NewLease
from distperiodic.core.claim_request import SkipRequest
from distperiodic.core.claim_request import TakeOverRequest
from distperiodic.core.context import Context
from distperiodic.core.control import Found
from distperiodic.core.control import Me
from distperiodic.core.control import MemberOutcome
from distperiodic.core.job import Job
from distperiodic.core.member import View
from distperiodic.core.new_task import NewTask
from distperiodic.core.pause import Pause
from distperiodic.core.pruning import Ages
from distperiodic.core.pruning import PruneStep
from distperiodic.core.ring import Arc
from distperiodic.core.standby import Active
from distperiodic.core.standby import PartitionWorker
from distperiodic.core.standby import Role
from distperiodic.core.standby import Standing
from distperiodic.core.task import Queue
from distperiodic.core.task import Task
from distperiodic.core.task import TaskPage


class LeaseEnded(Exception):
    """A handler process ended itself because the lease of its run expired.

    The outcome of the run is unknown.
    """


class Clock(Protocol):
    """Source of the time. All code reads the time through a clock."""

    def now(self) -> int:
        """Return the wall-clock time, which may jump.

        :returns: Microseconds since the epoch, UTC.
        """

    def monotonic(self) -> float:
        """Return seconds since an arbitrary start.

        The value never decreases. It also increases while the process is
        suspended or the machine sleeps.
        """


class Membership(Protocol):
    """Views of the groups that this process has joined or observes."""

    def view(self, group: str) -> View:
        """Return the last known view of *group*.

        The call sends no request to the coordination service.

        :raises ViewUnknown: The view is not known yet. The group may
            nevertheless have members.
        """


class Listed(NamedTuple):
    """An object that a catalogue lists."""

    object: str
    attributes: Attributes
    #: Watermark of a new object. Only ticks after this instant can be due. If
    #: the store has recorded a later watermark for the object, the store
    #: keeps that one.
    settled: int


class JobStatus(NamedTuple):
    """Status of one job in the store."""

    #: None means that the job is not paused.
    paused: Pause | None
    #: Text of the schedule in force.
    schedule: str
    #: Instant since which that schedule has been in force.
    #: :data:`~distperiodic.core.due.ALWAYS` means that no other schedule of
    #: the job was in force before.
    since: int
    #: Instant since which schedulers have served the job without a gap.
    #: Schedulers record their service with :meth:`ClaimStore.attend`. None
    #: means that no service is recorded.
    attended: int | None
    #: Instant up to which all due ticks are known to be claimed, skipped or
    #: given up.
    checked: int
    #: The paused objects of the job, by id.
    paused_objects: Mapping[str, Pause] = types.MappingProxyType({})


class Checked(NamedTuple):
    """The result of a scan that found no unclaimed due tick of a job."""

    #: Value of :attr:`JobStatus.checked` when the scan began.
    expected: int
    #: Instant up to which the scan found all due ticks settled.
    until: int


class RunTimes(NamedTuple):
    """How late runs of one job and tick began, and how long they took.

    The texts are those of :class:`distperiodic.core.histogram.Histogram`. They
    cover all runs of the tick whose results this process has reported so far.
    """

    #: Number of first runs, among the runs of the call, that began too late.
    late: int = 0
    #: Histogram of the first runs of objects, by the time from the instant at
    #: which the object was due to the start of the handler. Empty means
    #: unknown.
    started: str = ''
    #: Histogram of all runs, by their duration. Empty means unknown.
    ran: str = ''
    #: Objects among the late ones that began more than a period late.
    behind: tuple[str, ...] = ()
    #: Object of the longest run in *ran*. Empty means unknown: only short runs
    #: were timed, which are timed together.
    slowest: str = ''

    def without_late(self) -> 'RunTimes':
        """Return these times for another call, which counts no late runs."""
        return self._replace(late=0, behind=())


NO_TIMES = RunTimes()


class EndedSteps(NamedTuple):
    """Runs of one command that have ended, all granted in one lease."""

    lease: HeldLease
    #: Tasks whose command has succeeded, each with the JSON text of the
    #: command's result, or None.
    done: Mapping[str, str | None]
    #: Tasks whose command has failed, each with its error.
    failed: Mapping[str, str]
    #: As in :meth:`ClaimStore.finish`.
    times: RunTimes = NO_TIMES


class Proceed(NamedTuple):
    """Request to grant runs at once for steps that become ready.

    The request is an argument of :meth:`StepStore.advance`. It applies to the
    steps that become ready in the transaction of that call.
    """

    #: Jobs of the commands that may be granted.
    jobs: Collection[str]
    #: The new leases; see :meth:`.NewLease.parts`.
    into: NewLease
    #: Worker that must still be the active worker of its partition; otherwise
    #: nothing is granted. None disables the check.
    active: Active | None = None


class Advanced(NamedTuple):
    """Result of :meth:`StepStore.advance`.

    The sets contain the ids of tasks, by the outcome of the step that ended.
    """

    done: set[str]
    #: Tasks whose step has failed and waits for a retry.
    retried: set[str]
    failed: set[str]
    #: Leases of the granted runs. Each lease is paired with the inputs of its
    #: runs, by task.
    granted: Sequence[tuple[Lease, dict[str, workflow.StepInput]]] = ()
    #: Tasks with a step that may have become ready, and was not granted.
    ready: Collection[str] = ()


class StepStore(Protocol):
    """Store of the steps of tasks.

    A ready step is claimed once. The claim is a row of the claim store, in
    which the task is the object and the command is the job. So the claim is
    started, renewed, retried and taken over like a claim of a periodic job.

    :raises StoreUnavailable: Any method may raise this error, as in
        :class:`ClaimStore`.
    """

    def take(self, rooms: Sequence[Mapping[str, int]],
             tasks: Sequence[str] | None, into: NewLease) -> list[Lease]:
        """Claim ready steps.

        Steps of tasks with a higher priority are claimed first. Among steps of
        equal priority, those that became ready first are claimed first.

        :param rooms: For each partition, the number of steps of each command
            that would use all of its room, by the name of the command's job.
            If steps of several commands are claimed, they share the room: two
            commands with the number 10 have 10 steps together.
        :param tasks: Tasks whose steps may be claimed. If a task has no ready
            step, the step of the head of its queue may be claimed instead.
            None means all tasks.
        :param into: The new leases; see :meth:`.NewLease.parts`.
        :returns: The leases, each with claims of one command.
        """

    def wake(self) -> bool:
        """Mark delayed steps as ready when they are due; advance the queues.

        An ordered queue whose current task has ended continues with its next
        task, unless the queue is halted.

        :returns: True if the call reached a limit on its work. The caller
            should then repeat the call.
        """

    def load(self, objects: Sequence[str]) -> dict[str, workflow.StepInput]:
        """Return the input of the current steps of tasks, by task."""

    def cancelled(self, tasks: Sequence[str]) -> set[str]:
        """Return those of *tasks* whose cancellation was requested."""

    def advance(self, ended: EndedSteps, *, into: str,
                pause: Callable[[int], float],
                proceed: Proceed | None = None) -> Advanced:
        """End runs and advance their tasks, in one transaction.

        A failed command is retried as often as its workflow allows. If its
        last attempt fails, the task is rolled back, or becomes stuck if this
        command is itself a rollback.

        The same transaction may claim the next steps of these tasks, and the
        first steps of the tasks that follow them in their queues.

        :param into: Name of the new lease for steps that wait for a retry.
        :param pause: Function that receives the number of the failed attempt,
            and returns the seconds until the retry. If several commands are
            retried, it receives the highest of their numbers.
        :param proceed: Request to grant runs of steps that become ready. None
            means that no run is granted.
        :returns: The tasks whose result or error was recorded, and the leases
            of the granted runs.
        """


class PartitionStore(Protocol):
    """Store that records the active worker of each partition.

    A partition has at most one active worker; see
    :mod:`distperiodic.core.standby`. The name of a worker is the name of its
    process. If the answer to a call is lost, the caller may repeat the call.

    :raises StoreUnavailable: Any method may raise this error, as in
        :class:`ClaimStore`.
    """

    def beat(self, worker: PartitionWorker, role: Role, *,
             seconds: float) -> Standing:
        """Record a heartbeat of *worker*.

        If *worker* is active, its lease is renewed.

        :param seconds: Seconds from now until the lease expires.
        :returns: The row of the partition after the call.
        """

    def acquire(self, worker: PartitionWorker, *, fence: int, seconds: float,
                members: Collection[str] | None) -> Standing:
        """Make *worker* active, unless another worker is active.

        *worker* does not become active in these cases:

        - Another worker has a lease of the partition that has not expired.
        - A worker has acquired the partition since the caller read *fence*.
        - Another process may share the partition: either one of *members* that
          takes no part in the election, or a process that called :meth:`share`
          at most *seconds* ago.

        If *worker* becomes active, the store deletes an operator's choice of
        the next active worker.

        :param members: Other processes in the group. None means that they are
            unknown. In this case, each process that has called :meth:`share`
            and has not departed may share the partition.
        :returns: The row of the partition after the call. The field ``shared``
            names the processes that may share the partition.
        """

    def share(self, worker: PartitionWorker, *, seconds: float,
              starting: bool) -> Collection[str]:
        """Record that *worker* runs jobs without ``mode = standby``.

        After a successful call, *worker* may share the partition, so it
        prevents other workers from becoming active; see :meth:`acquire`. If
        another worker is active, the call fails and changes nothing.

        :param seconds: Seconds after its last heartbeat for which a worker
            counts as present.
        :param starting: True if *worker* has run nothing yet. In this case,
            the call also fails if another worker that takes part in the
            election is present. The lease of the active worker blocks the call
            only until the lease expires. If the call then succeeds, that
            worker loses the partition.
        :returns: The processes that made the call fail. Empty means that the
            call succeeded, and that *worker* may run jobs.
        """

    def release(self, worker: PartitionWorker, *, fence: int) -> Standing:
        """Release the partition if *worker* is active with this *fence*.

        The partition then has no active worker. The call changes nothing if
        *worker* is not active, or if it has since acquired the partition with
        a higher fence.

        :returns: The row of the partition after the call.
        """

    def depart(self, worker: PartitionWorker) -> None:
        """Record that *worker* has ended.

        If *worker* is active, the partition is released. From then on *worker*
        prevents no take-over, even if its entry is still in the group.
        """

    def is_in_force(self, active: Active) -> bool:
        """Return whether *active* is still the active worker.

        The result is false if *active* has released the partition, if the
        lease of *active* has expired, or if the partition has a higher fence.
        """


class MemberStore(Protocol):
    """Store of the rows of members, as a member itself reads and writes them.

    The row of a member holds the desired state, which operators set, and the
    state that the member reports.

    :raises StoreUnavailable: Any method may raise this error, as in
        :class:`ClaimStore`.
    """

    def read(self, me: Me) -> Found:
        """Return the desired state and the unanswered actions of a member."""

    def report(self, me: Me, process: str, state: Mapping[str, Any], *,
               new: bool) -> None:
        """Record the reported state of a member, and the reporting process.

        :param process: Empty means that the process has stopped.
        :param new: True if the member has no row yet.
        """

    def answer(self, me: Me, process: str,
               outcomes: Mapping[str, MemberOutcome]) -> None:
        """Record the answers of a member to actions.

        If an action already has an answer, that answer stays.

        :param outcomes: Outcome of each action, by the id of the action.
        """


class ClaimStore(Protocol):
    """Store of claims and of their leases.

    The claim of a job and an object is one row. Every transition is one
    conditional write of many rows. A lost race is not an error: the result
    leaves out each object whose claim another process changed first. To find
    the claims that a write has changed, an adapter uses the rows that the
    database returns, or reads the rows in the same transaction. It does not
    rely on the row count that a database driver returns.

    The caller names each lease that it creates, and never uses a name twice.
    If the answer to a call is lost, the caller can repeat the call: the store
    finds the lease by its name and returns the same answer.

    :raises StoreUnavailable: Any method may raise this error. The call may or
        may not have changed the store. The caller may repeat the call.
    """

    @property
    def steps(self) -> StepStore | None:
        """Store of the steps of tasks.

        None means that this store cannot hold tasks.
        """

    @property
    def partitions(self) -> PartitionStore | None:
        """Store of the active workers.

        None means that processes do not share this store.
        """

    @property
    def members(self) -> MemberStore | None:
        """Store of the rows of members.

        None means that operators cannot reach this store.
        """

    def close(self) -> None:
        """Close all connections. The next call connects again."""

    def now(self) -> int:
        """Return the time of the store's clock, by which leases expire.

        :returns: Microseconds since the epoch.
        """

    def adopt(self, schedules: Mapping[str, str],
              others: Mapping[str, Collection[int] | None] | None = None
              ) -> None:
        """Put *schedules* in force, unless a member has a newer definition.

        See :func:`distperiodic.core.job_set.adopted`. A schedule that differs
        from the one in force takes effect now. The first schedule of a job
        counts as in force since :data:`~distperiodic.core.due.ALWAYS`.

        :param schedules: Text of each schedule, by the name of its job.
        :param others: Hashes of the schedules that the members of the group
            have, by job. None as a value means that they are unknown. A
            missing job has no other members.
        """

    def attend(self, jobs: Mapping[str, float],
                checked: Mapping[str, Checked]) -> dict[str, JobStatus]:
        """Record that a scheduler serves *jobs*, and return their status.

        Schedulers repeat this call regularly for each job that they know. A
        call for a paused job does not count as service.

        :param jobs: For each job, the maximum number of seconds between two
            successive calls, which may come from different schedulers. A
            longer interval is a gap in the service. The first call after a gap
            sets :attr:`JobStatus.attended` to the time of that call.
        :param checked: Results of completed scans, by job. The store ignores a
            scan if :attr:`JobStatus.checked` differs from the value that the
            scan expects: :meth:`sync` may have listed objects that the scan
            did not read.
        """

    def sync(self, job: str, listed: Sequence[Listed],
             delisted: Sequence[str], *,
             readings: Sequence[int]) -> list[str]:
        """Record the objects that a catalogue lists.

        Only differences are written. *at* is the first of *readings*:

        - The schedule of a new object applies from *at* on. This is also true
          for a delisted object that is listed again. The watermark of the
          object becomes the given one, unless the recorded one is later.
        - If an object's own schedule has changed, the object follows the new
          schedule from *at* on.
        - If the store has not recorded the schedule of an object yet, the
          store records it. The instant from which ticks of the object can be
          due does not change.
        - If the call allows ticks to be due that could not be due before,
          :attr:`JobStatus.checked` is set to an instant before *at*. The value
          changes with each such call, so that the store ignores the result of
          a scan that is in progress.
        - A *delisted* object is not due until it is listed again. If another
          process listed the object after *at*, the object stays listed.

        :param readings: Instants for which the catalogue was read and returned
            all of *listed*, in ascending order. The later ones matter for an
            object that another process delisted after *at*. The schedule of
            such an object applies from the first reading that is not before
            the delisting. If all of them are before the delisting, it applies
            from the last one.
        :returns: Objects that could not be recorded. Pass these objects to a
            later call. Either another transaction, such as that of a handler,
            has locked their rows, or the store has already recorded them from
            a catalogue that was read after *at*.
        """

    def rows(self, job: str, arc: Arc, *, before: int | None = None,
             limit: int) -> list[due.Row]:
        """Return the listed objects of *job* on an arc of the ring.

        :param before: A tick. If given, only two kinds of objects are
            returned: objects with their own schedule, and objects that follow
            the schedule of the job and whose watermark is before the tick.
            None returns all objects.
        :param limit: Maximum number of rows.
        :returns: Rows in the order of their positions.
        """

    def rows_of(self, job: str, objects: Sequence[str]) -> list[due.Row]:
        """Return the rows of the listed *objects*, in any order."""

    def settled(self, job: str, tick: int) -> int:
        """Return the number of objects claimed or skipped for *tick*.

        An object counts once, even if earlier ticks of the object were skipped
        together with *tick*.
        """

    def claim(self, request: ClaimRequest, lease: NewLease) -> Claimed:
        """Claim the objects of *request* that may be claimed.

        An object whose earlier tick runs or waits for a retry is reported as
        busy and not claimed. An object that is not listed is reported as
        unlisted; see :func:`~distperiodic.core.claim_request.decide`.

        :param lease: Lease in which the acquired claims wait for their start.
            If no claim is acquired, no lease is created.
        """

    def start(self, lease: HeldLease, objects: Sequence[str], into: NewLease,
              active: Active | None = None) -> list[Claim]:
        """Grant the runs of *objects* whose claims wait in *lease*.

        :param into: Lease for the granted runs. If another process holds a
            lease with this name, no run is granted.
        :param active: Worker that must still be the active worker of its
            partition when the transaction commits; otherwise no run is
            granted. None disables the check.
        :returns: The granted claims, in the order of *objects*.
        """

    def finish(self, lease: HeldLease, objects: Sequence[str],
               times: RunTimes = NO_TIMES) -> set[str]:
        """Record that runs in *lease* succeeded, and return their objects.

        The call ignores an object whose run is not in *lease*, and leaves the
        object out of the result.

        :param times: Times of the runs, for the history. They are recorded
            together with the result of a run, if the call records any.
        """

    def fail(self, lease: HeldLease, failures: Sequence[Failure],
             into: NewLease | None, times: RunTimes = NO_TIMES) -> set[str]:
        """Record that runs in *lease* have failed.

        :param into: Lease in which the claims wait for a retry. It expires
            when the retry is due. Its holder is the process that may take over
            the retry first; empty means any process. None makes the claims
            dead. Dead claims are kept for an operator.
        :param times: As in :meth:`finish`.
        :returns: Objects whose failure was recorded. A failure is not recorded
            if the handler has already ended the run in its own transaction.
        """

    def save_progress(self, lease: HeldLease,
                      progress: Mapping[str, str]) -> None:
        """Save the progress of runs in *lease*.

        The store keeps the progress until the object is claimed for a later
        tick. The call ignores objects that do not run in *lease*.

        :param progress: JSON text of the progress, by object.
        """

    def load_progress(self, lease: HeldLease,
                      objects: Sequence[str]) -> dict[str, str]:
        """Return the saved progress of the *objects* that run in *lease*.

        :returns: JSON text by object. Objects without progress are left out.
        """

    def reclaim(self, leases: Sequence[HeldLease], objects: Sequence[str],
                into: NewLease, *, count_attempt: bool = True) -> list[Claim]:
        """Reclaim the *objects* that wait or run in *leases*.

        Each claim gets a new fence, and its old fence becomes void.

        :param leases: Leases of one job and tick.
        :param into: Lease in which the claims wait afterwards.
        :param count_attempt: True means that the granted runs may have
            started. The call then increases their number of attempts, and
            leaves out each run that an open transaction of its handler is
            about to end.
        :returns: The new claims.
        """

    def renew(self, leases: Sequence[str], *, holder: str,
              seconds: float) -> set[str]:
        """Renew the *leases* that *holder* still holds, and return them.

        *holder* has lost every lease that is not in the result.

        :param seconds: Seconds from now until the leases expire.
        """

    def release(self, leases: Sequence[str]) -> None:
        """Release those of *leases* in which claims wait for their start.

        The leases then have no holder, and any scheduler can take them over at
        once. The lease that was created first is taken over first. Until then,
        runs of its claims can still be granted. Leases of granted runs do not
        change.
        """

    def take_over_expired(self, request: TakeOverRequest,
                          into: NewLease) -> list[Lease]:
        """Take over expired leases, and leases whose holder is gone.

        The leases that expired first are taken over first. Claims that ran or
        waited for a retry begin their next attempt. The lease of claims that
        wait for a retry expires when the retry is due. From then on, the
        process for which the retry is kept may take the lease over; other
        processes may do so ``retry_after`` seconds later, or at once if this
        process is gone. So the attempt usually waits in the same line as the
        other objects of its owner.

        :param into: The leases under their new names and their new holder;
            see :meth:`.NewLease.parts`.
        """

    def holders(self, jobs: Sequence[str]) -> set[str]:
        """Return the holders of leases of *jobs*, and the processes for which
        retries are kept.
        """

    def discard(self, lease: HeldLease, objects: Sequence[str],
                ending: State, reason: str = '') -> int:
        """End claims that wait in *lease* and will not run.

        :param ending: Final state of the claims: skipped, superseded,
            cancelled or dead.
        :param reason: Reason in words, for the history.
        :returns: Number of claims that this call ended.
        """

    def prune(self, ages: Ages) -> Iterator[PruneStep]:
        """Delete old rows, one small transaction for each step.

        After the last step, all rows that were old at the first step are
        deleted. A store in memory keeps no old rows.
        """

    def running(self, jobs: Sequence[str]) -> dict[str, int]:
        """Return the current number of runs per job, across all workers.

        Runs of lost workers count until another process takes them over. All
        numbers describe the same moment. A job without runs may be left out.
        """

    def skip(self, request: SkipRequest) -> list[int]:
        """Record that objects do not run for a tick, without a claim.

        No process can claim these objects for this tick afterwards. The call
        ignores objects that were already claimed or skipped for this tick or a
        later one, objects that are not listed, and objects whose rows another
        transaction has locked. In a store that members share, the call changes
        nothing while it is too early to claim the tick.

        :returns: Previous watermark of each object whose skip was recorded.
        """


_Answer = TypeVar('_Answer')


#: The new status of each task, or the error because of which the task was not
#: changed: UnknownTask or InvalidTask.
TaskAnswers = dict[str, workflow.Status | exceptions.DistperiodicError]


class TaskStore(Protocol):
    """Store of tasks and of their ordered queues, for clients.

    A call only writes tables. Schedulers find the changes at their next sweep,
    or at once if they are notified.

    :raises StoreUnavailable: Any method may raise this error, as in
        :class:`ClaimStore`.
    """

    def submit(self, tasks: Sequence[NewTask]) -> list[str]:
        """Write tasks, and return their ids.

        If a task with the same key exists, the new task is not written, and
        the id of the existing task is returned.

        :raises InvalidTask: A key belongs to a task with another type, queue
            or parameters.
        """

    def submit_in(self, session: Any, tasks: Sequence[NewTask]) -> list[str]:
        """Write tasks in the transaction of *session*; the caller commits it.

        The time of this call determines the place of a task in its queue.
        In PostgreSQL, other submissions to the queue do not wait for the
        commit, unless this call creates the queue. Tasks that are submitted
        later but committed earlier may therefore run first.

        :raises ConfigError: The session belongs to another database.
        :raises InvalidTask: A key belongs to a task with another type, queue
            or parameters.
        """

    def get(self, task: str) -> Task:
        """Return a task.

        :raises UnknownTask: No task of the group has this id.
        """

    def page(self, page: TaskPage) -> list[Task]:
        """Return tasks in the order in which they were submitted.

        :raises UnknownTask: No task has the id ``page.after``.
        """

    def cancel(self, tasks: Sequence[str], by: str) -> TaskAnswers:
        """Cancel tasks in one transaction.

        A task that has ended is not cancelled.

        :param by: The operator and the reason, as text.
        """

    def retry(self, tasks: Sequence[str], back: bool | None) -> TaskAnswers:
        """Continue tasks that have stopped, in one transaction.

        :param back: See :func:`distperiodic.core.workflow.retry`.
        """

    def queues(self, name: str | None = None) -> list[Queue]:
        """Return the ordered queues by name.

        :raises UnknownTask: No queue has the name *name*.
        """

    def resume(self, queue: str) -> bool:
        """Resume a halted queue. Return True if the queue was halted.

        :raises UnknownTask: No queue has this name.
        """

    def halt(self, queue: str, why: str) -> bool:
        """Halt a queue after its current task.

        :returns: True if this call halted the queue. False if the queue was
            already halted.
        :raises UnknownTask: No queue has this name.
        """

    def set_goes_on(self, queue: str, goes_on: bool) -> None:
        """Set whether a queue continues after a task has failed.

        A missing queue is created.
        """

    def close(self) -> None:
        """Close the connection; the next call opens a new one."""


class EventSink(Protocol):
    """Receiver of the events that a process reports.

    Any thread may use it.
    """

    #: False while there is no subscriber. Events need not be created then.
    open: bool

    def put(self, event: telemetry.Event) -> None:
        """Pass *event* to the subscribers.

        The call does not block and raises no error.
        """


class ClosedSink:
    """Sink without subscribers."""

    open = False

    def put(self, event: telemetry.Event) -> None:
        """Ignore *event*."""


class BatchSpan(Protocol):
    """Span of a batch, from its dispatch until all outcomes are known.

    Only the thread of the flow uses it.
    """

    #: The trace context of the span, for other processes.
    trace: str

    def count(self, outcome: str, objects: int) -> None:
        """Add objects of the batch whose outcome is known."""

    def reclaim(self, objects: int, reason: str) -> None:
        """Record that objects of the batch were reclaimed.

        :param reason: Sentence for operators.
        """

    def end(self) -> None:
        """End the span."""


class RunSpan(Protocol):
    """Span of a run. The run's thread begins and ends it."""

    def fail(self, error: str, text: str, traceback: str) -> None:
        """Record that the run has failed.

        :param error: Name of the class of the error.
        :param text: The error as one line.
        """

    def time_out(self, seconds: float) -> None:
        """Record that the run has exceeded its timeout, and end the span.

        Any thread may call this. The handler may still run.
        """

    def end(self) -> None:
        """End the span, unless it has ended.

        Its thread no longer has the context of the span.
        """


#: Function that begins the span of a run, in the thread of the run. Its
#: parameter is the context of the handler. It returns None if the run has no
#: span.
BeginRun = Callable[[Context], RunSpan | None]


class Tracer(Protocol):
    """Creator of spans.

    No method raises an error: a failure to trace must not prevent work. A
    trace context is described in :mod:`distperiodic.core.trace_context`.
    """

    @property
    def problem(self) -> str:
        """Reason why no span can be created. Empty means that there is none.
        """

    def dispatched(self, batch: message.Batch,
                   worker: str) -> BatchSpan | None:
        """Begin the span of a batch.

        :param worker: Name of the worker on the ring.
        :returns: The span. None means that no span is recorded anywhere.
        """

    def runs(self, batch: message.Batch) -> BeginRun | None:
        """Return the function that begins the spans of the runs of *batch*.

        None means that the runs have no spans.
        """

    def current(self) -> str | None:
        """Return the trace context of this thread's span.

        None means that the thread has no span.
        """

    def flush(self, seconds: float) -> None:
        """Export the spans that have ended; wait at most *seconds*."""


class CallQueue(Protocol):
    """Queue of store calls, so that the flow never waits for the store."""

    def submit(self, call: Callable[[ClaimStore], _Answer],
               then: Callable[[_Answer], None],
               failed: Callable[[], None] = lambda: None) -> None:
        """Queue *call*, and pass its result to *then* in the flow's thread.

        Calls run in order. The queue repeats a call while the store is
        unreachable, so each call must be idempotent.

        :param failed: Called instead of *then* if *call* can never succeed.
        """


class StoreQueue(CallQueue, Protocol):
    """The queues of calls to one store."""

    @property
    def away(self) -> bool:
        """True while the store is unreachable; calls wait in the queue."""

    @property
    def urgent(self) -> CallQueue:
        """Second queue, whose calls do not wait for the calls of the first.

        Renewals of leases are urgent, because a lease could expire while its
        renewal waits.
        """


class CatalogueReader(Protocol):
    """Reader that runs catalogue methods in a thread that may block."""

    def read(self, job: Job, tick: int, ticket: int,
             arcs: Sequence[Arc]) -> None:
        """Start to read the objects of *job*, and return at once.

        The flow receives the result later, in an event with the same *ticket*.
        The result may be lost.

        :param arcs: Arcs of the ring that this member owns, for a catalogue
            method that reads only the objects on these arcs.
        """


class WorkBus(Protocol):
    """Message bus to the workers. A message is a hint and may be lost."""

    def send(self, batch: message.Batch) -> None:
        """Send *batch* to its worker.

        The call never blocks, and never raises an exception. If the batch
        cannot be sent, the bus calls the callback that was passed to its
        constructor.
        """


#: Maximum size of a message in bytes. A carrier discards longer messages
#: before it decodes them. No message of distperiodic is longer, even if every
#: character of every id is outside Unicode's Basic Multilingual Plane and the
#: message is encoded as JSON inside JSON.
LONGEST_MESSAGE = 20 * 2 ** 20


class Inbox(NamedTuple):
    """Queue of one process, and the callbacks for the messages in it."""

    #: The two parts of the name of the queue, ``<topic>.<identity>``. No other
    #: process has a queue with this name.
    topic: str
    identity: str
    #: Called with the payload of each message, in a thread of the carrier. The
    #: callback must not block, and must not raise an exception.
    on_message: Callable[[Any], None]
    #: Called for each message that the carrier discards, for example because
    #: its payload cannot be decoded, with the origin of the message and the
    #: reason.
    on_garbage: Callable[[str, str], None]
    #: Broadcast names. The process also receives the messages that are sent to
    #: these names.
    hears: Sequence[str] = ()
    #: Value of the option ``quorum_queues``. The option matters for brokers
    #: whose clients choose how queues are stored.
    replicated: bool = False

    @property
    def queue(self) -> str:
        """Name of the queue."""
        return f'{self.topic}.{self.identity}'


class Carrier(Protocol):
    """Connection over which one process sends and receives messages.

    Every carrier can send messages. Only a carrier with an inbox receives
    messages. An open carrier reconnects by itself. A carrier with an inbox
    logs one line when the broker stops answering, and one line when the broker
    answers again. The errors that a carrier raises contain no password.
    """

    @property
    def problem(self) -> str | None:
        """Reason why an open carrier with an inbox cannot reach the broker.

        None means that the broker answers, as far as is known. A carrier that
        sends nothing should try to reach the broker every few seconds. A
        carrier without this attribute counts as one that does not know. Any
        thread may read it.
        """

    def open(self, timeout: float) -> None:
        """Connect, and start to receive if there is an inbox.

        A carrier without an inbox connects when it sends its first message.

        :param timeout: Maximum duration of the call, in seconds.
        :raises ConfigError: The URL or an option of the driver is invalid, so
            a retry would also fail.
        :raises BusUnavailable: The broker did not accept the connection. The
            carrier is closed afterwards.
        """

    def ended(self, timeout: float) -> bool:
        """Wait until a failed :meth:`open` has released its resources.

        These resources are a thread and a connection.

        :param timeout: Maximum duration of the call, in seconds.
        :returns: True if everything was released in time.
        """

    def cast(self, topic: str, identity: str, payload: dict[str, Any]) -> None:
        """Send *payload* to one queue, or to all receivers of a broadcast.

        The call returns when the broker has accepted the message, and may
        block while a broker accepts no messages. Threads may share a carrier.

        :param topic: First part of the name of the queue or the broadcast.
        :param identity: Second part of that name.
        :param payload: JSON object of at most :data:`LONGEST_MESSAGE` bytes.
        :raises NoConsumer: The queue does not exist, or no process receives
            messages for the broadcast name.
        :raises BusUnavailable: The message could not be sent for another
            reason. A retry may succeed.
        """

    def close(self, timeout: float) -> None:
        """Stop receiving, delete the queue of the inbox, and disconnect.

        After *timeout* the remaining steps continue in the background.

        :param timeout: Maximum duration of the call, in seconds.
        """


class BrokerHost(NamedTuple):
    """One server of a broker."""

    name: str
    port: int
    user: str

    def __str__(self) -> str:
        return f'{self.name}:{self.port}'


class QueueState(NamedTuple):
    """The number of messages and the number of consumers of a queue."""

    messages: int
    consumers: int


class Weakness(NamedTuple):
    """A problem of a broker that endangers messages, and its remedy.

    For example, messages may be lost, forged or rejected.
    """

    problem: str
    remedy: str


class BrokerProbe(Protocol):
    """Diagnostic client of a broker, for operators.

    Every request has a timeout. ``str(probe)`` returns the URL without its
    password.
    """

    @property
    def hosts(self) -> Sequence[BrokerHost]:
        """The servers that the URL names."""

    @property
    def space(self) -> str:
        """Description of the part of the broker that the URL selects.

        The description is for operators.
        """

    @property
    def tls(self) -> bool:
        """True if the connections are encrypted."""

    @property
    def tls_remedy(self) -> str:
        """Instruction for turning on encryption."""

    def open_to_all(self, host: BrokerHost) -> Weakness | None:
        """Return a weakness if the password is missing or publicly known.

        None means that neither is the case.
        """

    def check(self, host: BrokerHost) -> None:
        """Log in to *host*.

        :raises BusUnavailable: The login failed; the message gives the reason.
        """

    def check_rights(self, host: BrokerHost, queue: str) -> None:
        """Create a queue, send a message to it, read it, and delete the queue.

        :param queue: Name of the queue, which no process uses.
        :raises BusUnavailable: The user lacks a right; the message names the
            right and the remedy.
        """

    def find(self) -> BrokerHost:
        """Return the first server that accepts the login of the URL.

        :raises BusUnavailable: No server accepts the login.
        """

    def weaknesses(self, host: BrokerHost) -> list[Weakness]:
        """Return the weaknesses of *host* that do not concern its password.

        :raises BusUnavailable: The login failed.
        """

    def queues(self, host: BrokerHost,
               names: list[str]) -> dict[str, QueueState | None]:
        """Return the state of each queue, by name.

        None means that the queue does not exist.
        """

    def delete(self, host: BrokerHost, names: list[str]) -> None:
        """Delete queues and their messages; ignore missing queues."""


class BusDriver(Protocol):
    """Driver of one kind of message bus.

    A driver is a plug-in in the namespace ``distperiodic.bus``. The name of
    its entry point is the scheme of its URLs. The class is instantiated
    without arguments. Loading the class opens no connection.
    """

    def carrier(self, conf: Any, url: str, *, inbox: Inbox | None,
                monotonic: Callable[[], float]) -> Carrier:
        """Return a carrier that is not open yet.

        :param conf: Configuration of the service. The method may register
            options of its own, but changes no value.
        :param url: URL of the broker, with its password.
        :param inbox: Queue to receive from. None means that the carrier only
            sends.
        :param monotonic: Returns seconds since an arbitrary start.
        :raises ConfigError: The URL is invalid, so a retry would also fail.
        """

    def probe(self, conf: Any, url: str) -> BrokerProbe:
        """Return a probe of the broker at *url*. The call sends no request.

        :raises ConfigError: The URL is invalid, so a retry would also fail.
        """
