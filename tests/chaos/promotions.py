# SPDX-License-Identifier: Apache-2.0
"""Checks of the choices of an operator, who names the next active worker.

The chosen worker becomes active, unless the choice is rejected or withdrawn
for a reason that is true. The command rejects a worker whose heartbeats have
not reached the store lately. For the same reason the store withdraws a choice
that it has recorded. A later choice replaces an earlier one.
"""

from typing import NamedTuple

from tests import checker
from tests.chaos import active
from tests.chaos.cluster import SERVERS
from tests.chaos.cluster import SESSION
from tests.chaos.election import free
from tests.chaos.election import longest
from tests.chaos.jobs import LONGEST
from tests.chaos.promises import PROMISE
from tests.chaos.promises import SLACK
from tests.chaos.promises import START

#: Seconds within which a chosen worker becomes active. Before that, the runs
#: of the active worker end. The seconds count from the choice or, if that is
#: later, from the end of the last fault of a server or of one of the two
#: workers.
TAKES_TURN = PROMISE + SLACK + LONGEST
# Microseconds after a fault of the chosen worker or of a server, during which
# the store may have no recent heartbeat of this worker.
_UNHEARD = int((SESSION + START) * checker.SECOND)


class Promotion(NamedTuple):
    """A choice of an operator that the command accepted, and its end."""

    member: str
    #: carried out, replaced, withdrawn, pending or unrecorded
    outcome: str
    #: When the choice ended.
    end: int
    #: Longest time in seconds without a fault that could delay this choice.
    longest: float


def accepted(record):
    """Return each choice that the command accepted."""
    return [_promotion(record, asked) for asked in record.asked
            if asked.answer == 'accepted' and asked.member != active.NOBODY]


def _promotion(record, asked):
    choice = next((
        one for one in record.choices if one.member == asked.member
        and one.begin <= asked.end and one.end >= asked.begin), None)
    if choice is None:
        return Promotion(asked.member, 'unrecorded', asked.end, 0.0)
    before, after = (
        next((record.process(one.worker)[1] for one in record.tenures
              if one.begin <= instant < one.end), None)
        for instant in (choice.begin, choice.end))
    return Promotion(
        asked.member, _outcome(record, asked, choice, after), choice.end,
        longest(free(max(asked.begin, choice.begin), choice.end, [
            *record.away([*SERVERS, before]),
            *record.away([asked.member], START)])))


def _outcome(record, asked, choice, host):
    """Return the outcome of a choice.

    :param host: host of the active worker at the end of the choice.
    """
    if choice is record.choices[-1]:
        return 'pending'
    if host == asked.member:
        return 'carried out'
    if any(one.begin == choice.end and one.member
           for one in record.choices) or any(
               one.begin <= choice.end <= one.end and one.code == 0
               for one in record.asked if one is not asked):
        return 'replaced'
    return 'withdrawn'


def check(record, promotions):
    """Find choices that were refused or dropped without a reason, and choices
    that should have been refused.

    :param promotions: result of :func:`accepted`.
    """
    return [checker.Finding('promotion', text) for text in (
        *_refused(record), *_dropped(record, promotions))]


def _refused(record):
    for asked in record.asked:
        text = f'{asked.member} at {record.at(asked.begin)}: {asked.text!r}'
        if asked.code is None:
            yield f'no answer: {text}'
        elif asked.member == active.NOBODY:
            if asked.code == 0:
                yield f'accepted: {text}'
        elif asked.code != 0 and (
                not asked.text or _was_able(record, asked.member, asked.end)):
            yield f'refused without a reason: {text}'


def _dropped(record, promotions):
    for one in promotions:
        text = (f'{one.member}: {one.outcome} at {record.at(one.end)} '
                f'after {one.longest:.1f} s')
        if one.outcome == 'unrecorded' or one.longest > TAKES_TURN:
            yield text
        elif one.outcome == 'withdrawn' and _was_able(
                record, one.member, one.end):
            yield f'{text} without a reason'


def _was_able(record, member, at):
    """Return whether the store must have a recent heartbeat of a member: no
    fault can have prevented it.
    """
    return not any(begin <= at <= end + _UNHEARD for begin, end
                   in record.away([*SERVERS, member]))
