# SPDX-License-Identifier: Apache-2.0
"""Base class of commands about tasks."""

import argparse
import contextlib
import datetime
from collections.abc import Iterator
from typing import TYPE_CHECKING

from distperiodic.cmd import configured
from distperiodic.core import schedule
from distperiodic.core.task import MOST_COUNTED

if TYPE_CHECKING:
    from distperiodic import tasks


class OfTasks(configured.Configured):
    """Base class of commands about tasks."""

    @contextlib.contextmanager
    def client(self, parsed: argparse.Namespace,
               must_exist: bool = True) -> 'Iterator[tasks.Client]':
        """Yield a client of the configured group, and close it at the end.

        :param must_exist: True if an embedded store must already exist.
        :raises ConfigError: There is no store.
        """
        from distperiodic import tasks
        from distperiodic.operator import group_reader
        settings = self.database(parsed, must_exist)
        if not settings.embedded:
            group_reader.check_file(settings.connection)
        client = tasks.Client(self.configuration(parsed))
        try:
            yield client
        finally:
            client.close()

    def print(self, text: str) -> None:
        print(text, file=self.app.stdout, flush=True)


def instant(at: datetime.datetime | None, for_people: bool) -> str:
    """Format an instant, in whole seconds if *for_people*; '' for None."""
    if at is None:
        return ''
    micros = schedule.instant_of(at)
    return configured.second(micros) if for_people else (
        configured.moment(micros))


def number(counted: int) -> int | str:
    """Return a number of waiting tasks, as it is shown to people."""
    return f'{counted:,} or more' if counted >= MOST_COUNTED else counted
