# SPDX-License-Identifier: Apache-2.0
"""Ages at which old rows of a store are deleted."""

from typing import NamedTuple


class Ages(NamedTuple):
    """Days after which the rows of each kind are deleted.

    None keeps all rows of a kind.
    """

    #: History of ticks, by tick.
    history: float | None = None
    #: Records of runs that failed for good.
    dead: float | None = None
    #: Records of such runs whose objects are no longer dead.
    failures: float | None = None
    #: Records of actions, last reports of members, and last heartbeats of
    #: workers.
    reports: float | None = None
    #: Claims, by watermark. If all claims of a job are older, the job is
    #: unused: all of its claims, and its leases for older ticks, are deleted.
    #: For any other job, only closed claims of objects that are not listed are
    #: deleted.
    claims: float | None = None
    #: Tasks that have ended, by the time since their end. The claims of
    #: deleted tasks are deleted as well. A task whose failure has halted a
    #: queue is kept until the queue is resumed.
    tasks: float | None = None
    #: True also deletes the rows of unused queues.
    queues: bool = False
    #: True also deletes the oldest ids of the exceptions of each job (see
    #: :data:`distperiodic.core.tick_exceptions.KEPT_IN_ALL`), and the pauses
    #: of objects that have ended.
    surplus: bool = False


def ages_of(history: float, tasks: float) -> Ages:
    """Return the ages at which running services delete rows.

    The record of a failure stays as long as the failed claim is dead.

    :param history: Value of the option ``history_retention``.
    :param tasks: Value of the option ``task_retention``.
    """
    return Ages(history=history or None, failures=history or None,
                reports=history or None, tasks=tasks or None,
                queues=bool(tasks), surplus=True)


class PruneStep(NamedTuple):
    """One transaction that deleted old rows."""

    #: Kind of the rows, for the log.
    kind: str
    rows: int
