# SPDX-License-Identifier: Apache-2.0
"""The demo on a terminal: a line for each tick and each event, and below them
a picture of the members, which is redrawn in place.

Each member has a colour. The ring is a strip in these colours, in the order of
its positions. Below the ring there is one cell for each host. When the ping of
a host for the current tick has finished, its cell has the colour of the
process that ran the ping.
"""

import collections
import datetime
from typing import TYPE_CHECKING

from rich.console import Console
from rich.console import Group
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from distperiodic.core.ring import MIN_POSITION
from distperiodic.demo.account import lateness

if TYPE_CHECKING:
    from distperiodic.demo.scene import Scene

# Numbers of the colours of a terminal, for two workers and 13 members.
_COLOURS = 14, 13, 11, 10, 12, 214, 45, 198, 112, 141, 209, 117, 220, 219, 29
_MARKS = {'up': '●', 'is killed': '✗', 'is frozen': '❄'}
_LEGEND = ('■ served  · not served yet  [bold red]×[/] missed  '
           '[bold black on white]2[/] served twice')
_GUARANTEE = (
    'Guarantee: each tick of each host is started under one claim in the '
    'store, and no tick is lost if a process dies. If a member dies or '
    'freezes, the others repeat its unfinished runs when its session has '
    'expired ({session:g} s here). To prevent that an effect is repeated, '
    'compare fences, or commit the effect together with the claim.')


def moment(seconds: float) -> str:
    """Format the time since the beginning, such as '00:12.3'."""
    return f'{int(seconds) // 60:02}:{seconds % 60:04.1f}'


def tick_line(scene: 'Scene', instant: int) -> str:
    """Return the line of a tick, such as 'tick 12:00:04  200 of 200 served,
    late p50 11 ms, p99 43 ms;  member-1 68'.
    """
    at = datetime.datetime.fromtimestamp(instant / 1e6).astimezone()
    tick = scene.ticks[instant]
    return (f'tick {at:%H:%M:%S}  {len(tick.runs)} of {len(scene.hosts)} '
            'served' + f', {tick.twice} twice' * bool(tick.twice)
            + f', late {lateness(tick.late)};  ' + '  '.join(
                f'{name} {number}'
                for name, number in sorted(tick.served_by().items())))


def draw(scene: 'Scene', width: int) -> Panel:
    """Return the picture of the current state."""
    inner = min(width, 110) - 14
    rows = Table.grid(padding=(0, 1))
    rows.add_row('', ProgressBar(scene.length, scene.elapsed))
    rows.add_row('members', _members(scene, inner))
    rows.add_row('ring', _strip(scene, inner))
    rows.add_row('hosts', Group(_cells(scene, inner), _LEGEND))
    return Panel(
        rows, width=inner + 14, title_align='left',
        title=f'distperiodic · {len(scene.hosts)} hosts, a ping every 2 s',
        subtitle=f'{moment(scene.elapsed)} of {moment(scene.length)}')


def _members(scene: 'Scene', width: int) -> Table:
    table = Table.grid(padding=(0, 2))
    now = scene.tick[0].served_by()
    owned = collections.Counter(scene.owners.values())
    for name, seat in scene.seats.items():
        colour = _colour(scene, name)
        table.add_row(
            Text(f'{_MARKS.get(seat.state, "◌")} {name}', colour), seat.state,
            ProgressBar(
                max([1, *owned.values()]), owned[name], width=width - 48,
                complete_style=colour, finished_style=colour),
            f'{owned[name]} hosts', f'{now[name]} pinged')
    return table


def _strip(scene: 'Scene', width: int) -> Text:
    step = (1 << 64) // width
    return Text.assemble(*(('█', _colour(scene, scene.ring.owner_at(
        MIN_POSITION + cell * step + step // 2)))
        for cell in range(width) if scene.owners))


def _cells(scene: 'Scene', width: int) -> Text:
    """Return one cell for each host, in at most six lines."""
    # Full fifties are easier to count.
    width = width // 50 * 50 or width
    tick, since = scene.tick
    cells = Text()
    for at, host in enumerate(scene.hosts[:6 * width]):
        ran = tick.runs.get(host, ())
        if at and at % width == 0:
            cells.append('\n')
        if len(ran) > 1:
            cells.append('2', 'bold black on white')
        elif ran:
            cells.append('■', _colour(scene, ran[0]))
        # A host without a ping counts as missed 1.4 seconds after the tick.
        elif since > 1_400_000 and scene.elapsed > 4:
            cells.append('×', 'bold red')
        else:
            cells.append('·', _colour(scene, scene.owners.get(host, '')))
    return cells


def _colour(scene: 'Scene', name: str) -> str:
    return (f'color({_COLOURS[list(scene.seats).index(name)]})'
            if name in scene.seats else 'dim')


def print_summary(scene: 'Scene', console: Console) -> None:
    """Print the summary of the records of the handlers."""
    due = len(scene.counted) * len(scene.hosts)
    served = sum(len(tick.runs) for tick in scene.counted)
    twice = sum(tick.twice for tick in scene.counted)
    late = lateness([late for tick in scene.counted for late in tick.late])
    console.print(
        f'\n{len(scene.counted)} ticks x {len(scene.hosts)} hosts = {due:,} '
        'pings due, counted from the records of the pings:\n\n'
        f'  served once   {served - twice:>7,}\n'
        f'  served twice  {twice:>7,}\n'
        f'  missed        {due - served:>7,}\n\n'
        f'  started late by {late}\n')
    console.print(*scene.changes, '', sep='\n')
    console.print(_GUARANTEE.format(session=scene.session))
