# SPDX-License-Identifier: Apache-2.0
"""The sources of an action, which may change the group.

Packages that are slow to load (tooz, oslo.messaging) are imported inside the
functions that need them.
"""

import contextlib
import functools
from collections.abc import Callable
from collections.abc import Sequence
from typing import TYPE_CHECKING
from typing import Protocol

from distperiodic.operator.sources import Sources

if TYPE_CHECKING:
    from distperiodic import opts
    from distperiodic.operator.auditing import ActionRecord
    from distperiodic.operator.group_reader import GroupStore
    from distperiodic.operator.members import MemberAdmin
    from distperiodic.operator.ring_members import RingMembers
    from distperiodic.tasks import Client


class Hint(Protocol):
    """Function that sends a hint to members.

    Members that receive the hint read the store at once.

    :param verb: The command.
    :param members: Partitions and names of the members. Empty means all
        members.
    :param action: Id of the recorded action, if there is one.
    """

    def __call__(self, verb: str, members: Sequence[tuple[str, str]] = (),
                 action: str = '') -> None: ...


class ActionSources(Sources):
    """The sources of a query, with access that may write."""

    @functools.cached_property
    def store(self) -> 'GroupStore':
        """The store of the group.

        :raises ConfigError: there is no store.
        """
        self.check_store()
        return self.resources.enter_context(
            contextlib.closing(self._open_store()))

    def _open_store(self) -> 'GroupStore':
        from distperiodic.operator.group_reader import GroupStore
        return GroupStore(self.settings.connection, self.settings.group)

    @functools.cached_property
    def members(self) -> 'MemberAdmin | RingMembers':
        """The members of the group, and commands to them, with or without a
        store.

        :raises ConfigError: there is neither a store nor a broker.
        """
        if self.settings.connection:
            from distperiodic.operator.members import MemberAdmin
            return MemberAdmin(self.store, self.actor)
        return self.ring_members

    @functools.cached_property
    def client(self) -> 'Client':
        """A client of the tasks of the group.

        :raises ConfigError: there is no store.
        """
        return self.open_client(self.check_store())

    def open_client(self, settings: 'opts.Settings') -> 'Client':
        """Return a client, which the end of the session closes.

        :raises ConfigError: a file of SQLite does not exist.
        """
        from distperiodic import tasks
        from distperiodic.operator import group_reader
        if not settings.embedded:
            group_reader.check_file(settings.connection)
        return self.resources.enter_context(contextlib.closing(
            tasks.Client(self.conf)))

    def record(self, verb: str, target: str, **arguments: object
               ) -> 'contextlib.AbstractContextManager[ActionRecord]':
        """Record the action that the body of the context carries out.

        :param arguments: Details of the action for the record.
        :raises ConfigError: there is no store.
        """
        from distperiodic.operator import auditing
        return auditing.recorded(
            self.store, self.actor, verb, target, **arguments)

    def hint(self, note: Callable[[str], None]) -> Hint:
        """Return a function that sends a hint to members.

        With ``dispatcher = local`` there is no bus, and the function does
        nothing.

        :param note: Receives a sentence if the hint cannot be sent: the
            members then read the store at their next sweep.
        """
        settings = self.check_store()
        if settings.dispatcher != 'messaging':
            return lambda verb, members=(), action='': None
        from distperiodic.operator.hints import Hints
        hints = Hints(self.conf, settings, self.actor)

        def send(verb: str, members: Sequence[tuple[str, str]] = (),
                 action: str = '') -> None:
            problem = hints.send(verb, members, action)
            if problem:
                note(f'{problem}; the members read the change within '
                     f'{settings.sweep_interval:g} s (sweep_interval)')
        return send
