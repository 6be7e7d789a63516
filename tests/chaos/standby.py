# SPDX-License-Identifier: Apache-2.0
"""Checks of the partition with one active worker.

The record combines four sources:

    ledger   runs, names of processes, deaths    actions of the handlers
    journal  active worker, chosen worker        transactions of the store
    driver   windows, stalls                     faults
    asked    commands and their answers          actions of an operator

Three claims are checked:

1. No two workers run handlers at the same time. While a process is stopped, it
   runs nothing. A stall includes 0.3 s after its end, in which the handlers
   detect that their runs were replaced.
2. If the active worker is gone, another worker begins a run in time. A worker
   is gone while it is dead, stopped, or cut off from ZooKeeper and the store.
   The time counts from the moment at which it is gone or, if that is later,
   from the moment at which all else is there: the three servers, a worker that
   may take over, and a scheduler that may send work. A host counts as there
   :data:`tests.chaos.promises.START` seconds after a fault of its own. A
   server counts as there as soon as its fault is over.
3. If an operator chooses a worker, this worker becomes active, or the command
   or the store reject the choice for a reason that is true.
"""

import collections
import dataclasses
import itertools
from typing import NamedTuple

from tests import checker
from tests.chaos import active
from tests.chaos import books
from tests.chaos import tasks
from tests.chaos.cluster import SCHEDULERS
from tests.chaos.cluster import SERVERS
from tests.chaos.cluster import SESSION
from tests.chaos.cluster import SPARES
from tests.chaos.promises import PROMISE
from tests.chaos.promises import SLACK
from tests.chaos.promises import START

SECOND = checker.SECOND

#: Kind of the fault that takes both signs of life from a process that
#: continues to run.
CUT_OFF = 'active cut off'
#: Microseconds within which another worker begins a run.
TAKES_OVER = int((PROMISE + SLACK) * SECOND)
#: Longest run of a handler of the partition, in seconds.
LONGEST = 1.0
#: Microseconds within which a chosen worker becomes active. The runs of the
#: active worker end first.
TAKES_TURN = TAKES_OVER + int(LONGEST * SECOND)
# Microseconds for which the effects of a fault of the chosen worker or of the
# store last: until then, the worker may not have sent a heartbeat lately.
_UNHEARD = int((SESSION + START) * SECOND)


class TakeOver(NamedTuple):
    """A time without an active worker, and its end."""

    #: killed, frozen, cut off or released
    why: str
    #: Process that was active. Empty means that none was.
    process: str
    begin: int
    #: True if a worker took over that had to. False means that somebody took
    #: over during another fault, or nobody did.
    required: bool
    #: Seconds until this worker began a run, from the moment at which the
    #: clock started.
    seconds: float
    #: Longest time in seconds in which a worker had to take over.
    longest: float


class Promotion(NamedTuple):
    """A choice of an operator that the command accepted, and its end."""

    member: str
    #: carried out, replaced, withdrawn, pending or unrecorded
    outcome: str
    #: When the choice ended.
    end: int
    #: Longest time in seconds in which the choice had to be carried out.
    longest: float


@dataclasses.dataclass
class Verdict:
    """The results of all checks of the partition."""

    findings: list[checker.Finding]
    take_overs: list[TakeOver]
    promotions: list[Promotion]
    #: Number of commands by their answer: accepted, needless or refused.
    answers: collections.Counter[str]
    #: Number of runs.
    runs: int

    @property
    def required(self):
        """Return the take-overs that were required and seen."""
        return [one for one in self.take_overs if one.required]

    @property
    def carried_out(self):
        """Return the promotions that were carried out."""
        return [one for one in self.promotions
                if one.outcome == 'carried out']

    def missing(self, happened):
        """Return what did not occur although a fault was meant to cause it.

        :param happened: kinds of the faults that happened.
        """
        return {what for what, found, kinds in (
            ('take-over', self.required,
             ('active killed', 'active frozen', CUT_OFF)),
            ('promotion', self.carried_out, ('active replaced',)))
            if not found and any(happened[kind] for kind in kinds)}

    def report(self):
        """Return the results as lines of text."""
        slowest = max(self.required, key=lambda one: one.seconds,
                      default=None)
        by = collections.Counter(one.why for one in self.required)
        late = sum(one.longest * SECOND > TAKES_OVER
                   for one in self.take_overs)
        outcomes = collections.Counter(one.outcome for one in self.promotions)
        return [
            f'partition with one active worker: {self.runs} runs, '
            f'{len(self.required) + late} take-overs were required and '
            f'{len(self.required)} of them seen ('
            + (', '.join(f'{why} {number}' for why, number
                         in sorted(by.items())) or 'none')
            + ')' + ('' if slowest is None else (
                f', the slowest after {slowest.seconds:.2f} s '
                f'({slowest.why}); {PROMISE:g} s are promised')),
            'commands that chose the active worker: '
            + (', '.join(f'{name} {number}' for name, number
                         in sorted(self.answers.items())) or 'none')
            + '; accepted choices: '
            + (', '.join(f'{name} {number}' for name, number
                         in sorted(outcomes.items())) or 'none')]


class Tenure(NamedTuple):
    """A time in which one worker was active, or none."""

    begin: int
    end: int
    #: Process of the worker. Empty means none.
    worker: str
    fence: int


class Choice(NamedTuple):
    """A time in which an operator had chosen a member, or none."""

    begin: int
    end: int
    #: Empty means none.
    member: str


def judge(told, rows, driver, begin, end):
    """Return the :class:`Verdict` on the partition.

    :param told: lines of the ledger.
    :param rows: see :func:`tests.chaos.journal.partition`.
    :param driver: the :class:`tests.chaos.faults.Driver` of the faults.
    """
    record = Record(told, rows, driver, begin, end)
    take_overs = list(record.take_overs())
    promotions = list(record.promotions())
    return Verdict(
        [*record.overlaps(), *_late(take_overs, begin),
         *record.refused(), *record.not_carried_out(promotions)],
        take_overs, promotions,
        collections.Counter(map(_answer, driver.asked)), len(record.runs))


def _answer(asked):
    """Return the kind of an answer to a command of an operator."""
    if asked.code != 0:
        return 'refused'
    return 'needless' if 'is already active' in asked.text else 'accepted'


class Record:
    """All facts about the partition from *begin* to *end*."""

    def __init__(self, told, rows, driver, begin, end):
        self._begin, self._end = begin, end
        self._windows = driver.windows
        self._asked = driver.asked
        self._hosts = {line['pid']: line['host'] for line in told}
        #: Pids of the processes that took part in the election.
        self._pids = {line['process']: line['pid'] for line in told
                      if line['what'] == 'candidate'}
        self._died = {line['pid']: line['at'] for line in told
                      if line['what'] == 'gone'}
        self._stalls = collections.defaultdict(list)
        for one in driver.stalls:
            self._stalls[int(one.process)].append((one.begin, one.end))
        self.runs = sorted(
            (run for run in (*books.runs(told), *tasks.runs(told))
             if self._hosts[int(run.process)] in SPARES),
            key=lambda run: run.start)
        self._tenures = _changes(Tenure, end, [
            (row.committed, row.worker or '', row.fence) for row in rows])
        self._choices = _changes(Choice, end, [
            (row.committed, row.promoted or '') for row in rows])

    def overlaps(self):
        """Find runs of two processes at the same time."""
        going = []
        for run in self.runs:
            going = [one for one in going if self._over(one) > run.start]
            for one in going:
                if one.process != run.process and free(
                        run.start, min(self._over(one), self._over(run)),
                        [*self._stalls[int(one.process)],
                         *self._stalls[int(run.process)]]):
                    yield checker.Finding('two active', (
                        f'{self._text(run)} began during {self._text(one)}'))
            going.append(run)

    def _over(self, run):
        return self._end if run.end is None else run.end

    def _text(self, run):
        pid = int(run.process)
        return (f'the run of {run.job} {run.object} by {self._hosts[pid]} '
                f'(process {pid}) from {self._at(run.start)} to '
                f'{self._at(self._over(run))}')

    def _at(self, instant):
        return f'{(instant - self._begin) / SECOND:.3f}'

    def take_overs(self):
        """Yield each time without an active worker."""
        for tenure, next_ in itertools.zip_longest(
                self._tenures, self._tenures[1:]):
            for why, begin, end in self._absences(tenure):
                if begin < self._begin:
                    continue
                seen = False
                if end == tenure.end and next_ is not None and next_.worker:
                    end, seen = self._first_run(next_)
                yield self._take_over(why, tenure.worker, begin, end, seen)

    def _absences(self, tenure):
        """Yield the reason, the begin and the end of each time in which the
        worker of a tenure was gone.
        """
        if not tenure.worker:
            yield 'released', tenure.begin, tenure.end
            return
        pid, host = self._process(tenure.worker)
        died = self._died.get(pid, tenure.end)
        spans = [('frozen', *stall) for stall in self._stalls[pid]]
        spans += [('cut off', one.begin, one.end) for one in self._windows
                  if one.kind == CUT_OFF and host in one.befell]
        for why, begin, end in spans:
            begin = max(begin, tenure.begin)
            end = min(end, died, tenure.end)
            if begin < end:
                yield why, begin, end
        if died < tenure.end:
            yield 'killed', max(died, tenure.begin), tenure.end

    def _first_run(self, tenure):
        """Return when the worker of a tenure began its first run, and True.

        If it began none, return when it was no longer able to, and False.
        """
        pid, host = self._process(tenure.worker)
        for run in self.runs:
            if int(run.process) == pid and (
                    tenure.begin <= run.start <= tenure.end):
                return run.start, True
        return min([tenure.end, self._died.get(pid, tenure.end), *(
            max(window.begin, tenure.begin) for window in self._windows
            if self._befell(window, host)
            and window.end >= tenure.begin)]), False

    def _take_over(self, why, worker, begin, end, seen):
        """Judge the time from *begin* to *end*, in which *worker* was gone.

        :param seen: True if another worker began a run at *end*.
        """
        _, gone = self._process(worker)
        spans = [
            span for spare in SPARES if spare != gone
            for scheduler in SCHEDULERS
            for span in free(begin, end, [
                *self._away(SERVERS), *self._away([spare], START),
                *self._away([scheduler], START), *(
                    (one.begin, one.end) for one in self._choices
                    if one.member not in ('', spare))])]
        last = max((until - since for since, until in spans
                    if seen and until == end), default=None)
        return TakeOver(
            why, worker, begin, last is not None, (last or 0) / SECOND,
            _longest(spans))

    def _process(self, name):
        """Return the pid and the host of a process that took part in the
        election.
        """
        pid = self._pids.get(name)
        return pid, self._hosts.get(pid)

    def _away(self, names, start=0.0):
        """Return the times in which any of *names* was not there.

        :param start: Seconds until it is there again after a fault.
        """
        return [(one.begin, one.end + int(start * SECOND))
                for one in self._windows
                if any(self._befell(one, name) for name in names)]

    def _befell(self, window, name):
        return name in window.befell or any(
            self._hosts.get(one) == name for one in window.befell)

    def promotions(self):
        """Yield each choice of an operator that the command accepted."""
        for asked in self._asked:
            if _answer(asked) == 'accepted' and (
                    asked.member != active.NOBODY):
                yield self._promotion(asked)

    def _promotion(self, asked):
        choice = next((
            one for one in self._choices if one.member == asked.member
            and one.begin <= asked.end and one.end >= asked.begin), None)
        if choice is None:
            return Promotion(asked.member, 'unrecorded', asked.end, 0.0)
        at = {one.begin: one.worker for one in self._tenures}
        before = next(
            (one.worker for one in self._tenures
             if one.begin <= choice.begin < one.end), '')
        _, host = self._process(at.get(choice.end))
        busy = [*self._away(SERVERS), *self._away([asked.member], START),
                *self._away([self._process(before)[1]])]
        if choice is self._choices[-1]:
            outcome = 'pending'
        elif host == asked.member:
            outcome = 'carried out'
        elif any(one.begin == choice.end and one.member
                 for one in self._choices) or any(
                     one.begin <= choice.end <= one.end and one.code == 0
                     for one in self._asked if one is not asked):
            outcome = 'replaced'
        else:
            outcome = 'withdrawn'
        return Promotion(asked.member, outcome, choice.end, _longest(
            free(asked.end, choice.end, busy)))

    def _was_able(self, member, at):
        """Return whether nothing prevented that the store had recent
        heartbeats of a member.
        """
        return not any(begin <= at <= end + _UNHEARD for begin, end
                       in self._away([*SERVERS, member]))

    def refused(self):
        """Find commands that were refused without a reason, and a command that
        should have been refused.
        """
        for asked in self._asked:
            text = f'{asked.member} at {self._at(asked.begin)}: {asked.text!r}'
            if asked.code is None:
                yield checker.Finding('promotion', f'no answer: {text}')
            elif asked.member == active.NOBODY:
                if asked.code == 0:
                    yield checker.Finding('promotion', f'accepted: {text}')
            elif asked.code != 0 and (not asked.text or self._was_able(
                    asked.member, asked.end)):
                yield checker.Finding('promotion', (
                    f'refused without a reason: {text}'))

    def not_carried_out(self, promotions):
        """Find choices that did not come into effect."""
        for one in promotions:
            text = (f'{one.member}: {one.outcome} at {self._at(one.end)} '
                    f'after {one.longest:.1f} s')
            if one.outcome == 'unrecorded' or (
                    one.longest * SECOND > TAKES_TURN):
                yield checker.Finding('promotion', text)
            elif one.outcome == 'withdrawn' and self._was_able(
                    one.member, one.end):
                yield checker.Finding('promotion', f'{text} without a reason')


def _changes(kind, end, states):
    """Return the times in which a value did not change.

    :param states: (instant, values) pairs; the values are those of *kind*
        after its begin and end.
    """
    groups = [next(group) for _, group in itertools.groupby(
        states, key=lambda state: state[1:])]
    ends = [one[0] for one in groups[1:]] + [end]
    return [kind(one[0], until, *one[1:])
            for one, until in zip(groups, ends, strict=True)]


def free(begin, end, busy):
    """Return the parts of the time from *begin* to *end* that are not in
    *busy*, as pairs.
    """
    found = []
    for since, until in sorted(busy):
        if since >= end:
            break
        if since > begin:
            found.append((begin, since))
        begin = max(begin, until)
    if begin < end:
        found.append((begin, end))
    return found


def _longest(spans):
    return max((end - begin for begin, end in spans), default=0) / SECOND


def _late(take_overs, begin):
    return [checker.Finding('late', (
        f'nobody took over from {one.process or "nobody"} ({one.why} at '
        f'{(one.begin - begin) / SECOND:.3f}) for {one.longest:.1f} s'))
        for one in take_overs if one.longest * SECOND > TAKES_OVER]
