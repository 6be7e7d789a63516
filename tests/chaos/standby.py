# SPDX-License-Identifier: Apache-2.0
"""Checks of the partition with one active worker.

The checks cover four rules:

1. No two workers run handlers at the same time. A stopped process runs no
   handler. A stall is extended by 0.3 s after its end, in which the handlers
   detect that their runs were replaced. Some handlers never check this. The
   run of such a handler may go on after a fault that interrupts the signs of
   life of its worker.
2. If the active worker is gone, another worker begins a run in time. A worker
   is gone while it is dead, stopped, or cut off from ZooKeeper and the store.
   The time limit starts when the worker is gone or, if that is later, when all
   others are available: the three servers, a worker that may take over, and a
   scheduler that may send work. A host is available again
   :data:`tests.chaos.promises.START` seconds after a fault of the host. A
   server is available again as soon as its fault is over.
3. No worker takes over from a worker with a sign of life. The signs are its
   membership, and its heartbeats in the store. A sign counts as lost during a
   fault that interrupts it, and for START seconds after this fault. If an
   operator has chosen the next worker, only the heartbeats count.
4. A choice of an operator is carried out, or rejected for a reason that is
   true; see :mod:`tests.chaos.promotions`.
"""

import collections
import dataclasses
import itertools
from typing import NamedTuple

from tests import checker
from tests.chaos import jobs
from tests.chaos import promotions
from tests.chaos.cluster import SCHEDULERS
from tests.chaos.cluster import SERVERS
from tests.chaos.cluster import SESSION
from tests.chaos.cluster import SPARES
from tests.chaos.election import Record
from tests.chaos.election import free
from tests.chaos.election import longest
from tests.chaos.promises import PROMISE
from tests.chaos.promises import SLACK
from tests.chaos.promises import START

SECOND = checker.SECOND

#: Kind of the fault that takes both signs of life from a process that
#: continues to run.
CUT_OFF = 'active cut off'
# For each sign of life: the server that it needs, and the kinds of faults of a
# host that do not interrupt it.
_MEMBERSHIP = 'zookeeper', (
    'member cut from store', 'active cut from store', 'member cut from broker')
_HEARTBEATS = 'postgresql', (
    'member cut from ensemble', 'active cut from ensemble',
    'member cut from broker')
#: Seconds within which another worker begins a run.
TAKES_OVER = PROMISE + SLACK


class TakeOver(NamedTuple):
    """An interval in which a worker that was active is gone, and its end."""

    #: killed, frozen, cut off or released
    why: str
    #: Process that was active. Empty means that no process was active.
    process: str
    begin: int
    #: True if the next worker began a run.
    seen: bool
    #: Seconds from the start of the time limit to this run. None means that no
    #: such run was seen, or that it began during another fault.
    seconds: float | None
    #: Length in seconds of the longest interval without another fault, in
    #: which a worker had to take over.
    longest: float

    @property
    def late(self):
        """Return whether a worker should have taken over earlier."""
        return self.longest > TAKES_OVER

    @property
    def required(self):
        """Return whether a worker had to take over."""
        return self.late or self.seconds is not None


@dataclasses.dataclass
class Verdict:
    """The results of all checks of the partition."""

    findings: list[checker.Finding]
    take_overs: list[TakeOver]
    promotions: list[promotions.Promotion]
    #: Number of commands by the kind of the answer: accepted, needless or
    #: refused.
    answers: collections.Counter[str]
    #: Number of runs.
    runs: int

    @property
    def required(self):
        """Return the take-overs that were required."""
        return [one for one in self.take_overs if one.required]

    @property
    def carried_out(self):
        """Return the promotions that were carried out."""
        return [one for one in self.promotions
                if one.outcome == 'carried out']

    def missing(self, happened):
        """Return the events that did not occur although a fault was meant to
        cause them.

        :param happened: kinds of the faults that happened.
        """
        return {what for what, found, kinds in (
            ('take-over', self.required,
             {'active killed', 'active frozen', CUT_OFF}),
            ('promotion', self.carried_out, {'active replaced'}))
            if not found and not kinds.isdisjoint(happened)}

    def report(self):
        """Return the results as lines of text."""
        timed = [one for one in self.required if one.seconds is not None]
        slowest = max(timed, key=lambda one: one.seconds, default=None)
        seen = sum(one.seen for one in self.required)
        return [
            f'partition with one active worker: {self.runs} runs, '
            f'{len(self.take_overs)} times without an active worker, '
            f'{len(self.required)} take-overs required, {seen} of them seen'
            + ('' if slowest is None else (
                f', the slowest after {slowest.seconds:.2f} s '
                f'({slowest.why}); {PROMISE:g} s are promised')),
            _counts('required take-overs by the end of the active worker',
                    (one.why for one in self.required)),
            _counts('commands that chose the active worker',
                    self.answers.elements()),
            _counts('accepted choices by outcome',
                    (one.outcome for one in self.promotions))]


def _counts(what, kinds):
    found = sorted(collections.Counter(kinds).items())
    return f'{what}: ' + (', '.join(
        f'{kind} {number}' for kind, number in found) or 'none')


def judge(told, rows, driver, begin, end):
    """Return the :class:`Verdict` on the partition.

    :param told: lines of the ledger.
    :param rows: see :func:`tests.chaos.journal.partition`.
    :param driver: the :class:`tests.chaos.faults.Driver` of the faults.
    """
    record = Record(told, rows, driver, begin, end)
    taken = list(_take_overs(record))
    accepted = promotions.accepted(record)
    return Verdict(
        [*_overlaps(record), *_late(record, taken), *_early(record),
         *promotions.check(record, accepted)],
        taken, accepted,
        collections.Counter(one.answer for one in record.asked),
        len(record.runs))


def _overlaps(record):
    """Find runs of two processes at the same time."""
    going = []
    for run in record.runs:
        going = [one for one in going if record.over(one) > run.start]
        for one in going:
            if one.process != run.process and free(
                    run.start, min(record.over(one), record.over(run)),
                    [*record.stalls[int(one.process)],
                     *record.stalls[int(run.process)]]) and not (
                         _is_unaware(record, one, run.start)):
                yield checker.Finding('two active', (
                    f'{record.text(run)} began during {record.text(one)}'))
        going.append(run)


def _is_unaware(record, run, at):
    """Return whether a handler that never checks its lease may go on with its
    run although another worker begins a run.
    """
    since = run.start - int(SESSION * SECOND)
    return run.job == 'alone' and jobs.is_stubborn(run.object) and any(
        begin <= at and end >= since for begin, end in record.away(
            [*SERVERS, record.host(run)]))


def _take_overs(record):
    """Yield each interval without an active worker."""
    for tenure, next_ in itertools.zip_longest(
            record.tenures, record.tenures[1:]):
        for why, begin, end in _absences(record, tenure):
            if begin < record.begin:
                continue
            seen = False
            if end == tenure.end and next_ is not None and next_.worker:
                end, seen = record.first_run(next_)
            yield _take_over(record, why, tenure.worker, begin, end, seen)


def _absences(record, tenure):
    """Yield the reason, the begin and the end of each interval in which the
    worker of a tenure was gone.
    """
    if not tenure.worker:
        yield 'released', tenure.begin, tenure.end
        return
    pid, host = record.process(tenure.worker)
    died = record.died.get(pid, tenure.end)
    spans = [('frozen', *stall) for stall in record.stalls[pid]]
    spans += [('cut off', one.begin, one.end) for one in record.windows
              if one.kind == CUT_OFF and host in one.befell]
    for why, begin, end in spans:
        begin = max(begin, tenure.begin)
        end = min(end, died, tenure.end)
        if begin < end:
            yield why, begin, end
    if died < tenure.end:
        yield 'killed', max(died, tenure.begin), tenure.end


def _take_over(record, why, worker, begin, end, seen):
    """Judge the interval from *begin* to *end*, in which *worker* was gone.

    :param seen: True if another worker began a run at *end*.
    """
    _, gone = record.process(worker)
    spans = [
        span for spare in SPARES if spare != gone
        for scheduler in SCHEDULERS
        for span in free(begin, end, [
            *record.away(SERVERS), *record.away([spare], START),
            *record.away([scheduler], START), *(
                (one.begin, one.end) for one in record.choices
                if one.member not in ('', spare))])]
    last = [(since, until) for since, until in spans
            if seen and until == end]
    return TakeOver(why, worker, begin, seen,
                    longest(last) if last else None, longest(spans))


def _early(record):
    """Find workers that took over from a worker that still gave a sign of
    life.
    """
    for tenure, next_ in itertools.pairwise(record.tenures):
        if not tenure.worker or not next_.worker:
            continue
        pid, host = record.process(tenure.worker)
        at = next_.begin
        chosen = any(
            one.begin < at <= one.end
            and one.member == record.process(next_.worker)[1]
            for one in record.choices)
        signs = [
            what for what, (server, but) in (
                ('membership', _MEMBERSHIP), ('heartbeats', _HEARTBEATS))
            if not (chosen and what == 'membership') and not any(
                begin <= at <= end for begin, end in record.away(
                    [server, host], START, but))]
        if signs and record.died.get(pid, at) >= at:
            yield checker.Finding('taken over early', (
                f'{next_.worker} took over from {tenure.worker} at '
                f'{record.at(at)}; nothing had interrupted its '
                f'{" and ".join(signs)}'))


def _late(record, take_overs):
    return [checker.Finding('not taken over', (
        f'nobody took over from {one.process or "nobody"} ({one.why} at '
        f'{record.at(one.begin)}) for {one.longest:.1f} s'))
        for one in take_overs if one.late]
