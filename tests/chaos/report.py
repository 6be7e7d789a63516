# SPDX-License-Identifier: Apache-2.0
"""The report of one run, as text for a reader."""

import collections

from tests import checker
from tests.chaos import gauges
from tests.chaos import times

SECOND = checker.SECOND
# Number of findings of one kind that are shown in full.
_SHOWN = 10


def report(lived):
    """Return the whole report as text."""
    record = lived.record
    lines = [
        f'seed {lived.seed}, bus {lived.bus.name}: {len(lived.plan)} faults '
        f'of {len(lived.happened)} kinds, '
        f'{(record.end - record.begin) / SECOND:.0f} s, '
        f'{len(record.claims)} claims, {len(record.runs)} runs']
    lines += [
        _counts('what became of due ticks', lived.fates),
        'required claims of due ticks: ' + ', '.join(
            f'{job} {required}/{every}' for job, (required, every)
            in sorted(lived.required.items())),
        _counts('endings', lived.endings),
        _counts('runs', collections.Counter(
            run.outcome or 'going on' for run in record.runs)),
        _counts('effects', collections.Counter(
            'accepted' if effect.accepted else 'refused for their fence'
            for effect in record.effects)),
        _counts('tasks', lived.tasks), _counts('their runs', lived.steps),
        _counts('faults', lived.happened),
        f'steps passed: {len(lived.passed)}; struck at: '
        + (', '.join(f'{name} {number}' for name, number
                     in sorted(lived.struck.items())) or 'none')]
    lines.append('ticks by the grid, and due by the history: ' + ', '.join(
        f'{job} {grid} {told}' for job, (grid, told)
        in sorted(lived.due.items())))
    taken = times.take_overs(lived.moves, lived.deaths, lived.windows)
    lines += [
        'take-over of what ran in a dead or stopped process, in seconds: '
        + times.spread([one.seconds for one in taken]),
        '    no other fault about: '
        + times.spread([one.seconds for one in taken if one.alone]),
        f'recovery after the last fault: the last late claim after '
        f'{times.recovery(record, lived.healed):.1f} s, the last end of an '
        f'earlier claim after {times.ended(record, lived.healed):.1f} s, all '
        f'that was missed worked off after {lived.caught_up:.1f} s']
    for job, late in sorted(times.lateness(record).items()):
        lines.append(f'lateness of {job} far from faults, in seconds: '
                     + times.spread(late))
    for server, (calm, most) in lived.rates.items():
        lines.append(
            f'{gauges.unit(server, lived.bus)} a second: {calm:.0f} in calm '
            f'times, {most:.0f} at most over {gauges.WINDOW} s '
            f'({most / calm if calm else 0:.1f} times)')
    before, after = lived.sizes
    lines.append('held before and after: ' + ', '.join(
        f'{name} {before.get(name, 0)} {number}'
        for name, number in sorted(after.items())))
    kinds = collections.Counter(one.kind for one in lived.findings)
    lines.append(f'{len(lived.findings)} findings'
                 + (f': {dict(kinds)}' if kinds else ''))
    shown = collections.Counter()
    for one in lived.findings:
        shown[one.kind] += 1
        if shown[one.kind] <= _SHOWN:
            lines.append(f'    {one}')
    return '\n'.join(lines)


def _counts(what, counts):
    return f'{what}: ' + (', '.join(
        f'{name} {number}' for name, number in sorted(counts.items()))
        or 'none')
