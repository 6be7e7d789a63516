# SPDX-License-Identifier: Apache-2.0
"""SQL statements of the store, each written once for all databases.

The statements are built once, and each call binds values: ``of_job`` and
``keys`` select the rows, ``stands_in`` names the lease in which the claims
must be, and ``into`` names the lease into which they move.
"""

from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import sqlalchemy as sa

from distperiodic.adapters.sql import lease_terms
from distperiodic.adapters.sql import tables
from distperiodic.adapters.sql.dialects.dialect import Dialect
from distperiodic.adapters.sql.pauses_in_force import not_over
from distperiodic.core.claim import EARLIEST
from distperiodic.core.claim import ENDING_MOVES
from distperiodic.core.claim import MOVES
from distperiodic.core.claim import OPEN
from distperiodic.core.claim import STARTED_EARLIER
from distperiodic.core.claim import STATE_CODES
from distperiodic.core.claim import SUCCEEDED
from distperiodic.core.claim import UNSTARTED_FIRST
from distperiodic.core.claim import Move
from distperiodic.core.claim import State
from distperiodic.core.claim_request import KnownSchedule
from distperiodic.core.outcomes import COLUMNS
from distperiodic.core.outcomes import LATE

_claim = tables.claim
_lease = tables.lease
_history = tables.history
_exception = tables.exception
_job = tables.job

#: Upper bound of all instants.
LAST = 2 ** 63 - 1
#: Columns of a :class:`Claim`, in the order of its fields.
GRANTED = (
    _claim.c.object, _claim.c.fence, _claim.c.attempt, _claim.c.tick,
    sa.func.coalesce(
        _claim.c.started, _claim.c.waiting - UNSTARTED_FIRST).label('place'),
    _claim.c.waiting,
    sa.func.coalesce(_claim.c.losses, 0).label('losses'))

_WAITS_FROM, _RUNS = MOVES[Move.START]
#: States from which a take-over or a reclaim increases the number of attempts.
#: In these states, the run was granted or has failed.
_TRIED = (MOVES[Move.RECLAIM][0] | MOVES[Move.TAKE_OVER][0]) - _WAITS_FROM
#: States from which an object may be claimed without superseding a claim.
CLOSED = MOVES[Move.CLAIM][0]

# Columns of the history that have a text, and the parameters with the texts.
_TEXTS = {'reason': 'because', 'started': 'newest_started',
          'ran': 'newest_ran', 'slowest': 'newest_slowest'}


class LeaseMove(NamedTuple):
    """Statements that move claims into a lease."""

    move: Any
    #: The same statement with RETURNING, where the database supports it.
    move_returning: Any
    #: True means that the claims in the lease are read if the statement has
    #: returned fewer claims than requested: an earlier call may have moved
    #: the other claims, or the database cannot return the moved claims.
    reads_back: bool


def of_schedule(known: KnownSchedule) -> dict[str, Any]:
    """Return the parameters of the condition that *known* is in force."""
    return {'of_schedule': known.text, 'of_schedule_since': (
        LAST if known.since is None else known.since)}


class ClaimChange(NamedTuple):
    """Statements that change claims and return the changed rows."""

    move: Any
    #: The same statement with RETURNING, where the database supports it.
    move_returning: Any
    #: Select and lock the rows that the move will change.
    before: Any


class Ending(NamedTuple):
    """Statements that end claims; the rows keep the name of their lease."""

    change: ClaimChange
    #: Select the claims in the lease that have ended in this way.
    after: Any


class Statements:
    """All statements of the store, for one dialect."""

    def __init__(self, dialect: Dialect):
        # A scalar subquery is evaluated once per statement, not once per row.
        self._now = sa.select(dialect.now).scalar_subquery()
        self._among = dialect.among(_claim.c.object)
        self._of = _claim.c.job == sa.bindparam('of_job')
        self._stands = _claim.c.lease == sa.bindparam('stands_in')
        self._reads_back = not dialect.returning

        most = sa.bindparam('most', type_=sa.Integer)
        spent = _claim.c.attempt >= most
        used_up = sa.and_(spent, _claim.c.state != State.DONE)
        claim_values: list[tuple[Any, Any]] = [
            # MySQL assigns from left to right: copy the old tick first.
            (_claim.c.previous, sa.case(
                (in_state([State.LISTED]), sa.null()),
                else_=_claim.c.tick)),
            (_claim.c.tick, sa.bindparam('of_tick')),
            (_claim.c.settled, sa.bindparam('of_tick')),
            (_claim.c.fence, sa.case(
                (in_state([State.LISTED]), sa.bindparam(
                    'first', type_=sa.BigInteger)),
                else_=_claim.c.fence + 1)),
            # If an object has used up its attempts, each later tick starts at
            # the last attempt, until a run of the object succeeds. So an
            # object whose runs kill their workers costs one worker per tick,
            # and not one per attempt. MySQL assigns from left to right: these
            # losses depend on the old number of the attempt.
            (_claim.c.losses, sa.case((used_up, _claim.c.losses),
                                      else_=sa.null())),
            (_claim.c.attempt, sa.case((used_up, most), else_=1)),
            (_claim.c.worker, None),
            (_claim.c.progress, None),
            (_claim.c.waiting, self._now),
        ]
        # The claim that an operator triggers does not change the watermark:
        # earlier ticks that are due stay due, and are claimed separately.
        trigger_values = [item for item in claim_values
                          if item[0] is not _claim.c.settled]
        earlier = _claim.c.settled < sa.bindparam('of_tick')
        begun = self._now >= sa.bindparam(
            'of_due', type_=sa.BigInteger) - EARLIEST
        in_time = self._now <= sa.bindparam('of_end', type_=sa.BigInteger)
        before, state = MOVES[Move.CLAIM]
        listed = _claim.c.since.is_not(None)
        rule = sa.bindparam('of_rule', type_=_claim.c.rule.type)
        follows = _claim.c.rule == rule
        in_force = self._in_force()
        self.claim_ended = self._step(
            before, state, claim_values, earlier, begun, in_time, listed,
            follows, in_force, _claim.c.settled >= sa.bindparam('least'),
            sa.or_(_claim.c.settled >= _claim.c.since, _claim.c.since
                   >= sa.bindparam('least_since', type_=sa.BigInteger)),
            reads_back=False)
        self.trigger = self._step(
            before, state, trigger_values, listed,
            # A tick of the schedule that was skipped in the meantime does not
            # stand in the way. But one tick is not claimed twice, and fences
            # only grow.
            _claim.c.tick < sa.bindparam('of_tick'), reads_back=False)
        before, _ = MOVES[Move.SUPERSEDE]
        # Keep the number of attempts. Otherwise an object whose ticks are all
        # superseded before they end could lose any number of runs without
        # using up its attempts. Keep the time since which the object waits, as
        # well: otherwise an object could be superseded at each tick and never
        # run, because other objects would always have waited longer. Keep the
        # number of losses with the number of attempts.
        lost = sa.case((spent, most), else_=_claim.c.attempt)
        kept = _claim.c.waiting, _claim.c.losses
        self.claim_unstarted = self._step(
            before, state, [
                (column, lost if column is _claim.c.attempt else value)
                for column, value in claim_values
                if not any(column is one for one in kept)],
            earlier, listed, follows, in_force, self._stands,
            reads_back=False)
        #: Select and lock the rows that no other transaction has locked.
        self.unlocked = sa.select(_claim.c.object).where(
            self._of, self._among).with_for_update(skip_locked=True)

        self.start = self._step(
            _WAITS_FROM, _RUNS,
            [(_claim.c.worker, sa.bindparam('runner')),
             (_claim.c.started, self._now - (
                 self._now - sa.func.coalesce(
                     _claim.c.started, _claim.c.waiting)
             ) // STARTED_EARLIER)], self._stands)
        before, state = MOVES[Move.RETRY]
        self.retry = self._step(before, state, [], self._stands)
        before, state = MOVES[Move.RECLAIM]
        self.reclaim = self._reclaim(before, state)
        before, state = MOVES[Move.TAKE_OVER]
        self.take_over = self._reclaim(before | MOVES[Move.RECLAIM][0], state)

        before, state = MOVES[Move.REQUEUE]
        self.requeue = self._step(
            before, state, [
                (_claim.c.attempt, 1),
                (_claim.c.losses, sa.null()),
                (_claim.c.fence, _claim.c.fence + 1),
                (_claim.c.waiting, self._now)],
            _claim.c.tick == sa.bindparam('of_tick'))

        self.standing = sa.select(*GRANTED).where(
            self._of, self._among,
            _claim.c.lease == sa.bindparam('into'),
            in_state(OPEN))
        self.look = sa.select(
            *GRANTED, _claim.c.state, _claim.c.lease, _claim.c.settled,
            _claim.c.position, _claim.c.since, _claim.c.delisted,
            _ended().label('ended'), _began().label('began'),
            self._now.label('now'), *tables.ATTRIBUTES,
        ).where(self._of, self._among)
        #: Select whether a :class:`.KnownSchedule` is in force.
        self.is_in_force = sa.select(self._in_force())
        self._list(sa.select(*_listed_columns()).where(self._of, listed))

        running = (self._of, self._stands, _claim.c.state == _RUNS)
        self.save_progress = sa.update(_claim).where(
            *running, _claim.c.object == sa.bindparam('key')).values(
                progress=sa.bindparam('new_progress'))
        self.load_progress = sa.select(
            _claim.c.object, _claim.c.progress).where(
                *running, self._among, _claim.c.progress.is_not(None))
        self.end = {ending: self._end(*MOVES[move])
                    for ending, move in ENDING_MOVES.items()}
        self.count_committed = self._count_committed()
        #: Select objects without a schedule of their own.
        self.follows_job = sa.select(_claim.c.object).where(
            self._of, self._among, _claim.c.rule == '')
        self.skip = self._change(
            (self._of, self._among, earlier, begun, listed, in_force),
            {'settled': sa.bindparam('of_tick'),
             'skipped_by': sa.bindparam('by')},
            [_claim.c.object, _claim.c.settled], waits=False)
        self.count_of = self._count(dialect, sa.bindparam('runner'))
        holder = sa.func.coalesce(
            sa.select(_lease.c.holder).where(
                _lease.c.id == sa.bindparam('stands_in')).scalar_subquery(),
            '')
        self.count_in = self._count(dialect, holder)
        self.record_of = self._record(sa.bindparam('runner'))
        self.record_in = self._record(holder)
        #: Select the number of objects of a tick whose ids are kept, and
        #: since when the job is paused, if it is.
        self.kept = sa.select(
            sa.func.coalesce(sa.cast(sa.func.sum(
                _exception.c.number), sa.BigInteger), 0).label('number'),
            sa.select(_job.c.paused_since).where(
                _job.c.id == sa.bindparam('of_job'),
                not_over(_job, self._now)).scalar_subquery()
            .label('paused_since')).where(
                _exception.c.job == sa.bindparam('of_job'),
                _exception.c.tick == sa.bindparam(
                    'at_tick', type_=sa.BigInteger),
                _exception.c.objects.is_not(None),
                # Their number has a limit of its own.
                _exception.c.outcome != LATE)

        some = dialect.among(_lease.c.id)
        held = _lease.c.holder == sa.bindparam('runner')
        self.renew = lease_terms.renewal(dialect, _lease, some, held)
        self.renewed = sa.select(_lease.c.id).where(some, held)
        # The lease expires when it was created, so that older leases are
        # taken over first.
        self.release = sa.update(_lease).where(
            some, _lease.c.state == State.CLAIMED).values(
                holder='', until=_lease.c.made)

        self.running = sa.select(
            _lease.c.job, sa.func.sum(_lease.c.remaining)).where(
                _lease.c.job.in_(sa.bindparam('of_jobs', expanding=True)),
                _lease.c.state == _RUNS).group_by(_lease.c.job)
        self.make = sa.insert(_lease).values(_made(dialect.lease_now))
        #: One statement that does the work of ``count_of`` and ``make``. None
        #: means that this database has no such statement.
        self.count_and_make: Any = None
        #: One statement that does the work of ``claim_ended``. If it claims
        #: all objects, it also counts the objects and creates their lease.
        #: None means that this database has no such statement.
        self.claim_at_once: Any = None
        if dialect.writes_in_with:
            self.count_and_make = self.make.add_cte(
                self.count_of.cte('counted'))
            self.claim_at_once = self.at_once(
                dialect, self.claim_ended.move_returning, counted=('due',))
        this = _lease.c.id == sa.bindparam('stands_in')
        number = sa.bindparam('number', type_=sa.Integer)
        self.leave: Any = sa.update(_lease).where(this).values(
            remaining=_lease.c.remaining - number)
        if dialect.returning:
            self.leave = self.leave.returning(_lease.c.remaining)
        self.last_leave = sa.delete(_lease).where(
            this, _lease.c.remaining <= number)

    def _step(self, before: Any, state: State, values: list[tuple[Any, Any]],
              *conditions: Any, reads_back: bool = True) -> LeaseMove:
        move = sa.update(_claim).where(
            self._of, self._among, in_state(before), *conditions
        ).ordered_values(*values, (_claim.c.state, state),
                         (_claim.c.lease, sa.bindparam('into')))
        return LeaseMove(move, move.returning(*GRANTED),
                         reads_back or self._reads_back)

    @staticmethod
    def _in_force() -> sa.ColumnElement[bool]:
        """Build the condition that a :class:`.KnownSchedule` is in force.

        The condition is also true if the text is empty, or if no schedule of
        the job is recorded.
        """
        schedule = sa.bindparam('of_schedule', type_=_job.c.schedule.type)
        # The subquery does not depend on the claim, so it is evaluated once.
        return sa.exists().where(
            _job.c.id == sa.bindparam('of_job'), sa.or_(
                schedule == '', _job.c.schedule.is_(None), sa.and_(
                    _job.c.schedule == schedule,
                    _job.c.schedule_since <= sa.bindparam(
                        'of_schedule_since', type_=sa.BigInteger))))

    def _reclaim(self, before: Any, state: State) -> LeaseMove:
        tries = sa.bindparam('tries', type_=sa.Integer)
        tried = in_state(_TRIED)
        return self._step(before, state, [
            # MySQL assigns from left to right. These values depend on the old
            # state, so they are assigned before the new state.
            (_claim.c.attempt, _claim.c.attempt + sa.case(
                (tried, tries), else_=0)),
            (_claim.c.losses, sa.func.coalesce(_claim.c.losses, 0) + sa.case(
                (_claim.c.state == _RUNS, tries), else_=0)),
            (_claim.c.fence, _claim.c.fence + 1),
            # A granted run that no handler has started keeps its place.
            (_claim.c.started, sa.case(
                (sa.and_(tried, tries == 0), sa.null()),
                else_=_claim.c.started)),
            (_claim.c.waiting, sa.case(
                (sa.and_(tried, tries > 0), self._now),
                else_=_claim.c.waiting))], self._stands)

    def _end(self, before: Any, state: State) -> Ending:
        conditions = (self._of, self._among, self._stands,
                      in_state(before))
        values: dict[str, Any] = {'state': state}
        if state is State.DONE:
            values['served'] = self._now
        elif state is State.DEAD:
            values['waiting'] = self._now
        return Ending(
            self._change(conditions, values, (*GRANTED, _claim.c.worker)),
            sa.select(_claim.c.object).where(
                self._of, self._among, self._stands,
                _claim.c.state == state))

    def _count_committed(self) -> ClaimChange:
        """Build the transition of committed runs to the state DONE.

        The caller adds these runs to the history.
        """
        before, state = MOVES[Move.COUNT]
        return self._change(
            (self._of, self._among, self._stands, in_state(before)),
            {'state': state}, (_claim.c.tick, _claim.c.worker))

    def _record(self, member: Any) -> Any:
        """Build the statement that records objects of an exception."""
        return sa.insert(_exception).values(
            job=sa.bindparam('of_job'),
            tick=sa.bindparam('at_tick', type_=sa.BigInteger),
            after=sa.bindparam('after_it', type_=sa.BigInteger),
            span=sa.bindparam('of_span', type_=sa.SmallInteger),
            outcome=sa.bindparam('as_outcome'), member=member,
            reason=sa.bindparam('because', type_=sa.String), at=self._now,
            number=sa.bindparam('number', type_=sa.Integer),
            objects=sa.bindparam('ids', type_=_exception.c.objects.type))

    def _change(self, conditions: Any, values: dict[str, Any],
                columns: Sequence[Any], waits: bool = True) -> ClaimChange:
        move = sa.update(_claim).where(*conditions).values(values)
        return ClaimChange(move, move.returning(*columns),
                           sa.select(*columns).where(*conditions).with_for_update(
                               skip_locked=not waits))

    def _list(self, listed: Any) -> None:
        """Build the statements that read listed objects."""
        self.list_some = listed.where(self._among)
        self.list_range = listed.where(_claim.c.position.between(
            sa.bindparam('low', type_=sa.BigInteger),
            sa.bindparam('high', type_=sa.BigInteger))
        # Order by an indexed column only: as long as the table has no
        # statistics, PostgreSQL would otherwise sort all rows of the range to
        # read the first few.
        ).order_by(_claim.c.position).limit(
            sa.bindparam('at_most', type_=sa.Integer))
        self.list_behind = self.list_range.where(sa.or_(
            _claim.c.rule != '',
            _claim.c.settled < sa.bindparam('of_tick')))

    def at_once(self, dialect: Dialect, move: Any,
                counted: Sequence[str] = COLUMNS) -> Any:
        """Build a statement that moves claims and, if all were moved, counts
        them and creates their lease.

        :param move: Statement that moves and returns claims.
        :param counted: See :meth:`_count`.
        """
        moved = move.cte('moved')
        # Select one row if all claims were moved, and otherwise no row.
        every = sa.select(dialect.now.label('now')).select_from(
            moved).having(
                sa.func.count() == sa.bindparam('new_remaining')).cte('every')
        made = _made(every.c.now)
        count = self._count(dialect, sa.bindparam('runner'), counted, every)
        lease = sa.insert(_lease).from_select(
            list(made), sa.select(*made.values()).select_from(every))
        return sa.select(moved).add_cte(
            count.cte('counted'), lease.cte('made'))

    def _count(self, dialect: Dialect, member: Any,
               counted: Sequence[str] = COLUMNS, given: Any = None) -> Any:
        """Build the statement that adds to the history of a tick.

        :param counted: Columns to which the statement may add; the other
            columns and the texts do not change.
        :param given: Subquery with the column ``now``; see
            :meth:`Dialect.add_up`.
        """
        texts = _TEXTS if counted is COLUMNS else {}
        return dialect.add_up(_history, {
            'job': sa.bindparam('of_job'),
            'tick': sa.bindparam('at_tick', type_=sa.BigInteger),
            'member': member,
            **{name: sa.bindparam(f'more_{name}', type_=sa.BigInteger)
               if name in counted else sa.literal_column('0')
               for name in COLUMNS},
            **{name: sa.bindparam(value, type_=sa.String)
               for name, value in texts.items()},
        }, newest=list(texts), given=given, nothing=[
            name for name in (*COLUMNS, *_TEXTS)
            if name not in (*counted, *texts)])


def _listed_columns() -> list[Any]:
    """Return the columns of :class:`distperiodic.core.due.Row`, in order.

    The attributes follow all other columns.
    """
    return [_claim.c.object, _claim.c.position, _claim.c.settled,
            _claim.c.since, in_state(set(State) - OPEN), _ended(), _began(),
            *tables.ATTRIBUTES]


def _ended() -> sa.ColumnElement[Any]:
    """Build the value of :attr:`distperiodic.core.due.Row.ended`."""
    return sa.case(
        # If the last claim did not succeed, this column still has the time of
        # an earlier run.
        (in_state(SUCCEEDED), _claim.c.served),
        (_claim.c.state == State.DEAD, _claim.c.waiting))


def _began() -> sa.ColumnElement[Any]:
    """Build the value of :attr:`distperiodic.core.due.Row.began`."""
    return sa.case(
        (in_state(_WAITS_FROM | {State.LISTED}), sa.null()),
        # The start of an earlier attempt is not recorded.
        (_claim.c.attempt > 1, _claim.c.tick),
        else_=_claim.c.started)


def _made(now: Any) -> dict[str, Any]:
    """Return the columns of a new lease, with their values."""
    # The parameters must not have the columns' own names: otherwise
    # SQLAlchemy would also set these columns in an UPDATE of the same
    # statement.
    return {column.name: sa.bindparam(
        f'new_{column.name}', type_=column.type)
            for column in _lease.c if column.name not in ('until', 'made')
            } | {'made': now, 'until': lease_terms.new_end(now)}


def in_state(states: Iterable[State]) -> sa.ColumnElement[bool]:
    """Build the condition that a claim is in one of *states*.

    The states are literals in the statement: SQLAlchemy would expand a bound
    list again at each call.
    """
    codes = ', '.join(map(str, sorted(STATE_CODES[one] for one in states)))
    return _claim.c.state.bool_op('IN')(sa.literal_column(f'({codes})'))
