# SPDX-License-Identifier: Apache-2.0
"""The end of a run in a session of its handler's: ``context.finish``.

What the handler writes and the end of its claim are committed together, or
neither is.
"""

from typing import Any

import sqlalchemy as sa
from oslo_db import exception as db_exception
from sqlalchemy import exc as sa_exception

from distperiodic import exceptions
from distperiodic.adapters import database
from distperiodic.adapters import dialect as dialect_
from distperiodic.adapters import host_clock
from distperiodic.adapters import tables
from distperiodic.core.claim import MOVES
from distperiodic.core.claim import Move
from distperiodic.core.claim import State

_claim = tables.claim
#: Seconds. What was ended and is not committed keeps others from taking it
#: over, and those wait for it: so does all that they ask after it. A process
#: that is stopped here, or whose host has lost its power, must not keep them.
_IDLE = 5
_BOUND = sa.text(
    "SELECT set_config(name, :value, true) FROM (SELECT "
    "'idle_in_transaction_session_timeout' AS name) AS bound "
    "WHERE current_setting(name) = '0'").bindparams(value=f'{_IDLE}s')
#: How databases say that there is no such table.
_MISSING = 'does not exist', "doesn't exist", 'no such table'


def finish_in(session: Any, *, space: str, job: str, key: str,
              lease: str) -> bool:
    """End a run in somebody's session, which commits it or not;
    False: it does not stand in that lease.

    It is not counted here: the row of the history would be kept from all
    others until that session is over. It stays in its lease, committed, until
    the store counts it.

    From now on PostgreSQL ends the session's transaction when nothing is said
    in it for some seconds, unless somebody has set a bound.

    :raises ConfigError: the session is one of another database.
    """
    bind = getattr(session, 'get_bind', lambda: session)()
    number = sa.select(tables.job.c.id).where(
        tables.job.c.space == space, tables.job.c.kind == tables.KIND,
        tables.job.c.name == job).scalar_subquery()
    before, after = MOVES[Move.COMMIT]
    ours = _claim.c.job == number, _claim.c.object == key
    stands = *ours, _claim.c.lease == lease
    try:
        if bind.dialect.name == 'postgresql':
            session.execute(_BOUND)
        # The service's own connections lack our functions.
        now: Any = (host_clock.HostClock().now_in(session)
                    if bind.dialect.name == 'sqlite'
                    else dialect_.Dialect(bind.dialect).now)
        session.execute(sa.update(_claim).where(
            *stands, _claim.c.state.in_(before)).values(
                state=after, served=now))
    except (sa_exception.DBAPIError, db_exception.DBError) as exc:
        said = database.reason_of(exc)
        if not (any(table.name in said
                    for table in (_claim, tables.job, tables.clock))
                and any(words in said for words in _MISSING)):
            raise
        shown = bind.engine.url.render_as_string(hide_password=True)
        raise exceptions.ConfigError(
            f'job {job!r}: context.finish() was given a session of {shown}, '
            'which does not hold the claims; set [distperiodic] connection '
            'to that database and run: distperiodic db sync') from exc
    return session.scalar(sa.select(sa.func.count()).where(
        *stands, _claim.c.state.in_([after, State.DONE]))) == 1
