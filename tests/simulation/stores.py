# SPDX-License-Identifier: Apache-2.0
"""The store of a world: in memory, or the real store in SQLite."""

from tests.simulation.journal import Journal
from tests.simulation.store import SharedStore


class InMemory:
    """One store in memory, which all processes share."""

    #: (job, tick) pairs that an operator triggered.
    triggered = frozenset()
    #: This store has no tasks.
    tasks = None
    #: Share of the runs that end in a database session of their handler.
    sessions = 0.0

    def __init__(self, cluster):
        world = cluster.world
        self.journal = Journal(lambda: world.now)
        self._store = cluster.bug.store(SharedStore)(
            cluster.clock, self.journal, cluster.locked)
        if world.log is not None:
            tell_calls(self._store, world.tell)
        self.operator = self._store
        self.fence_of = self._store.fence_of

    def store_of(self, process):
        return self._store

    def holders(self):
        """Return the holder of each lease that has one, by the lease.

        Leases of retries are left out.
        """
        return self._store.lease_holders()

    def heal(self):
        """Do nothing: this store returns no errors."""

    def close(self):
        """Do nothing: there is nothing to close."""


def tell_calls(store, tell):
    """Log each call of *store* and its answer with *tell*."""
    def telling(name, call):
        def told(*args, **options):
            answer = call(*args, **options)
            if answer or name not in ('take_over_expired', 'renew'):
                tell('STORE %s %s %s -> %s', name, args, options, answer)
            return answer
        return told
    for name in ('claim', 'start', 'finish', 'fail', 'reclaim', 'renew',
                 'release', 'take_over_expired', 'discard', 'skip', 'sync',
                 'rows', 'rows_of', 'adopt', 'attend', 'settled'):
        setattr(store, name, telling(name, getattr(store, name)))


def of(cluster):
    """Return the store that *cluster* drew."""
    if cluster.setup.sql:
        from tests.simulation import sql
        return sql.InSqlite(cluster)
    return InMemory(cluster)
