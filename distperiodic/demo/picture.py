# SPDX-License-Identifier: Apache-2.0
"""The demo on a terminal: one picture that is redrawn in place.

Each member has a colour. The ring is a strip in these colours, in the order of
its positions. Below the ring there is one cell for each host. When the ping of
a host for the current tick has finished, its cell has the colour of the
process that ran the ping.
"""


from rich import box
from rich.console import Console
from rich.console import Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from distperiodic.core.ring import MIN_POSITION
from distperiodic.demo import report
from distperiodic.demo.account import Tick
from distperiodic.demo.account import quantiles
from distperiodic.demo.scene import Scene
from distperiodic.demo.scene import Seat

_COLOURS = ('bright_cyan', 'bright_magenta', 'bright_yellow',
            'bright_green', 'bright_blue', 'orange1', 'turquoise2',
            'deep_pink2', 'chartreuse3', 'medium_purple1', 'salmon1',
            'sky_blue1', 'gold1')
_STATES = {
    'starting': ('◌', 'dim'), 'up': ('●', ''), 'killed': ('✗', 'red'),
    'frozen': ('❄', 'bright_blue'), 'replaced': ('❄', 'bright_blue'),
    'woken': ('◌', 'yellow'), 'lost': ('◌', 'red'),
}
_WORDS = {'replaced': 'frozen', 'woken': 'waking'}
_WIDEST = 110
_MOST_CELLS = 6


class Picture:
    """The display of a scene on a terminal.

    As a context manager, it restores the terminal on exit.
    """

    def __init__(self) -> None:
        self._console = Console(highlight=False)
        self._live = Live(console=self._console, auto_refresh=False,
                          vertical_overflow='crop')
        self._events: list[tuple[float, str]] = []
        self._ticks: list[Tick] = []

    def __enter__(self) -> 'Picture':
        self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._live.stop()

    def event(self, seconds: float, text: str) -> None:
        self._events.append((seconds, text))

    def tick(self, scene: Scene, tick: Tick) -> None:
        self._ticks.append(tick)

    def update(self, scene: Scene) -> None:
        self._live.update(self._draw(scene), refresh=True)

    def _draw(self, scene: Scene) -> Panel:
        width = min(self._console.width, _WIDEST)
        inner = width - 14
        cells = self._hosts(scene, inner)
        seats = [*scene.members, *scene.workers]
        # One line stays free for the cursor. Border, bar, blank lines, ring,
        # legend and the first line of hosts take ten lines.
        left = self._console.height - 1 - 10 - len(seats) - (
            cells.plain.count('\n'))
        ticks = max(1, min(4, left // 2))
        events = max(1, min(10, left - ticks))
        rows = Table.grid(padding=(0, 1), expand=True)
        rows.add_column(width=7, style='dim', justify='right')
        rows.add_column(ratio=1, no_wrap=True, overflow='ellipsis')
        rows.add_row('', self._bar(scene))
        rows.add_row('', '')
        rows.add_row('members', self._seats(scene, seats, inner))
        rows.add_row('', '')
        rows.add_row('ring', self._strip(scene, inner))
        rows.add_row('hosts', cells)
        rows.add_row('', _legend())
        rows.add_row('', '')
        rows.add_row('ticks', self._last_ticks(scene, ticks))
        rows.add_row('', '')
        rows.add_row('events', self._last_events(events))
        servers = ['files' if not scene.plan.backend_url else
                   scene.plan.backend_url.partition(':')[0]]
        if scene.plan.transport_url:
            servers.append(scene.plan.transport_url.partition(':')[0])
        return Panel(
            rows, box=box.ROUNDED, width=width, border_style='dim',
            title=Text.from_markup(
                f'[bold]distperiodic[/] · {len(scene.hosts)} hosts, a ping '
                f'every 2 s · over {" and ".join(servers)}'),
            title_align='left')

    def _bar(self, scene: Scene) -> Table:
        line = Table.grid(padding=(0, 1), expand=True)
        line.add_column(ratio=1)
        line.add_column(justify='right', no_wrap=True)
        at = min(scene.elapsed, scene.length)
        line.add_row(
            ProgressBar(scene.length, at, complete_style='white',
                        finished_style='white'),
            f'{int(at) // 60:02}:{int(at) % 60:02} of '
            f'{int(scene.length) // 60:02}:{int(scene.length) % 60:02}')
        return line

    # -- members

    def _seats(self, scene: Scene, seats: list[Seat],
               inner: int) -> Table:
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True, width=8)
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True, justify='right')
        table.add_column(no_wrap=True, style='dim')
        now = scene.current()
        by: dict[int, int] = {}
        for pid in now.by.values():
            by[pid] = by.get(pid, 0) + 1
        owned: dict[str, int] = {}
        for host in scene.hosts if len(scene.ring) else ():
            owner = scene.ring.owner_of(host)
            owned[owner] = owned.get(owner, 0) + 1
        room = max(10, inner - 56)
        most = max(owned.values(), default=1)
        for seat in seats:
            mark, style = _STATES[seat.state]
            colour = _colour(scene, seat)
            ours = owned.get(seat.name, 0)
            number = by.get(seat.process.pid, 0)
            if seat.process.kind == 'worker':
                ours = number
            bar = Text('▇' * round(room * ours / max(most, 1)), colour)
            bar.append('·' * (room - len(bar)), 'dim')
            table.add_row(
                Text(f'{mark} {seat.name}', style or colour),
                Text(_WORDS.get(seat.state, seat.state), style or 'dim'),
                bar,
                f'{ours} hosts' if seat.process.kind == 'scheduler' else '',
                f'{number:>3} now, {seat.served:,} in all'
                if seat.process.kind == 'worker' or not scene.workers
                else '')
        return table

    # -- ring and hosts

    def _strip(self, scene: Scene, inner: int) -> Text:
        strip = Text()
        if not len(scene.ring):
            return Text('─' * inner, 'dim')
        step = (1 << 64) // inner
        for cell in range(inner):
            owner = scene.ring.owner_at(
                MIN_POSITION + cell * step + step // 2)
            seat = scene.seats.get(owner)
            strip.append('█', _colour(scene, seat) if seat else 'dim')
        return strip

    def _hosts(self, scene: Scene, inner: int) -> Text:
        """Return one cell for each host, as far as there is room."""
        # A row has a multiple of 50 cells, unless that would need too many
        # rows.
        across = max(50, inner // 50 * 50)
        if inner < 50 or len(scene.hosts) > across * _MOST_CELLS:
            across = inner
        shown = scene.hosts[:across * _MOST_CELLS]
        now = scene.current()
        # A host without a ping counts as missed 1.4 seconds after the tick.
        over = scene.now - now.instant > 1_400_000
        cells = Text()
        for at, host in enumerate(shown):
            if at and at % across == 0:
                cells.append('\n')
            pid = now.by.get(host)
            seat = scene.seat_of(pid) if pid is not None else None
            if now.runs[host] > 1:
                cells.append('2', 'bold black on white')
            elif seat is not None:
                cells.append('■', _colour(scene, seat))
            elif over and scene.elapsed and now.instant >= (
                    scene.account.first):
                cells.append('×', 'bold red')
            else:
                owner = scene.seats.get(
                    scene.ring.owner_of(host)) if len(scene.ring) else None
                cells.append('·', _colour(scene, owner) if owner else 'dim')
        return cells

    # -- ticks and events

    def _last_ticks(self, scene: Scene, most: int) -> Text | Table:
        if not self._ticks:
            return Text('waiting for the first tick', 'dim')
        table = Table.grid(padding=(0, 2))
        for _ in range(6):
            table.add_column(no_wrap=True, justify='right')
        due = len(scene.hosts)
        for tick in self._ticks[-most:]:
            half, nearly_all = quantiles(tick.late, 0.5, 0.99)
            missed = due - tick.served
            table.add_row(
                report.clock(tick.instant),
                Text(f'{tick.served} of {due}',
                     'green' if not missed and not tick.twice else 'yellow'),
                Text(f'{missed} missed', 'red' if missed else 'dim'),
                Text(f'{tick.twice} twice',
                     'yellow' if tick.twice else 'dim'),
                Text(f'late: p50 {report.milliseconds(half)}', 'dim'),
                Text(f'p99 {report.milliseconds(nearly_all)}', 'dim'))
        return table

    def _last_events(self, most: int) -> Group:
        lines = []
        for at, (seconds, text) in enumerate(self._events[-most:]):
            newest = at == min(most, len(self._events)) - 1
            lines.append(Text.assemble(
                (f'{report.moment(seconds)}  ', 'dim'),
                (text, 'bold' if newest else ''), no_wrap=True,
                overflow='ellipsis'))
        return Group(*lines)


def _colour(scene: Scene, seat: Seat) -> str:
    # Members take colours from the beginning of the list, workers from its
    # end.
    number = seat.number - 1
    if seat.process.kind == 'worker':
        number = -seat.number
    return _COLOURS[number % len(_COLOURS)]


def _legend() -> Text:
    return Text.assemble(
        ('■', 'white'), ' served  ', ('·', 'white'), ' not served yet  ',
        ('×', 'bold red'), ' missed  ', ('2', 'bold black on white'),
        ' served twice', style='dim')
