# SPDX-License-Identifier: Apache-2.0
"""Codes with which a worker refuses to start a run.

The list of codes is closed, and is part of the format of messages. Schedulers
act on the codes, so their values never change. Each code also has a sentence
for operators, which may change at any time.
"""

import enum


class Refusal(enum.StrEnum):
    """Code of a refusal."""

    #: The worker has no handler for the job. It would refuse another attempt
    #: as well.
    UNKNOWN_JOB = 'unknown_job'
    #: The worker is stopping.
    DRAINING = 'draining'
    #: The worker cannot be certain that it is still a member.
    NOT_A_MEMBER = 'not_a_member'
    #: The lease has ended: another process may have taken over the run.
    LEASE_ENDED = 'lease_ended'
    #: The run would exceed ``max_in_flight`` of the job.
    JOB_LIMIT = 'job_limit'
    #: The run would exceed ``max_in_flight`` of the partition.
    PARTITION_LIMIT = 'partition_limit'
    #: The worker is not the active worker of its partition.
    NOT_ACTIVE = 'not_active'

    @property
    def sentence(self) -> str:
        """The code in words, for a log line or a table."""
        return _SENTENCES[self]


_SENTENCES = {
    Refusal.UNKNOWN_JOB: 'the worker does not know the job',
    Refusal.DRAINING: 'the worker is stopping',
    Refusal.NOT_A_MEMBER: 'the worker is not certain of its membership',
    Refusal.LEASE_ENDED: 'its lease has ended',
    Refusal.JOB_LIMIT: 'max_in_flight of the job is reached',
    Refusal.PARTITION_LIMIT: 'max_in_flight of the partition is reached',
    Refusal.NOT_ACTIVE: 'the worker is not active in its partition',
}
