# SPDX-License-Identifier: Apache-2.0
"""Names of the queues of the message bus.

Each worker process and each scheduler process has a queue of its own. A batch
is addressed to one process. So a scheduler knows exactly which of its batches
each worker holds, and a worker receives only batches that schedulers have sent
to this worker::

    distperiodic.GROUP.work.PARTITION.MEMBER~NONCE  <- one batch a message
    distperiodic.GROUP.reports.MEMBER~NONCE    <- many reports a message
    distperiodic.GROUP.replies.WORD    <- replies to the command of an operator

Schedulers also receive messages to ``distperiodic.GROUP.notices.all``: the
notices of tasks. All members receive messages to
``distperiodic.GROUP.control.all``: the commands of operators.

The nonce identifies the process, as in the process's membership entry. So two
processes with the same member id never receive each other's messages. This
matters if the group rejects the second process, or if a new process replaces a
process that hangs.
"""

import secrets
import urllib.parse

#: Maximum number of characters in the name of a queue, which is ASCII. AMQP
#: sets this limit. It applies to all drivers, so that a group can change its
#: driver.
NAME_LIMIT = 255
#: Last word of the name under which all processes of one kind receive a
#: message.
ALL = 'all'


def work_topic(group: str, partition: str) -> str:
    """Return the topic prefix of the queues of *partition*'s workers."""
    return f'distperiodic.{_quoted(group)}.work.{_quoted(partition)}'


def reports_topic(group: str) -> str:
    """Return the topic prefix of the schedulers' report queues."""
    return f'distperiodic.{_quoted(group)}.reports'


def notices_topic(group: str) -> str:
    """Return the topic of notices to all schedulers of a group."""
    return f'distperiodic.{_quoted(group)}.notices'


def control_topic(group: str) -> str:
    """Return the topic of commands to all members of a group."""
    return f'distperiodic.{_quoted(group)}.control'


def replies_topic(group: str) -> str:
    """Return the topic prefix of the queues for replies to operators."""
    return f'distperiodic.{_quoted(group)}.replies'


def probe_queue(group: str) -> str:
    """Return a name for a temporary queue of ``distperiodic doctor``."""
    return f'distperiodic.{_quoted(group)}.doctor.{secrets.token_hex(8)}'


def _quoted(name: str) -> str:
    """Quote *name*, so that it is one word of a topic.

    With an unquoted dot, two partitions could share a queue. With an unquoted
    '#' or '*', a queue would receive the work of all workers.
    """
    return urllib.parse.quote(name, safe=':@').replace('.', '%2E')


def queue_of(process: str) -> str:
    """Return the last word of the name of the queue of *process*.

    :param process: see :attr:`distperiodic.core.member.Member.process`.
    """
    return urllib.parse.quote(process, safe=':@')
