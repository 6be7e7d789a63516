# SPDX-License-Identifier: Apache-2.0
"""Limits of waits, statements and retries, in every database."""

import random
import threading

#: Seconds for which a transaction may be idle before the server ends it. Only
#: PostgreSQL and MariaDB have this limit. A process that is suspended inside a
#: transaction must not block other processes for longer. Normally only
#: milliseconds pass between two statements. The limit must be shorter than the
#: time after which other processes treat a silent process as gone.
IDLE = 2
#: Seconds to wait for a lock.
LOCKED = 10
#: Maximum seconds of one statement. Most statements change at most a few
#: hundred rows.
STATEMENT = 30
#: Maximum number of retries of a transaction after conflicts with other
#: transactions.
CONFLICTS = 8


def wait_for_others(attempt: int) -> None:
    """Sleep for a random time, whose mean doubles with each attempt."""
    threading.Event().wait(random.uniform(0, 0.002 * 2 ** attempt))
