# SPDX-License-Identifier: Apache-2.0
"""Effects of handlers in a database, with two protections against repeats.

The table ``effect`` accepts any number of rows for one (object, tick), so it
shows repeated effects. The table ``newest`` keeps the highest fence of each
object, and an effect with a lower fence is rejected.
"""

import sqlalchemy as sa
from oslo_utils import uuidutils

from distperiodic import exceptions
from distperiodic.adapters.sql import database

_metadata = sa.MetaData()
_effect = sa.Table(
    'test_effect', _metadata,
    sa.Column('id', sa.String(36), primary_key=True),
    sa.Column('object', sa.String(40), nullable=False),
    sa.Column('tick', sa.Float, nullable=False),
    sa.Column('fence', sa.BigInteger, nullable=False))
_newest = sa.Table(
    'test_newest', _metadata,
    sa.Column('object', sa.String(40), primary_key=True),
    sa.Column('fence', sa.BigInteger, nullable=False))


class Ledger:
    """Access of one process to the tables."""

    def __init__(self, url: str):
        self._engine = database.make_engine(url)

    def make(self) -> None:
        """Create the tables, without rows."""
        _metadata.drop_all(self._engine)
        _metadata.create_all(self._engine)

    def write(self, context) -> dict[str, bool]:
        """Write both effects of a run.

        :returns: A dict of three booleans. ``mine``: the claim was current
            before the effects. ``accepted``: the table ``newest`` accepted the
            fence. ``finished``: the effect was committed together with the end
            of the run.
        """
        mine = context.is_current()
        accepted = self._compare(context.object, context.fence)
        try:
            with self._engine.begin() as connection:
                connection.execute(_effect.insert().values(
                    id=uuidutils.generate_uuid(), object=context.object,
                    tick=context.tick.timestamp(), fence=context.fence))
                context.finish(connection)
            finished = True
        except exceptions.RunReplaced:
            finished = False
        return {'mine': mine, 'accepted': accepted, 'finished': finished}

    def finish(self, context, result, before_commit) -> None:
        """Write an effect of a step, and end its run in the same transaction.

        :param result: result of the step.
        :param before_commit: called after both writes and before the commit.
        """
        with self._engine.begin() as connection:
            connection.execute(_effect.insert().values(
                id=uuidutils.generate_uuid(), object=context.task,
                tick=context.step, fence=context.fence))
            context.finish(connection, result)
            before_commit()

    def _compare(self, key: str, fence: int) -> bool:
        with self._engine.begin() as connection:
            if connection.execute(
                    sa.update(_newest).where(
                        _newest.c.object == key, _newest.c.fence < fence)
                    .values(fence=fence)).rowcount:
                return True
            known = connection.scalar(sa.select(_newest.c.fence).where(
                _newest.c.object == key))
            if known is None:
                connection.execute(_newest.insert().values(
                    object=key, fence=fence))
            return known is None

    def effects(self) -> list[tuple[str, float, int]]:
        """Return (object, tick, fence) of each committed effect."""
        with self._engine.begin() as connection:
            return [tuple(row) for row in connection.execute(
                sa.select(
                    _effect.c.object, _effect.c.tick, _effect.c.fence))]

    def close(self) -> None:
        self._engine.dispose()
