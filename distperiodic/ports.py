# SPDX-License-Identifier: Apache-2.0
"""Ports: the interfaces through which the flow uses everything outside it.

Each port is a contract. Adapters implement it, the conformance suite of the
port tests every adapter, and the flow depends on nothing else.

All ports are in one file, so that the contract can be read as a whole.
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
    """The process of a handler ended because the lease of its run had ended.

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
    #: Watermark of a new object: the newest tick before it was listed. If the
    #: store has a later watermark, that one stays.
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
    #: Instant since which schedulers have attended the job without a gap.
    #: None means that no attendance is known.
    attended: int | None
    #: Instant up to which all due ticks are known to be claimed or settled.
    checked: int


class Proceed(NamedTuple):
    """Request for the runs of steps that become ready in the same move."""

    #: Jobs of the commands that may be granted.
    jobs: Collection[str]
    #: Prefix of the names of the new leases, ``<into>.0``...
    into: str
    #: Holder of the new leases.
    holder: str
    #: Seconds until the leases expire.
    seconds: float
    #: As in :meth:`ClaimStore.start`: if this worker is not active any more,
    #: nothing is granted.
    active: Active | None = None


class Advanced(NamedTuple):
    """Tasks whose steps have ended, by outcome."""

    done: set[str]
    #: Failed; they wait for their next run.
    retried: set[str]
    failed: set[str]
    #: Leases of the runs that were granted, with the input of each run.
    granted: Sequence[tuple[Lease, dict[str, workflow.StepInput]]] = ()


class StepStore(Protocol):
    """Store of the steps of tasks.

    A step that is ready is claimed once. Its claim is in the claim store: the
    object is the task, and the job is the command. So start, renewal, retry
    and take-over are those of any claim.

    :raises StoreUnavailable: As in :class:`ClaimStore`.
    """

    def take(self, jobs: Mapping[str, int], *, tasks: Sequence[str] | None,
             into: str, holder: str, seconds: float) -> list[Lease]:
        """Claim steps that are ready, in the order of their priority and age.

        :param jobs: Maximum number of steps of each command, by job.
        :param tasks: Claim steps of these tasks only. None means of any.
        :param into: Prefix of the names of the new leases, ``<into>.0``...
        :param holder: Holder of the new leases.
        :param seconds: Seconds until the leases expire.
        :returns: The leases, each with claims of one command.
        """

    def wake(self) -> bool:
        """Make delayed steps ready that are due, and let the next task run in
        each queue whose last task has ended.

        :returns: Whether there may be more to do.
        """

    def load(self, objects: Sequence[str]) -> dict[str, workflow.StepInput]:
        """Return the input of the current steps of tasks, by task."""

    def advance(self, job: str, tick: int,
                done: Mapping[str, str | None], failed: Mapping[str, str], *,
                lease: str, into: str, pause: Callable[[int], float],
                proceed: Proceed | None = None) -> Advanced:
        """End runs in *lease*, and move their tasks, in one transaction.

        A failed step is tried again as often as its workflow says. Then its
        task is rolled back.

        The same transaction may claim the next steps of these tasks, and the
        first steps of the tasks that follow them in their queues.

        :param done: Tasks whose command is done, with the JSON text of what
            it returned, or None.
        :param failed: Errors of the tasks whose command failed.
        :param into: Name of the new lease for steps that wait for a retry.
        :param pause: Returns the seconds until the retry of an attempt.
        :param proceed: Grants the runs of steps that become ready. None
            grants none.
        :returns: The tasks whose ends counted.
        """


class PartitionStore(Protocol):
    """Store of the active worker of each partition, of which there is at most
    one; see :mod:`distperiodic.core.standby`.

    Workers are named by their processes. Each method may be repeated if its
    answer was lost.

    :raises StoreUnavailable: As in :class:`ClaimStore`.
    """

    def beat(self, partition: str, worker: str, role: Role, *,
             seconds: float) -> Standing:
        """Record a heartbeat of *worker*; if it is active, renew its lease.

        :param seconds: Seconds from now until the lease expires.
        :returns: The row of the partition, as it is now.
        """

    def acquire(self, partition: str, worker: str, *, fence: int,
                seconds: float, members: Collection[str] | None) -> Standing:
        """Make *worker* active, unless another one is.

        This fails if the lease of another worker has not expired, or if the
        partition was acquired since the caller has read *fence*. It also
        fails if another process may share the partition: one of *members*
        that has sent no heartbeat as a candidate, or a process whose last
        :meth:`share` is not older than *seconds*. If it succeeds, a choice of
        an operator is fulfilled, and is cleared.

        :param members: Other processes in the group. None means that they are
            unknown: then each process that has shared the partition and has
            not departed may share it.
        :returns: The row of the partition, as it is now.
        """

    def share(self, partition: str, worker: str, *, seconds: float,
              starting: bool) -> Collection[str]:
        """Record that *worker* runs jobs without ``mode = standby``, so that
        no worker becomes active for *seconds*, unless one is active.

        :param starting: Whether *worker* has run nothing yet. Then workers
            that stand by prevent it, too, but an active worker whose lease
            has expired does not, and loses the partition.
        :returns: The processes that prevent it. Empty means that *worker* may
            run jobs.
        """

    def release(self, partition: str, worker: str, *,
                fence: int) -> Standing:
        """Make no worker active, if *worker* has been since the take-over
        with *fence*.

        :returns: The row of the partition, as it is now.
        """

    def depart(self, partition: str, worker: str) -> None:
        """Release the partition, if *worker* is active, and record that
        *worker* is gone: it prevents nothing, even if it is in the group.
        """

    def is_in_force(self, active: Active) -> bool:
        """Return whether *active* is the active worker now."""


class ClaimStore(Protocol):
    """Store of the claims, one row per (job, object), and of their leases.

    Every move is one conditional write of many rows. Losing a race is a
    result, not an error: the objects that another process won are left out of
    the result. An adapter reads the winners back from the rows. It never
    trusts the row count of a database driver.

    The caller names each lease that it creates, and never uses a name twice.
    So a caller that lost the answer of a call can repeat the call: the store
    finds the lease and returns the same answer.

    :raises StoreUnavailable: Raised by any method. Whether the call changed
        anything is unknown. The caller may repeat it.
    """

    @property
    def steps(self) -> StepStore | None:
        """Steps of tasks. None means that this store cannot hold tasks."""

    @property
    def partitions(self) -> PartitionStore | None:
        """Active workers. None means that no process shares this store."""

    def close(self) -> None:
        """Close all connections. The next call connects again."""

    def now(self) -> int:
        """Return the time of the store's clock, by which leases expire.

        :returns: Microseconds since the epoch.
        """

    def adopt(self, schedules: Mapping[str, str]) -> None:
        """Put *schedules* in force.

        A schedule that differs from the one in force takes effect now. If the
        job is new to the store, or has no schedule there yet, the schedule is
        in force since :data:`~distperiodic.core.due.ALWAYS`.

        :param schedules: Text of each schedule, by the name of its job.
        """

    def attend(self, jobs: Mapping[str, float],
               checked: Mapping[str, int]) -> dict[str, JobStatus]:
        """Record that a scheduler attends *jobs*, and return their status.

        :param jobs: Seconds without any scheduler after which the attendance
            counts as interrupted, by job. The next call then begins a new
            attendance.
        :param checked: Instant up to which all due ticks are known to be
            claimed or settled, by job. The recorded instant never moves back.
        """

    def sync(self, job: str, listed: Sequence[Listed],
             delisted: Sequence[str], *, at: int,
             later: Sequence[int] = ()) -> list[str]:
        """Record the objects that a catalogue lists.

        Only differences are written:

        - A new object, or one that was delisted, counts from *at* on. Its
          watermark is the given one, or the recorded one if that is later.
        - An object whose own schedule changed follows the new schedule from
          *at* on.
        - If the store has not recorded the schedule of an object yet, it
          records the schedule. The instant from which ticks of the object
          can be due does not change.
        - A *delisted* object is not due until it is listed again. If it was
          listed after *at*, it stays listed.

        :param at: Instant for which the catalogue was read.
        :param later: Instants of later readings that list all of *listed* as
            well, in ascending order. An object that another process delisted
            after *at* counts from the first of them that is not before its
            delisting, or else from the last.
        :returns: Objects that could not be recorded, because a handler that
            ends its run in a session has locked their rows, or because they
            count from an instant after *at*. Compare them again later.
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
            recorded schedule are then left out. None means all.
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
        decides: True voids the old claim and claims the object for *tick*;
        False reports the object as waiting and does not claim it. If an
        earlier tick runs or waits for a retry, the object is reported as busy
        and not claimed.

        Nothing is claimed after *until* by the store's clock. In a store that
        members share, nothing is claimed more than
        :data:`~distperiodic.core.claim.EARLIEST` before *due_at*.

        :param tick: Microseconds since the epoch.
        :param lease: Name of the lease for the claims that are won. They wait
            in it to be started. If nothing is won, no lease is created.
        :param holder: Holder of the lease.
        :param seconds: Seconds until the lease expires.
        :param include_new: True lists and claims objects that are not listed
            yet; they count from *tick* on, with the schedule *rule*. False
            reports them as unlisted.
        :param previous_tick: The tick before this one. An object with an
            earlier watermark is reported as behind and not claimed. None
            disables the check.
        :param max_attempts: Maximum number of attempts per tick. A run that
            is lost on its last attempt is dead. If an object has used all of
            them without success, its next ticks start at the last attempt,
            until one of its runs is done. If *tick* supersedes an earlier
            claim, it continues with the attempts of that claim.
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
        :param active: Grant nothing unless this is the active worker of the
            partition at the commit. None disables the check.
        :returns: The granted claims, in the order of *objects*.
        """

    def finish(self, job: str, tick: int, objects: Sequence[str], *,
               lease: str) -> set[str]:
        """End runs in *lease* as done, and return the objects that counted."""

    def fail(self, job: str, tick: int, failures: Sequence[Failure],
             *, lease: str, into: str | None,
             seconds: float = 0.0) -> set[str]:
        """Record failed runs in *lease*: they wait for a retry or are dead.

        :param into: Name of the new lease for runs that wait for a retry.
            None means that the runs are dead and are kept for an operator.
        :param seconds: Seconds until the retry is due.
        :returns: Objects whose failure counted. A failure does not count if
            the run was already ended in the handler's own transaction.
        """

    def save_progress(self, job: str, progress: Mapping[str, str], *,
                      lease: str) -> None:
        """Save the progress of runs in *lease*, until the next tick's claim.

        Objects that do not run in that lease are ignored.

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
        :param count_attempt: True means that the granted runs may have run:
            their number of attempts increases, and a run whose handler is
            ending it in a transaction of its own is left out.
        :returns: The new claims.
        """

    def renew(self, leases: Sequence[str], *, holder: str,
              seconds: float) -> set[str]:
        """Renew *leases*, and return those that *holder* still holds.

        *holder* has lost every lease that is not returned.

        :param seconds: Seconds from now until the leases expire.
        """

    def take_over_expired(self, jobs: Sequence[str], *, into: str, holder: str,
                          seconds: float, gone: Sequence[str], limit: int,
                          silence_timeout: float = 0.0) -> list[Lease]:
        """Take over leases of *jobs* that expired or whose holder is gone.

        The leases that expired first are taken over first. Claims that ran or
        waited for a retry get their next attempt. The lease of claims that
        wait for a retry expires when the retry is due, and has no holder: the
        first caller takes it over.

        :param into: Prefix of the new names, ``<into>.0``, ``<into>.1``...
        :param holder: New holder of the leases.
        :param seconds: Seconds until the leases expire under the new holder.
        :param gone: Holders that are known to have left.
        :param limit: Maximum number of leases.
        :param silence_timeout: Seconds that must pass since the last renewal
            before the lease of a gone holder is taken over. The holder may
            still be alive, and only cut off from the other members. The store
            assumes that every lease is
            renewed for *seconds*.
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
        :returns: Number of claims that counted.
        """

    def running(self, jobs: Sequence[str]) -> dict[str, int]:
        """Return the current number of runs per job, across all workers.

        Runs of lost workers count until another process takes them over. All
        jobs are counted at one moment. A job without runs may be left out.
        """

    def skip(self, job: str, tick: int, objects: Sequence[str], *,
             holder: str, by: SkippedBy, reason: str,
             missed: Callable[[int], int] | None = None,
             schedule: str = '', due_at: int | None = None) -> int:
        """Record that *objects* do not run for *tick*, without a claim.

        No process can claim them for this tick afterwards. Objects that are
        already claimed or skipped for this tick or a later one are left out,
        and so are objects that are not listed. In a store that members share,
        nothing is skipped while the tick is too early to be claimed.

        :param holder: Member that decided.
        :param by: Kind of decision.
        :param reason: Reason in words, for the history.
        :param missed: Function from an object's watermark to the number of
            ticks between that watermark and *tick*. These ticks are counted
            as skipped together with *tick*. None means that there are none.
        :param schedule: As in :meth:`claim`.
        :param due_at: As in :meth:`claim`.
        :returns: Number of objects that counted.
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

        Calls run in order. A call is repeated while the store is unreachable,
        so it must be idempotent.

        :param failed: Called instead of *then* if *call* can never succeed.
        :param urgent: True runs *call* without waiting for earlier calls.
            Renewals of leases need this: the leases could expire while they
            wait.
        """


class CatalogueReader(Protocol):
    """Reader that runs catalogue methods where they may block."""

    def read(self, job: Job, tick: int, ticket: int,
             arcs: Sequence[Arc]) -> None:
        """Start to read the objects of *job*, and return at once.

        The flow receives the answer with the same *ticket*, or not at all.

        :param arcs: Arcs of the ring that this member owns, for a catalogue
            method that reads only their objects.
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
        """Send *report* to the scheduler with that entry; never block."""


#: Maximum bytes of a message: the longest one that distperiodic sends, encoded
#: twice in JSON, with ids whose characters are all outside the 16-bit range of
#: Unicode. A carrier discards longer ones before it decodes them.
LONGEST_MESSAGE = 20 * 2 ** 20


class Inbox(NamedTuple):
    """Queue of one process, and the receivers of what arrives in it."""

    #: The two parts of the name of the queue, ``<topic>.<identity>``. Only
    #: this process has a queue of this name.
    topic: str
    identity: str
    #: Called with the payload of each message, in a thread of the carrier. It
    #: does not block and does not raise.
    on_message: Callable[[Any], None]
    #: Called with the origin and the reason for each message that has no
    #: payload.
    on_garbage: Callable[[str, str], None]
    #: Names to which messages for all processes of a kind are sent, and which
    #: this process receives as well.
    hears: Sequence[str] = ()

    @property
    def queue(self) -> str:
        """Name of the queue."""
        return f'{self.topic}.{self.identity}'


class Carrier(Protocol):
    """Connection of one process to a broker, which carries its messages.

    A carrier sends and, with an inbox, receives. Once open, it reconnects by
    itself, and logs one line when the broker goes away and one when the broker
    answers again. The texts of its errors contain no password.
    """

    def open(self, timeout: float) -> None:
        """Connect, and start to receive if there is an inbox.

        A carrier without an inbox connects with its first message.

        :param timeout: Maximum seconds that this takes.
        :raises ConfigError: The URL can never work.
        :raises BusUnavailable: The broker did not accept the connection. The
            carrier is then closed.
        """

    def ended(self, timeout: float) -> bool:
        """Wait until a failed open() has released everything.

        :param timeout: Maximum seconds that this takes.
        :returns: Whether it has.
        """

    def cast(self, topic: str, identity: str, payload: dict[str, Any]) -> None:
        """Send *payload* to a queue, or to all that hear that name.

        Return when the broker has accepted the message. Threads may share a
        carrier. May block while a broker accepts no messages.

        :param payload: JSON object of at most :data:`LONGEST_MESSAGE` bytes.
        :raises NoConsumer: There is no such queue, and no process hears that
            name.
        :raises BusUnavailable: The message could not be sent for another
            reason. A retry may succeed.
        """

    def close(self, timeout: float) -> None:
        """Stop receiving, delete the queue of the inbox, and disconnect.

        Steps that take longer continue in the background.

        :param timeout: Maximum seconds that this takes.
        """


class BrokerHost(NamedTuple):
    """One server of a broker."""

    name: str
    port: int
    user: str

    def __str__(self) -> str:
        return f'{self.name}:{self.port}'


class QueueState(NamedTuple):
    """The numbers of messages and consumers of a queue."""

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
        """The part of the broker that the URL selects, for people."""

    @property
    def tls(self) -> bool:
        """True if the connections are encrypted."""

    @property
    def tls_remedy(self) -> str:
        """Instruction that turns on the encryption."""

    def open_to_all(self, host: BrokerHost) -> Weakness | None:
        """Return a weakness if the URL holds no secret of its own."""

    def check(self, host: BrokerHost) -> None:
        """Log in to *host*.

        :raises BusUnavailable: The login failed; the message says why.
        """

    def find(self) -> BrokerHost:
        """Return the first server that accepts the login.

        :raises BusUnavailable: No server accepts it.
        """

    def weaknesses(self, host: BrokerHost) -> list[Weakness]:
        """Return the settings of *host* that can lose messages."""

    def queues(self, host: BrokerHost,
               names: list[str]) -> dict[str, QueueState | None]:
        """Return the queues of *names*; None means that it does not exist."""

    def delete(self, host: BrokerHost, names: list[str]) -> None:
        """Delete queues and their messages; ignore missing queues."""


class BusDriver(Protocol):
    """Kind of message bus: a plug-in in the namespace ``distperiodic.bus``.

    The name of its entry point is the scheme of its URLs. The class takes no
    arguments, and loading it opens no connection.
    """

    def carrier(self, conf: Any, url: str, *, inbox: Inbox | None,
                replicated: bool, monotonic: Callable[[], float]) -> Carrier:
        """Return a carrier, which is not open yet.

        :param conf: Configuration of the service; not changed.
        :param url: URL of the broker, with its password.
        :param inbox: Queue to receive from. None means only to send.
        :param replicated: Value of the option ``quorum_queues``, for brokers
            whose clients choose how queues are stored.
        :param monotonic: Returns seconds since an arbitrary start.
        :raises ConfigError: The URL can never work.
        """

    def probe(self, conf: Any, url: str) -> BrokerProbe:
        """Return a probe, without a request to the broker.

        :raises ConfigError: The URL can never work.
        """
