# SPDX-License-Identifier: Apache-2.0
"""The facts about the partition with one active worker.

The record combines four sources:

    ledger   runs, names of processes, deaths    actions of the handlers
    journal  active worker, chosen worker        transactions of the store
    driver   windows, stalls                     faults
    asked    commands and their answers          actions of an operator
"""

import collections
import itertools
from typing import NamedTuple

from tests import checker
from tests.chaos import books
from tests.chaos import tasks
from tests.chaos.cluster import SPARES

SECOND = checker.SECOND


class Tenure(NamedTuple):
    """An interval in which one worker, or no worker, was active."""

    begin: int
    end: int
    #: Process of the worker. Empty means that no worker was active.
    worker: str
    fence: int


class Choice(NamedTuple):
    """An interval in which one member, or no member, was chosen by an
    operator.
    """

    begin: int
    end: int
    #: Empty means that no member was chosen.
    member: str


class Record:
    """All facts from *begin* to *end*.

    :param told: lines of the ledger.
    :param rows: see :func:`tests.chaos.journal.partition`.
    :param driver: the :class:`tests.chaos.faults.Driver` of the faults.
    """

    def __init__(self, told, rows, driver, begin, end):
        self.begin, self.end = begin, end
        #: Faults. A rolling restart is a fault of one host after another, and
        #: each of these faults has a window of its own.
        self.windows = [one for one in driver.windows
                        if one.kind != 'rolling restart']
        self.asked = driver.asked
        self._hosts = {line['pid']: line['host'] for line in told}
        #: Pids of the processes that took part in the election.
        self._pids = {line['process']: line['pid'] for line in told
                      if line['what'] == 'candidate'}
        #: Time of the death of each process, by pid.
        self.died = {line['pid']: line['at'] for line in told
                     if line['what'] == 'gone'}
        #: Intervals in which each process was stopped, by pid.
        self.stalls = collections.defaultdict(list)
        for one in driver.stalls:
            self.stalls[int(one.process)].append((one.begin, one.end))
        #: All runs of the partition.
        self.runs = sorted(
            (run for run in (*books.runs(told), *tasks.runs(told))
             if self.host(run) in SPARES),
            key=lambda run: run.start)
        self.tenures = _changes(Tenure, end, [
            (row.committed, row.worker or '', row.fence) for row in rows])
        self.choices = _changes(Choice, end, [
            (row.committed, row.promoted or '') for row in rows])

    def over(self, run):
        """Return the end of a run. If the run has no end, return the end of
        the record.
        """
        return self.end if run.end is None else run.end

    def text(self, run):
        """Return a description of a run."""
        pid = int(run.process)
        return (f'the run of {run.job} {run.object} by {self.host(run)} '
                f'(process {pid}) from {self.at(run.start)} to '
                f'{self.at(self.over(run))}')

    def host(self, run):
        """Return the host of the worker of a run."""
        return self._hosts[int(run.process)]

    def at(self, instant):
        """Return the seconds from the beginning of the record to an instant,
        as text.
        """
        return f'{(instant - self.begin) / SECOND:.3f}'

    def process(self, name):
        """Return the pid and the host of a process that took part in the
        election.

        :param name: name of the process. If it is empty, both are None.
        """
        pid = self._pids[name] if name else None
        return pid, self._hosts.get(pid)

    def first_run(self, tenure):
        """Return when the worker of a tenure began its first run, and True.

        If it began none, return when it was no longer able to, and False.
        """
        pid, host = self.process(tenure.worker)
        for run in self.runs:
            if int(run.process) == pid and (
                    tenure.begin <= run.start <= tenure.end):
                return run.start, True
        return min([tenure.end, self.died.get(pid, tenure.end), *(
            max(begin, tenure.begin) for begin, end in self.away([host])
            if end >= tenure.begin)]), False

    def away(self, names, start=0.0, but=()):
        """Return the intervals in which any of *names* was unavailable.

        :param names: names of hosts and servers; None is ignored.
        :param start: seconds from the end of a fault until its host or server
            is available again.
        :param but: kinds of faults that do not count.
        """
        names = frozenset(names) - {None}
        return [(one.begin, one.end + int(start * SECOND))
                for one in self.windows
                if one.kind not in but and (names & one.befell or any(
                    self._hosts.get(pid) in names for pid in one.befell))]


def _changes(kind, end, states):
    """Return the intervals in which a value did not change.

    :param states: the instant of each row, and the other values of *kind*.
    """
    groups = [next(group) for _, group in itertools.groupby(
        states, key=lambda state: state[1:])]
    ends = [one[0] for one in groups[1:]] + [end]
    return [kind(one[0], until, *one[1:])
            for one, until in zip(groups, ends, strict=True)]


def free(begin, end, busy):
    """Return the parts of the interval from *begin* to *end* that are not in
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


def longest(spans):
    """Return the length of the longest of some intervals, in seconds."""
    return max((end - begin for begin, end in spans), default=0) / SECOND
