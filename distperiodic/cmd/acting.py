# SPDX-License-Identifier: Apache-2.0
"""Base class of commands that change something, and record these changes.
"""

import argparse
import contextlib
from typing import TYPE_CHECKING
from typing import Protocol

from distperiodic.cmd import configured

if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Sequence

    from distperiodic.operator.auditing import Actor
    from distperiodic.operator.auditing import Record

    class Hint(Protocol):
        def __call__(self, verb: str,
                     members: Sequence[tuple[str, str]] = (),
                     action: str = '') -> None: ...


def actor(why: str = '') -> 'Actor':
    """Return the user who runs this command, the host and the reason."""
    from distperiodic.adapters.local.process_slot import host_name
    from distperiodic.adapters.local.process_slot import user_name
    from distperiodic.operator.auditing import Actor
    return Actor(user_name(), host_name(), why)


class Acting(configured.Configured):
    """Base class of commands that change something."""

    #: True if the user must give a reason.
    reason_required = False

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            '--reason', '--why', dest='why', default='', metavar='TEXT',
            required=self.reason_required,
            help='the reason, for other operators; "events" shows it')
        return parser

    def actor(self, parsed: argparse.Namespace) -> 'Actor':
        """Return the user who runs this command, the host and the reason."""
        return actor(parsed.why)

    @contextlib.contextmanager
    def audited(self, parsed: argparse.Namespace, target: str,
                **arguments: object) -> 'Iterator[Record]':
        """Record the action that the body of the context carries out.

        :param arguments: Details of the action for the record. Values of None
            are left out.
        :raises ConfigError: there is no store.
        """
        from distperiodic.operator.auditing import Trail
        settings = self.database(parsed)
        assert self.cmd_name is not None
        with contextlib.closing(Trail(
                settings.connection, namespace=settings.group)) as trail:
            with trail.recorded(
                    self.actor(parsed), self.cmd_name, target,
                    **{name: value for name, value in arguments.items()
                       if value is not None}) as record:
                yield record

    def prepare_hint(self, parsed: argparse.Namespace) -> 'Hint':
        """Return a function that sends a hint to members.

        Members that receive the hint read the store at once. The arguments of
        the function are the command, the partitions and names of the members
        (an empty sequence means all members), and the id of the recorded
        action, if there is one. If the hint cannot be sent, the function
        prints a note that the members read the store at their next sweep. With
        ``dispatcher = local`` there is no bus, and the function does nothing.
        """
        conf = self.configuration(parsed)
        settings = self.database(parsed)
        if settings.dispatcher != 'messaging':
            return lambda verb, members=(), action='': None
        from distperiodic.operator.hints import Hints
        hints = Hints(conf, settings, self.actor(parsed))

        def hint(verb: str, members: 'Sequence[tuple[str, str]]' = (),
                 action: str = '') -> None:
            problem = hints.send(verb, members, action)
            if problem:
                self.print(f'note: {problem}; the members read the change '
                           f'within {settings.sweep_interval:g} s '
                           '(sweep_interval)')
        return hint

    def print(self, text: str) -> None:
        print(text, file=self.app.stdout)
