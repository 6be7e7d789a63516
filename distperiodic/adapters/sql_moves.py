# SPDX-License-Identifier: Apache-2.0
"""The statements of the store, each written once for all databases.

They are made once and their values bound at each call: ``of_job`` and
``keys`` say which rows, ``stands_in`` the lease they must stand in, ``into``
the lease they go to.
"""

from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import sqlalchemy as sa

from distperiodic.adapters import dialect as dialect_
from distperiodic.adapters import tables
from distperiodic.core import due
from distperiodic.core.claim import EARLIEST
from distperiodic.core.claim import ENDING_MOVES
from distperiodic.core.claim import MOVES
from distperiodic.core.claim import OPEN
from distperiodic.core.claim import Move
from distperiodic.core.claim import State

_claim = tables.claim
_lease = tables.lease
_history = tables.history
_job = tables.job
#: What makes a claim, in the order of its fields.
GRANTED = (_claim.c.object, _claim.c.fence, _claim.c.attempt, _claim.c.tick)

_WAITS_FROM, _RUNS = MOVES[Move.START]
#: What is taken over was run, or failed: it has its next attempt.
_TRIED = (MOVES[Move.TAKE_BACK][0] | MOVES[Move.AGAIN][0]) - _WAITS_FROM
#: A claim for a later tick is made from these.
CLOSED = MOVES[Move.CLAIM][0]


#: What is counted in the history, in objects.
COUNTED = ('due', 'done', 'dead', 'skipped', 'by_misfire', 'by_overlap',
           'by_pause', 'by_lost', 'missed', 'superseded', 'cancelled',
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
    #: Those that have that end and stand in that lease.
    after: Any


class Statements:
    """All of them, for one dialect.

    :param late_after: seconds after its tick at which a claim is late.
    """

    def __init__(self, dialect: dialect_.Dialect, late_after: float):
        # Asked once in a statement, not for each row.
        self._now = sa.select(dialect.now).scalar_subquery()
        self._late_after = round(late_after * 1e6)
        self._among = dialect.among(_claim.c.object)
        self._of = _claim.c.job == sa.bindparam('of_job')
        self._stands = _claim.c.lease == sa.bindparam('stands_in')
        self._reads_back = not dialect.returning

        most = sa.bindparam('most', type_=sa.Integer)
        spent = _claim.c.attempt >= most
        anew: list[tuple[Any, Any]] = [
            # MySQL sets from left to right: the old tick while it is there.
            (_claim.c.previous, sa.case(
                (_in_state([State.LISTED]), sa.null()),
                else_=_claim.c.tick)),
            (_claim.c.tick, sa.bindparam('of_tick')),
            (_claim.c.settled, sa.bindparam('of_tick')),
            (_claim.c.fence, sa.case(
                (_in_state([State.LISTED]), sa.bindparam(
                    'first', type_=sa.BigInteger)),
                else_=_claim.c.fence + 1)),
            # What its workers die of costs one of them a tick, not all anew.
            (_claim.c.attempt, sa.case((sa.and_(
                spent, _claim.c.state != State.DONE), most), else_=1)),
            (_claim.c.worker, None),
            (_claim.c.progress, None),
        ]
        # What was due before stays due: it is decided by its own claim.
        between = [one for one in anew if one[0] is not _claim.c.settled]
        earlier = _claim.c.settled < sa.bindparam('of_tick')
        come = self._now >= sa.bindparam(
            'of_due', type_=sa.BigInteger) - EARLIEST
        in_time = self._now <= sa.bindparam('of_end', type_=sa.BigInteger)
        before, state = MOVES[Move.CLAIM]
        listed = _claim.c.since.is_not(None)
        rule = sa.bindparam('of_rule', type_=_claim.c.rule.type)
        follows = sa.or_(_claim.c.rule.is_(None), _claim.c.rule == rule)
        in_force = self._in_force()
        self.claim_ended = self._step(
            before, state, anew, earlier, come, in_time, listed, follows,
            in_force, _claim.c.settled >= sa.bindparam('least'),
            reads_back=False)
        self.trigger = self._step(
            before, state, between, earlier, listed,
            # Not twice, though nothing is settled by it.
            _claim.c.tick < sa.bindparam('of_tick'), reads_back=False)
        before, _ = MOVES[Move.SUPERSEDE]
        # It may be lost as often as it likes, before any tick of it ends.
        lost = sa.case((spent, most), else_=_claim.c.attempt)
        self.claim_unstarted = self._step(
            before, state, [
                (column, lost if column is _claim.c.attempt else value)
                for column, value in anew],
            earlier, listed, follows, in_force, self._stands,
            reads_back=False)
        # What was due before it was listed again is not due.
        just_before = sa.bindparam('of_tick', type_=sa.BigInteger) - 1
        self.relist = sa.update(_claim).where(
            self._of, self._among, _claim.c.since.is_(None)
        ).values(since=sa.bindparam('of_tick'), rule=rule, settled=sa.case(
            (_claim.c.settled < just_before, just_before),
            else_=_claim.c.settled))
        #: The rows that nobody else changes now, kept so.
        self.unlocked = sa.select(_claim.c.object).where(
            self._of, self._among).with_for_update(skip_locked=True)

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

        self.standing = sa.select(*GRANTED).where(
            self._of, self._among,
            _claim.c.lease == sa.bindparam('into'),
            _in_state(OPEN))
        self.look = sa.select(
            *GRANTED, _claim.c.state, _claim.c.lease, _claim.c.settled,
            _claim.c.position, _claim.c.since, _claim.c.rule,
            _claim.c.served, self._now.label('now'),
        ).where(self._of, self._among)
        #: The schedule that a job has by now.
        self.schedule = sa.select(_job.c.schedule).where(
            _job.c.id == sa.bindparam('of_job'))
        self._list(sa.select(*_listed_columns()).where(self._of, listed))

        said = (self._of, self._stands, _claim.c.state == _RUNS)
        self.save = sa.update(_claim).where(
            *said, _claim.c.object == sa.bindparam('key')).values(
                progress=sa.bindparam('said'))
        self.said = sa.select(_claim.c.object, _claim.c.progress).where(
            *said, self._among, _claim.c.progress.is_not(None))
        self.end = {ending: self._end(*MOVES[move])
                    for ending, move in ENDING_MOVES.items()}
        self.count_committed = self._count_committed()
        self.skip = self._change(
            (self._of, self._among, earlier, come, listed, in_force),
            {'settled': sa.bindparam('of_tick'),
             'skipped_by': sa.bindparam('by')},
            [_claim.c.object, _claim.c.settled], waits=False)
        self.count_of = self._count(dialect, sa.bindparam('runner'))
        self.count_in = self._count(dialect, sa.func.coalesce(
            sa.select(_lease.c.holder).where(
                _lease.c.id == sa.bindparam('stands_in')).scalar_subquery(),
            ''))

        some = dialect.among(_lease.c.id)
        held = _lease.c.holder == sa.bindparam('runner')
        self.renew = sa.update(_lease).where(some, held).values(
            until=dialect.lease_now + sa.bindparam(
                'microseconds', type_=sa.BigInteger))
        self.renewed = sa.select(_lease.c.id).where(some, held)

        self.running = sa.select(
            _lease.c.job, sa.func.sum(_lease.c.remaining)).where(
                _lease.c.job.in_(sa.bindparam('of_jobs', expanding=True)),
                _lease.c.state == _RUNS).group_by(_lease.c.job)
        self.make = sa.insert(_lease).values(_made(dialect.lease_now))
        #: ``claim_ended``, and if all were won also the count of them and
        #: their lease. None: that is no one statement in this database.
        self.claim_at_once: Any = None
        if dialect.name == 'postgresql':
            self.claim_at_once = self._at_once(
                dialect, self.claim_ended.move_returning)
        this = _lease.c.id == sa.bindparam('stands_in')
        so_many = sa.bindparam('so_many', type_=sa.Integer)
        self.leave = sa.update(_lease).where(this).values(
            remaining=_lease.c.remaining - so_many)
        self.last_leave = sa.delete(_lease).where(
            this, _lease.c.remaining <= so_many)

    def _step(self, before: Any, state: State, values: list[tuple[Any, Any]],
              *conditions: Any, reads_back: bool = True) -> Step:
        move = sa.update(_claim).where(
            self._of, self._among, _in_state(before), *conditions
        ).ordered_values(*values, (_claim.c.state, state),
                         (_claim.c.lease, sa.bindparam('into')))
        return Step(move, move.returning(*GRANTED),
                    reads_back or self._reads_back)

    @staticmethod
    def _in_force() -> sa.ColumnElement[bool]:
        """Whether the job has the schedule ``of_schedule``; empty: any."""
        schedule = sa.bindparam('of_schedule', type_=_job.c.schedule.type)
        # It is about no row of the claims, so it is asked once.
        return sa.exists().where(
            _job.c.id == sa.bindparam('of_job'), sa.or_(
                schedule == '', _job.c.schedule.is_(None),
                _job.c.schedule == schedule))

    def _anew(self, before: Any, state: State) -> Step:
        return self._step(before, state, [
            # MySQL again: the old state while it is there.
            (_claim.c.attempt, _claim.c.attempt + sa.case(
                (_in_state(_TRIED), sa.bindparam(
                    'tries', type_=sa.Integer)), else_=0)),
            (_claim.c.fence, _claim.c.fence + 1)], self._stands)

    def _end(self, before: Any, state: State) -> Ending:
        found = (self._of, self._among, self._stands,
                 _in_state(before))
        values: dict[str, Any] = {'state': state}
        if state is State.DONE:
            values['served'] = self._now
        return Ending(
            self._change(found, values, (*GRANTED, _claim.c.worker)),
            sa.select(_claim.c.object).where(
                self._of, self._among, self._stands,
                _claim.c.state == state))

    def _count_committed(self) -> Change:
        """Move committed runs to done, so that they are counted."""
        before, state = MOVES[Move.COUNT]
        return self._change(
            (self._of, self._among, self._stands, _in_state(before)),
            {'state': state}, (_claim.c.tick, _claim.c.worker))

    def _change(self, found: Any, values: dict[str, Any],
                told: Sequence[Any], waits: bool = True) -> Change:
        move = sa.update(_claim).where(*found).values(values)
        return Change(move, move.returning(*told),
                      sa.select(*told).where(*found).with_for_update(
                          skip_locked=not waits))

    def _list(self, listed: Any) -> None:
        """Make the statements that read what is listed."""
        self.list_some = listed.where(self._among)
        self.list_range = listed.where(_claim.c.position.between(
            sa.bindparam('low', type_=sa.BigInteger),
            sa.bindparam('high', type_=sa.BigInteger))
        # By nothing but what the index has: until the table has statistics
        # PostgreSQL would sort all rows of the range to read the first.
        ).order_by(_claim.c.position).limit(
            sa.bindparam('at_most', type_=sa.Integer))
        self.list_behind = self.list_range.where(
            _claim.c.rule.is_not(None), sa.or_(
                _claim.c.rule != '',
                _claim.c.settled < sa.bindparam('of_tick')))

    def _at_once(self, dialect: dialect_.Dialect, move: Any) -> Any:
        """A move, and if it moved all: what it does to the history, and the
        lease.
        """
        moved = move.cte('moved')
        # One row, or none if not all were moved.
        every = sa.select(dialect.now.label('now')).select_from(
            moved).having(
                sa.func.count() == sa.bindparam('its_remaining')).cte('every')
        made = _made(every.c.now)
        counted = self._count(dialect, sa.bindparam('runner'),
                              counted=('due',), given=every)
        lease = sa.insert(_lease).from_select(
            list(made), sa.select(*made.values()).select_from(every))
        return sa.select(moved).add_cte(
            counted.cte('counted'), lease.cte('made'))

    def _count(self, dialect: dialect_.Dialect, member: Any,
               counted: Sequence[str] = COUNTED, given: Any = None) -> Any:
        """Add to what the history has of a tick.

        :param counted: what may be other than none.
        :param given: has the ``now`` of it; see
            :meth:`dialect_.Dialect.add_up`.
        """
        tick = sa.bindparam('at_tick', type_=sa.BigInteger)
        due = sa.bindparam('more_late', type_=sa.BigInteger)
        now = dialect.now if given is None else given.c.now
        late = sa.case((now > tick, (now - tick) // 1000), else_=0)
        return dialect.add_up(_history, {
            'job': sa.bindparam('of_job'), 'tick': tick, 'member': member,
            **{name: sa.bindparam(f'more_{name}', type_=sa.BigInteger)
               if name in counted else sa.literal_column('0')
               for name in COUNTED},
            'lateness': due * late,
            'latest': sa.case((due > 0, late), else_=0),
            'late': sa.case((now > tick + self._late_after, due), else_=0),
            'reason': sa.bindparam('because', type_=sa.String),
        }, greatest=['latest'], newest=['reason'], given=given,
            nothing=[name for name in COUNTED if name not in counted])


def _listed_columns() -> list[Any]:
    """The fields of a :class:`distperiodic.core.due.Row`, in their order."""
    rule = sa.type_coerce(
        sa.func.coalesce(_claim.c.rule, due.UNRECORDED),
        _claim.c.rule.type)
    return [_claim.c.object, _claim.c.position, _claim.c.settled,
            _claim.c.since, rule, _in_state(set(State) - OPEN),
            _claim.c.served]


def _made(now: Any) -> dict[str, Any]:
    """The columns of a new lease."""
    # Not bound by the columns' own names: SQLAlchemy would set those of an
    # UPDATE in the same statement as well.
    return {column.name: sa.bindparam(
        f'its_{column.name}', type_=column.type)
            for column in _lease.c if column.name not in ('until', 'made')
            } | {'made': now, 'until': now + sa.bindparam(
                'microseconds', type_=sa.BigInteger)}


def _in_state(states: Iterable[State]) -> sa.ColumnElement[bool]:
    """Whether a claim is in one of *states*.

    They are written into the statement: a list that is bound would be spread
    out anew at each call.
    """
    codes = ', '.join(map(str, sorted(
        tables.STATE_CODES[state] for state in states)))
    return _claim.c.state.bool_op('IN')(sa.literal_column(f'({codes})'))
