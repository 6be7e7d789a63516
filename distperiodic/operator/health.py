# SPDX-License-Identifier: Apache-2.0
"""The health of a group: findings about what does not work, each with a code.

:func:`findings` is the only place that judges the health of a group. It is a
pure function over :class:`Facts`, which :mod:`.health_facts` reads from the
store and from the coordination service. Commands, pages and alerts only show
its results, or those that concern one object.

A failure means that work is not done, or is late, or that a process is gone. A
warning means that the work is done, but that something needs attention. What
operators have done on purpose is no finding: a paused job, a drained member.
:func:`notes` names it.
"""

import collections
import dataclasses
import enum
import functools
import math
from collections.abc import Collection
from collections.abc import Container
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import TYPE_CHECKING
from typing import Any
from typing import NamedTuple

from distperiodic.core.job_set import RECORDS_PER_GAP
from distperiodic.core.job_set import attendance_gap
from distperiodic.core.live import Live
from distperiodic.core.member import ring_digest
from distperiodic.core.schedule import SECOND
from distperiodic.core.schedule import Instant
from distperiodic.core.waiting import Wait
from distperiodic.core.waiting import WaitReason
from distperiodic.core.waiting import tasks_text
from distperiodic.core.waiting import with_processes
from distperiodic.core.wording import listed
from distperiodic.core.wording import one_line
from distperiodic.core.wording import plural
from distperiodic.core.wording import second
from distperiodic.core.wording import until
from distperiodic.operator import capacity
from distperiodic.operator.capacity import Capacity
from distperiodic.operator.member_rows import MemberRow
from distperiodic.operator.member_rows import topics

if TYPE_CHECKING:
    # These modules load SQLAlchemy, which a group without a store lacks.
    from distperiodic.operator.activity import Failing
    from distperiodic.operator.activity import Load
    from distperiodic.operator.live_group import Group
    from distperiodic.operator.partitions import PartitionState
    from distperiodic.operator.task_queries import Halted
    from distperiodic.operator.task_queries import Overdue
    from distperiodic.operator.task_queries import Stuck
    from distperiodic.operator.waiting import Starving

#: Seconds for which a process that is gone is reported. A process of the same
#: name ends the report earlier.
GONE_FOR = 3600.0
#: Number of ticks in a row at which an object that fails is failing.
FAILING = 3
#: Number of ticks in a row whose objects were superseded that shows that the
#: workers are full.
SUPERSEDED = 2
#: Minimum seconds for which an object waits for a slot, besides its period, if
#: workers are full; and the periods after which the object has a finding.
WAITING, STARVING = 3.0, 3
#: Seconds that even the fastest of several requests to the store takes, if the
#: store is slow; and the age of a request of a member without an answer.
SLOW, UNANSWERED = 0.25, 5.0
#: The fields of :class:`Facts` that are not read from a slow store, in the
#: words of the notes.
UNREAD = {
    'partitions': 'partitions', 'jobs': 'jobs', 'failing': 'failing objects',
    'stuck': 'stuck tasks', 'overdue': 'tasks that wait',
    'expired': 'expired leases', 'loads': 'use of slots',
    'starving': 'objects that wait'}
#: Seconds, in addition to the session timeout, for which reading a catalogue
#: may take.
READING = 5.0
#: Seconds, in addition to the session timeout, for which a subscriber may
#: handle one event.
CALLING = 5.0
#: Seconds by which the clock of a host may differ from that of the store.
CLOCK_DIFFERS = 1.0
# Maximum number of objects, or of tasks, that have their own findings.
_NAMED = 5


class Severity(enum.StrEnum):
    WARNING = 'warning'
    FAILURE = 'failure'


class Code(NamedTuple):
    """The meaning of a code: its severity, and templates of two sentences."""

    severity: Severity
    text: str
    remedy: str


#: All codes. The page reference/health.rst documents each of them.
CODES: Mapping[str, Code] = {
    'store-unavailable': Code(
        Severity.FAILURE, 'the store cannot be read: {why}',
        'make the database answer; until then nothing is claimed, and nothing '
        'is lost'),
    'store-slow': Code(
        Severity.FAILURE, 'the store answers slowly: {seconds:.2f} s for '
        'a request of {whose}',
        'look for load, locks or a slow network at the database; ticks and '
        'results are late meanwhile'),
    'coordination-unavailable': Code(
        Severity.FAILURE, 'the coordination service cannot be read: {why}',
        'make the service of backend_url answer; meanwhile nothing replaces a '
        'member that dies'),
    'broker-unavailable': Code(
        Severity.FAILURE, '{whose} cannot reach the broker: {why}',
        'make the broker of transport_url answer and accept its user; until '
        'then no worker receives work, the claims wait, and nothing is lost'),
    'no-scheduler': Code(
        Severity.FAILURE,
        'group {group!r} has no scheduler on the ring, so nothing is '
        'claimed{hint}',
        'start distperiodic scheduler, or correct [distperiodic] group'),
    'no-worker': Code(
        Severity.FAILURE,
        'no worker accepts work, so nothing that is claimed runs',
        'start distperiodic worker'),
    'too-few': Code(
        Severity.WARNING, '{expected} expected, {missing} missing',
        'start the missing processes, or correct the number'),
    'member-dead': Code(
        Severity.FAILURE,
        'the process on host {host} has left the group without being '
        'stopped: it was killed, it crashed, or it hangs',
        'read its log, and start it again; a process of the same name ends '
        'this finding'),
    'member-silent': Code(
        Severity.FAILURE,
        'the process on host {host} is in the group, but has not reported to '
        'the store: it hangs, or cannot reach the store',
        'check the process and its way to the database; restart it'),
    'member-outside': Code(
        Severity.FAILURE,
        'the process on host {host} works, but is not in the group: it has '
        'another backend_url or none, and counts itself as the owner of every '
        'object',
        'compare its configuration with that of the others: distperiodic '
        'doctor, on its host; a misspelt option has no effect'),
    'member-unhealthy': Code(
        Severity.FAILURE, 'the process on host {host} says: {why}',
        'correct the cause; see its log; distperiodic member show {name}'),
    'view-differs': Code(
        Severity.FAILURE,
        'the process on host {host} sees another group than the other '
        'schedulers, so they disagree about the owners of objects',
        'check its connection to the coordination service; restart it'),
    'clock-differs': Code(
        Severity.WARNING,
        'the clock of host {host} is {seconds:.1f} s {side} the clock of the '
        'store',
        'run chrony or ntpd on both hosts; jobs follow the clock of the '
        'store, but jobs that run on every member follow their own'),
    'metrics-unserved': Code(
        Severity.WARNING,
        'the process on host {host} cannot serve its metrics: {why}',
        'correct the cause; it tries again each second; until then, the '
        'metrics of the processes that share metrics_listen are missing'),
    'spans-missing': Code(
        Severity.WARNING,
        'the process on host {host} creates no spans: {why}',
        'start the process with opentelemetry-instrument, or configure the '
        'SDK of OpenTelemetry in the program; or set [distperiodic] traces = '
        'false'),
    'subscriber-failing': Code(
        Severity.WARNING,
        'in the process on host {host}, the subscriber {subscriber} {what}',
        'correct the function, which the program has passed to '
        'distperiodic.events.subscribe(); the work of the process is not '
        'affected'),
    'handlers-hanging': Code(
        Severity.FAILURE,
        '{handlers} of partition {partition} did not return, such as that of '
        '{job}/{object}',
        'correct the handler, which ignores its timeout or has none; restart '
        'the process to end the hanging runs'),
    'ring-formats': Code(
        Severity.WARNING,
        'members offer different ring formats ({formats}) and use {used}',
        'finish the upgrade'),
    'entry-unknown': Code(
        Severity.WARNING,
        'the group has an entry of another program, which owns nothing',
        'find the program that created it; give each service its own group'),
    'job-unscheduled': Code(
        Severity.WARNING,
        'no live scheduler has the job, so its objects do not run',
        'start a scheduler whose code has the job; if the job was removed or '
        'renamed: distperiodic db prune --claims DAYS'),
    'catalogue-failing': Code(
        Severity.FAILURE,
        '{schedulers} cannot read the catalogue of the job: {error}',
        'correct the catalogue method, or what it reads; until then, the '
        'objects of its last good reading stay due, and new ones do not run'),
    'catalogue-hanging': Code(
        Severity.FAILURE,
        'reading the catalogue of the job has not ended on {schedulers}',
        'find out for what the catalogue method waits, and give it a timeout; '
        'restart the scheduler to end the reading'),
    'ticks-lost': Code(
        Severity.FAILURE,
        '{objects} lost a tick, the last one at {at}',
        'this is a bug: please report it with the output of distperiodic '
        'audit --ticks'),
    'workers-full': Code(
        Severity.FAILURE,
        'runs of partition {partition} wait for a free slot for longer than '
        'the period of the job: {what}',
        'start more workers, raise pool_size, or give the job a longer '
        'period'),
    'object-starving': Code(
        Severity.FAILURE,
        'it has waited for a free slot for {periods:.0f} of its periods',
        'start more workers, raise pool_size, or give the job a longer '
        'period; distperiodic why {job} {object}'),
    'object-failing': Code(
        Severity.WARNING,
        '{number} ticks in a row have failed, the last one at {at}: {error}',
        'correct the cause; distperiodic dead list {job} --traceback shows '
        'where it fails'),
    'object-dead': Code(
        Severity.WARNING, 'its run at {at} failed for good: {error}',
        'it runs again at its next tick; to run it earlier: distperiodic dead '
        'requeue {job} --object {object}'),
    'objects-failing': Code(
        Severity.FAILURE,
        '{objects} fail and have not succeeded since, such as {example!r}: '
        '{error}',
        'correct the cause; to list them: distperiodic dead list {job}'),
    'partition-inactive': Code(
        Severity.FAILURE,
        'no worker of the partition is active, so nothing of it runs',
        'see distperiodic partition show {name}; start distperiodic worker '
        '--partition {name}'),
    'partition-alone': Code(
        Severity.WARNING,
        'no standby worker can take over from the active worker',
        'start distperiodic worker --partition {name} on another host'),
    'partition-unserved': Code(
        Severity.FAILURE,
        'no live worker serves the partition, which has {work}',
        'start distperiodic worker --partition {name}'),
    'command-unserved': Code(
        Severity.FAILURE,
        '{tasks} for the command {command}, such as {first}, but {lack}',
        'start schedulers and workers whose --tasks has the command; '
        'distperiodic task show {first} gives the reason'),
    'task-stuck': Code(
        Severity.FAILURE, 'the task needs an operator: {why}',
        'correct the cause; then: distperiodic task retry {task}, or '
        'distperiodic task cancel {task}'),
    'tasks-stuck': Code(
        Severity.FAILURE, '{tasks} need an operator, the first is {first}',
        'list them: distperiodic task list --stuck; correct the cause; then: '
        'distperiodic task retry --all-stuck'),
    'queue-halted': Code(
        Severity.FAILURE, 'halted{by}: {why}; {waiting} waiting',
        'find the cause{show}; then: distperiodic queue resume {name}'),
    'lease-expired': Code(
        Severity.WARNING,
        'expired and not taken over: {leases}, the first {age:.0f} s ago',
        'start a scheduler that has this job; if the job was removed: '
        'distperiodic db prune --claims DAYS'),
}


class Finding(NamedTuple):
    """One thing that is wrong with a group."""

    code: str
    severity: Severity
    #: Instant since which it is wrong, in microseconds. None means unknown.
    since: Instant | None
    #: A kind and a name: ``scheduler NAME``, ``worker PARTITION/NAME``,
    #: ``job NAME``, ``object JOB/ID``, ``task ID``, ``queue NAME``,
    #: ``partition NAME``, ``group NAME``, ``entry NAME``, ``store`` or
    #: ``coordination``.
    about: str
    text: str
    remedy: str

    @property
    def shown(self) -> dict[str, Any]:
        """The fields for programs, by name. The instant is text."""
        return {
            'code': self.code, 'severity': self.severity.value,
            'since': None if self.since is None else second(self.since),
            'about': self.about, 'finding': self.text, 'remedy': self.remedy}

    @property
    def line(self) -> str:
        """The finding as one line for people."""
        since = '' if self.since is None else f' (since {second(self.since)})'
        return (f'{self.severity.value} {self.code}: {self.about}: '
                f'{self.text}{since}; do: {self.remedy}')


class Recent(NamedTuple):
    """Numbers of objects of one tick of a job."""

    tick: Instant
    due: int
    superseded: int
    lost: int


class JobFacts(NamedTuple):
    """Known facts about one job. Times are in microseconds."""

    name: str
    #: Time between two ticks. None means that the schedule is unknown.
    period: int | None
    paused: bool
    #: When a scheduler that has the job last read its state. None means never.
    attended: Instant | None
    #: True if the job is not attended and has listed objects.
    unattended: bool
    #: The last ticks, the newest first.
    ticks: Sequence[Recent] = ()
    #: Text of the schedule in force. Empty means that it is unknown.
    schedule: str = ''
    #: When the pause ends by itself. None means that it does not, or that the
    #: job is not paused.
    paused_until: Instant | None = None
    #: Number of paused objects.
    paused_objects: int = 0


class ExpiredLeases(NamedTuple):
    """The lease that expired first, and the number of expired leases."""

    job: str
    until: Instant
    number: int


@dataclasses.dataclass(frozen=True)
class Facts:
    """Known facts about a group at one moment. Times are in seconds, if they
    are not instants.
    """

    group: str
    now: Instant
    session_timeout: float
    sweep_interval: float
    #: True if workers run the handlers, and False if schedulers do.
    messaging: bool = False
    #: The group in the coordination service. None means that there is no such
    #: service, or that it cannot be read.
    live: 'Group | None' = None
    #: Processes that have joined the group since it was read, by partition and
    #: name.
    joined: Collection[tuple[str, str]] = ()
    #: Topic of each partition whose name differs from its topic.
    topics: Mapping[str, str] = dataclasses.field(default_factory=dict)
    #: Reasons why the coordination service and the store could not be read.
    #: Empty means that they were read, or that there are none.
    coordination: str = ''
    store: str = ''
    #: True if the store was read.
    stored: bool = False
    #: Fields that were not read because the store is slow; see :data:`UNREAD`.
    unread: Sequence[str] = ()
    #: Seconds that the fastest of several requests to the store took.
    round_trip: float = 0.0
    members: Sequence[MemberRow] = ()
    #: Processes that the caller saw earlier, by partition and name, with the
    #: instant.
    seen: Mapping[tuple[str, str], Instant] = dataclasses.field(
        default_factory=dict)
    #: The processes that can claim or run commands of tasks.
    processes: Live = Live()
    #: Numbers of schedulers and workers that the caller expects.
    expected: int | None = None
    expected_workers: int | None = None
    jobs: Sequence[JobFacts] = ()
    failing: 'Sequence[Failing]' = ()
    #: Objects that wait for a start for longer than a period, the oldest
    #: first.
    starving: 'Sequence[Starving]' = ()
    expired: ExpiredLeases | None = None
    #: The work of each job in the last ten minutes.
    loads: 'Sequence[Load]' = ()
    #: Partitions with one active worker.
    partitions: 'Sequence[PartitionState]' = ()
    overdue: 'Sequence[Overdue]' = ()
    #: None means that no task is stuck, or unknown.
    stuck: 'Stuck | None' = None
    halted: 'Sequence[Halted]' = ()

    @functools.cached_property
    def reporting(self) -> list[MemberRow]:
        """The members that run and report to the store."""
        return [row for row in self.members
                if row.live(self.session_timeout)]

    @property
    def capacities(self) -> list[Capacity]:
        """The use of the slots of each partition that had work."""
        return capacity.of_loads(
            self.loads, self.members, self.session_timeout)

    @property
    def members_by_role(self) -> dict[str, int] | None:
        """The numbers of live schedulers and workers. None means unknown."""
        if self.live is not None:
            # The coordination service notices first that a member has left.
            return {'scheduler': len(self.live.members),
                    'worker': sum(map(len, self.live.workers.values()))}
        if not self.stored:
            return None
        roles = [row.role for row in self.reporting]
        return {role: roles.count(role) for role in ('scheduler', 'worker')}


# Servers, as findings name them.
_SERVERS = 'store', 'coordination', 'broker'


def findings(facts: Facts) -> list[Finding]:
    """Return what is wrong with a group: failures first, those of servers
    before their consequences, then by age.
    """
    found: dict[tuple[str, str], Finding] = {}
    for rule in _RULES:
        for one in rule(facts):
            found.setdefault((one.code, one.about), one)
    return sorted(found.values(), key=lambda one: (
        one.severity is Severity.WARNING,
        one.about not in _SERVERS,
        facts.now if one.since is None else one.since, one.code, one.about))


def notes(facts: Facts) -> list[str]:
    """Return what operators have done on purpose, and what is therefore no
    finding.
    """
    unread = [', '.join(UNREAD[one] for one in facts.unread)
              ] if facts.unread else []
    paused = [f'{job.name}{until(job.paused_until)}' for job in facts.jobs
              if job.paused]
    objects = [f'{plural(job.paused_objects, "object")} of {job.name}'
               for job in facts.jobs if job.paused_objects]
    drained = [one.label for one in facts.members if one.drained]
    return [f'{what}: {listed(names)}' for what, names in (
        ('not read from the slow store', unread), ('paused', paused),
        ('paused', objects), ('drained', drained)) if names]


def exit_code(found: Iterable[Finding]) -> int:
    """Return 0 without findings, 1 with warnings, and 2 with a failure."""
    return max((2 if one.severity is Severity.FAILURE else 1
                for one in found), default=0)


def _found(code: str, about: str, since: Instant | None = None,
           **words: object) -> Finding:
    kind = CODES[code]
    return Finding(code, kind.severity, since, about,
                   kind.text.format(**words), kind.remedy.format(**words))


# -- servers


def _servers(facts: Facts) -> Iterator[Finding]:
    if facts.store:
        yield _found('store-unavailable', 'store', why=facts.store)
    if facts.coordination:
        yield _found('coordination-unavailable', 'coordination',
                     why=facts.coordination)
    cut_off = _cut_off(facts)
    if cut_off:
        yield _found('broker-unavailable', 'broker',
                     whose=listed(sorted(row.label for row in cut_off)),
                     why=one_line(cut_off[0].facts.broker))
    yield from _slow(facts)


def _cut_off(facts: Facts) -> list[MemberRow]:
    """Return the live members that cannot reach their brokers."""
    return [row for row in facts.reporting if row.facts.broker]


def _slow(facts: Facts) -> Iterator[Finding]:
    slow = [(one.slow_since or facts.now - round(one.waits * SECOND),
             max(one.p50, one.waits), row.label)
            for row in facts.reporting
            # While the store refuses the calls of a process, they wait, but
            # the store is not slow: member-unhealthy has the reason.
            for one in [row.facts.store] if one is not None
            and not one.away and (
                one.slow_since is not None or one.waits >= UNANSWERED)]
    if slow:
        yield _found('store-slow', 'store', min(since for since, *_ in slow),
                     seconds=max(seconds for _, seconds, _ in slow),
                     whose=listed(sorted(label for *_, label in slow)))
    elif facts.round_trip >= SLOW:
        yield _found('store-slow', 'store', seconds=facts.round_trip,
                     whose='this command')


# -- members


def _host(row: MemberRow) -> str:
    """Return the host of a process: as it has reported it, or from the name
    that the library gave to the process.
    """
    host, colon, _ = row.name.rpartition(':')
    return row.host or (host if colon else 'unknown')


def entered(facts: Facts) -> set[tuple[str, str]] | None:
    """Return the processes in the group, by partition and name.

    None means that the group is unknown.
    """
    if facts.live is None:
        return None
    names = {topic: name for name, topic in facts.topics.items()}
    return {('', one.identity) for one in facts.live.members} | {
        (part, one.identity) for topic, some in facts.live.workers.items()
        for one in some for part in {topic, names.get(topic, topic)}} | {
            *facts.joined}


def some_outside(facts: Facts) -> bool:
    """Return whether a process seems to work without being in the group."""
    return any(one.code == 'member-outside' for one in _members(facts))


def _members(facts: Facts) -> Iterator[Finding]:
    group = entered(facts)
    known = {(row.part, row.name) for row in facts.members}
    for row in facts.members:
        if row.stopped or row.age is None:
            continue
        inside = group is None or (row.part, row.name) in group
        if row.silent(facts.session_timeout):
            yield from _not_reporting(row, row.age, inside, group)
        else:
            yield from _reporting(facts, row, row.age, inside)
    for key, seen in facts.seen.items():
        if key not in known and group is not None and key not in group:
            yield _of_member('member-dead', MemberRow(
                *key, '', None, {}, False, None, '', '', None), seen)


def _not_reporting(row: MemberRow, age: int, inside: bool,
                   group: 'Container[tuple[str, str]] | None'
                   ) -> Iterator[Finding]:
    if row.drained and not inside:
        # It was taken out of service before it ended.
        return
    if inside and group is not None:
        yield _of_member('member-silent', row, row.seen)
    elif age <= GONE_FOR * SECOND:
        yield _of_member('member-dead', row, row.seen)


def _reporting(facts: Facts, row: MemberRow, age: int,
               inside: bool) -> Iterator[Finding]:
    since, patience = row.facts.unhealthy_since, facts.session_timeout
    if since is not None and since <= facts.now - patience * SECOND:
        yield _of_member(
            'member-unhealthy', row, since, name=row.name,
            why=one_line(row.state.get('problem') or 'it is not healthy'))
    # The entry of a process that has just died may vanish before its last
    # report is old. A process reports several times per session.
    elif not inside and since is None and (
            age <= facts.session_timeout / 2 * SECOND):
        yield _of_member('member-outside', row, row.facts.started)
    yield from _hanging(row)
    if row.facts.metrics:
        yield _of_member('metrics-unserved', row, None,
                         why=one_line(row.facts.metrics))
    if row.facts.spans:
        yield _of_member('spans-missing', row, None,
                         why=one_line(row.facts.spans))
    yield from _subscribers(facts, row)
    ahead = row.facts.clock_ahead or 0.0
    if abs(ahead) > CLOCK_DIFFERS:
        yield _of_member(
            'clock-differs', row, None, seconds=abs(ahead),
            side='ahead of' if ahead > 0 else 'behind')


def _of_member(code: str, row: MemberRow, since: Instant | None,
               **words: object) -> Finding:
    return _found(code, row.label, since, host=_host(row), **words)


def _hanging(row: MemberRow) -> Iterator[Finding]:
    for pool in row.facts.pools:
        for run in pool.hanging_runs[:1]:
            yield _of_member(
                'handlers-hanging', row, run.since,
                handlers=plural(pool.hanging, 'handler'),
                partition=pool.partition, job=run.job, object=run.object)


def _subscribers(facts: Facts, row: MemberRow) -> Iterator[Finding]:
    late = facts.now - (facts.session_timeout + CALLING) * SECOND
    for one in row.facts.subscribers:
        since = one.calling_since
        hangs = since is not None and since <= late
        if hangs or one.dropped or one.error:
            yield _of_member(
                'subscriber-failing', row, since if hangs else None,
                subscriber=one.name, what=(
                    'has not returned' if hangs
                    else 'is too slow: it has lost '
                    + plural(one.dropped, 'event') if one.dropped
                    else f'raises an error: {one_line(one.error)}'))


def _views(facts: Facts) -> Iterator[Finding]:
    """Find schedulers whose view has differed from that of most others for
    longer than a session.
    """
    views = [(row, view) for row in facts.reporting if not row.part
             for view in [row.facts.view]
             if view is not None and view.since is not None]
    if not views:
        return
    [(usual, _)] = collections.Counter(
        view.digest for _, view in views).most_common(1)
    if facts.live is not None:
        # Of two schedulers that disagree, the service shows which is wrong.
        listed_now = ring_digest(facts.live.members)
        if any(view.digest == listed_now for _, view in views):
            usual = listed_now
    for row, view in views:
        if view.digest == usual:
            continue
        for other, theirs in views:
            # A report shows only that the view was the same from its beginning
            # until the report.
            begin = max(view.since or 0, theirs.since or 0)
            end = min(row.seen or 0, other.seen or 0)
            if theirs.digest == usual and (
                    end - begin > facts.session_timeout * SECOND):
                yield _of_member('view-differs', row, begin)
                break


def _schedulers(facts: Facts) -> Iterator[Finding]:
    """Find that nothing is claimed, or that nothing that is claimed runs."""
    group, live = facts.live, facts.reporting
    about = f'group {facts.group}'
    if facts.live is None and not facts.stored:
        return
    drained = {(row.part, row.name) for row in live if row.drained}
    number = len(group.on_ring) if group is not None else sum(
        not row.part and not row.drained for row in live)
    if not number and not any(not part for part, _ in drained):
        yield no_scheduler(facts.group, group)
    # Standby workers of an unknown partition look like full ones.
    if number and facts.messaging and group is not None and (
            'partitions' not in facts.unread):
        yield from _workers(facts, group, {
            facts.topics.get(part, part) for part, _ in drained if part})
    if group is not None:
        yield from _too_few(about, 'scheduler', number, facts.expected)
        yield from _too_few(about, 'worker', sum(
            map(len, group.workers.values())), facts.expected_workers)


def _workers(facts: Facts, group: 'Group',
             drained: Collection[str]) -> Iterator[Finding]:
    """Find that nothing runs, or that partitions have no worker.

    :param drained: Topics of the drained workers.
    """
    standby = {one.name for one in facts.partitions}
    accepts = any(one.slots or topic in standby
                  for topic, some in group.workers.items()
                  for one in some)
    if not accepts and not drained:
        yield _found('no-worker', f'group {facts.group}')
    elif accepts:
        yield from _unserved(facts, group, standby, drained)


def _unserved(facts: Facts, group: 'Group', standby: Container[str],
              drained: Container[str]) -> Iterator[Finding]:
    """Find partitions of jobs that no worker serves."""
    active = {job.name for job in facts.jobs if not job.paused}
    unserved: dict[str, list[str]] = {}
    for job, topic in sorted(topics(facts.reporting).items()):
        if job in active and topic not in standby and topic not in drained:
            if not any(one.slots for one in group.workers.get(topic, ())):
                unserved.setdefault(topic, []).append(job)
    for topic, jobs in unserved.items():
        yield _found('partition-unserved', f'partition {topic}', name=topic,
                     work=f'{plural(len(jobs), "job")}: {listed(jobs)}')


def no_scheduler(name: str, group: 'Group | None') -> Finding:
    """Return the finding about a group without a scheduler.

    :param group: None means that it is unknown.
    """
    known = [] if group is None else [
        one for one in group.groups if '.workers.' not in one]
    hint = ('; the coordination service has the groups '
            f'{listed(known)}' if known and name not in known else '')
    return _found('no-scheduler', f'group {name}', group=name, hint=hint)


def _too_few(about: str, word: str, number: int,
             expected: int | None) -> Iterator[Finding]:
    if expected is not None and number < expected:
        yield _found('too-few', about, expected=plural(expected, word),
                     missing=expected - number)


def _ring(facts: Facts) -> Iterator[Finding]:
    if facts.live is None:
        return
    formats = {one.ring_format for one in facts.live.on_ring}
    if len(formats) > 1:
        yield _found('ring-formats', f'group {facts.group}',
                     formats=', '.join(map(str, sorted(formats))),
                     used=min(formats))
    for entry in facts.live.unknown_entries:
        yield _found('entry-unknown', f'entry {entry}')


# -- jobs


def _jobs(facts: Facts) -> Iterator[Finding]:
    # If the store is slow, schedulers report late that they have the job.
    served = not any(_slow(facts)) and any(
        not row.part and not row.drained for row in facts.reporting)
    for job in facts.jobs:
        if job.paused:
            continue
        about = f'job {job.name}'
        # Schedulers record seldom that they attend a job with a long period.
        recorded = attendance_gap(
            (job.period or math.inf) / SECOND) / RECORDS_PER_GAP
        patience = SECOND * (max(facts.session_timeout, recorded)
                             + 3 * facts.sweep_interval)
        if served and job.unattended and job.attended is not None and (
                job.attended < facts.now - patience):
            yield _found('job-unscheduled', about, job.attended)
        lost = [one for one in job.ticks if one.lost]
        if lost:
            yield _found('ticks-lost', about, lost[-1].tick,
                         objects=plural(sum(one.lost for one in lost),
                                         'object'),
                         at=second(lost[0].tick))


def _slots(facts: Facts) -> Iterator[Finding]:
    """Find work that waits for a slot, although there are workers.

    While a member cannot reach the broker, work waits for the broker.
    """
    if _cut_off(facts):
        return
    of_jobs = topics(facts.members)
    waiting: dict[str, list[Starving]] = {}
    for one in facts.starving:
        if one.since <= facts.now - WAITING * SECOND:
            waiting.setdefault(one.job, []).append(one)
    for job in facts.jobs:
        topic = of_jobs.get(job.name, 'default')
        if job.paused or not _served(facts, topic):
            continue
        some = waiting.get(job.name, [])
        ended = _superseded(job, facts.now)
        if some:
            yield _found(
                'workers-full', f'job {job.name}', some[0].since,
                partition=topic, what=f'{some[0].object} since '
                f'{second(some[0].since)}')
        elif ended:
            yield _found(
                'workers-full', f'job {job.name}', ended[-1].tick,
                partition=topic,
                what='its last ticks superseded '
                f'{sum(one.superseded for one in ended):,} of '
                f'{sum(one.due for one in ended):,} runs before their start')
        for one in some[:_NAMED]:
            if one.periods >= STARVING:
                yield _found('object-starving',
                             f'object {job.name}/{one.object}', one.since,
                             periods=one.periods, job=job.name,
                             object=one.object)


def _served(facts: Facts, topic: str) -> bool:
    """Return False if no worker of a partition accepts work.

    This is a finding of its own, or operators have drained the workers.
    """
    return not facts.messaging or facts.live is None or any(
        one.slots for one in facts.live.workers.get(topic, ())) or any(
            one.name == topic for one in facts.partitions)


def _superseded(job: JobFacts, now: Instant) -> Sequence[Recent]:
    """Return the newest ticks before the last one, if objects of all of them
    were superseded.
    """
    if job.period is None or len(job.ticks) <= SUPERSEDED or (
            job.ticks[0].tick < now - (SUPERSEDED + 1) * job.period):
        return ()
    ended = job.ticks[1:SUPERSEDED + 1]
    return ended if all(one.superseded for one in ended) else ()


def _catalogues(facts: Facts) -> Iterator[Finding]:
    paused = {job.name for job in facts.jobs if job.paused}
    late = facts.now - (facts.session_timeout + READING) * SECOND
    failing: dict[str, list[tuple[Instant, MemberRow, str]]] = {}
    hanging: dict[str, list[tuple[Instant, MemberRow, str]]] = {}
    for row in facts.reporting:
        if row.drained:
            continue
        for one in row.facts.catalogues:
            if one.job in paused:
                continue
            if one.reading_since is not None and one.reading_since <= late:
                hanging.setdefault(one.job, []).append(
                    (one.reading_since, row, ''))
            elif one.error:
                failing.setdefault(one.job, []).append(
                    (one.failing_since or facts.now, row, one.error))
    for code, by_job in (('catalogue-failing', failing),
                         ('catalogue-hanging', hanging)):
        for job, some in by_job.items():
            yield _found(
                code, f'job {job}', min(since for since, *_ in some),
                error=one_line(some[0][2]),
                schedulers=listed([row.label for _, row, _ in some]))


def _objects(facts: Facts) -> Iterator[Finding]:
    by_job: dict[str, list[Failing]] = {}
    for one in facts.failing:
        by_job.setdefault(one.job, []).append(one)
    for job, some in by_job.items():
        if len(some) > _NAMED:
            yield _found(
                'objects-failing', f'job {job}',
                min(one.first for one in some), job=job,
                objects=plural(len(some), 'object'), example=some[0].object,
                error=one_line(some[0].error))
            continue
        for one in some:
            yield _found(
                'object-failing' if one.runs >= FAILING else 'object-dead',
                f'object {job}/{one.object}', one.first, job=job,
                object=one.object, number=one.runs, at=second(one.tick),
                error=one_line(one.error))


def _leases(facts: Facts) -> Iterator[Finding]:
    one, patience = facts.expired, 10 * facts.sweep_interval + 5
    if one is not None and one.until < facts.now - patience * SECOND:
        yield _found('lease-expired', f'job {one.job}', one.until,
                     leases=plural(one.number, 'lease'),
                     age=(facts.now - one.until) / SECOND)


# -- partitions and tasks


def _partitions(facts: Facts) -> Iterator[Finding]:
    for one in facts.partitions:
        about = f'partition {one.name}'
        present = one.present(facts.session_timeout)
        if not present:
            # All of its workers have stopped, or each is a finding.
            continue
        spare = [worker for worker in present
                 if worker.process != one.active]
        if len(spare) == len(present):
            yield _found('partition-inactive', about, one.since,
                         name=one.name)
        elif not spare:
            yield _found('partition-alone', about, name=one.name)


# What keeps tasks waiting, besides a missing worker. The other reasons are no
# fault, such as members that operators have drained.
_LACKS = {Wait.NO_SCHEDULER: 'there is no live scheduler',
          Wait.NO_COMMAND: 'no live process has it'}


def _tasks(facts: Facts) -> Iterator[Finding]:
    unserved: dict[str, list[Overdue]] = {}
    for one in facts.overdue:
        command = f'{one.module}.{one.command}'
        wait = with_processes(
            WaitReason(Wait.READY, one.module, one.command),
            facts.processes).wait
        if wait is Wait.NO_WORKER:
            unserved.setdefault(one.module, []).append(one)
        elif wait in _LACKS:
            yield _found(
                'command-unserved', f'task {one.first}', one.since,
                command=command, first=one.first, lack=_LACKS[wait],
                tasks=f'{plural(one.tasks, "task")} ready')
    for module, some in unserved.items():
        yield _found(
            'partition-unserved', f'partition {module}',
            min(one.since for one in some), name=module,
            work=f'{plural(sum(one.tasks for one in some), "task")} ready, '
            f'such as {min(some, key=lambda one: one.since).first}')
    if facts.stuck is None:
        pass
    elif facts.stuck.number > _NAMED:
        first = facts.stuck.first[0]
        yield _found(
            'tasks-stuck', f'group {facts.group}', first.since,
            tasks=plural(facts.stuck.number, 'task'), first=first.id)
    else:
        for task in facts.stuck.first:
            yield _found('task-stuck', f'task {task.id}', task.since,
                         task=task.id, why=one_line(task.why))
    for queue in facts.halted:
        yield _found(
            'queue-halted', f'queue {queue.name}', queue.since,
            name=queue.name, why=one_line(queue.why) or 'no reason',
            by=f' by task {queue.by}' if queue.by else '',
            show=f': distperiodic task show {queue.by}' if queue.by else '',
            waiting=tasks_text(queue.waiting))


_RULES = (_servers, _schedulers, _members, _views, _ring, _jobs, _slots,
          _catalogues, _objects, _leases, _partitions, _tasks)


# -- what concerns one job


#: Codes of findings that concern all jobs.
OF_ALL = frozenset({
    'store-unavailable', 'store-slow', 'coordination-unavailable',
    'broker-unavailable', 'no-scheduler', 'no-worker'})


def concerning(found: Iterable[Finding], job: str, key: str | None = None,
               topic: str | None = None) -> list[Finding]:
    """Return the findings about a job.

    :param key: Id of an object, to leave out the findings about the other
        objects of the job. None means all objects.
    :param topic: Partition of the job, to add the findings about it. None
        leaves them out, and so those that concern all jobs.
    """
    prefix = f'object {job}/'
    return [one for one in found if one.about == f'job {job}' or (
        one.about.startswith(prefix) if key is None
        else one.about == f'{prefix}{key}') or topic is not None and (
            one.about == f'partition {topic}' or one.code in OF_ALL)]


class Slots(NamedTuple):
    """The slots of all live processes for one partition."""

    partition: str
    size: int
    busy: int


def slots(facts: Facts, job: str) -> Slots | None:
    """Return the slots for a job, as the processes have last reported them.

    None means that they are unknown.
    """
    topic = topics(facts.reporting).get(job)
    pools = [pool for row in facts.reporting
             if bool(row.part) is facts.messaging
             for pool in row.facts.pools if pool.partition == topic]
    return Slots(topic, sum(one.size for one in pools),
                 sum(one.busy for one in pools)) if topic and pools else None
