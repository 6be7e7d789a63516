# SPDX-License-Identifier: Apache-2.0
"""``distperiodic top``: the state of a group, live on a terminal."""

import argparse
import concurrent.futures
import contextlib
import os
import re
import select
import sys
import termios
import tty
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import TYPE_CHECKING
from typing import Any

from distperiodic import exceptions
from distperiodic.adapters.local.clock import SystemClock
from distperiodic.cmd import configured
from distperiodic.cmd.session import Configured
from distperiodic.cmd.session import configuration
from distperiodic.operator import cells
from distperiodic.operator.group_status import GroupStatus
from distperiodic.operator.lists import job_list
from distperiodic.operator.lists import member_list
from distperiodic.operator.lists import run_list
from distperiodic.operator.lists import waiting_list
from distperiodic.operator.sources import Sources

if TYPE_CHECKING:
    from distperiodic.cmd.top_screen import Screen
    from distperiodic.cmd.top_screen import Section
    from distperiodic.cmd.top_screen import Snapshot

# Seconds between two looks at the keyboard.
_KEYS = 0.1
_LISTS: Mapping[str, type[cells.DeclaredList[Any]]] = {
    'Jobs': job_list.Jobs, 'Running': run_list.Runs,
    'Waiting': waiting_list.WaitingJobs, 'Members': member_list.Members}
# One key: a sequence that begins with Escape, or a character.
_KEY = re.compile(r'\x1b[\[O][0-9;]*[A-Za-z~]|.', re.DOTALL)
_NAMES = {'\x1b[A': 'up', '\x1bOA': 'up', '\x1b[B': 'down', '\x1bOB': 'down',
          '\x1b': 'escape', '\r': 'enter', '\n': 'enter', '\x7f': 'backspace',
          '\b': 'backspace'}


class Top(Configured):
    """Show the group live: problems, jobs, runs, waiting work and members.

    The lists are those of "job list", "running", "waiting" and "member list".
    Keys: q quits; space pauses the screen; / filters all lists; the arrows
    select an object, and Enter shows why it ran or did not run.
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            '--interval', type=configured.seconds, default=2.0, metavar='S',
            help='seconds between two reads of the store. Default: 2')

    def take_action(self, parsed: argparse.Namespace) -> int:
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise exceptions.ConfigError(
                'top needs a terminal; use: distperiodic status --watch 2')
        conf = configuration(parsed)
        with _Sources(lambda: conf) as sources:
            if sources.settings.connection:
                sources.check_store()
            else:
                sources.check_backend()
        from rich.console import Console
        from rich.live import Live

        from distperiodic.cmd.top_screen import Screen
        console, screen = Console(highlight=False), Screen()
        # A thread reads the store, so that the keys work while it is slow.
        with concurrent.futures.ThreadPoolExecutor(1, 'top') as reader, \
                Live(console=console, screen=True, auto_refresh=False) as live:
            _show(screen, lambda: conf, reader, parsed.interval, lambda: (
                live.update(
                    screen.draw(console.width, console.height),
                    refresh=True)))
        return 0


def _show(screen: 'Screen', read_conf: Callable[[], Any],
          reader: concurrent.futures.Executor, interval: float,
          draw: Callable[[], object]) -> None:
    """Read the group and the keys, and draw, until the user quits."""
    from distperiodic.cmd.top_screen import Wish
    clock = SystemClock()
    reading = reader.submit(_read, read_conf)
    next_read = clock.monotonic() + interval
    asked: concurrent.futures.Future[dict[str, object]] | None = None
    with _single_keys(sys.stdin.fileno()) as keys:
        while True:
            draw()
            for key in keys():
                match screen.press(key):
                    case Wish.QUIT:
                        return
                    case Wish.ANSWER if screen.selected is not None:
                        asked = reader.submit(
                            _answer, read_conf, screen.selected)
            if asked is not None and asked.done():
                screen.answer, asked = asked.result(), None
            if reading.done():
                if not screen.paused:
                    screen.snapshot = reading.result()
                if clock.monotonic() >= next_read:
                    next_read = clock.monotonic() + interval
                    reading = reader.submit(_read, read_conf)


@contextlib.contextmanager
def _single_keys(terminal: int) -> Iterator[Callable[[], Sequence[str]]]:
    """Make a terminal pass on each key at once, without showing it.

    The value is a function that waits a moment, and returns the names of the
    keys that were pressed.
    """
    def pressed() -> Sequence[str]:
        ready, _, _ = select.select([terminal], [], [], _KEYS)
        text = os.read(terminal, 64).decode(errors='ignore') if ready else ''
        return [_NAMES.get(one, one) for one in _KEY.findall(text)
                if one in _NAMES or one.isprintable()]
    before = termios.tcgetattr(terminal)
    try:
        tty.setcbreak(terminal)
        yield pressed
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


class _Sources(Sources):
    """Sources of one snapshot."""

    def __init__(self, read_conf: Callable[[], Any]):
        # The defaults of the options of all lists.
        parser = argparse.ArgumentParser(conflict_handler='resolve')
        for kind in _LISTS.values():
            kind().add_options(parser)
        super().__init__(parser.parse_args([]), read_conf)


def _read(read_conf: Callable[[], Any]) -> 'Snapshot':
    """Read the state of the group."""
    from distperiodic.cmd.top_screen import Snapshot
    with _Sources(read_conf) as sources:
        status = GroupStatus(sources.facts())
        return Snapshot(
            sources.clock.now(), status.headline, status.findings,
            [_listed(title, kind(), sources)
             for title, kind in _LISTS.items()]
            if sources.settings.connection else
            [_section('Members', *cells.table(
                status.columns(True), status.rows(True), True))])


def _listed(title: str, one: cells.DeclaredList[Any],
            sources: Sources) -> 'Section':
    """Read a list. If it cannot be read, the sentence gives the reason."""
    try:
        titles, values = one.read(sources, people=True)
    except exceptions.DistperiodicError as exc:
        return _section(title, (), (), configured.one_line(exc))
    return _section(title, titles, values, one.sentence, one.essential)


def _section(title: str, titles: Sequence[str], values: Sequence[Any],
             sentence: str = '', essential: Sequence[str] = ()
             ) -> 'Section':
    from distperiodic.cmd.top_screen import ScreenRow
    from distperiodic.cmd.top_screen import Section
    rows = [ScreenRow(list(map(str, row))) for row in values]
    if 'Object' in titles:
        job, key = titles.index('Job'), titles.index('Object')
        rows = [row._replace(about=(row.cells[job], row.cells[key]))
                for row in rows]
    # Columns that have no value take room from the others.
    used = [at for at in range(len(titles))
            if any(row.cells[at] for row in rows)]
    return Section(title, [titles[at] for at in used], [
        row._replace(cells=[row.cells[at] for at in used])
        for row in rows], sentence, essential)


def _answer(read_conf: Callable[[], Any],
            about: tuple[str, str]) -> dict[str, object]:
    """Return the account of an object, as ``distperiodic why`` shows it."""
    from distperiodic.operator import object_account
    job, key = about
    names: dict[str, object] = {'job': job, 'object': key}
    try:
        with _Sources(read_conf) as sources:
            return names | object_account.account(
                sources, job, key).fields(people=True)
    except exceptions.DistperiodicError as exc:
        return names | {'answer': configured.one_line(exc)}
