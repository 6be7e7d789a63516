# SPDX-License-Identifier: Apache-2.0
"""From what was written down to the record that the checker judges.

    ledger   runs, effects, deaths        what the handlers did
    journal  claims, grants, endings      what the store committed
    driver   windows, stalls              what befell them
"""

import collections
import dataclasses
from typing import NamedTuple

from distperiodic.core.claim import EARLIEST
from distperiodic.core.claim import ENDINGS
from tests import checker
from tests.chaos import jobs
from tests.chaos import journal
from tests.chaos.cluster import LEASE
from tests.chaos.cluster import SESSION
from tests.oracle.facts import Skip

SECOND = checker.SECOND

#: What a fault leaves behind is about for as long as sessions, leases and a
#: start take.
AFTER = int((SESSION + LEASE + 5.0) * SECOND)
#: By when what was claimed must have ended.
PATIENCE = 20 * SECOND
# The time of a commit is taken before others can see what was committed; on a
# busy machine a server may stand still between the two.
_SEEN = SECOND // 10

_ENDINGS = {state.value for state in ENDINGS}


class Window(NamedTuple):
    """A time in which a fault, or what it left behind, was about."""

    begin: int
    end: int
    kind: str
    #: Whom it befell: names of hosts and servers, and pids.
    befell: frozenset[str | int] = frozenset()

    @property
    def over(self) -> int:
        """Return when the fault has no effect any more."""
        return self.end + AFTER


@dataclasses.dataclass
class Record(checker.Record):
    """The same with when faults were about, and what was skipped."""

    windows: list[Window] = dataclasses.field(default_factory=list)
    skips: list[Skip] = dataclasses.field(default_factory=list)


def record(told, moves, driver, begin, end):
    """The record of the time from *begin* to *end*."""
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
    """What the handlers said of themselves; the dead have ended, too."""
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
    """Take out the runs that a process began when it went on after it had
    been stopped, a step before its handler: it could not know that they were
    somebody else's by then, and has to find out at its next look.
    """
    newest = {}
    for run in list(all_runs):
        pair = run.job, run.object
        before = newest.get(pair)
        if before is None or run.fence > before.fence:
            newest[pair] = run
        elif run.fence < before.fence:
            if any(stall.process == run.process and stall.begin < run.start
                   and run.start < stall.end + SECOND for stall in stalls):
                all_runs.remove(run)
            else:
                run.stale = True


def _count_beside(all_runs, stalls):
    """Tell each run how many others of its job went on when it began."""
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
    """Every claim with its grants and endings, from the journal. A row that
    was listed has no claim yet.
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
    """What was given up, in the order of time."""
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
    """Job to how many ticks its objects had, by the grid from the first that
    each was claimed for to the last that was settled, and by the store's own
    account.
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
    """Jobs of which the store has counted more ticks than there were.

    :param due_: what :func:`due` tells.
    """
    return [checker.Finding('account', f'{job}: {grid} ticks by the grid, and '
                            f'{told} due by the history')
            for job, (grid, told) in sorted(due_.items()) if told > grid]


def check(record_, booked, history, strangers):
    """What the checker finds, and what only this record can show.

    :param booked: effects that were committed with the end of their run:
        (object, tick, fence).
    :param history: the account of the store: (job, tick) to its counts.
    :param strangers: processes that were never let in.
    """
    return [*checker.check(record_), *_unfounded(record_),
            *_booked(record_, booked), *_account(record_, history),
            *_repeats(record_), *_early(record_), *(
                checker.Finding('stranger', f'{run} ran in a process whose '
                                'name was taken') for run in record_.runs
                if int(run.process) in strangers)]


def _unfounded(record_):
    """Claims that are done though no run under that fence was."""
    done = {(run.key, run.fence) for run in record_.runs
            if run.outcome == 'done'}
    return [checker.Finding('unfounded', f'{key} is done by {fence}, and no '
                            'run under it has come to its end')
            for key, claim in record_.claims.items()
            for fence in claim.counted if (key, fence) not in done
            # Its last line may be under way when it is killed.
            and key[0] != 'booked']


def _booked(record_, booked):
    """Effects that were committed with the end of their run, or not."""
    found = []
    counted = {(key[1], key[2], fence)
               for key, claim in record_.claims.items()
               if key[0] == 'booked' for fence in claim.counted}
    for effect, number in collections.Counter(
            tuple(one) for one in booked).items():
        if number > 1:
            found.append(checker.Finding(
                'doubled', f'effect {effect} stands {number} times'))
        if effect not in counted:
            found.append(checker.Finding(
                'doubled', f'effect {effect} stands, and its run is not '
                'done'))
    found += [checker.Finding('lost', f'{one} is done, and its effect does '
                              'not stand')
              for one in counted - {tuple(one) for one in booked}]
    return found


def _account(record_, history):
    """Whether the store's own account is that of the journal."""
    counts = collections.defaultdict(collections.Counter)
    for (job, _, tick), claim in record_.claims.items():
        counts[job, tick]['claimed'] += 1
        for _, ending in claim.endings:
            counts[job, tick][ending] += 1
    found = []
    for tick, count in counts.items():
        if tick[1] > record_.end - PATIENCE:
            # What was ended in a session of its handler's is counted later.
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
    """Claims of ticks that lay ahead, by the clock of the store."""
    return [checker.Finding('early', f'{key} was claimed '
                            f'{(claim.tick - claim.at) / SECOND:.3f} s before')
            for key, claim in record_.claims.items()
            if claim.at < claim.tick - EARLIEST]


def _repeats(record_):
    """Ticks that ran once more after they were done, far from any fault."""
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
