# SPDX-License-Identifier: Apache-2.0
"""The statements of the store, each written once for all databases.

They are made once and their values bound at each call: ``of_job`` and
``keys`` say which rows, ``stands_in`` the lease they must stand in, ``into``
the lease they go to.
"""

from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import sqlalchemy as sa

from distperiodic.adapters import database
from distperiodic.adapters import tables
from distperiodic.core.claim import ENDING_MOVES
from distperiodic.core.claim import ENDINGS
from distperiodic.core.claim import FINISHED
from distperiodic.core.claim import MOVES
from distperiodic.core.claim import Move
from distperiodic.core.claim import State

_claim = tables.claim
_lease = tables.lease
_history = tables.history
_GRANTED = (_claim.c.object, _claim.c.fence, _claim.c.attempt, _claim.c.tick)

_WAITS_FROM, _RUNS = MOVES[Move.START]
#: What is taken over was run, or failed: it has its next attempt.
_TRIED = (MOVES[Move.TAKE_BACK][0] | MOVES[Move.AGAIN][0]) - _WAITS_FROM
_OPEN = set(State) - ENDINGS


#: What is counted in the history, in objects.
COUNTED = ('due', 'done', 'dead', 'skipped', 'superseded', 'cancelled',
           'retried', 'taken_over')


class Step(NamedTuple):
    """A move of claims into a lease."""

    move: Any
    #: The same, where it can tell at once what was moved.
    move_returning: Any
    #: Whether what a call before moved is looked for as well.
    reads_back: bool


class Change(NamedTuple):
    """A change of claims that tells which of them it has changed."""

    move: Any
    #: The same, where it can tell at once what was moved.
    move_returning: Any
    #: What the move will find, kept so until it comes.
    before: Any


class Ending(NamedTuple):
    """A move of claims to an end; they stay in the lease they stood in."""

    change: Change
    #: How many have that end and stand in that lease.
    after: Any


class Statements:
    """All of them, for one dialect."""

    def __init__(self, dialect: database.Dialect):
        self._among = dialect.among(_claim.c.object)
        self._of = _claim.c.job == sa.bindparam('of_job')
        self._stands = _claim.c.lease == sa.bindparam('stands_in')
        self._reads_back = not dialect.returning

        anew: list[tuple[Any, Any]] = [
            # MySQL sets from left to right: the old tick while it is there.
            (_claim.c.previous, _claim.c.tick),
            (_claim.c.tick, sa.bindparam('of_tick')),
            (_claim.c.settled, sa.bindparam('of_tick')),
            (_claim.c.fence, _claim.c.fence + 1),
            (_claim.c.attempt, 1),
            (_claim.c.worker, None),
            (_claim.c.progress, None),
        ]
        earlier = _claim.c.settled < sa.bindparam('of_tick')
        before, state = MOVES[Move.CLAIM]
        self.claim_ended = self._step(
            before, state, anew, earlier,
            _claim.c.settled >= sa.bindparam('least'),
            # First its end is counted.
            _claim.c.lease.not_like(f'%{FINISHED}'), reads_back=False)
        before, _ = MOVES[Move.SUPERSEDE]
        self.claim_unstarted = self._step(
            before, state, anew, earlier, self._stands, reads_back=False)

        self.start = self._step(
            _WAITS_FROM, _RUNS,
            [(_claim.c.worker, sa.bindparam('runner'))], self._stands)
        before, state = MOVES[Move.RETRY]
        self.retry = self._step(before, state, [], self._stands)
        before, state = MOVES[Move.TAKE_BACK]
        self.take_back = self._anew(before, state)
        before, state = MOVES[Move.AGAIN]
        self.take_over = self._anew(before | MOVES[Move.TAKE_BACK][0], state)

        before, state = MOVES[Move.REQUEUE]
        self.requeue = self._step(
            before, state, [
                (_claim.c.attempt, 1),
                (_claim.c.fence, _claim.c.fence + 1)],
            _claim.c.tick == sa.bindparam('of_tick'))

        self.standing = sa.select(*_GRANTED).where(
            self._of, self._among,
            _claim.c.lease == sa.bindparam('into'),
            _claim.c.state.in_(_OPEN))
        self.look = sa.select(
            *_GRANTED, _claim.c.state, _claim.c.lease, _claim.c.settled,
        ).where(self._of, self._among)

        self.end = {ending: self._end(*MOVES[move])
                    for ending, move in ENDING_MOVES.items()}
        self.finished = self._counted_at_last()
        self.skip = self._change(
            (self._of, self._among, earlier),
            {'settled': sa.bindparam('of_tick')}, [_claim.c.object])
        self.count_of = self._count(dialect, sa.bindparam('runner'))
        self.count_in = self._count(dialect, sa.func.coalesce(
            sa.select(_lease.c.holder).where(
                _lease.c.id == sa.bindparam('stands_in')).scalar_subquery(),
            ''))

        some = dialect.among(_lease.c.id)
        held = _lease.c.holder == sa.bindparam('runner')
        self.renew = sa.update(_lease).where(some, held).values(
            until=dialect.now + sa.bindparam(
                'microseconds', type_=sa.BigInteger))
        self.renewed = sa.select(_lease.c.id).where(some, held)

        this = _lease.c.id == sa.bindparam('stands_in')
        so_many = sa.bindparam('so_many', type_=sa.Integer)
        self.leave = sa.update(_lease).where(this).values(
            remaining=_lease.c.remaining - so_many)
        self.last_leave = sa.delete(_lease).where(
            this, _lease.c.remaining <= so_many)

    def _step(self, before: Any, state: State, values: list[tuple[Any, Any]],
              *conditions: Any, reads_back: bool = True) -> Step:
        move = sa.update(_claim).where(
            self._of, self._among, _claim.c.state.in_(before), *conditions
        ).ordered_values(*values, (_claim.c.state, state),
                         (_claim.c.lease, sa.bindparam('into')))
        return Step(move, move.returning(*_GRANTED),
                    reads_back or self._reads_back)

    def _anew(self, before: Any, state: State) -> Step:
        return self._step(before, state, [
            # MySQL again: the old state while it is there.
            (_claim.c.attempt, _claim.c.attempt + sa.case(
                (_claim.c.state.in_(_TRIED), sa.bindparam(
                    'tries', type_=sa.Integer)), else_=0)),
            (_claim.c.fence, _claim.c.fence + 1)], self._stands)

    def _end(self, before: Any, state: State) -> Ending:
        found = (self._of, self._among, self._stands,
                 _claim.c.state.in_(before))
        return Ending(
            self._change(found, {'state': state},
                         (*_GRANTED, _claim.c.worker)),
            sa.select(sa.func.count()).where(
                self._of, self._among, self._stands,
                _claim.c.state == state))

    def _counted_at_last(self) -> Change:
        """What was ended in a session of its handler's comes back to the
        lease it stood in.
        """
        return self._change(
            (self._of, self._among, _claim.c.state == State.DONE,
             _claim.c.lease == sa.bindparam('finished_in')),
            {'lease': sa.bindparam('stands_in')},
            (_claim.c.tick, _claim.c.worker))

    def _change(self, found: Any, values: dict[str, Any],
                told: Sequence[Any]) -> Change:
        move = sa.update(_claim).where(*found).values(values)
        return Change(move, move.returning(*told),
                      sa.select(*told).where(*found).with_for_update())

    def _count(self, dialect: database.Dialect, member: Any) -> Any:
        """Add to what the history has of a tick."""
        tick = sa.bindparam('at_tick', type_=sa.BigInteger)
        due = sa.bindparam('more_late', type_=sa.BigInteger)
        late = sa.case((dialect.now > tick, (dialect.now - tick) // 1000),
                       else_=0)
        return dialect.add_up(_history, {
            'job': sa.bindparam('of_job'), 'tick': tick, 'member': member,
            **{name: sa.bindparam(f'more_{name}', type_=sa.BigInteger)
               for name in COUNTED},
            'lateness': due * late,
            'latest': sa.case((due > 0, late), else_=0),
            'reason': sa.bindparam('because', type_=sa.String),
        }, greatest=['latest'], newest=['reason'])
