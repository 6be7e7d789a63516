# SPDX-License-Identifier: Apache-2.0
"""A model of one object: the decision on each of its ticks, as the
documentation describes it.

The model examines all ticks one by one. It follows the page ``tick.rst``: the
row determines the due ticks, ``misfire`` decides on ticks that are late, and
``overlap`` decides on a tick that comes due during an earlier run.
"""

import functools
from typing import NamedTuple

from distperiodic.core import ring
from distperiodic.core.claim import SkippedBy
from distperiodic.core.cron import Cron
from distperiodic.core.due import ALWAYS
from distperiodic.core.due import Plan
from distperiodic.core.due import Row
from distperiodic.core.schedule import SECOND
from distperiodic.core.schedule import Every
from distperiodic.core.schedule import Misfire
from distperiodic.core.schedule import Overlap
from tests.unit import test_cron
from tests.unit import test_due
from tests.unit import test_schedule
from tests.unit.deciding import End

DAY = 86400 * SECOND
LINES = ['*/20 * * * *', '0,30 1-3 * * *', '20 */2 * * *']
SPACINGS = [(1200, 0), (1800, 60), (7200, 1200)]
# On the first of these days the clock of the zone is set forward. On the
# second it is set back by half an hour.
DAYS = [('Europe/Berlin', '2026-03-29'), ('Australia/Lord_Howe', '2026-04-05')]


class Grid(NamedTuple):
    """A schedule, and all of its ticks on two days."""

    schedule: Every | Cron
    ticks: tuple[int, ...]

    def __repr__(self):
        return self.schedule.describe()


@functools.cache
def grids(special):
    """Return several grids of the same two days."""
    zone, day = special
    begin, end = test_schedule.at(day) - DAY, test_schedule.at(day) + DAY
    found = [Grid(Every(spacing, offset), tuple(range(
        begin + offset * SECOND, end, spacing * SECOND)))
        for spacing, offset in SPACINGS]
    return found + [Grid(Cron(line, zone), tuple(
        tick for tick in test_cron.expected_ticks(line, zone, day)
        if begin <= tick < end)) for line in LINES]


class Life:
    """The ticks of one object, and its run."""

    def __init__(self, job, key):
        self.job = job
        self.position = ring.position_of(key)
        #: All ticks of the schedule that the object follows now.
        self.model = None
        #: None means that the object is not listed.
        self.since = None
        self.settled = ALWAYS
        #: The claimed tick whose run has not ended.
        self.open = None
        #: True if the run of that tick has started.
        self.started = False
        #: Instants at which the last run began and ended.
        self.began = self.ended = ALWAYS
        #: True if a tick waits for the end of the run.
        self.waits = False
        #: The decisions since the last comparison with the product.
        self.ends = []

    @property
    def row(self):
        return Row('', self.position, self.settled, self.since)

    def follow(self, grid, spread=False, since=ALWAYS):
        job = self.job
        self.model = test_due.Model(Plan(
            grid.schedule, job.misfire, job.grace, spread,
            job.run_immediately, since), grid.ticks)

    # -- the listing

    def list(self, at):
        """List the object; with run_immediately *at* is a tick."""
        self.since = at
        plan = self.model.plan
        # Without a phase, all ticks before *at* are settled, even if a later
        # schedule has a phase with which one of them would come due after
        # *at*. With a phase, only ticks that came due before *at* are settled.
        self.settle(at - 1 if plan.immediate or not plan.spread else max([
            tick for tick in self.model.ticks[:-1]
            if self.model.due_at(tick, self.row) < at], default=ALWAYS))

    def change(self, at):
        """Change the schedule; the change itself is not a tick."""
        self.list(at)
        plan = self.model.plan
        if plan.immediate and (
                plan.spread or at not in self.model.ticks):
            self.settle(at)

    def delist(self, at):
        """Delist the object; its due ticks are passed over."""
        missed = self.missed(at)
        if missed:
            self.end([tick for tick, _ in missed], SkippedBy.MISFIRE)
        self.since = None

    # -- the ticks

    def missed(self, now):
        """Return the undecided ticks, each with its due time."""
        if self.since is None:
            return []
        return [(tick, at) for tick, at in self.model.occasions(self.row)
                if at <= now]

    def tick(self, tick, now):
        """Claim a tick when it comes, unless an earlier one is undecided."""
        before = max(old for old in self.model.ticks if old < tick)
        is_tick = self.model.plan.immediate
        if self.settled < before or (
                is_tick and self.settled < self.since < tick):
            self.look(now)
        elif self.settled < tick:
            self.claim(tick, late=False)

    def look(self, now):
        """Decide all undecided ticks, as a walk or a late scan does."""
        missed = dict(self.missed(now))
        if not missed:
            return
        run, given_up = self.model.verdict(self.row, now)
        if given_up:
            # A run is in progress from its start, and not from its claim. With
            # misfire=all and overlap=wait, only the limit of their number
            # gives up ticks.
            last = missed[given_up[-1]]
            each = (self.job.misfire is Misfire.ALL
                    and self.job.overlap is Overlap.WAIT)
            ran = (not each and self.began <= last and (
                self.started if self.open is not None else self.ended >= last))
            before = [tick for tick in given_up
                      if not ran or missed[tick] < self.began]
            for ticks, by in ((before, SkippedBy.MISFIRE), (
                    given_up[len(before):], SkippedBy.OVERLAP)):
                if ticks:
                    self.end(ticks, by)
        # Decide on one tick after the other, the oldest first.
        self.waits = self.waits or len(run) > 1
        if run:
            self.claim(run[0], late=True)

    def claim(self, tick, late):
        """Claim *tick*, skip it, or let it wait for the run."""
        catches_up = late and self.job.misfire is Misfire.ALL
        if self.open is None or (
                not self.started and self.job.misfire is not Misfire.ALL):
            self.open, self.started = tick, False
            self.end([tick], None)
        elif (self.started and self.job.overlap is Overlap.SKIP
                and not catches_up):
            self.end([tick], SkippedBy.OVERLAP)
        else:
            self.waits = True

    def start(self, began):
        self.started, self.began = True, began

    def finish(self, now):
        self.open, self.started, self.ended = None, False, now
        if self.waits:
            self.waits = False
            self.look(now)

    def settle(self, tick):
        self.settled = max(self.settled, tick)

    def end(self, ticks, by):
        self.ends.append(End(ticks[-1], by, len(ticks)))
        self.settle(ticks[-1])


class Piece:
    """An interval in which one schedule of a listed object holds."""

    def __init__(self, life):
        self.model, self.row = life.model, life.row
        #: The decisions in this interval, each with its instant.
        self.ends = []
        self.until = None
        #: True if a later schedule drops the undecided ticks.
        self.replaced = False

    def assert_accounted_for(self):
        """Check that each tick was decided exactly once, and that no tick was
        decided early.
        """
        came = [(tick, at) for tick, at in self.model.occasions(self.row)
                if at <= self.until]
        for now, end in self.ends:
            some = [one for one in came if one[0] <= end.tick]
            assert len(some) == end.number
            assert some[-1][0] == end.tick
            assert some[-1][1] <= now
            came = came[len(some):]
        assert self.replaced or not came
