# SPDX-License-Identifier: Apache-2.0
"""The times of a service that bound each other, all in seconds.

Those that nobody has set give way to those that somebody has, so that each
can be set alone. What is left are contradictions between values that were
set, and all of them are reported at once.
"""

import dataclasses
from collections.abc import Mapping

from distperiodic import exceptions


@dataclasses.dataclass(frozen=True, slots=True)
class Relation:
    """One time that another one bounds."""

    lesser: str
    greater: str
    why: str
    #: The lesser is at most the greater divided by this.
    parts: int = 1
    #: Whether it may be as much as that.
    equal: bool = False
    #: Whether it matters only where there is a store.
    store: bool = True

    def holds(self, times: Mapping[str, float]) -> bool:
        lesser, most = times[self.lesser], times[self.greater] / self.parts
        return lesser < most or self.equal and lesser == most


RELATIONS = (
    Relation('sweep_interval', 'lease', parts=3, why=(
        'or work that was lost is looked for too seldom')),
    Relation('sweep_interval', 'session_timeout', parts=2, equal=True, why=(
        'or the work of a dead process is found later than its session '
        'promises')),
    Relation('late_claim_after', 'session_timeout', equal=True, why=(
        'or what a dead process has not claimed is claimed later than its '
        'session promises')),
    Relation('session_timeout', 'lease', equal=True, why=(
        'or the work of a process is taken from it while it still is a '
        'member')),
    Relation('send_timeout', 'lease', store=False, why=(
        'or work is sent again while it is still being sent')),
)

_PARTS = {1: '', 2: 'half of ', 3: 'a third of '}


def fit(usual: Mapping[str, float], given: Mapping[str, float], *,
        store: bool) -> dict[str, float]:
    """Return all times: those *given*, and the others made to fit them.

    :param usual: every time as it is where none is given.
    :param given: those that somebody has set.
    :param store: whether there is a store; without one most of them do not
        bound each other.
    """
    session = usual['session_timeout']
    if store:
        session = max(session, given.get('late_claim_after', 0.0),
                      2 * given.get('sweep_interval', 0.0))
        session = min(session, given.get('lease', session))
    session = given.get('session_timeout', session)
    within = min(session, given.get('lease', session))
    # What follows a shorter session is in proportion to it; a longer one
    # leaves them as they are, so that retries begin no later.
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
    """:raises ConfigError: some contradict each other; the message names all
        that do, and says of which the value is a default.
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
