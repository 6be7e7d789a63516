# SPDX-License-Identifier: Apache-2.0
"""``distperiodic status``: the members of a group, their shares, and problems.

The command reads the coordination service and the store when it runs. It sends
no request to a member and keeps no data, except that --watch remembers the
processes that it has seen. :mod:`distperiodic.operator.health` finds the
problems.
"""

import argparse
import datetime
import sys
import threading

from distperiodic.cmd import configured
from distperiodic.cmd import display
from distperiodic.cmd.session import Session
from distperiodic.operator import health
from distperiodic.operator.cells import Output
from distperiodic.operator.group_status import GroupStatus
from distperiodic.operator.health import Facts


class ShowStatus(display.Table):
    """Show members with shares, workers by partition, and problems.

    Exit code 0: all is well; 1: there are warnings; 2: there is a failure.
    """

    essential = ('Role', 'Member', 'Up', 'Share', 'Slots')
    for_people = ('table',)

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        configured.add_expected(parser)
        parser.add_argument(
            '--watch', type=configured.seconds, metavar='N',
            help='show the group every N seconds, until Ctrl-C')

    def run(self, parsed: argparse.Namespace) -> int:
        pause = threading.Event()
        #: Last time that this command saw each process, by partition and name.
        self._seen: dict[tuple[str, str], int] = {}
        while True:
            code = super().run(parsed)
            if parsed.watch is None:
                return code
            pause.wait(parsed.watch)

    def act(self, session: Session) -> Output:
        parsed, clock = session.parsed, session.clock
        if not session.settings.connection:
            # Without a store, only the coordination service knows the group.
            session.check_backend()
        facts = session.facts(
            seen=dict(self._seen), expected=parsed.expect,
            expected_workers=parsed.expect_workers)
        status = GroupStatus(facts)
        self.code = status.code
        self._remember(facts, clock.now())
        if parsed.watch and parsed.formatter == 'table' and (
                sys.stdout.isatty()):
            self.app.stdout.write('\x1b[H\x1b[2J')
        at = datetime.datetime.fromtimestamp(
            clock.now() // 1000000, datetime.UTC)
        # Use UTC, like the table, and not the local time zone.
        self.sentence = '\n'.join([
            f'{at:%H:%M:%S}Z  {status.headline}',
            *(one.line for one in status.findings)])
        return self.listing(status.columns(self.people),
                            status.rows(self.people))

    def _remember(self, facts: 'Facts', now: int) -> None:
        """Remember the processes that are in the group now."""
        self._seen = {
            **{key: seen for key, seen in self._seen.items()
               if now - seen <= health.GONE_FOR * 1e6},
            **dict.fromkeys(health.entered(facts) or (), now)}
