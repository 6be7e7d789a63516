# SPDX-License-Identifier: Apache-2.0
"""``distperiodic db sync`` and ``db version``: the tables of the store.

``db sync`` alone changes tables, and alone needs a database user who may.
"""

import argparse
from collections.abc import Sequence
from typing import Any

from cliff import command
from cliff import show

from distperiodic import exceptions
from distperiodic.cmd import configured


class _OfDatabase(configured.Configured):
    """A command about the database that the options name."""

    def connection(self, parsed: argparse.Namespace) -> str:
        """The URL.

        :raises ConfigError: there is none.
        """
        from distperiodic import opts
        settings = opts.settings(self.configuration(parsed))
        if not settings.connection:
            raise exceptions.ConfigError(
                '[distperiodic] connection is empty, so there is no database; '
                'name the file that sets it with --config-file')
        return settings.connection


class DbSync(_OfDatabase, command.Command):
    """Make the tables, or bring them to the version of this release.

    Doing it again changes nothing. It may be run while services of the
    release before work.
    """

    def take_action(self, parsed: argparse.Namespace) -> None:
        from distperiodic.adapters import schema
        before, after = schema.sync(self.connection(parsed))
        app: Any = self.app
        if before is None:
            told = f'made the tables, version {after}'
        elif before == after:
            told = f'the tables had version {after} already'
        else:
            told = f'brought the tables from version {before} to {after}'
        print(told, file=app.stdout)


class DbVersion(_OfDatabase, show.ShowOne):
    """Show the version of the tables, and the one this release needs.

    The exit code is 0 if they are the same, and 1 if not.
    """

    def take_action(self, parsed: argparse.Namespace
                    ) -> tuple[Sequence[str], Sequence[Any]]:
        from distperiodic.adapters import database
        from distperiodic.adapters import schema
        url = self.connection(parsed)
        found = schema.version(url)
        if found is None:
            todo = 'distperiodic db sync'
        elif found < schema.VERSION:
            todo = 'distperiodic db sync'
        elif found > schema.VERSION:
            todo = 'install the release that made these tables'
        else:
            todo = 'nothing'
        self.same = found == schema.VERSION
        return (('database', 'version', 'needed', 'do next'),
                (database.mask(url), found or 'none', schema.VERSION, todo))

    def run(self, parsed: argparse.Namespace) -> int:
        self.same = False
        return super().run(parsed) or int(not self.same)
