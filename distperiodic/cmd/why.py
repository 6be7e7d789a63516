# SPDX-License-Identifier: Apache-2.0
"""``distperiodic why``: whether an object ran, and if not, the reason."""

import argparse
from collections.abc import Mapping

from distperiodic.cmd import configured
from distperiodic.cmd import explain
from distperiodic.cmd.session import Session
from distperiodic.core.reason import Reason
from distperiodic.operator import health
from distperiodic.operator import object_account


class Why(explain.Explained):
    """Show whether an object ran for its last tick, and if not, the reason.

    The findings about the object, its job and its partition follow. With --at
    the command shows an earlier tick. Omit OBJECT for a job of scope 'group'.
    Exit code 0: the object ran, is running, or will run as planned, and there
    are no findings; 1: it did not run, or there are findings; 2: there is no
    such job.
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        parser.add_argument(
            '--at', type=configured.since, metavar='TIME',
            help='show the tick at or before this time: an instant in UTC, or '
                 'an age such as 90s, 30m, 24h or 7d; default: the last tick')

    def facts(self, session: Session) -> Mapping[str, object]:
        session.check_store()
        found = object_account.account(
            session, session.parsed.job, self.key_of(session),
            session.parsed.at)
        self.judged(found.reason, found.facts)
        # What is wrong with the whole group does not matter to an object that
        # has run.
        self.code = max(self.code, any(
            found.reason is not Reason.RAN or one.code not in health.OF_ALL
            for one in found.findings or ()))
        return {**explain.names(session), **found.fields(self.people)}
