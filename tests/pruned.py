# SPDX-License-Identifier: Apache-2.0
"""Rows that a service prunes."""

import collections

from distperiodic.operator import pruning


def pruned(database, group, *, history=0.0, tasks=0.0):
    """Prune; return the number of deleted rows by kind."""
    found = collections.Counter()
    for step in pruning.prune_steps(
            database, group, pruning.ages_of(history, tasks)):
        found[step.kind] += step.rows
    return +found
