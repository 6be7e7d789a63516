# SPDX-License-Identifier: Apache-2.0
"""Why a worker does not begin a run that it was sent.

The codes are a closed list and part of the message format: schedulers act on
them, so their values never change. The sentence of a code is for people and
may be reworded at any time.
"""

import enum


class Refusal(enum.StrEnum):
    """One code for each kind of answer that a scheduler may get."""

    #: The worker has no handler for the job, and will not get one.
    UNKNOWN_JOB = 'unknown_job'
    #: The worker stops.
    DRAINING = 'draining'
    #: The worker is not sure that it still is a member.
    NOT_A_MEMBER = 'not_a_member'
    #: What the worker was granted is somebody else's by now, perhaps.
    LEASE_ENDED = 'lease_ended'
    #: One run more would be too many, of the job or of its partition.
    JOB_LIMIT = 'job_limit'
    PARTITION_LIMIT = 'partition_limit'

    @property
    def sentence(self) -> str:
        """The code in words, to be logged or shown."""
        return _SENTENCES[self]


_SENTENCES = {
    Refusal.UNKNOWN_JOB: 'the worker does not know the job',
    Refusal.DRAINING: 'the worker is stopping',
    Refusal.NOT_A_MEMBER: 'the worker is not sure of its membership',
    Refusal.LEASE_ENDED: 'its lease has ended',
    Refusal.JOB_LIMIT: 'max_in_flight of the job is reached',
    Refusal.PARTITION_LIMIT: 'max_in_flight of the partition is reached',
}

# What workers of the release before this one send in place of a code.
_BEFORE = {
    'unknown job': Refusal.UNKNOWN_JOB,
    'not sure of its membership': Refusal.NOT_A_MEMBER,
    'its lease has ended': Refusal.LEASE_ENDED,
    'max_in_flight': Refusal.JOB_LIMIT,
    'max_in_flight of its partition': Refusal.PARTITION_LIMIT,
}

_BY_TEXT = _BEFORE | {code.value: code for code in Refusal}


def parse(text: str) -> Refusal | None:
    """Return the code that a message holds as *text*.

    Texts of the release before this one are understood. None: *text* is
    neither.
    """
    return _BY_TEXT.get(text)
