# SPDX-License-Identifier: Apache-2.0
"""Relations between the time options of a service, all in seconds.

The defaults adapt to the times that the operator sets. So the operator can set
one time without setting the others. If the times that the operator sets
contradict each other, one error reports all contradictions.
"""

import dataclasses
from collections.abc import Mapping

from distperiodic import exceptions


@dataclasses.dataclass(frozen=True, slots=True)
class Relation:
    """Relation between two times: *greater* limits *lesser*."""

    lesser: str
    greater: str
    why: str
    #: The limit of *lesser* is *greater* divided by this number.
    parts: int = 1
    #: True if *lesser* may equal its limit.
    equal: bool = False
    #: True if the relation applies only with a store.
    store: bool = True

    def holds(self, times: Mapping[str, float]) -> bool:
        lesser, most = times[self.lesser], times[self.greater] / self.parts
        return lesser < most or self.equal and lesser == most


RELATIONS = (
    Relation('sweep_interval', 'lease', parts=3, why=(
        'so that lost work is found in time')),
    Relation('sweep_interval', 'session_timeout', parts=2, equal=True, why=(
        'so that the work of a dead process is taken over in time')),
    Relation('late_claim_after', 'session_timeout', equal=True, why=(
        'so that the unclaimed ticks of a dead process are claimed in time')),
    Relation('session_timeout', 'lease', equal=True, why=(
        'so that no work is taken from a process that is still a member')),
    Relation('send_timeout', 'lease', store=False, why=(
        'so that no work is sent again while it is still being sent')),
)

_PARTS = {1: '', 2: 'half of ', 3: 'a third of '}


def fit(usual: Mapping[str, float], given: Mapping[str, float], *,
        store: bool) -> dict[str, float]:
    """Return the values of all time options.

    An option that the operator has not set gets a default that fits the times
    that the operator has set.

    :param usual: Defaults of all times.
    :param given: Times that the operator has set.
    :param store: True if there is a store. Without a store, most of the
        relations do not apply.
    """
    session = usual['session_timeout']
    if store:
        session = max(session, given.get('late_claim_after', 0.0),
                      2 * given.get('sweep_interval', 0.0))
        session = min(session, given.get('lease', session))
    session = given.get('session_timeout', session)
    within = min(session, given.get('lease', session))
    # A short session timeout shortens these times. A short lease shortens the
    # last two, even if the operator has set a long session timeout. A long
    # session timeout does not lengthen them, so that late claims and retries
    # start no later.
    found = {
        **usual,
        'session_timeout': session,
        'late_claim_after': min(usual['late_claim_after'], session / 2),
        'sweep_interval': min(usual['sweep_interval'], within / 10),
        'send_timeout': min(usual['send_timeout'], within / 2),
        **given,
    }
    if 'lease' not in given:
        found['lease'] = max(
            usual['lease'], 2 * session, 2 * found['send_timeout'],
            6 * found['sweep_interval'] if store else 0.0)
    return found


def check(times: Mapping[str, float], given: Mapping[str, float], *,
          store: bool) -> None:
    """Check all relations between *times*.

    :param given: Times that the operator has set.
    :param store: True if there is a store.
    :raises ConfigError: Some times contradict each other. The message lists
        all contradictions, and marks default values.
    """
    def shown(name: str) -> str:
        default = '' if name in given else ' (default)'
        return f'{name} {times[name]:g} s{default}'

    broken = [relation for relation in RELATIONS
              if (store or not relation.store) and not relation.holds(times)]
    if broken:
        reasons = '; '.join(
            f'{shown(one.lesser)} must be '
            f'{"at most" if one.equal else "less than"} {_PARTS[one.parts]}'
            f'{shown(one.greater)}, {one.why}' for one in broken)
        remedies = ', and '.join(
            f'lower {one.lesser} or raise {one.greater}' for one in broken)
        raise exceptions.ConfigError(
            f'[distperiodic] {reasons}; {remedies}')
