# SPDX-License-Identifier: Apache-2.0
"""Ports: the interfaces between the flow and everything outside the flow.

Each port is a contract. Adapters implement a port, and the conformance suite
of the port tests every adapter. The flow depends only on ports.

All ports are in one file, so that a reader finds the whole contract there.
"""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple
from typing import Protocol
from typing import TypeVar

from distperiodic.core import due
from distperiodic.core import message
from distperiodic.core import workflow
from distperiodic.core.claim import UNBOUNDED
from distperiodic.core.claim import Claim
from distperiodic.core.claim import Claimed
from distperiodic.core.claim import Failure
from distperiodic.core.claim import Lease
from distperiodic.core.claim import SkippedBy
from distperiodic.core.claim import State
from distperiodic.core.job import Job
from distperiodic.core.member import View
from distperiodic.core.ring import Arc
from distperiodic.core.standby import Active
from distperiodic.core.standby import Role
from distperiodic.core.standby import Standing


class LeaseEnded(Exception):
    """The handler's process has ended itself at the end of its run's lease.

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

        The value never goes back. It also advances while the process is
        suspended or the machine sleeps.
        """


class Membership(Protocol):
    """Members of the groups, as far as this process knows them."""

    def view(self, group: str) -> View:
        """Return the last known view of *group*, without a request.

        :raises ViewUnknown: The view is not known yet. This does not mean
            that the group has no members.
        """


class Listed(NamedTuple):
    """An object that a catalogue lists."""

    object: str
    #: Text of the object's own schedule. Empty means the schedule of its job.
    rule: str
    #: Watermark of a new object: the newest tick before the object was listed.
    #: If the store already has a later watermark, the later one stays.
    settled: int


class JobStatus(NamedTuple):
    """Status of one job in the store."""

    #: Reason for which an operator paused the job. None means not paused.
    paused: str | None
    #: Text of the schedule in force.
    schedule: str
    #: Instant since which that schedule is in force, or
    #: :data:`~distperiodic.core.due.ALWAYS`.
    since: int
    #: Instant since which schedulers have served the job without a gap, as
    #: :meth:`ClaimStore.attend` records it. None means that nothing is
    #: recorded.
    attended: int | None
    #: Instant up to which all due ticks are known to be claimed, skipped or
    #: given up.
    checked: int


class Checked(NamedTuple):
    """The result of a scan that found no unclaimed due tick of a job."""

    #: :attr:`JobStatus.checked` when the scan began.
    expected: int
    #: Instant up to which all due ticks are claimed or settled.
    until: int


class Proceed(NamedTuple):
    """Request to grant the runs of steps that become ready.

    They become ready in the transaction that carries this request.
    """

    #: Jobs of the commands that may be granted.
    jobs: Collection[str]
    #: Prefix of the names of the new leases, ``<into>.0``...
    into: str
    #: Holder of the new leases.
    holder: str
    #: Seconds until the leases expire.
    seconds: float
    #: As in :meth:`ClaimStore.start`: if this worker is no longer active,
    #: nothing is granted.
    active: Active | None = None


class Advanced(NamedTuple):
    """Tasks whose steps have ended, by outcome."""

    done: set[str]
    #: Tasks whose step has failed and waits for a retry.
    retried: set[str]
    failed: set[str]
    #: Leases of the runs that were granted, with the input of each run.
    granted: Sequence[tuple[Lease, dict[str, workflow.StepInput]]] = ()


class StepStore(Protocol):
    """Store of the steps of tasks.

    A ready step is claimed once. Its claim is in the claim store, with the
    task as its object and the command as its job. Start, renewal, retry and
    take-over therefore work as for every other claim.

    :raises StoreUnavailable: As in :class:`ClaimStore`.
    """

    def take(self, jobs: Mapping[str, int], *, tasks: Sequence[str] | None,
             into: str, holder: str, seconds: float) -> list[Lease]:
        """Claim ready steps, in the order of their priority and age.

        :param jobs: Maximum number of steps of each command, by job.
        :param tasks: Tasks whose steps may be claimed. None means all tasks.
        :param into: Prefix of the names of the new leases, ``<into>.0``...
        :param holder: Holder of the new leases.
        :param seconds: Seconds until the leases expire.
        :returns: The leases, each with claims of one command.
        """

    def wake(self) -> bool:
        """Make due delayed steps ready, and advance the ordered queues.

        A queue whose current task has ended continues with its next task,
        unless the queue is halted.

        :returns: True if there may be more to do.
        """

    def load(self, objects: Sequence[str]) -> dict[str, workflow.StepInput]:
        """Return the input of the current steps of tasks, by task."""

    def advance(self, job: str, tick: int,
                done: Mapping[str, str | None], failed: Mapping[str, str], *,
                lease: str, into: str, pause: Callable[[int], float],
                proceed: Proceed | None = None) -> Advanced:
        """End runs in *lease* and advance their tasks, in one transaction.

        A failed step is retried as often as its workflow allows. After its
        last attempt, its task is rolled back.

        The same transaction may claim the next steps of these tasks, and the
        first steps of the tasks that follow them in their queues.

        :param done: Tasks whose command has succeeded, each with the JSON text
            of the command's result, or None.
        :param failed: Tasks whose command has failed, each with its error.
        :param into: Name of the new lease for steps that wait for a retry.
        :param pause: Function from the number of an attempt to the seconds
            until its retry.
        :param proceed: Request to grant the runs of steps that become ready.
            None means that no run is granted.
        :returns: The tasks whose result or error was recorded.
        """


class PartitionStore(Protocol):
    """Store that records the active worker of each partition.

    A partition has at most one active worker; see
    :mod:`distperiodic.core.standby`. The name of a worker is the name of its
    process. A caller that lost the answer of a method may call it again.

    :raises StoreUnavailable: As in :class:`ClaimStore`.
    """

    def beat(self, partition: str, worker: str, role: Role, *,
             seconds: float) -> Standing:
        """Record a heartbeat of *worker*; if it is active, renew its lease.

        :param seconds: Seconds from now until the lease expires.
        :returns: The row of the partition after the call.
        """

    def acquire(self, partition: str, worker: str, *, fence: int,
                seconds: float, members: Collection[str] | None) -> Standing:
        """Make *worker* active, unless another worker is active.

        The call changes nothing if the lease of another worker has not
        expired, or if any worker has acquired the partition since the caller
        read *fence*. It also changes nothing if another process may share the
        partition: one of *members* that has sent no heartbeat as a candidate,
        or a process whose last :meth:`share` is at most *seconds* old. If
        *worker* becomes active, the next active worker that an operator has
        chosen is cleared.

        :param members: Other processes in the group. None means that they are
            unknown: then each process that has shared the partition and has
            not departed may share it.
        :returns: The row of the partition after the call.
        """

    def share(self, partition: str, worker: str, *, seconds: float,
              starting: bool) -> Collection[str]:
        """Record that *worker* runs jobs without ``mode = standby``.

        No worker can become active for *seconds* after this call. The call
        changes nothing if another worker is active.

        :param starting: Whether *worker* has run nothing yet. If so, workers
            that stand by also prevent the call. If not, an active worker whose
            lease has expired does not prevent it, and loses the partition.
        :returns: The processes that prevent it. Empty means that *worker* may
            run jobs.
        """

    def release(self, partition: str, worker: str, *,
                fence: int) -> Standing:
        """Release the partition if *worker* is its active worker, and has been
        since the take-over with *fence*.

        The partition has no active worker afterwards.

        :returns: The row of the partition after the call.
        """

    def depart(self, partition: str, worker: str) -> None:
        """Release the partition as above, and record that *worker* is gone.

        The worker then prevents no take-over, even if it is still in the
        group.
        """

    def is_in_force(self, active: Active) -> bool:
        """Return whether *active* is still the active worker."""


class ClaimStore(Protocol):
    """Store of the claims, one row per (job, object), and of their leases.

    Every transition is one conditional write of many rows. A lost race is not
    an error: objects that another process has changed first are left out of
    the result. An adapter reads the rows to find the objects that its write
    has changed. It never trusts the row count of a database driver.

    The caller names each lease that it creates, and never uses a name twice.
    If the answer of a call is lost, the caller can repeat the call: the store
    finds the lease by its name and returns the same answer.

    :raises StoreUnavailable: Raised by any method. It is unknown whether the
        call changed anything. The caller may repeat the call.
    """

    @property
    def steps(self) -> StepStore | None:
        """Steps of tasks. None means that this store cannot hold tasks."""

    @property
    def partitions(self) -> PartitionStore | None:
        """Active workers. None means that processes do not share this store.
        """

    def close(self) -> None:
        """Close all connections. The next call connects again."""

    def now(self) -> int:
        """Return the time of the store's clock, by which leases expire.

        :returns: Microseconds since the epoch.
        """

    def adopt(self, schedules: Mapping[str, str]) -> None:
        """Put *schedules* in force.

        A schedule that differs from the one in force takes effect now. If the
        store has no schedule of the job yet, the given one is in force since
        :data:`~distperiodic.core.due.ALWAYS`.

        :param schedules: Text of each schedule, by the name of its job.
        """

    def attend(self, jobs: Mapping[str, float],
                checked: Mapping[str, Checked]) -> dict[str, JobStatus]:
        """Record that a scheduler serves *jobs*, and return their status.

        Schedulers repeat this call regularly for each job that they know. A
        call for a paused job does not count as service.

        :param jobs: For each job, the number of seconds without service by any
            scheduler that counts as a gap. The first call after a gap sets
            :attr:`JobStatus.attended` to the present.
        :param checked: For each job, a completed scan. A scan counts only if
            the recorded instant is still the expected one. Otherwise
            :meth:`sync` may have listed objects that the scan did not read.
        """

    def sync(self, job: str, listed: Sequence[Listed],
             delisted: Sequence[str], *, at: int,
             later: Sequence[int] = ()) -> list[str]:
        """Record the objects that a catalogue lists.

        Only differences are written:

        - The schedule of a new object, or of one that was delisted, applies
          from *at* on. Its watermark is the later one of the given watermark
          and the recorded one.
        - An object whose own schedule changed follows the new schedule from
          *at* on.
        - If the store has not recorded the schedule of an object yet, it
          records the schedule. The instant from which ticks of the object
          can be due does not change.
        - If ticks of any object can be due from *at* on that could not
          before, :attr:`JobStatus.checked` moves back: before *at*, and by at
          least a microsecond, so that a scan under way does not count.
        - A *delisted* object is not due until it is listed again. If it was
          listed after *at*, it stays listed.

        :param at: Instant for which the catalogue was read.
        :param later: Instants of later catalogue reads that also list all of
            *listed*, in ascending order. They matter for an object that
            another process delisted after *at*: its schedule applies from the
            first of these instants that is not before the delisting, or else
            from the last one.
        :returns: Objects that could not be recorded. Either a handler that
            ends its run in a session has locked their rows, or their schedule
            applies from an instant after *at*. Pass them to a later call.
        """

    def rows(self, job: str, low: int, high: int, *,
             before: int | None = None, limit: int) -> list[due.Row]:
        """Return the listed objects of *job* between two ring positions.

        Objects whose schedule the store has not recorded yet are included,
        with :data:`~distperiodic.core.due.UNRECORDED` as their schedule.

        :param low: First position.
        :param high: Last position, inclusive.
        :param before: Return only objects with their own schedule, and objects
            whose watermark is earlier than this tick. Objects without a
            recorded schedule are then left out. None returns all objects.
        :param limit: Maximum number of rows.
        :returns: Rows in the order of their positions.
        """

    def rows_of(self, job: str, objects: Sequence[str]) -> list[due.Row]:
        """Return the rows of the listed *objects*, in any order."""

    def settled(self, job: str, tick: int) -> int:
        """Return the number of objects claimed or skipped for *tick*.

        Earlier ticks that were skipped together with *tick* do not count.
        """

    def claim(self, job: str, tick: int, objects: Sequence[str], *,
              lease: str, holder: str, seconds: float, supersede: bool,
              include_new: bool = True, previous_tick: int | None = None,
              max_attempts: int = UNBOUNDED, rule: str = '',
              schedule: str = '', due_at: int | None = None,
              until: int | None = None) -> Claimed:
        """Claim all *objects* whose watermark is before *tick*.

        If an earlier tick of an object is claimed but not started, *supersede*
        decides. True voids the old claim and claims the object for *tick*.
        False reports the object as waiting and does not claim it. If an
        earlier tick runs or waits for a retry, the object is reported as busy
        and not claimed.

        Nothing is claimed after *until* by the store's clock. In a store that
        members share, nothing is claimed earlier than
        :data:`~distperiodic.core.claim.EARLIEST` microseconds before *due_at*.

        :param tick: Microseconds since the epoch.
        :param lease: Name of the new lease, in which the acquired claims wait
            for their start. If no claim is acquired, no lease is created.
        :param holder: Holder of the lease.
        :param seconds: Seconds until the lease expires.
        :param include_new: True lists and claims objects that are not listed
            yet; their schedule *rule* applies from *tick* on. False reports
            these objects as unlisted.
        :param previous_tick: The tick before this one. An object with an
            earlier watermark is reported as behind and not claimed. None
            disables the check.
        :param max_attempts: Maximum number of attempts per tick. A run that
            is lost on its last attempt is dead. After an object has used all
            attempts of a tick without success, each later tick starts with
            the last attempt, until a run of the object succeeds. If *tick*
            supersedes an earlier claim, the attempts of that claim count for
            *tick* as well.
        :param rule: Text of the schedule that *tick* belongs to. Empty means
            the schedule of the job. Objects with another recorded schedule
            are left out.
        :param schedule: Text of the job's schedule as the caller knows it. If
            another schedule is in force, nothing is claimed. Empty disables
            the check.
        :param due_at: Latest instant at which any of *objects* is due for the
            tick, in microseconds since the epoch. None means *tick*.
        :param until: Last instant at which the tick may be claimed, in
            microseconds since the epoch. None means no limit.
        """

    def start(self, job: str, tick: int, objects: Sequence[str], *,
              lease: str, into: str, holder: str, seconds: float,
              active: Active | None = None) -> list[Claim]:
        """Grant *holder* the runs of *objects* that still wait in *lease*.

        :param into: Name of the new lease for the granted runs. If another
            process holds a lease with this name, nothing is granted.
        :param active: Worker that must still be the active worker of its
            partition when the transaction commits; otherwise nothing is
            granted. None disables the check.
        :returns: The granted claims, in the order of *objects*.
        """

    def finish(self, job: str, tick: int, objects: Sequence[str], *,
               lease: str) -> set[str]:
        """End runs in *lease* as done, and return the objects of these runs.

        An object whose run is not in *lease* is left out of the result.
        """

    def fail(self, job: str, tick: int, failures: Sequence[Failure],
             *, lease: str, into: str | None,
             seconds: float = 0.0) -> set[str]:
        """Record that runs in *lease* have failed.

        :param into: Name of the new lease, in which the runs wait for a retry.
            None means that the runs are dead and are kept for an operator.
        :param seconds: Seconds until the retry is due.
        :returns: Objects whose failure was recorded. A failure is not recorded
            if the handler has already ended the run in its own transaction.
        """

    def save_progress(self, job: str, progress: Mapping[str, str], *,
                      lease: str) -> None:
        """Save the progress of runs in *lease*.

        The progress is kept until the object is claimed for its next tick.
        Objects that do not run in *lease* are ignored.

        :param progress: JSON text of the progress, by object.
        """

    def load_progress(self, job: str, objects: Sequence[str], *,
                      lease: str) -> dict[str, str]:
        """Return the saved progress of the *objects* that run in *lease*.

        :returns: JSON text by object. Objects without progress are left out.
        """

    def reclaim(self, job: str, tick: int, objects: Sequence[str], *,
                leases: Sequence[str], into: str, holder: str,
                seconds: float, count_attempt: bool = True) -> list[Claim]:
        """Reclaim the *objects* that wait or run in *leases*.

        Their old fences become void.

        :param into: Name of the new lease, in which the claims wait.
        :param holder: Holder of the new lease.
        :param seconds: Seconds until the new lease expires.
        :param count_attempt: True means that the granted runs may have
            started. Their number of attempts then increases, and a run that
            its handler is just ending in the handler's own transaction is left
            out.
        :returns: The new claims.
        """

    def renew(self, leases: Sequence[str], *, holder: str,
              seconds: float) -> set[str]:
        """Renew *leases*, and return the leases that *holder* still holds.

        *holder* has lost every lease that is not in the result.

        :param seconds: Seconds from now until the leases expire.
        """

    def take_over_expired(self, jobs: Sequence[str], *, into: str, holder: str,
                          seconds: float, gone: Sequence[str], limit: int,
                          silence_timeout: float = 0.0) -> list[Lease]:
        """Take over leases of *jobs* that expired or whose holder is gone.

        The leases that expired first are taken over first. Claims that ran or
        waited for a retry begin their next attempt. The lease of claims that
        wait for a retry has no holder and expires when the retry is due. The
        first caller after that takes this lease over.

        :param into: Prefix of the new names, ``<into>.0``, ``<into>.1``...
        :param holder: New holder of the leases.
        :param seconds: Seconds until the leases expire under the new holder.
        :param gone: Holders that are known to have left.
        :param limit: Maximum number of leases.
        :param silence_timeout: Seconds that must pass since the last renewal
            before the lease of a gone holder is taken over, because the holder
            may be alive and only cut off from the other members. To compute
            the time of the last renewal, the store assumes that each renewal
            extended the lease by *seconds*.
        """

    def holders(self, jobs: Sequence[str]) -> set[str]:
        """Return the holders of leases of *jobs*.

        Leases of claims that wait for a retry have no holder.
        """

    def discard(self, job: str, tick: int, objects: Sequence[str], *,
                lease: str, ending: State, reason: str = '') -> int:
        """End claims that wait in *lease* and will not run.

        :param ending: Skipped, superseded, cancelled or dead.
        :param reason: Reason in words, for the history.
        :returns: Number of claims that this call ended.
        """

    def running(self, jobs: Sequence[str]) -> dict[str, int]:
        """Return the current number of runs per job, across all workers.

        Runs of lost workers count until another process takes them over. The
        numbers of all jobs are from the same moment. A job without runs may be
        left out.
        """

    def skip(self, job: str, tick: int, objects: Sequence[str], *,
             holder: str, by: SkippedBy, reason: str,
             missed: Callable[[int], int] | None = None,
             schedule: str = '', due_at: int | None = None) -> int:
        """Record that *objects* do not run for *tick*, without a claim.

        No process can claim these objects for this tick afterwards. Objects
        that are already claimed or skipped for this tick or a later one are
        left out, and so are objects that are not listed. In a store that
        members share, nothing is skipped while it is too early to claim the
        tick.

        :param holder: Member that decided.
        :param by: Kind of decision.
        :param reason: Reason in words, for the history.
        :param missed: Function from an object's watermark to the number of
            ticks between that watermark and *tick*. These ticks are counted
            as skipped together with *tick*. None means that there are none.
        :param schedule: As in :meth:`claim`.
        :param due_at: As in :meth:`claim`.
        :returns: Number of objects whose skip was recorded.
        """


_Answer = TypeVar('_Answer')


class StoreQueue(Protocol):
    """Queue of store calls, so that the flow never waits for the store."""

    @property
    def away(self) -> bool:
        """True while the store is unreachable; calls wait in the queue."""

    def submit(self, call: Callable[[ClaimStore], _Answer],
               then: Callable[[_Answer], None],
               failed: Callable[[], None] = lambda: None, *,
               urgent: bool = False) -> None:
        """Queue *call*, and pass its result to *then* in the flow's thread.

        Calls run in order. The queue repeats a call while the store is
        unreachable, so each call must be idempotent.

        :param failed: Called instead of *then* if *call* can never succeed.
        :param urgent: True runs *call* without waiting for earlier calls.
            Renewals of leases need this: a lease could expire while its
            renewal waits.
        """


class CatalogueReader(Protocol):
    """Reader that runs catalogue methods in a thread that may block."""

    def read(self, job: Job, tick: int, ticket: int,
             arcs: Sequence[Arc]) -> None:
        """Start to read the objects of *job*, and return at once.

        The flow receives the result later, with the same *ticket*. A result
        may also be lost.

        :param arcs: Arcs of the ring that this member owns, for a catalogue
            method that reads only the objects on these arcs.
        """


class WorkBus(Protocol):
    """Message bus to the workers. A message is a hint and may be lost."""

    def send(self, batch: message.Batch) -> None:
        """Send *batch* to its worker; never block and never raise.

        The constructor of the bus takes callbacks for the flow: one for a
        batch that could not be sent, and one for the reports of the workers.
        """


class ReportBus(Protocol):
    """Message bus from a worker to the schedulers."""

    def report(self, report: message.Report, to_entry: str) -> None:
        """Send *report* to the scheduler with this entry; never block."""


#: Maximum size of a message in bytes. The limit is that of the longest message
#: that distperiodic sends: JSON that is encoded in JSON a second time, with
#: ids whose characters are all outside the 16-bit range of Unicode. A carrier
#: discards longer messages before it decodes them.
LONGEST_MESSAGE = 20 * 2 ** 20


class Inbox(NamedTuple):
    """Queue of one process, and the callbacks for the messages in it."""

    #: The two parts of the name of the queue, ``<topic>.<identity>``. Only
    #: this process has a queue of this name.
    topic: str
    identity: str
    #: Called with the payload of each message, in a thread of the carrier. The
    #: callback does not block and does not raise.
    on_message: Callable[[Any], None]
    #: Called for each message without a usable payload, with the origin of
    #: the message and the reason.
    on_garbage: Callable[[str, str], None]
    #: Broadcast names: the process also receives the messages that are sent
    #: to these names.
    hears: Sequence[str] = ()

    @property
    def queue(self) -> str:
        """Name of the queue."""
        return f'{self.topic}.{self.identity}'


class Carrier(Protocol):
    """Connection of one process to a broker, which carries its messages.

    A carrier sends and, with an inbox, receives. An open carrier reconnects by
    itself. It logs one line when the broker stops answering, and one line when
    the broker answers again. The texts of its errors contain no password.
    """

    def open(self, timeout: float) -> None:
        """Connect, and start to receive if there is an inbox.

        A carrier without an inbox connects when it sends its first message.

        :param timeout: Maximum duration of the call, in seconds.
        :raises ConfigError: The URL can never work.
        :raises BusUnavailable: The broker did not accept the connection. The
            carrier is closed afterwards.
        """

    def ended(self, timeout: float) -> bool:
        """Wait until a failed open() has released its thread and connection.

        :param timeout: Maximum duration of the call, in seconds.
        :returns: True if everything was released in time.
        """

    def cast(self, topic: str, identity: str, payload: dict[str, Any]) -> None:
        """Send *payload* to one queue, or to all that receive a broadcast.

        The call returns when the broker has accepted the message. It may block
        while a broker accepts no messages. Threads may share a carrier.

        :param payload: JSON object of at most :data:`LONGEST_MESSAGE` bytes.
        :raises NoConsumer: There is no such queue, and no process receives
            messages for that broadcast name.
        :raises BusUnavailable: The message could not be sent for another
            reason. A retry may succeed.
        """

    def close(self, timeout: float) -> None:
        """Stop receiving, delete the queue of the inbox, and disconnect.

        After *timeout* the rest continues in the background.

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
    """A setting of a broker that can lose or reveal messages."""

    problem: str
    remedy: str


class BrokerProbe(Protocol):
    """Probe of a broker for operators. Every request has a timeout.

    The text of a probe, ``str(probe)``, is the URL without its password.
    """

    @property
    def hosts(self) -> Sequence[BrokerHost]:
        """The servers that the URL names."""

    @property
    def space(self) -> str:
        """Name of the part of the broker that the URL selects, for people."""

    @property
    def tls(self) -> bool:
        """True if the connections are encrypted."""

    @property
    def tls_remedy(self) -> str:
        """Instruction for turning on encryption."""

    def open_to_all(self, host: BrokerHost) -> Weakness | None:
        """Return a weakness if the login of the URL is not secret."""

    def check(self, host: BrokerHost) -> None:
        """Log in to *host*.

        :raises BusUnavailable: The login failed; the message gives the reason.
        """

    def find(self) -> BrokerHost:
        """Return the first server that accepts the login.

        :raises BusUnavailable: No server accepts it.
        """

    def weaknesses(self, host: BrokerHost) -> list[Weakness]:
        """Return the settings of *host* that can lose messages."""

    def queues(self, host: BrokerHost,
               names: list[str]) -> dict[str, QueueState | None]:
        """Return the state of each queue. None means that it does not exist.
        """

    def delete(self, host: BrokerHost, names: list[str]) -> None:
        """Delete queues and their messages; ignore missing queues."""


class BusDriver(Protocol):
    """Kind of message bus: a plug-in in the namespace ``distperiodic.bus``.

    The name of the plug-in's entry point is the scheme of its URLs. The class
    is built without arguments. Loading it opens no connection.
    """

    def carrier(self, conf: Any, url: str, *, inbox: Inbox | None,
                replicated: bool, monotonic: Callable[[], float]) -> Carrier:
        """Return a carrier that is not open yet.

        :param conf: Configuration of the service. The method does not change
            it.
        :param url: URL of the broker, with its password.
        :param inbox: Queue to receive from. None means that the carrier only
            sends.
        :param replicated: Value of the option ``quorum_queues``, for brokers
            whose clients choose how queues are stored.
        :param monotonic: Returns seconds since an arbitrary start.
        :raises ConfigError: The URL can never work.
        """

    def probe(self, conf: Any, url: str) -> BrokerProbe:
        """Return a probe, without a request to the broker.

        :raises ConfigError: The URL can never work.
        """
