# SPDX-License-Identifier: Apache-2.0
"""Draw the display of ``distperiodic demo`` from a real run of it.

    python doc/demo_picture.py

runs the demo for a minute and writes doc/source/images/demo.svg, which shows
the display while one member is dead and another one is frozen. The times, and
so the picture, differ from run to run, so no test compares the file. Run the
script again when the display of the demo changes, on a machine that is not
busy.

The background is dark on light pages, too, because the colours of the members
are made for a dark background.
"""

import io

from pictures import IMAGES
from rich.console import Console
from rich.terminal_theme import TerminalTheme

from distperiodic.demo import picture
from distperiodic.demo.scene import Scene

_COLUMNS = 80
# Number of lines above the picture.
_LINES = 14
# Seconds from the take-over of the frozen member to the picture, so that it
# shows a few ticks after the take-over.
_AFTER = 3.0

_THEME = TerminalTheme(
    (22, 27, 34), (201, 209, 217),
    [(72, 79, 88), (255, 123, 114), (63, 185, 80), (210, 153, 34),
     (88, 166, 255), (188, 140, 255), (57, 197, 207), (177, 186, 196)],
    [(110, 118, 129), (255, 161, 152), (86, 211, 100), (227, 179, 65),
     (121, 192, 255), (210, 168, 255), (86, 212, 221), (240, 246, 252)])

# The SVG template of rich, changed so that it needs no font from the network.
_FORMAT = '''\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" \
role="img">
<!-- Drawn by doc/demo_picture.py. -->
<title>The display of distperiodic demo.</title>
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, monospace; \
font-size: {char_height}px; line-height: {line_height}px; \
font-variant-ligatures: none; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" \
clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
'''


class Recorded(Scene):
    """Scene that keeps its lines and one picture, and prints nothing."""

    def __init__(self) -> None:
        super().__init__(Console(file=io.StringIO()), None, seconds=55.0,
                         members=3, hosts=200, urls=('', '', ''))
        self._lines: list[str] = []
        self._replaced_at: float | None = None
        self.drawn = ''

    def say(self, text: str) -> None:
        self._lines.append(f'{picture.moment(self.elapsed)}  {text}')

    def update(self) -> None:
        seat = self.seats.get('member-3')
        if (self.drawn or seat is None or seat.state != 'is frozen'
                or seat.tenure is not None):
            return
        self._replaced_at = self._replaced_at or self.elapsed
        if self.elapsed > self._replaced_at + _AFTER:
            console = Console(
                record=True, file=io.StringIO(), force_terminal=True,
                color_system='truecolor', width=_COLUMNS, highlight=False)
            drawn = picture.draw(self, _COLUMNS)
            console.print(*self._lines[-_LINES:], sep='\n', no_wrap=True,
                          overflow='ellipsis')
            console.print(drawn)
            self.drawn = console.export_svg(
                theme=_THEME, code_format=_FORMAT, title='', unique_id='demo')


def main() -> None:
    scene = Recorded()
    scene.perform()
    if not scene.drawn:
        raise SystemExit('no member was replaced while it was frozen')
    lines = (line.rstrip() for line in scene.drawn.splitlines())
    (IMAGES / 'demo.svg').write_text('\n'.join(filter(None, lines)) + '\n')


if __name__ == '__main__':
    main()
