# SPDX-License-Identifier: Apache-2.0
"""A catalogue in a database, from which each member reads its own rows."""

import sqlite3

from distperiodic import PeriodicTasks
from distperiodic import periodic_task
from distperiodic.sql import position_of


def create(database):
    database.execute(
        'CREATE TABLE volumes (id TEXT PRIMARY KEY, position BIGINT)')
    database.execute('CREATE INDEX by_position ON volumes (position)')


def insert(database, volume_id):
    database.execute('INSERT INTO volumes VALUES (?, ?)',
                     (volume_id, position_of(volume_id)))


def owned(database, arcs):
    rows = []
    # Query 100 arcs at a time: a database limits the variables of a query.
    for start in range(0, len(arcs), 100):
        part = arcs[start:start + 100]
        where = ' OR '.join(['position BETWEEN ? AND ?'] * len(part))
        rows += database.execute(
            f'SELECT id FROM volumes WHERE {where}',  # noqa: S608
            [end for arc in part for end in (arc.low, arc.high)])
    return [volume_id for volume_id, in rows]


class VolumeTasks(PeriodicTasks):

    def volumes(self, context, arcs):
        with sqlite3.connect('volumes.db') as database:
            return owned(database, arcs)

    @periodic_task(spacing=60, objects='volumes')
    def sync(self, context, volume_id):
        ...
