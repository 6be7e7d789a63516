# SPDX-License-Identifier: Apache-2.0
"""Draw the pictures of the documentation from the code that they explain.

    python doc/pictures.py

writes the pictures to doc/source/images. The ring is computed by
distperiodic/core/ring.py, the times are the defaults of the options, the
packages and their layers are those in pyproject.toml, and the transitions of a
task are computed by distperiodic/core/workflow.py. Unit tests compare the
files with the output of this script, and the files in the picture of an
object's steps with those that a run of the product calls. doc/demo_picture.py
draws the picture of the demo, because it must run the demo for a minute.

Each picture is 600 units wide, so that its text stays readable on a narrow
screen. A picture has no background. It has one set of colours for light pages
and one for dark pages.
"""

import html
import math
import pathlib
import re
import tomllib
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence

from distperiodic import opts
from distperiodic.adapters.coordination.term import TRUST
from distperiodic.core import workflow
from distperiodic.core.ring import MIN_POSITION
from distperiodic.core.ring import Ring
from distperiodic.core.ring import points_of
from distperiodic.core.ring import position_of
from distperiodic.core.workflow import Status

_ROOT = pathlib.Path(__file__).parents[1]
IMAGES = _ROOT / 'doc' / 'source' / 'images'

WIDTH = 600

# Class, property, value on a light page, value on a dark page.
_COLOURS = [
    ('ink', 'fill', '#1f2328', '#e6e8eb'),
    ('soft', 'fill', '#59636e', '#a3acb7'),
    ('line', 'stroke', '#6e7781', '#9aa4af'),
    ('head', 'fill', '#6e7781', '#9aa4af'),
    ('box', 'fill', '#eef3fb', '#1b2736'),
    ('box', 'stroke', '#3b6fb6', '#6ea3e6'),
    ('store', 'fill', '#fdf3e3', '#33270f'),
    ('store', 'stroke', '#a8690d', '#dfa648'),
    # Three members; the colours differ in brightness too.
    ('a', 'stroke', '#2f6bb8', '#79b0f2'),
    ('b', 'stroke', '#d08c1a', '#f0b952'),
    ('c', 'stroke', '#1b8554', '#58c993'),
    ('part-a', 'fill', '#2f6bb8', '#79b0f2'),
    ('part-b', 'fill', '#d08c1a', '#f0b952'),
    ('part-c', 'fill', '#1b8554', '#58c993'),
    # The same three members; these colours are for text.
    ('of-a', 'fill', '#2f6bb8', '#79b0f2'),
    ('of-b', 'fill', '#9a5b00', '#f0b952'),
    ('of-c', 'fill', '#1b7a4e', '#58c993'),
    ('rest', 'fill', '#d8dee4', '#3b434c'),
]


def svg(height: float, title: str, parts: Iterable[str]) -> str:
    """Return a picture with its *title*, which a screen reader reads."""
    light = (f'.{name}{{{what}:{value}}}' for name, what, value, _ in _COLOURS)
    dark = (f'.{name}{{{what}:{value}}}' for name, what, _, value in _COLOURS)
    return '\n'.join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} '
        f'{height:g}" role="img" font-family="system-ui, sans-serif" '
        'font-size="16">',
        '<!-- Drawn by doc/pictures.py. -->',
        f'<title>{html.escape(title)}</title>',
        '<style>',
        '.bold{font-weight:600} .small{font-size:14px}',
        '.line{stroke-width:1.6;fill:none} .thin{stroke-width:1}',
        '.box,.store{stroke-width:1.5} .arc{fill:none}',
        *light,
        '@media (prefers-color-scheme:dark){', *dark, '}',
        '</style>',
        '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" '
        'markerWidth="7" markerHeight="7" orient="auto">'
        '<path class="head" d="M0 0L10 5L0 10z"/></marker></defs>',
        *parts, '</svg>', ''])


def text(x: float, y: float, words: str, style: str = 'ink',
         anchor: str = 'start') -> str:
    return (f'<text class="{style}" x="{x:g}" y="{y:g}" '
            f'text-anchor="{anchor}">{html.escape(words)}</text>')


def box(x: float, y: float, width: float, height: float,
        style: str = 'box') -> str:
    return (f'<rect class="{style}" x="{x:g}" y="{y:g}" width="{width:g}" '
            f'height="{height:g}" rx="5"/>')


def arrow(*points: tuple[float, float], dashed: bool = False) -> str:
    way = 'L'.join(f'{x:g} {y:g}' for x, y in points)
    dashes = ' stroke-dasharray="5 4"' if dashed else ''
    return (f'<path class="line" d="M{way}" marker-end="url(#head)"'
            f'{dashes}/>')


# -- the ring

_MEMBERS = {'scheduler-1': 'a', 'scheduler-2': 'b', 'scheduler-3': 'c'}
_LEAVES = 'scheduler-2'
_POINTS = 6
_OBJECTS = [f'volume-{number}' for number in range(1, 9)]


def _turn(position: int) -> float:
    """Return the angle of *position* in radians, clockwise from the top."""
    return (position - MIN_POSITION) / (1 << 64) * 2 * math.pi


def _at(middle: tuple[float, float], radius: float,
        angle: float) -> tuple[float, float]:
    return (round(middle[0] + radius * math.sin(angle), 1),
            round(middle[1] - radius * math.cos(angle), 1))


def _sweep(middle: tuple[float, float], radius: float, start: float,
           end: float, style: str, width: float, then: str = '') -> str:
    """Return a part of a circle, clockwise from angle *start* to *end*.

    :param then: SVG path to draw from the end of the arc.
    """
    (x1, y1), (x2, y2) = (_at(middle, radius, start), _at(middle, radius, end))
    large = int(end - start > math.pi)
    return (f'<path class="arc {style}" d="M{x1:g} {y1:g}A{radius:g} '
            f'{radius:g} 0 {large} 1 {x2:g} {y2:g}{then}" '
            f'stroke-width="{width:g}"/>')


def _arcs(ring: Ring, middle: tuple[float, float], radius: float,
          width: float) -> list[str]:
    return [_sweep(middle, radius, _turn(arc.low), _turn(arc.high),
                   _MEMBERS[member], width)
            for member in ring.members for arc in ring.arcs(member)]


def _points(ring: Ring, middle: tuple[float, float], radius: float,
            width: float) -> list[str]:
    """Return a mark at each point of the ring, in its member's colour."""
    marks = []
    for member, count in ring.members.items():
        for point in points_of(member, count):
            (x1, y1), (x2, y2) = (
                _at(middle, radius - width / 2 - 3, _turn(point)),
                _at(middle, radius + width / 2 + 3, _turn(point)))
            marks.append(
                f'<path class="{_MEMBERS[member]}" d="M{x1:g} {y1:g}L{x2:g} '
                f'{y2:g}" stroke-width="3.5"/>')
    return marks


def _objects(ring: Ring, middle: tuple[float, float], radius: float,
             marked: Sequence[str] = ()) -> list[str]:
    """Return the objects, each with a line to the next point."""
    parts = []
    for name in _OBJECTS:
        position = position_of(name)
        point, owner = next(ring.succession(position))
        start, end = _turn(position), _turn(point)
        if end < start:
            end += 2 * math.pi
        letter = _MEMBERS[owner]
        inner = radius - 24
        x, y = _at(middle, radius - 10, end)
        parts.append(_sweep(middle, inner, start, end, letter, 2,
                            f'L{x:g} {y:g}'))
        x, y = _at(middle, inner, start)
        parts.append(f'<circle class="part-{letter}" cx="{x:g}" cy="{y:g}" '
                     'r="5"/>')
        (x, y), right = _at(middle, inner - 12, start), math.sin(start) > 0
        parts.append(text(
            x, y + 5, name, f'of-{letter} small'
            + (' bold' if name in marked else ''),
            'end' if right else 'start'))
    return parts


def ring() -> str:
    """Draw a ring of three members, and the same ring without one of them."""
    before = Ring(dict.fromkeys(_MEMBERS, _POINTS))
    after = before.changed_to({
        name: count for name, count in before.members.items()
        if name != _LEAVES})
    moved = [name for name in _OBJECTS
             if before.owner_of(name) != after.owner_of(name)]
    parts = []
    for at, (shown, title) in enumerate((
            (before, 'Three members'), (after, f'{_LEAVES} has left'))):
        middle = (150 + 300 * at, 188)
        parts += [
            text(middle[0], 24, title, 'ink bold', 'middle'),
            *_arcs(shown, middle, 135, 16), *_points(shown, middle, 135, 16),
            *_objects(shown, middle, 135, moved if at else ())]
        for line, (member, letter) in enumerate(_MEMBERS.items()):
            if member not in shown.members:
                continue
            mine = sum(shown.owner_of(name) == member for name in _OBJECTS)
            y = 362 + 24 * line
            parts += [
                f'<circle class="part-{letter}" cx="{middle[0] - 118}" '
                f'cy="{y - 5}" r="6"/>',
                text(middle[0] - 104, y,
                     f'{member}: {shown.share(member):.0%}, {mine} volumes')]
    return svg(418, f'A ring of three members with {_POINTS} points each. '
               'Each object belongs to the member with the next point '
               'clockwise. '
               f'When {_LEAVES} leaves, only its objects move: '
               f'{", ".join(moved)}.', parts)


# -- the times of a take-over

_DEFAULT: dict[str, float] = {
    option.dest: option.default for option in opts.OPTS}
# Seconds until the other members have seen that a session has expired.
_SEEN = 1.0
# Units from the left edge to 0 s, and units in a second.
_ZERO, _SECOND = 24, 22
# Seconds that the axis leaves out, and the units that stand for them.
_GAP, _GAP_UNITS = (22.0, 60.0), 40


def _x(seconds: float) -> float:
    if seconds >= _GAP[1]:
        return _x(_GAP[0]) + _GAP_UNITS + (seconds - _GAP[1]) * _SECOND
    return _ZERO + seconds * _SECOND


def _lane(y: float, title: str,
          spans: Sequence[tuple[float, str, str]]) -> list[str]:
    """Return a bar that shows *spans*, and a line of text for each span.

    :param spans: End in seconds, style and text of each span.
    """
    parts = [text(_ZERO, y, title, 'ink bold')]
    start = 0.0
    for line, (end, style, words) in enumerate(spans):
        last = line == len(spans) - 1
        when = f'from {start:.2g} s' if last else f'until {end:.2g} s'
        low = y + 50 + 22 * line
        parts += [
            f'<rect class="{style}" x="{_x(start):g}" y="{y + 12:g}" '
            f'width="{_x(end) - _x(start):g}" height="14"/>',
            f'<rect class="{style}" x="{_ZERO}" y="{low - 11:g}" width="12" '
            'height="12"/>',
            text(_ZERO + 20, low, when, 'ink small'),
            text(_ZERO + 106, low, words, 'soft small')]
        start = end
    return parts


def takeover() -> str:
    """Draw the times of a take-over with the default options."""
    session = _DEFAULT['session_timeout']
    late = _DEFAULT['late_claim_after']
    certain = _DEFAULT['lease'] + _DEFAULT['sweep_interval']
    unseen = 2 * session + _DEFAULT['sweep_interval']
    end = _GAP[1] + 2
    parts = [
        *_lane(20, 'A member dies, or is cut off, at 0 s', [
            (TRUST * session, 'part-a', 'if alive, it trusts its view'),
            (session, 'rest', 'if alive, it no longer trusts its view'),
            (session + _SEEN, 'part-b', 'its session has expired, which the '
             'others learn'),
            (end, 'part-c', 'the others own its objects')]),
        *_lane(178, 'A tick is due at 0 s, and its owner is alive', [
            (late, 'rest', 'the owner claims it'),
            (2 * late, 'part-b', 'if it did not, two other members do'),
            (end, 'part-c', 'if they cannot, the next two members do')]),
        *_lane(314, 'A process dies, and the others do not see it leave', [
            (unseen, 'rest', 'its claims wait (the members are known at 0 s)'),
            (certain, 'part-b', 'taken over, if the members stay known'),
            (end, 'part-c', 'taken over in any case: the lease has ended')]),
        ]
    y = 446.0
    parts += [
        f'<path class="line" d="M{_x(0):g} {y:g}H{_x(_GAP[0]):g}"/>',
        f'<path class="line" stroke-dasharray="2 5" d="M{_x(_GAP[0]):g} '
        f'{y:g}H{_x(_GAP[1]):g}"/>',
        f'<path class="line" d="M{_x(_GAP[1]):g} {y:g}H{_x(end):g}"/>']
    for seconds in (0, 5, 10, 15, 20, 60):
        parts += [
            f'<path class="line" d="M{_x(seconds):g} {y - 4:g}v8"/>',
            text(_x(seconds), y + 22, f'{seconds} s', 'soft small',
                 'middle')]
    return svg(
        478, 'Time line of a take-over with the default options. After the '
        f'death of a member the others own its objects within '
        f'{session + _SEEN:g} s. A tick that its owner does not claim is '
        f'claimed by others after {late:g} s. If no process saw a process '
        f'leave, its claims are taken over within {unseen:g} s after the '
        f'members are known again, and within {certain:g} s in any case.',
        parts)


# -- the packages and their layers

_PURPOSE = {
    'cmd': 'the command line',
    'demo': 'distperiodic demo',
    'pytest_plugin': 'the fixture for your tests',
    'web': 'the page',
    'service': 'the two services',
    'testing': 'a cluster in memory',
    'loading': 'classes of tasks, by their names',
    'coordinator': 'HashRing',
    'periodic': 'periodic_task',
    'dispenser': 'TaskDispenser',
    'tasks': 'Client, command',
    'events': 'subscribe', 'metrics': 'install', 'traces': 'install',
    'operator': 'queries and commands of operators, on the store',
    'flow': 'the steps of a tick and of a run',
    'adapters': 'SQL, messages, groups, pools',
    'ports': 'the interfaces between flow and adapters',
    'core': 'values and arithmetic; no input or output',
    'exceptions': 'all errors',
}


def _contracts(kind: str) -> list[dict[str, list[str]]]:
    project = tomllib.loads((_ROOT / 'pyproject.toml').read_text())
    return [contract for contract in project['tool']['importlinter'][
        'contracts'] if contract['type'] == kind]


def _room(module: str) -> str:
    return module.strip(' ()').removeprefix('distperiodic.')


def rooms() -> str:
    """Draw the layers of the code and the direction of the imports."""
    [layers] = _contracts('layers')
    # The contract of the packages that may not wait.
    [pure] = [contract for contract in _contracts('forbidden')
              if 'time' in contract['forbidden_modules']]
    rows = [[_room(module) for module in re.split(r'[|:]', layer)]
            for layer in layers['layers']]
    no_io = {_room(module) for module in pure['source_modules']}
    parts = []
    left, width, height, step = 44, WIDTH - 54, 42, 52
    for line, names in enumerate(rows):
        y = 8 + line * step
        each = (width - 10 * (len(names) - 1)) / len(names)
        for at, name in enumerate(names):
            x = left + at * (each + 10)
            parts.append(box(x, y, each, height,
                             'store' if name in no_io else 'box'))
            if len(names) == 1:
                parts += [
                    text(x + 14, y + 27, name, 'ink bold'),
                    text(x + 150, y + 26, _PURPOSE[name], 'soft small')]
            else:
                parts += [
                    text(x + 14, y + 18, name, 'ink bold'),
                    text(x + 14, y + 35, _PURPOSE[name], 'soft small')]
    bottom = 8 + (len(rows) - 1) * step + height
    parts += [
        arrow((18, 12), (18, bottom - 2)),
        f'<text class="soft small" text-anchor="middle" transform="translate('
        f'34 {bottom / 2:g}) rotate(-90)">imports</text>']
    return svg(bottom + 8, 'The packages of distperiodic, from the top: '
               f'{"; ".join(" and ".join(names) for names in rows)}. A '
               'package imports only packages below it.', parts)


# -- the way of an object through the flow

# Steps of an object: the step, and its files in distperiodic/flow. The first
# step of the worker is beside the last step of the scheduler.
_SCHEDULER = [
    ('its tick is due', ['scheduler/timers.py']),
    ('this member may act', ['scheduler/authority.py',
                             'scheduler/attendance.py']),
    ('the catalogue lists it', ['scheduler/reads.py']),
    ('this member owns it', ['scheduler/part.py']),
    ('it is claimed', ['scheduler/claimer.py']),
    ('it waits for a worker', ['scheduler/dispatcher.py']),
    ('it is sent in a batch', ['scheduler/batcher.py',
                               'scheduler/in_flight.py']),
]
_WORKER = [
    ('the limits allow its run', ['run_leases.py', 'worker/admission.py']),
    ('its run is granted', ['run_leases.py']),
    ('the handler runs', ['worker/runs.py', 'worker/held_runs.py']),
    ('the end is recorded', ['run_leases.py', 'run_times.py']),
]
_COUNTED = ('its end is counted', ['scheduler/dispatcher.py',
                                   'scheduler/in_flight.py'])
# Files that take part in several steps, and their part.
_SEVERAL = [
    ('controls the steps from the tick to the claim', ['scheduler/tick.py']),
    ('passes each event to its handler', ['scheduler/pipeline.py']),
    ('continues with each answer of the store', ['procedure.py']),
    ('provides the time of the store', ['store_clock.py']),
]


def _file_names(paths: Iterable[str]) -> str:
    return ', '.join(path.rpartition('/')[2] for path in paths)


def crossing() -> str:
    """Draw the steps of one object, with the files that carry them out."""
    left, right, width, height, step = 8, 352, 240, 44, 58
    store, narrow = 278, 44
    claim, sent = 4, len(_SCHEDULER) - 1
    last = sent + len(_WORKER)

    def top(row: int) -> float:
        return 32 + row * step

    def middle(row: int) -> float:
        return top(row) + height / 2
    parts = [text(left, 20, 'Scheduler', 'ink bold'),
             text(store + narrow / 2, 20, 'Store', 'ink bold', 'middle'),
             text(right, 20, 'Worker', 'ink bold')]
    for x, first, steps in ((left, 0, _SCHEDULER), (right, sent, _WORKER),
                            (left, last, [_COUNTED])):
        for row, (title, paths) in enumerate(steps, first):
            parts += [
                box(x, top(row), width, height),
                text(x + 10, top(row) + 18, title),
                text(x + 10, top(row) + 36, _file_names(paths), 'soft small')]
            if row > first:
                parts.append(arrow((x + 24, top(row - 1) + height),
                                   (x + 24, top(row) - 2)))
    between = (left + width + right) / 2
    to_store = store + narrow + 2
    parts += [
        box(store, top(claim), narrow, height, 'store'),
        arrow((left + width, middle(claim)), (store - 2, middle(claim))),
        arrow((left + width, middle(sent)), (right - 2, middle(sent))),
        text(between, middle(sent) - 8, 'broker', 'soft small', 'middle'),
        box(store, top(sent + 1), narrow, 2 * step + height, 'store'),
        arrow((right, middle(sent + 1) - 7), (to_store, middle(sent + 1) - 7)),
        arrow((store + narrow, middle(sent + 1) + 7),
              (right - 2, middle(sent + 1) + 7)),
        arrow((right, middle(last - 1)), (to_store, middle(last - 1))),
        arrow((right + 24, top(last - 1) + height),
              (right + 24, middle(last)), (left + width + 2, middle(last))),
        text(between, middle(last) - 8, 'broker', 'soft small', 'middle')]
    bottom = top(last) + height + 32
    for line, (part, paths) in enumerate(_SEVERAL):
        parts += [text(left, bottom + 22 * line, _file_names(paths)),
                  text(left + 120, bottom + 22 * line, part, 'soft small')]
    sentences = [
        f'{title} ({", ".join(f"flow/{path}" for path in paths)})'
        for title, paths in (*_SCHEDULER, *_WORKER, _COUNTED, *_SEVERAL)]
    return svg(
        bottom + 22 * len(_SEVERAL) - 8, 'The steps of an object, with their '
        'files. The scheduler sends the object through the broker to the '
        'worker, and the worker reports its end to the scheduler. '
        f'{"; ".join(sentences)}.', parts)


# -- the transitions of a task

# Number of steps of the workflow that is drawn. Each step has a rollback.
_STEPS = 3
# Label of each event. If a request to cancel changes the effect of the end of
# a step, the label is that of the request.
_EVENTS = {
    'claimed': 'first step claimed', 'step done': 'last step done',
    'step failed': 'a step failed', 'step lost': 'lost too often',
    'rollback done': 'all rolled back', 'rollback failed': 'rollback failed',
    'rollback lost': 'lost too often', 'cancel': 'cancel', 'retry': 'retry',
    'rollback done, cancelled': 'all rolled back after cancel',
}
_SIZE = (130, 42)
# Upper left corner of the box of each status.
_CORNERS = {
    Status.WAITING: (26, 20), Status.RUNNING: (236, 20),
    Status.SUCCEEDED: (462, 20), Status.CANCELLED: (26, 190),
    Status.ROLLING_BACK: (236, 190), Status.STUCK: (462, 190),
    Status.FAILED: (236, 336),
}
# Path of the arrow of each transition, and position and anchor of its label.
_WAYS: dict[tuple[Status, Status], tuple[
    list[tuple[float, float]], tuple[float, float], str]] = {
    (Status.WAITING, Status.RUNNING): (
        [(158, 41), (232, 41)], (194, 16), 'middle'),
    (Status.WAITING, Status.CANCELLED): ([(76, 64), (76, 186)], (70, 120),
                                         'end'),
    (Status.RUNNING, Status.SUCCEEDED): (
        [(368, 41), (458, 41)], (413, 16), 'middle'),
    (Status.RUNNING, Status.CANCELLED): (
        [(240, 64), (146, 186)], (184, 118), 'end'),
    (Status.RUNNING, Status.ROLLING_BACK): (
        [(318, 64), (318, 186)], (312, 118), 'end'),
    (Status.RUNNING, Status.STUCK): (
        [(366, 62), (512, 186)], (454, 128), 'start'),
    (Status.ROLLING_BACK, Status.FAILED): (
        [(300, 234), (300, 332)], (306, 310), 'start'),
    (Status.ROLLING_BACK, Status.CANCELLED): (
        [(232, 211), (160, 211)], (196, 250), 'middle'),
    (Status.ROLLING_BACK, Status.STUCK): (
        [(368, 202), (458, 202)], (412, 175), 'middle'),
    (Status.STUCK, Status.ROLLING_BACK): (
        [(458, 222), (370, 222)], (413, 240), 'middle'),
    (Status.STUCK, Status.RUNNING): (
        [(484, 187), (342, 66)], (376, 112), 'end'),
    (Status.STUCK, Status.CANCELLED): (
        [(527, 234), (527, 288), (91, 288), (91, 236)], (440, 282), 'middle'),
    (Status.CANCELLED, Status.WAITING): ([(106, 186), (106, 66)], (112, 142),
                                         'start'),
    (Status.FAILED, Status.WAITING): (
        [(232, 357), (10, 357), (10, 41), (22, 41)], (121, 350), 'middle'),
}


def moves() -> dict[tuple[Status, Status], set[str]]:
    """Return the events of each transition of a task to another status."""
    action = workflow.Action('module', 'command')
    steps = (workflow.StepDefinition(action, action),) * _STEPS
    found: dict[tuple[Status, Status], set[str]] = {}
    waiting, seen = [workflow.START], set()
    while waiting:
        position = waiting.pop()
        if position in seen:
            continue
        seen.add(position)
        following: list[tuple[str, workflow.Position | None]] = []
        if position.status is Status.WAITING:
            # The claim of the first step starts the task.
            following.append((
                'claimed', position._replace(status=Status.RUNNING)))
        elif position.active:
            kind = 'rollback' if position.back else 'step'
            for outcome in workflow.CommandOutcome:
                event = f'{kind} {outcome.value}'
                kept = workflow.advance(steps, position, outcome, False)
                other = workflow.advance(steps, position, outcome, True)
                following.append((event, kept))
                if other != kept:
                    following.append((f'{event}, cancelled' if position.back
                                      else 'cancel', other))
        if position.status not in workflow.ENDED:
            following += [('cancel', workflow.cancel(steps, position, started))
                          for started in (False, True)]
        following += [('retry', workflow.retry(steps, position, back))
                      for back in (None, False, True)]
        for event, to in following:
            if to is None:
                continue
            waiting.append(to)
            if to.status is not position.status:
                found.setdefault((position.status, to.status), set()).add(
                    event)
    return found


def task() -> str:
    """Draw the statuses of a task and the transitions between them."""
    found = moves()
    assert found.keys() == _WAYS.keys(), found.keys() ^ _WAYS.keys()
    parts, sentences = [], []
    for (before, after), (way, (x, y), anchor) in _WAYS.items():
        events = found[before, after]
        words = list(dict.fromkeys(
            shown for event, shown in _EVENTS.items() if event in events))
        assert words and events <= _EVENTS.keys(), (before, after, events)
        parts.append(arrow(*way))
        lines = [line for word in words for line in _in_lines(word)]
        parts += [text(x, y + 17 * at, line, 'soft small', anchor)
                  for at, line in enumerate(lines)]
        sentences.append(f'{before} to {after}: {" or ".join(words)}')
    width, height = _SIZE
    for status, (x, y) in _CORNERS.items():
        parts += [
            box(x, y, width, height,
                'store' if status in workflow.ENDED else 'box'),
            text(x + width / 2, y + 26, status.value, 'ink bold', 'middle')]
    return svg(390, 'The transitions of a task between its statuses. '
               f'{"; ".join(sentences)}.', parts)


def _in_lines(words: str) -> list[str]:
    """Return *words* in lines that fit between two statuses."""
    if len(words) <= 15:
        return [words]
    middle = min((at for at, letter in enumerate(words) if letter == ' '),
                 key=lambda at: abs(at - len(words) / 2))
    return [words[:middle], words[middle + 1:]]


# -- the overview of the front page

def overview() -> str:
    """Draw how an object gets from the catalogue to a worker."""
    parts = []
    for middle, title, lines in (
            (60, 'Objects', ('your', 'catalogue')),
            (205, 'Ring', ('one owner', 'for each object')),
            (358, 'Schedulers', ('start what', 'they own')),
            (535, 'Workers', ('run it: processes', 'or a local pool'))):
        parts.append(text(middle, 22, title, 'ink bold', 'middle'))
        parts += [text(middle, 42 + 18 * at, line, 'soft small', 'middle')
                  for at, line in enumerate(lines)]
    for at in range(3):
        y, letter = 84 + 36 * at, 'abc'[at]
        parts += [
            box(20, y, 80, 28), box(297, y, 122, 28), box(485, y, 100, 28),
            text(60, y + 20, f'host-{at + 1}', 'ink', 'middle'),
            f'<circle class="part-{letter}" cx="314" cy="{y + 14}" r="6"/>',
            text(328, y + 20, f'member {letter}'),
            text(535, y + 20, f'worker {at + 1}', 'ink', 'middle')]
    members = dict.fromkeys(_MEMBERS, _POINTS)
    parts += [
        text(60, 206, '…', 'ink', 'middle'),
        *_arcs(Ring(members), (205, 134), 44, 11),
        arrow((104, 134), (150, 134)), arrow((258, 134), (292, 134)),
        arrow((423, 134), (480, 134)),
        text(452, 122, 'batches', 'soft small', 'middle'),
        box(110, 262, 190, 54, 'store'),
        text(205, 284, 'ZooKeeper', 'ink bold', 'middle'),
        text(205, 304, 'who is a member now', 'soft small', 'middle'),
        arrow((205, 258), (205, 190), dashed=True),
        box(330, 262, 255, 54, 'store'),
        text(457, 284, 'Store', 'ink bold', 'middle'),
        text(457, 304, 'one claim per object and tick', 'soft small',
             'middle'),
        arrow((358, 190), (386, 256)), arrow((535, 190), (510, 256)),
        text(366, 232, 'claim', 'soft small', 'end'),
        text(532, 232, 'grant', 'soft small')]
    return svg(324, 'The ring assigns each object of the catalogue to one '
               'scheduler. The scheduler claims the object in the store and '
               'sends it in batches to a worker. The store grants the run to '
               'the worker. ZooKeeper keeps the list of members.', parts)


PICTURES: dict[str, Callable[[], str]] = {
    'crossing.svg': crossing,
    'overview.svg': overview,
    'ring.svg': ring,
    'rooms.svg': rooms,
    'takeover.svg': takeover,
    'task.svg': task,
}


def main() -> None:
    for name, draw in PICTURES.items():
        (IMAGES / name).write_text(draw())


if __name__ == '__main__':
    main()
