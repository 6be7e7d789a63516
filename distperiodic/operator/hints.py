# SPDX-License-Identifier: Apache-2.0
"""Hints over the bus that an operator has changed the store.

A hint contains no command that anyone obeys: the store does. Without it the
members find the change at their next sweep.
"""

import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING
from typing import Any

from distperiodic.adapters.local.clock import SystemClock
from distperiodic.adapters.messaging import command_bus
from distperiodic.core.control_message import MAX_MEMBERS
from distperiodic.core.control_message import ControlRequest
from distperiodic.exceptions import DistperiodicError
from distperiodic.operator.auditing import Actor

if TYPE_CHECKING:
    from distperiodic import opts

# Maximum seconds for a broker that is away.
_PATIENCE = 2.0


def send(conf: Any, settings: 'opts.Settings', actor: Actor, verb: str,
         members: Sequence[tuple[str, str]] = (), action: str = '') -> str:
    """Send a hint to *members*, over all brokers, for at most 2 s.

    :param members: Partition and name of each member. Empty means all.
    :param action: Id of the recorded action. Empty means a new one.
    :returns: What prevented it, for people. Empty means nothing did.
    """
    if len(members) > MAX_MEMBERS:
        members = ()
    clock = SystemClock()
    try:
        bus = command_bus.CommandBus(
            conf, command_bus.urls_of(conf, settings.partitions),
            group=settings.group, keys=settings.signing_key, hears=False)
        end = clock.monotonic() + _PATIENCE
        failures = bus.open(_PATIENCE)
        failures |= bus.send(ControlRequest(
            action or uuid.uuid4().hex, settings.group, verb, {}, members,
            f'{actor.who}@{actor.host}', actor.why, clock.now()),
            max(0.0, end - clock.monotonic()))
        bus.close(0.0)
    except DistperiodicError as exc:
        return str(exc)
    return '; '.join(f'broker {url}: {why}' for url, why in failures.items())
