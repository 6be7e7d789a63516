# SPDX-License-Identifier: Apache-2.0
"""Hints to members, over the bus, that an operator has changed the store.

Members obey the store, not the hint. Without a hint they find the change at
their next sweep.
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

# Maximum seconds to load the clients, and to wait for an unreachable broker.
_LOADING, _PATIENCE = 30.0, 2.0


class Hints:
    """Channel to the members, which is opened before the store is changed.

    Loading the client of a broker takes longer than all other steps, so the
    client is loaded before the hint is needed. Unreachable brokers delay a
    hint by 2 s at most.

    :param actor: The operator.
    """

    def __init__(self, conf: Any, settings: 'opts.Settings', actor: Actor):
        self._settings = settings
        self._actor = actor
        self._clock = SystemClock()
        self._failures: dict[str, str] = {}
        self._bus: command_bus.CommandBus | None = None
        self._problem = ''
        try:
            self._bus = command_bus.CommandBus(
                conf, command_bus.urls_of(conf, settings.partitions),
                group=settings.group, keys=settings.signing_key, hears=False)
            # open() does not wait for a broker. It only loads the clients,
            # which takes seconds on a busy machine.
            self._failures = self._bus.open(_LOADING)
        except DistperiodicError as exc:
            self._problem = str(exc)

    def send(self, verb: str, members: Sequence[tuple[str, str]],
             action: str) -> str:
        """Send a hint to *members*, over all brokers, and disconnect.

        :param members: Partition and name of each member. Empty means all
            members.
        :param action: Id of the recorded action. Empty means a new id.
        :returns: Text with the reasons why the hint could not be sent over
            some or all brokers. Empty means that it was sent over all brokers.
        """
        if self._bus is None:
            return self._problem
        if len(members) > MAX_MEMBERS:
            members = ()
        try:
            failures = self._failures | self._bus.send(ControlRequest(
                action or uuid.uuid4().hex, self._settings.group, verb, {},
                [(part, name, '') for part, name in members],
                self._actor.name, self._actor.why,
                self._clock.now()), _PATIENCE)
        except DistperiodicError as exc:
            return str(exc)
        finally:
            self._bus.close(0.0)
        return '; '.join(
            f'broker {url}: {why}' for url, why in failures.items())
