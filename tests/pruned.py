# SPDX-License-Identifier: Apache-2.0
"""Rows that a service prunes."""

import collections

from distperiodic.adapters.sql.pruning import prune_steps
from distperiodic.core.pruning import ages_of


def pruned(database, group, *, history=0.0, tasks=0.0):
    """Prune; return the number of deleted rows by kind."""
    found = collections.Counter()
    for step in prune_steps(
            database, group, ages_of(history, tasks)):
        found[step.kind] += step.rows
    return +found
