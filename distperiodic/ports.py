# SPDX-License-Identifier: Apache-2.0
"""What the flow may ask of the world.

Each port is a contract: an adapter keeps it, the conformance suite of the
port holds every adapter to it, and the flow knows nothing else.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import NamedTuple
from typing import Protocol
from typing import TypeVar

from distperiodic.core import claim as claim_
from distperiodic.core import due
from distperiodic.core import job as job_
from distperiodic.core import member as member_
from distperiodic.core import message
from distperiodic.core import ring as ring_


class Clock(Protocol):
    """The time; nothing reads it but through this."""

    def now(self) -> int:
        """The wall clock: microseconds since the epoch, UTC. May jump."""

    def monotonic(self) -> float:
        """Seconds from an unknown start. Never jumps back, and goes on
        while the process is stopped or the machine sleeps.
        """


class Membership(Protocol):
    """Who is there, as far as this process knows."""

    def view(self, group: str) -> member_.View:
        """The last known view of *group*; costs nothing, asks nobody.

        :raises ViewUnknown: no answer yet; it does not mean 'no members'.
        """


class Listed(NamedTuple):
    """An object that a catalogue lists."""

    object: str
    #: The text of its own schedule; empty: it follows its job's.
    rule: str
    #: Its watermark, if it is new: the newest tick that came before it was
    #: listed. A later watermark that the store has stays.
    settled: int


class JobStatus(NamedTuple):
    """What the store keeps of one job."""

    #: Why an operator paused it. None: it is not paused.
    paused: str | None
    #: The text of the schedule in force, and since when it holds: an instant,
    #: or :data:`~distperiodic.core.due.ALWAYS`.
    schedule: str
    since: int
    #: Since when schedulers have attended it without a gap. None: nobody
    #: attends it now.
    attended: int | None
    #: Up to here all that was due was found claimed or settled.
    checked: int


class ClaimStore(Protocol):
    """Who may run what: one row per (job, object), and the leases.

    Every move is one conditional write of many rows. Losing a race is an
    answer and not an error: what was lost is left out of the result. Who won
    is read back from the rows and never taken from a count of the driver's.

    A lease is named by whoever makes it, with a name that is used once. So a
    call whose answer was lost may be made again: it finds its own mark and
    gives the answer that was lost.

    :raises StoreUnavailable: from any method; nothing was changed, or it is
        unknown whether it was, and the same call may be made again.
    """

    def close(self) -> None:
        """Let go of what connects to it; the next call connects anew."""

    def now(self) -> int:
        """The store's clock, by which leases end: microseconds since the
        epoch.
        """

    def adopt(self, schedules: Mapping[str, str]) -> None:
        """Put these schedules in force, by the names of their jobs.

        One that differs from what was in force holds from now on. A job that
        the store does not know, or that has no schedule yet, has it for
        :data:`~distperiodic.core.due.ALWAYS`.
        """

    def attend(self, jobs: Mapping[str, float],
               checked: Mapping[str, int]) -> dict[str, JobStatus]:
        """Record that a scheduler attends *jobs*, and read how they stand.

        :param jobs: by name, the seconds without a scheduler after which the
            series of attendances is broken: the next one begins a new one.
        :param checked: jobs of which all that was due up to these instants
            was found claimed or settled; the record only moves forward.
        """

    def sync(self, job: str, listed: Sequence[Listed],
             delisted: Sequence[str], *, at: int) -> list[str]:
        """Record what a catalogue lists; only differences are written.

        A new object, and one that was delisted, counts from *at* on, with
        its watermark as given. One whose own schedule changed follows the
        new one from *at* on. One whose schedule the store has not recorded
        yet gets it, and counts from where it did. *delisted* objects are not
        due until they are listed again; one that was listed after *at* stays.

        :param at: the instant for which the catalogue was read.
        :returns: objects of which nothing could be recorded: their rows are
            locked by a handler that ends its run in a session, or count from
            an instant after *at*. Compare them again later.
        """

    def rows(self, job: str, low: int, high: int, *,
             before: int | None = None, limit: int) -> list[due.Row]:
        """The listed objects of *job* at positions from *low* to *high*, in
        the order of their positions, up to *limit*.

        Objects whose schedule the store has not recorded yet are among them,
        with :data:`~distperiodic.core.due.UNRECORDED` in its place.

        :param before: only those that follow a schedule of their own, and
            those whose watermark is earlier than this tick; of neither kind
            those whose schedule is not recorded yet. None: all.
        """

    def look(self, job: str, objects: Sequence[str]) -> list[due.Row]:
        """Those of *objects* that are listed, in any order."""

    def settled(self, job: str, tick: int) -> int:
        """Number of objects that were claimed or skipped for exactly *tick*,
        the newest one that they had.
        """

    def claim(self, job: str, tick: int, objects: Sequence[str], *,
              lease: str, holder: str, seconds: float, supersede: bool,
              fresh: bool = True, after: int | None = None,
              most: int = claim_.UNBOUNDED, rule: str = '',
              schedule: str = '', due_at: int | None = None,
              until: int | None = None) -> claim_.Claimed:
        """Take every object of *objects* that nobody took for *tick* or a
        later one.

        An object whose earlier tick is claimed but was not started is taken
        over if *supersede*, and the old claim is void; else it is reported
        as waiting. One whose earlier tick runs, or waits for a retry, is
        reported as busy. Neither is taken.

        :param tick: microseconds since the epoch.
        :param lease: name of the lease that is to hold what was won; it is
            of the kind that waits. None is made if nothing was won.
        :param holder: who holds it.
        :param seconds: how long, from now.
        :param fresh: whether objects that are not listed are: from *tick* on,
            with the schedule *rule*, and claimed for it. If not, they are
            left out.
        :param after: the tick before this one; an object whose watermark is
            earlier is behind, and not taken. None disables the check.
        :param most: attempts of a tick after which a run that is lost is
            dead. An object that came to as many has no other in this tick
            than the last of them, until a run of it is done. What is taken
            over goes on with the attempts that it had.
        :param rule: the text of the schedule that *tick* belongs to; empty:
            the job's. Objects that follow another one are left out, but for
            those whose schedule is not recorded yet.
        :param schedule: the text of the schedule that the job has for who
            asks. If another one is in force nothing is taken. Empty disables
            the check.
        :param due_at: the latest instant at which any of *objects* is due for
            the tick, in microseconds since the epoch. None: *tick*.
        :param until: the last instant at which the tick is to be claimed, in
            microseconds since the epoch. None: there is none.

        Nothing is taken after *until* by the clock of the store; and where
        members share the store, nothing while its clock has not come to
        *due_at*, but for :data:`~distperiodic.core.claim.EARLIEST`.
        """

    def start(self, job: str, tick: int, objects: Sequence[str], *,
              lease: str, into: str, holder: str,
              seconds: float) -> list[claim_.Claim]:
        """Grant *holder* the runs of *objects* that still wait in *lease*.

        :param into: name of the lease that is to hold what was granted. If
            it is there and somebody else's, nothing is granted.
        :returns: what was granted, in the order of *objects*.
        """

    def finish(self, job: str, tick: int, objects: Sequence[str], *,
               lease: str) -> set[str]:
        """End runs of *lease* as done; returns those that counted."""

    def fail(self, job: str, tick: int, failures: Sequence[claim_.Failure],
             *, lease: str, into: str | None,
             seconds: float = 0.0) -> set[str]:
        """Runs of *lease* failed: they wait for a retry, or end as dead.

        :param into: name of the lease that is to hold what waits for its
            retry; None: they are dead, and kept for an operator.
        :param seconds: until the retry is due.
        :returns: the objects whose failure counted. That of a run which was
            ended in a session of its handler's does not.
        """

    def save(self, job: str, progress: Mapping[str, str], *,
             lease: str) -> None:
        """Keep what runs of *lease* say of themselves, by object, until the
        next tick of the object is claimed. What does not run in that lease is
        left out.
        """

    def progress(self, job: str, objects: Sequence[str], *,
                 lease: str) -> dict[str, str]:
        """What was saved of those of *objects* that run in *lease*."""

    def take_back(self, job: str, tick: int, objects: Sequence[str], *,
                  leases: Sequence[str], into: str, holder: str,
                  seconds: float, ran: bool = True) -> list[claim_.Claim]:
        """Claim anew those of *objects* that wait or run in *leases*. The old
        fences are void.

        :param ran: whether what was granted may have run, and has its next
            attempt.
        :param into: name of the lease that waits and holds them then.
        """

    def renew(self, leases: Sequence[str], *, holder: str,
              seconds: float) -> set[str]:
        """Hold *leases* so long from now; returns those that *holder* still
        holds. One that is not among them is somebody else's.
        """

    def overdue(self, jobs: Sequence[str], *, into: str, holder: str,
                seconds: float, gone: Sequence[str], limit: int,
                silent: float = 0.0) -> list[claim_.Lease]:
        """Take over leases of *jobs* that ended, or whose holder is known to
        be gone: up to *limit* of them, those that ended first.

        :param into: they are given the names ``<into>.0``, ``<into>.1``...
        :param silent: seconds for which a holder that is gone must not have
            renewed, as long as all hold leases for *seconds*: it may be alive
            and merely cut off from the others.

        What ran, and what waited for a retry, has its next attempt. What
        waited for a retry is due, and so is taken over by whoever asks first.
        """

    def holders(self, jobs: Sequence[str]) -> set[str]:
        """Who holds leases of *jobs*; what waits for a retry is nobody's."""

    def drop(self, job: str, tick: int, objects: Sequence[str], *,
             lease: str, ending: claim_.State, reason: str = '') -> int:
        """End claims that wait in *lease* and will not run, as skipped,
        superseded, cancelled or dead; returns how many counted.
        """

    def running(self, jobs: Sequence[str]) -> dict[str, int]:
        """How many runs of each of *jobs* go on now, of all workers; with
        those whose workers are lost, as long as nobody has taken them over.

        They are counted at one moment. A job of which none run may be left
        out.
        """

    def skip(self, job: str, tick: int, objects: Sequence[str], *,
             holder: str, by: claim_.SkippedBy, reason: str,
             missed: Callable[[int], int] | None = None,
             schedule: str = '') -> int:
        """Decide that *objects* do not run for *tick*, without a claim.

        Nobody may claim them for it then. Objects that were claimed for it or
        for a later tick, that somebody else skipped, or that nobody ever
        claimed, are left out. So are all if the tick is too early to be
        claimed.

        :param holder: who decided, and by what.
        :param reason: the same in words, for the history.
        :param missed: how many ticks lie between an earlier one and this one.
            It is asked of the last tick that each object was claimed or
            skipped for, and so many are skipped with this one. None: there
            are none.
        :param schedule: as in :meth:`claim`.
        :returns: how many objects counted.
        """


_Answer = TypeVar('_Answer')


class StoreQueue(Protocol):
    """The way of the flow to its store, which may be slow, or away."""

    @property
    def away(self) -> bool:
        """True while the store is unreachable; what is asked waits."""

    def ask(self, call: Callable[[ClaimStore], _Answer],
            then: Callable[[_Answer], None],
            failed: Callable[[], None] = lambda: None, *,
            first: bool = False) -> None:
        """Have *call* made, after all that was asked before, and *then* told
        its answer, in the thread of the flow.

        It is made again while the store is away, so whatever it does must be
        fit to be done twice.

        :param failed: told instead if it can never be answered.
        :param first: it does not wait for what was asked before, as what
            renews leases must not: they would end meanwhile.
        """


class CatalogueReader(Protocol):
    """Runs catalogue methods somewhere that may block."""

    def read(self, job: job_.Job, tick: int, ticket: int,
             arcs: Sequence[ring_.Arc]) -> None:
        """Begin to read the objects of *job*; returns at once.

        The answer comes to the flow under the same *ticket*, or never.

        :param arcs: this member's part of the ring, for a method that reads
            no more than that.
        """


class WorkBus(Protocol):
    """The way to the workers. A message is a hint and may be lost."""

    def send(self, batch: message.Batch) -> None:
        """Send *batch* to its worker; never blocks and never raises.

        The flow is told if it could not be sent, and gets the worker's
        reports, through the callbacks the bus was made with.
        """


class ReportBus(Protocol):
    """The way back, from a worker to the schedulers."""

    def report(self, report: message.Report, to_entry: str) -> None:
        """Send *report* to the scheduler under that entry; never blocks."""
