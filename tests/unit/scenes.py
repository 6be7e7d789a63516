# SPDX-License-Identifier: Apache-2.0
"""One object in the product and in a model; both take the same steps."""

import bisect
import dataclasses

from hypothesis import strategies as st

from distperiodic.core.due import ALWAYS
from distperiodic.core.job import Job
from distperiodic.core.job import Scope
from distperiodic.core.schedule import SECOND
from distperiodic.core.schedule import Misfire
from distperiodic.core.schedule import Overlap
from tests.unit.deciding import Bench
from tests.unit.lives import DAYS
from tests.unit.lives import Life
from tests.unit.lives import Piece
from tests.unit.lives import grids

MINUTE = 60 * SECOND


class Scene:
    """One object in the product (the bench), and its model (the life).

    :param some: Grids to choose from. The first one is that of the job.
    :param edges: Instants at which the object may be due, in order.
    """

    def __init__(self, job, some, edges):
        self.job, self.grid, self.edges = job, some[0], edges
        self.grids = some
        self.group = job.scope is Scope.GROUP
        self.key = job.name if self.group else 'a'
        #: Grid of the object's own schedule, or None.
        self.own = None
        self.bench = Bench(edges[5])
        self.life = Life(job, self.key)
        #: Latest instant of the clock so far.
        self.latest = self.now
        #: Instant from which the schedule of the job applies.
        self.in_force = ALWAYS
        #: True if that schedule has changed since the last listing.
        self.replaced = False
        #: Instant from which a job of the group can be due.
        self.known = None
        self.pieces = []

    def __repr__(self):
        return repr(self.job)

    @property
    def now(self):
        return self.bench.clock.now()

    def play(self, steps):
        """Take *steps*. Each step is a tuple: the number of edges to move, the
        microseconds after the new edge, and the action to take then.
        """
        for move, after, action in steps:
            index = bisect.bisect_right(self.edges, self.now) - 1 + move
            at = self.edges[min(max(index, 0), len(self.edges) - 2)]
            if action != 'tick':
                at += after
            self.go_to(at if move < 0 else max(at, self.now))
            getattr(self, action)()
            self.agree()

    def go_to(self, at):
        self.bench.go_to(at)
        self.latest = max(self.latest, at)

    def agree(self):
        """Check that the product has made the same decisions as the model."""
        ends = self.bench.taken()
        assert ends == self.life.ends
        self.life.ends = []
        if ends:
            self.pieces[-1].ends.extend((self.now, end) for end in ends)

    def close(self):
        """End all runs, and decide what is due."""
        self.go_to(self.latest)
        self.look()
        self.agree()
        while self.life.open is not None:
            self.start()
            self.end()
            self.agree()
        self.look()
        self.agree()
        if self.life.since is not None:
            self.pieces[-1].until = self.now

    def assert_accounted_for(self):
        for piece in self.pieces:
            piece.assert_accounted_for()

    # -- what happens

    def wait(self):
        """Do nothing at this instant."""

    def tick(self):
        """Let the timers of a tick fire, if the object is due now."""
        life = self.life
        if life.since is None or not self.bench.processes:
            return
        for tick in life.model.ticks[1:-1]:
            if life.model.due_at(tick, life.row) == self.now:
                for process in self.bench.processes:
                    process.tick(tick, self.key,
                                 self.own and self.own.schedule)
                life.tick(tick, self.now)

    def look(self):
        """Let all processes judge the row."""
        for process in self.bench.processes:
            process.look(self.key)
        if self.bench.processes:
            self.life.look(self.now)

    def start(self):
        """Start the waiting run, if there is one."""
        if self.life.open is not None and not self.life.started:
            self.life.start(self.bench.start())

    def end(self):
        """End the run, if there is one."""
        if self.life.started:
            self.bench.end()
            self.life.finish(self.now)

    def begin(self, grid=None):
        """Replace all processes with a new one, in which the job may have
        another schedule.
        """
        self.stop()
        if grid is not None and grid != self.grid:
            self.grid, self.in_force = grid, self.now
            self.replaced = True
            self.job = dataclasses.replace(self.job, schedule=grid.schedule)
        self.bench.begin(self.job)
        if self.known is None:
            self.known = self.now + (not self.job.run_immediately)

    def stop(self):
        """End all processes; runs continue."""
        self.bench.processes.clear()
        self.life.waits = False

    def join(self):
        """Start one more process."""
        if self.bench.processes:
            self.bench.begin(self.job)
            self.list(self.own)

    def instant(self):
        """Return the instant for which a catalogue is read.

        The instant is a tick of the job, or the first instant from now on that
        can be due.
        """
        if not self.job.run_immediately and (
                self.group or self.now not in self.grid.ticks):
            self.go_to(self.now + 1)
        return self.now

    def list(self, own=None):
        """Read a catalogue that has the object, with its own schedule."""
        at, life, process = self.instant(), self.life, self.bench.processes[-1]
        there, changed = life.since is not None, own != self.own
        walks = process.part.reading is None or self.group
        self.own = own
        if self.group:
            process.join(at)
        else:
            process.read({self.key: own and own.schedule}, at)
        if not there or changed or self.replaced:
            self.cut(replaced=True)
            life.follow(own or self.grid, self.job.spread and own is None,
                        ALWAYS if own else self.in_force)
            if not there:
                life.list(self.known if self.group else at)
            elif changed:
                life.change(at)
            self.pieces.append(Piece(life))
            self.replaced = False
        # A walk judges objects that are new or unchanged.
        if walks and (not changed or not there) or (
                not there and self.job.run_immediately):
            life.look(self.now)
        self.agree()

    def delist(self):
        """Read a catalogue without the object."""
        at = self.instant()
        self.bench.processes[-1].read({}, at)
        self.life.delist(at)
        self.agree()
        self.cut()

    def cut(self, replaced=False):
        """End the present piece."""
        if self.pieces and self.pieces[-1].until is None:
            self.pieces[-1].until = self.now
            self.pieces[-1].replaced = replaced


@st.composite
def scenes(draw, *kinds, number=1):
    """Return a scene without a process.

    :param number: Number of grids to choose from.
    """
    kind = draw(st.sampled_from(kinds))
    some = draw(st.lists(
        st.sampled_from(grids(draw(st.sampled_from(DAYS)))), unique=True,
        min_size=number, max_size=number))
    scope = {'scope': Scope.GROUP} if kind == 'group' else {
        'scope': Scope.OBJECTS, 'objects': 'list_them'}
    job = Job('poll', some[0].schedule, spread=kind == 'spread', **scope, **{
        'misfire': draw(st.sampled_from(Misfire)),
        'overlap': draw(st.sampled_from(Overlap)),
        'grace': draw(st.sampled_from([None, 0, 1800, 10 ** 6])),
        'run_immediately': draw(st.booleans())})
    begin = max(grid.ticks[1] for grid in some)
    end = min(grid.ticks[-1] for grid in some)
    life = Life(job, job.name if kind == 'group' else 'a')
    edges = set()
    for grid in some:
        life.follow(grid, job.spread)
        edges.update(grid.ticks)
        edges.update(life.model.due_at(tick, life.row)
                     for tick in grid.ticks[:-1])
    return Scene(job, some, sorted(
        at for at in edges if begin < at < end))


def steps(*actions, least=0, back=()):
    """Return steps. Most of them lead to the next tick.

    :param least: Minimum number of steps.
    :param back: Negative moves, by which the clock is set back.
    """
    return st.lists(st.tuples(
        st.sampled_from([0, 1, 1, 1, 1, 1, 2, 3, 9, 110, *back]),
        st.sampled_from([0, 0, -1, 1, MINUTE]),
        st.sampled_from([*'tick tick tick look start start end end'.split(),
                         *actions])), min_size=least, max_size=least + 6)
