# SPDX-License-Identifier: Apache-2.0
"""Queries and commands for the members of a group that has no store.

The coordination service lists the members. Each member replies over the bus
with its state. The commands are not recorded, but each member logs the
commands that it executes. A member that does not reply counts as not reached.
"""

import threading
import uuid
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from typing import TYPE_CHECKING
from typing import Any

from distperiodic import ports
from distperiodic.adapters.messaging import command_bus
from distperiodic.adapters.messaging import drivers
from distperiodic.core.control import Verb
from distperiodic.core.control_message import ControlReply
from distperiodic.core.control_message import ControlRequest
from distperiodic.core.control_message import state_of
from distperiodic.exceptions import BusUnavailable
from distperiodic.exceptions import ConfigError
from distperiodic.exceptions import DistperiodicError
from distperiodic.operator.auditing import Actor
from distperiodic.operator.live_group import read_group
from distperiodic.operator.member_rows import Answer
from distperiodic.operator.member_rows import MemberRow

if TYPE_CHECKING:
    from distperiodic import opts

# Maximum seconds to connect or to send, and to disconnect.
_CONNECTING = 5.0
_CLOSING = 1.0
# Seconds between two checks for replies.
_POLL = 0.02


class RingMembers:
    """Queries and commands for the members of one group.

    :param conf: Configuration of the command.
    :param actor: The operator, for the logs of the members.
    :param wait: Maximum seconds to wait for the members to reply to a query.
    :raises BusUnavailable: No broker accepted the connection.
    :raises ConfigError: No other process can receive messages over the bus.
    """

    def __init__(self, conf: Any, settings: 'opts.Settings', *, actor: Actor,
                 clock: ports.Clock, wait: float):
        self._settings = settings
        self._actor = actor
        self._clock = clock
        self._wait = wait
        self._problems: list[str] = []
        self._told: set[str] = set()
        self._replies: dict[str, dict[tuple[str, str], tuple[
            int, ControlReply]]] = {}
        self._expected: dict[str, list[MemberRow]] = {}
        urls = command_bus.urls_of(conf, settings.partitions)
        if all(map(drivers.is_within_process, urls)):
            raise ConfigError(
                f'transport_url = {drivers.masked(urls[0])} is a bus within '
                'one process, so no member receives a command over it; set '
                f'transport_url to a broker, as in {drivers.EXAMPLE}, or set '
                '[distperiodic] connection: members read commands from their '
                'store, too')
        self._bus = command_bus.CommandBus(
            conf, urls, group=settings.group, keys=settings.signing_key)
        failures = self._bus.open(_CONNECTING)
        if len(failures) == len(urls):
            self._bus.close(_CLOSING)
            raise BusUnavailable('; '.join(
                f'{url}: {why}' for url, why in failures.items()))
        self._note(failures)

    def close(self) -> None:
        """Disconnect."""
        self._bus.close(_CLOSING)

    def problems(self) -> list[str]:
        """Return reasons why members may be missing, each reason once."""
        found = [*self._problems, *(
            f'a reply was dropped: {reason}'
            for _, reason in sorted(self._bus.dropped))]
        new = [one for one in dict.fromkeys(found) if one not in self._told]
        self._told.update(new)
        return new

    def members(self) -> list[MemberRow]:
        """Return all members: schedulers first, then workers by partition."""
        expected = self._in_group()
        action = self._send(Verb.SHOW, [], {})
        end = self._clock.monotonic() + self._wait
        replies = self._received(action)
        while (expected is None or expected.keys() - replies.keys()) and (
                self._clock.monotonic() < end):
            threading.Event().wait(_POLL)
            replies = self._received(action)
        found = {key: MemberRow(*key, process, None, {}, False, None, '', '',
                                None)
                 for key, process in (expected or {}).items()}
        found |= {key: _row(reply) for key, (_, reply) in replies.items()}
        return [found[key] for key in sorted(found)]

    def order(self, verb: Verb, members: Sequence[MemberRow], target: str,
              hosts: Collection[str] | None = (), **arguments: Any) -> str:
        """Send a command to *members*, and return the id of the command.

        :param target: Ignored, because nothing is recorded.
        :param hosts: Ignored, like *target*.
        """
        action = self._send(
            verb, [(one.part, one.name, one.process) for one in members],
            arguments)
        self._expected[action] = list(members)
        return action

    def answers(self, *actions: str) -> list[Answer]:
        """Return the answers to commands, by member."""
        found = []
        for action in actions:
            replies = self._received(action)
            for one in self._expected[action]:
                at, reply = replies.get((one.part, one.name), (None, None))
                found.append(
                    Answer(one.part, one.name, None, '', False, '', action)
                    if reply is None else Answer(
                        reply.part, reply.name, at, reply.process,
                        reply.done, reply.outcome, action))
        return found

    def conclude(self, action: str, outcome: str) -> None:
        """Do nothing, because there is no record of the action."""

    def _send(self, verb: Verb, members: Sequence[tuple[str, str, str]],
              arguments: Mapping[str, Any]) -> str:
        action = uuid.uuid4().hex
        self._replies[action] = {}
        self._note(self._bus.send(ControlRequest(
            action, self._settings.group, verb, arguments, members,
            self._actor.name, self._actor.why, self._clock.now(),
            self._bus.word), _CONNECTING))
        return action

    def _note(self, failures: Mapping[str, str]) -> None:
        self._problems += [
            f'broker {url}: {why}; the members there are not reached'
            for url, why in failures.items()]

    def _received(self, action: str) -> dict[
            tuple[str, str], tuple[int, ControlReply]]:
        """Return the first reply of each member, and the time of the reply."""
        for reply in self._bus.received():
            self._replies[reply.request].setdefault(
                (reply.part, reply.name), (self._clock.now(), reply))
        return self._replies[action]

    def _in_group(self) -> dict[tuple[str, str], str] | None:
        """Return the processes of members, from the coordination service.

        The key of a process is the partition and the name of the member. None
        means that the service does not answer.
        """
        settings = self._settings
        try:
            group = read_group(settings, self._clock)
        except DistperiodicError as exc:
            self._problems.append(
                f'the coordination service does not answer ({exc}); only '
                'members that reply are known')
            return None
        found = {('', one.identity): one.process for one in group.members}
        for topic, workers in group.workers.items():
            options = settings.partitions.get(topic)
            found |= {(topic if options is None else options.name,
                       one.identity): one.process for one in workers}
        return found


def _row(reply: ControlReply) -> MemberRow:
    state = state_of(reply.state)
    at, size = state.get('drained_at'), state.get('pool_size')
    return MemberRow(
        reply.part, reply.name, reply.process, 0, state,
        bool(state.get('drained')), at if type(at) is int else None,
        str(state.get('drained_by', '')), str(state.get('drained_why', '')),
        size if type(size) is int else None)
