# SPDX-License-Identifier: Apache-2.0
"""End of a run in the handler's own transaction: ``context.finish``.

The handler's writes and the end of the claim are committed together, or not at
all.
"""

from typing import Any

import sqlalchemy as sa
from oslo_db import exception as db_exception
from sqlalchemy import exc as sa_exception

from distperiodic import exceptions
from distperiodic.adapters.sql import database
from distperiodic.adapters.sql import jobs
from distperiodic.adapters.sql import tables
from distperiodic.adapters.sql.dialects.registry import dialect_of
from distperiodic.core.claim import MOVES
from distperiodic.core.claim import Move
from distperiodic.core.claim import State

_claim = tables.claim
#: Maximum seconds for which the transaction may be idle. Until the commit, the
#: transaction locks the row of the claim: no process can take over the claim,
#: and statements that must change the row wait. A process that is suspended at
#: this point, or whose host loses power, must not hold the lock for longer.
_IDLE = 5
#: Parts of the databases' error messages for a missing table.
_MISSING = 'does not exist', "doesn't exist", 'no such table'


def finish_in(session: Any, *, namespace: str, job: str, key: str,
              lease: str, result: str | None = None) -> bool:
    """End a run in the transaction of *session*; the caller commits it.

    This function does not add the run to the history. Otherwise the
    transaction would lock a row of the history until it ends, and other
    transactions would wait for that row. The claim stays in its lease, in the
    state COMMITTED, until the store counts the run.

    After this call, PostgreSQL closes the connection, and so aborts the
    transaction, if the transaction is idle for five seconds. If the session
    already has such a timeout, that timeout applies instead.

    :param result: For a step of a task, the result of its command as JSON
        text. The row of the claim keeps the result until the store counts the
        run.
    :returns: True if the run has ended; False if the claim is not in *lease*,
        or is not running.
    :raises ConfigError: the session's database has no distperiodic tables.
    """
    bind = getattr(session, 'get_bind', lambda: session)()
    dialect = dialect_of(bind.dialect)
    kind, name = jobs.kind_and_name(job)
    number = sa.select(tables.job.c.id).where(
        tables.job.c.space == namespace, tables.job.c.kind == kind,
        tables.job.c.name == name).scalar_subquery()
    before, after = MOVES[Move.COMMIT]
    ours = _claim.c.job == number, _claim.c.object == key
    stands = *ours, _claim.c.lease == lease
    try:
        dialect.limit_idle(session, _IDLE)
        session.execute(sa.update(_claim).where(
            *stands, _claim.c.state.in_(before)).values(
                state=after, served=dialect.now_for(session), **(
                    {'progress': result} if kind == tables.COMMAND else {})))
    except (sa_exception.DBAPIError, db_exception.DBError) as exc:
        if not lacks_tables(exc):
            raise
        raise exceptions.ConfigError(
            f'job {job!r}: the session of context.finish() uses '
            f'{shown(bind)}, which has no distperiodic tables; pass a session '
            'of the database in [distperiodic] connection, or set connection '
            'to the database of the session and run: distperiodic db sync'
        ) from exc
    ended: int = session.scalar(sa.select(sa.func.count()).where(
        *stands, _claim.c.state.in_([after, State.DONE])))
    return ended == 1


def shown(bind: Any) -> str:
    """Return the URL of an engine or a connection, without its password."""
    return str(bind.engine.url.render_as_string(hide_password=True))


def lacks_tables(exc: Exception) -> bool:
    """Return whether a statement failed because tables are missing."""
    text = database.reason_of(exc)
    return (any(table in text for table in tables.metadata.tables)
            and any(words in text for words in _MISSING))


def now_in(session: Any, bind: Any) -> int:
    """Return the store's time, as read over a connection of the application.

    A connection that this library has not opened lacks the SQL functions that
    this library registers.
    """
    now = dialect_of(bind.dialect).now_for(session)
    return int(session.scalar(sa.select(now))
               if isinstance(now, sa.ColumnElement) else now)
