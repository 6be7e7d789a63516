# SPDX-License-Identifier: Apache-2.0
"""The store that a world has: in memory, or the real one in SQLite."""

from tests.simulation.journal import Journal
from tests.simulation.store import SharedStore


class InMemory:
    """One store in memory, which all processes share."""

    #: (job, tick) that were triggered.
    triggered = frozenset()
    #: When what was dead was told to run once more.
    requeues = ()
    #: It has no tasks.
    tasks = None
    #: The share of the runs that end in a session of their handler's.
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

    def heal(self):
        """No errors come from it."""

    def close(self):
        """There is nothing to close."""


def tell_calls(store, tell):
    """Have each call of *store* and its answer told to *tell*."""
    def telling(name, call):
        def told(*args, **options):
            answer = call(*args, **options)
            if answer or name not in ('take_over_expired', 'renew'):
                tell('STORE %s %s %s -> %s', name, args, options, answer)
            return answer
        return told
    for name in ('claim', 'start', 'finish', 'fail', 'reclaim', 'renew',
                 'take_over_expired', 'discard', 'skip', 'sync', 'rows',
                 'rows_of', 'adopt',
                 'attend', 'settled'):
        setattr(store, name, telling(name, getattr(store, name)))


def of(cluster):
    """The store that *cluster* drew."""
    if cluster.setup.sql:
        from tests.simulation import sql
        return sql.InSqlite(cluster)
    return InMemory(cluster)
