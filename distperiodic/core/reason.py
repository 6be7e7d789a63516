# SPDX-License-Identifier: Apache-2.0
"""Reasons why an object did not run for its last due tick.

The list of reasons is closed: one of them applies in every state of the store,
of the service's code and of the members. The reference manual documents each
reason.
"""

import enum


class Reason(enum.StrEnum):
    """Reason why an object did not run, or RAN if it ran."""

    RAN = 'ran'
    # The object ran, but its run was started more than a period late.
    RAN_LATE = 'ran late'
    # The object has no claim, or is not due.
    JOB_UNKNOWN = 'job unknown'
    MEMBER_JOB = 'job of every member'
    DISABLED = 'job disabled'
    NEVER_SCHEDULED = 'job never scheduled'
    OBJECT_UNKNOWN = 'object unknown'
    NOT_LISTED = 'not in the catalogue'
    NOT_DUE_YET = 'not due yet'
    # The tick is decided, but no run has succeeded.
    PASSED_OVER = 'passed over'
    LOST = 'lost'
    SKIPPED_BY_OVERLAP = 'skipped: overlap'
    SKIPPED_BY_PAUSE = 'skipped: paused'
    CANCELLED = 'cancelled'
    DEAD = 'dead'
    # The object is claimed.
    WAITS_FOR_WORKER = 'waits for a worker'
    WAITS_FOR_SWEEP = 'waits for a sweep'
    WAITS_FOR_RETRY = 'waits for a retry'
    RUNNING = 'still running'
    HOLDER_GONE = 'holder gone'
    LEASE_ENDED = 'lease ended'
    # The object is due, but not claimed yet.
    PAUSED = 'job paused'
    OBJECT_PAUSED = 'object paused'
    NOT_LATE_YET = 'not late yet'
    NO_SCHEDULER = 'no scheduler'
    NOBODY_CLAIMS = 'nobody claims'
    LEFT_BEHIND = 'left behind'
    # These reasons occur only for ticks before the last due tick.
    SUPERSEDED = 'superseded'
    OTHER_SCHEDULE = 'other schedule'
    ONE_OF_SEVERAL = 'one of several'
    NOT_RECORDED = 'not recorded'
    PRUNED = 'history pruned'


#: Reasons that need no action: the object ran, or will run as planned.
FINE = frozenset({
    Reason.RAN, Reason.RAN_LATE, Reason.MEMBER_JOB, Reason.NOT_DUE_YET,
    Reason.NOT_LATE_YET, Reason.RUNNING, Reason.WAITS_FOR_WORKER,
    Reason.WAITS_FOR_SWEEP, Reason.WAITS_FOR_RETRY})
