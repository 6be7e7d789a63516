# SPDX-License-Identifier: Apache-2.0
"""The demo as lines of text: its events, ticks and final summary."""

import datetime
import sys
import textwrap
from typing import TextIO

from distperiodic.demo.account import Tick
from distperiodic.demo.account import quantiles
from distperiodic.demo.scene import Scene

_WIDTH = 78

_GUARANTEE = (
    'Guarantee: each tick of each host is started under one claim in the '
    'store, and no tick is lost if a process dies. If a member dies or '
    'freezes, the others repeat its unfinished runs late, after its session '
    'has expired ({session:g} s here). If a process dies after it has '
    'recorded a ping and before the store has recorded the end of the run, '
    'the ping is repeated. To prevent a repeated effect, let the target of '
    'the effect compare fences, or commit the effect together with the claim.')


def moment(seconds: float) -> str:
    """Format the time since the beginning, such as '00:12.3'."""
    return f'{int(seconds) // 60:02}:{seconds % 60:04.1f}'


def clock(instant: int) -> str:
    """Format the local time of day of a tick."""
    at = datetime.datetime.fromtimestamp(instant / 1e6).astimezone()
    return f'{at:%H:%M:%S}'


def milliseconds(seconds: float) -> str:
    return f'{seconds * 1000:.0f} ms' if seconds < 10 else f'{seconds:.1f} s'


class Lines:
    """A display that prints a line for each tick and each event."""

    def __init__(self, out: TextIO | None = None):
        self._out = out or sys.stdout

    def __enter__(self) -> 'Lines':
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def event(self, seconds: float, text: str) -> None:
        self._print(f'{moment(seconds)}  {text}')

    def tick(self, scene: Scene, tick: Tick) -> None:
        self._print(f'{moment(scene.elapsed)}  {tick_line(scene, tick)}')

    def update(self, scene: Scene) -> None:
        """Do nothing, because printed lines do not change."""

    def _print(self, line: str) -> None:
        print(line, file=self._out, flush=True)


def tick_line(scene: Scene, tick: Tick) -> str:
    """Return the line of a tick, such as 'tick 12:00:04  200 of 200 served,
    late p50 11 ms, p99 43 ms;  member-1 68'.
    """
    half, most = quantiles(tick.late, 0.5, 0.99)
    due = len(scene.hosts)
    odd = [f'{due - tick.served} not yet'] if tick.served < due else []
    odd += [f'{tick.twice} twice'] if tick.twice else []
    by: dict[str, int] = {}
    for pid in tick.by.values():
        seat = scene.seat_of(pid)
        if seat is not None:
            by[seat.name] = by.get(seat.name, 0) + 1
    return (f'tick {clock(tick.instant)}  {tick.served} of {due} served'
            + (f' ({", ".join(odd)})' if odd else '')
            + f', late p50 {milliseconds(half)}, p99 {milliseconds(most)};  '
            + '  '.join(f'{name} {by[name]}' for name in sorted(by)))


def account_lines(scene: Scene) -> list[str]:
    """Return the final summary of the records of the handlers."""
    account = scene.account
    total = account.total()
    half, most, all_ = account.lateness(0.5, 0.99, 1.0)
    lines = [
        f'{total.ticks} ticks x {len(scene.hosts)} hosts = {total.due:,} '
        'pings due, counted from the records of the pings:', '',
        f'  served once   {total.once:>7,}   {_part(total.once, total.due)}',
        f'  served twice  {total.twice:>7,}   '
        f'{_part(total.twice, total.due)}',
        f'  missed        {total.missed:>7,}   '
        f'{_part(total.missed, total.due)}', '',
        f'  started late by {milliseconds(half)} (p50), '
        f'{milliseconds(most)} (p99), {milliseconds(all_)} (maximum)', '']
    rows = [('', 'seen after', 'moved', 'least', 'others', 'missed', 'twice')]
    first = min((c.at for c in account.changes),
                default=account.last + 10**9)
    rest = account.total(
        t for t in account.due_ticks() if t.instant + 500_000 < first)
    rows.append((f'{scene.plan.members} members at rest', '', '', '', '',
                 str(rest.missed), str(rest.twice)))
    for change in account.changes:
        after, moved = account.after(change), change.movement
        rows.append((
            change.what + ('' if change.planned else ' (!)'),
            '-' if change.delay is None else f'{change.delay:.1f} s',
            *(('-', '-', '-') if moved is None else (
                str(moved.moved), str(moved.least),
                str(moved.between_others))),
            str(after.missed), str(after.twice)))
    widths = [max(len(row[i]) for row in rows) for i in range(7)]
    lines += ['  ' + '  '.join(
        cell.ljust(width) if i == 0 else cell.rjust(width)
        for i, (cell, width) in enumerate(zip(row, widths, strict=True)))
        for row in rows]
    lines += ['', *_filled(
        'seen after: time until the other members noticed; moved: hosts that '
        'changed their owner; least: hosts that had to move, because their '
        'owner left or their new owner joined; others: hosts that moved '
        'between two members that both stayed.', '  ')]
    if any(not c.planned for c in account.changes):
        lines += _filled(
            '(!): not planned by the demo. A member that gets no processor '
            'time for longer than its session is replaced like a frozen '
            'member: is this machine very busy?', '  ')
    lines += ['', *_filled(_GUARANTEE.format(session=scene.session))]
    if scene.unclean:
        lines += ['', f'Did not end cleanly: {", ".join(scene.unclean)}.']
    return lines


def _part(number: int, whole: int) -> str:
    return f'{100 * number / whole:6.2f} %' if whole else ''


def _filled(text: str, indent: str = '') -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=indent,
                         subsequent_indent=indent)
