# SPDX-License-Identifier: Apache-2.0
"""The record of a cluster, as input of the checker, and further checks.

The record combines three sources:

    ledger   runs, effects, deaths        actions of the handlers
    journal  claims, grants, endings      transactions of the store
    driver   windows, stalls              faults
"""

import collections
import dataclasses
from typing import NamedTuple

from distperiodic.core.claim import EARLIEST
from distperiodic.core.claim import ENDINGS
from tests import checker
from tests.chaos import jobs
from tests.chaos import journal
from tests.chaos import pace
from tests.chaos.cluster import LEASE
from tests.chaos.cluster import SESSION
from tests.oracle.facts import Skip

SECOND = checker.SECOND

#: Microseconds for which a fault may have effects after its end. In this time
#: a session and a lease expire, and a process starts.
AFTER = int((SESSION + LEASE) * SECOND) + 5 * pace.SECOND
#: Microseconds within which a claim must end.
PATIENCE = 20 * pace.SECOND
# Microseconds from the timestamp of a commit until other transactions can see
# the commit. PostgreSQL takes the timestamp first. On a busy machine it may
# pause before it makes the commit visible.
_SEEN = pace.SECOND // 10

_ENDINGS = {state.value for state in ENDINGS}


class Window(NamedTuple):
    """The time from the start of a fault to its end."""

    begin: int
    end: int
    kind: str
    #: Names of the affected hosts and servers, and pids of the affected
    #: processes.
    befell: frozenset[str | int] = frozenset()

    @property
    def over(self) -> int:
        """Return the time after which the fault has no more effects."""
        return self.end + AFTER


@dataclasses.dataclass
class Record(checker.Record):
    """The record of the checker, with faults and skips."""

    windows: list[Window] = dataclasses.field(default_factory=list)
    skips: list[Skip] = dataclasses.field(default_factory=list)


def record(told, moves, driver, begin, end):
    """Return the record of the time from *begin* to *end*.

    :param told: lines of the ledger.
    :param moves: rows of the journal; see :func:`tests.chaos.journal.read`.
    :param driver: the :class:`tests.chaos.faults.Driver` of the faults.
    """
    found = claims(moves)
    all_runs = runs(told)
    _excuse(all_runs, driver.stalls)
    _count_beside(all_runs, driver.stalls)
    return Record(
        begin, end, jobs.POLICIES, all_runs, found,
        [checker.Effect(line['at'], line['job'], line['object'],
                        line['tick'], line['fence'], line['accepted'])
         for line in told if line['what'] == 'effect'],
        driver.stalls, PATIENCE,
        driver.windows, skips(moves))


def runs(told):
    """Return the runs that handlers recorded in the ledger.

    If a process died during a run, the run ended at the time of the death,
    with the outcome 'killed'.
    """
    made = []
    going = collections.defaultdict(dict)
    for line in told:
        pid = line['pid']
        if line['what'] == 'start':
            run = checker.Run(
                line['job'], line['object'], line['tick'], line['fence'],
                line['attempt'], str(pid), line['at'])
            going[pid][run.key, run.fence] = run
            made.append(run)
        elif line['what'] == 'end':
            key = line['job'], line['object'], line['tick']
            run = going[pid].pop((key, line['fence']))
            run.end, run.outcome = line['at'], line['outcome']
        elif line['what'] == 'gone':
            for run in going.pop(pid, {}).values():
                run.end, run.outcome = line['at'], 'killed'
    return made


def _excuse(all_runs, stalls):
    """Mark the stale runs, and remove those that a stall excuses.

    A run is stale if an earlier run of its object had a greater fence. A
    process may start a stale run if it was stopped between its last check of
    the lease and the call of the handler. So a stall of a process excuses the
    stale runs of this process that begin during the stall or less than 1 s
    after it.
    """
    newest = {}
    for run in list(all_runs):
        pair = run.job, run.object
        before = newest.get(pair)
        if before is None or run.fence > before.fence:
            newest[pair] = run
        elif run.fence < before.fence:
            if any(stall.process == run.process
                   and stall.begin < run.start < stall.end + pace.SECOND
                   for stall in stalls):
                all_runs.remove(run)
            else:
                run.stale = True


def _count_beside(all_runs, stalls):
    """For each run, count the other runs of the job that are in progress when
    it starts.

    Runs of processes that are stopped at this moment do not count.
    """
    going = collections.defaultdict(list)
    for run in all_runs:
        others = going[run.job]
        others[:] = [one for one in others
                     if one.end is None or one.end > run.start]
        run.beside = sum(not any(
            stall.process == one.process
            and stall.begin <= run.start <= stall.end for stall in stalls)
            for one in others)
        others.append(run)


def claims(moves):
    """Return all claims in the journal, each with its grants and endings.

    A row in the state 'listed' does not represent a claim.
    """
    found = {}
    last = {}
    for row in moves:
        pair, key = (row.job, row.object), (row.job, row.object, row.tick)
        state = journal.STATES[row.state]
        if state == 'listed':
            continue
        before = last.get(pair)
        last[pair] = row
        was = None if before is None else journal.STATES[before.state]
        if before is None or before.tick != row.tick:
            if was not in _ENDINGS and was is not None:
                old = found[row.job, row.object, before.tick]
                old.endings.append((row.committed + _SEEN, 'superseded'))
            if key in found:
                found[key].claimed += 1
            else:
                found[key] = checker.Claim(*key, row.at)
            continue
        claim = found[key]
        if state == 'running' and (was, before.fence) != (state, row.fence):
            claim.grants.append(row.fence)
            claim.granted = claim.granted or row.at
        if state in _ENDINGS and was not in _ENDINGS:
            claim.endings.append((row.committed + _SEEN, state))
            if state == 'done':
                claim.counted.append(row.fence)
    return found


def skips(moves):
    """Return the skips in the journal, oldest first."""
    found = []
    last = {}
    for row in moves:
        pair = row.job, row.object
        before = last.get(pair)
        last[pair] = row
        if before is None or row.settled <= before.settled or (
                row.tick != before.tick):
            continue
        found.append(Skip(
            row.committed, *pair, before.settled, row.settled,
            journal.SKIPPED_BY[row.skipped_by]))
    return found


def due(record_, moves, history):
    """Return two numbers of due ticks for each job.

    The first number is computed from the schedule. It counts the ticks of each
    object from the object's first row in the journal to its last watermark.
    The second number is the sum of ``due`` in the store's history.
    """
    first, last = {}, {}
    for row in moves:
        pair = row.job, row.object
        first.setdefault(pair, row.tick)
        last[pair] = row.settled
    grid, told = collections.Counter(), collections.Counter()
    for (job, name), tick in first.items():
        period = (jobs.spacing_of(job, name) * SECOND
                  or record_.policies[job].period)
        grid[job] += (last[job, name] - tick) // period + 1
    for (job, _), counts in history.items():
        told[job] += counts['due']
    return {job: (grid[job], told[job]) for job in grid}


def beyond(due_):
    """Find jobs whose history counts more ticks than are due by the schedule.

    :param due_: result of :func:`due`.
    """
    return [checker.Finding('account', f'{job}: {grid} ticks by the grid, and '
                            f'{told} due by the history')
            for job, (grid, told) in sorted(due_.items()) if told > grid]


def check(record_, booked, history, strangers):
    """Return the findings of the checker and of the checks in this module.

    :param booked: (object, tick, fence) of each effect that was committed in
        the transaction that ended its run.
    :param history: the store's history: counts by (job, tick).
    :param strangers: pids of processes that must not run anything, because
        another process held their name.
    """
    return [*checker.check(record_), *_unfounded(record_),
            *_booked(record_, booked), *_account(record_, history),
            *_repeats(record_), *_early(record_), *(
                checker.Finding('stranger', f'{run} ran in a process whose '
                                'name was taken') for run in record_.runs
                if int(run.process) in strangers)]


def _unfounded(record_):
    """Find claims with the state done although no run with their fence ended
    as done.
    """
    done = {(run.key, run.fence) for run in record_.runs
            if run.outcome == 'done'}
    return [checker.Finding('unfounded', f'{key} is done by {fence}, but no '
                            'run with this fence ended as done')
            for key, claim in record_.claims.items()
            for fence in claim.counted if (key, fence) not in done
            # A handler of this job commits the end of its run before it
            # records the end in the ledger. Its process may be killed between
            # these two actions.
            and key[0] != 'booked']


def _booked(record_, booked):
    """Compare the effects of the job 'booked' with its claims.

    Each claim that is done must have exactly one effect. Each effect must
    belong to a claim that is done.
    """
    found = []
    counted = {(key[1], key[2], fence)
               for key, claim in record_.claims.items()
               if key[0] == 'booked' for fence in claim.counted}
    for effect, number in collections.Counter(
            tuple(one) for one in booked).items():
        if number > 1:
            found.append(checker.Finding(
                'doubled', f'effect {effect} exists {number} times'))
        if effect not in counted:
            found.append(checker.Finding(
                'doubled', f'effect {effect} exists, but its run is not '
                'done'))
    found += [checker.Finding('lost', f'{one} is done, but its effect does '
                              'not exist')
              for one in counted - {tuple(one) for one in booked}]
    return found


def _account(record_, history):
    """Find differences between the store's history and the journal."""
    counts = collections.defaultdict(collections.Counter)
    for (job, _, tick), claim in record_.claims.items():
        counts[job, tick]['claimed'] += 1
        for _, ending in claim.endings:
            counts[job, tick][ending] += 1
    found = []
    for tick, count in counts.items():
        if tick[1] > record_.end - PATIENCE:
            # If a handler ends its run in its own transaction, the store
            # updates the history later.
            continue
        told = history.get(tick, collections.Counter())
        for what in 'done', 'dead', 'superseded', 'cancelled':
            if told[what] != count[what]:
                found.append(checker.Finding('account', (
                    f'{tick}: {what} {told[what]} in the history, and '
                    f'{count[what]} in the journal')))
        if told['due'] - told['skipped'] != count['claimed']:
            found.append(checker.Finding('account', (
                f'{tick}: due {told["due"]}, skipped {told["skipped"]} in '
                f'the history, and {count["claimed"]} claims in the '
                'journal')))
    return found


def _early(record_):
    """Find claims that were acquired before their tick came, by the store's
    clock.

    A claim may precede its tick by up to :data:`EARLIEST`.
    """
    return [checker.Finding('early', f'{key} was claimed '
                            f'{(claim.tick - claim.at) / SECOND:.3f} s before')
            for key, claim in record_.claims.items()
            if claim.at < claim.tick - EARLIEST]


def _repeats(record_):
    """Find ticks that ran again, after a run was done and without a fault at
    that time.
    """
    found = []
    by_key = collections.defaultdict(list)
    for run in record_.runs:
        by_key[run.key].append(run)
    for key, of_one in by_key.items():
        for one, other in zip(of_one, of_one[1:], strict=False):
            if one.outcome == 'done' and one.fence < other.fence and not any(
                    window.begin <= other.start and one.start <= window.over
                    for window in record_.windows):
                found.append(checker.Finding(
                    'doubled', f'{key} ran by {one.fence} to its end, and '
                    f'again by {other.fence}'))
    return found
