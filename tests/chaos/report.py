# SPDX-License-Identifier: Apache-2.0
"""The report of one run of a cluster, as text for a reader."""

import collections

from tests import checker
from tests.chaos import gauges
from tests.chaos import times
from tests.chaos.pace import PACE

SECOND = checker.SECOND
# Number of findings of one kind that are shown in full.
_SHOWN = 10


def report(lived):
    """Return the whole report as text."""
    record = lived.record
    lines = [
        f'seed {lived.seed}, bus {lived.bus.name}, pace {PACE:g}: '
        f'{len(lived.plan)} faults '
        f'of {len(lived.happened)} kinds, '
        f'{(record.end - record.begin) / SECOND:.0f} s, '
        f'{len(record.claims)} claims, {len(record.runs)} runs']
    lines += [
        _counts('due ticks by outcome', lived.fates),
        'required claims, and due ticks, of each job: ' + ', '.join(
            f'{job} {required}/{every}' for job, (required, every)
            in sorted(lived.required.items())),
        _counts('claims by final state', lived.endings),
        _counts('runs by outcome', collections.Counter(
            run.outcome or 'going on' for run in record.runs)),
        _counts('effects', collections.Counter(
            'accepted' if effect.accepted else 'rejected for an old fence'
            for effect in record.effects)),
        _counts('tasks by status', lived.tasks),
        _counts('runs of their steps by outcome', lived.steps),
        *lived.partition.report(),
        _counts('faults by kind', lived.happened),
        f'failpoints passed: {len(lived.passed)}; processes killed or '
        'stopped at: '
        + (', '.join(f'{name} {number}' for name, number
                     in sorted(lived.struck.items())) or 'none')]
    lines.append('due ticks by the schedule, and by the history, of each '
                 'job: ' + ', '.join(
        f'{job} {grid}/{told}' for job, (grid, told)
        in sorted(lived.due.items())))
    taken = times.take_overs(lived.moves, lived.deaths, lived.windows)
    lines += [
        'take-over of runs of a dead or stopped process, in seconds: '
        + times.spread([one.seconds for one in taken]),
        '    without another fault at that time: '
        + times.spread([one.seconds for one in taken if one.alone]),
        'recovery, in seconds after the last fault: last late claim '
        f'{times.recovery(record, lived.healed):.1f}, last end of an earlier '
        f'claim {times.ended(record, lived.healed):.1f}, backlog worked off '
        f'{lived.caught_up:.1f}']
    for job, late in sorted(times.lateness(record).items()):
        lines.append(f'delay of claims of {job} without a fault, in seconds: '
                     + times.spread(late))
    for server, (calm, most) in lived.rates.items():
        lines.append(
            f'{gauges.unit(server, lived.bus)} per second: {calm:.0f} before '
            f'the faults, at most {most:.0f} later, as a mean of '
            f'{gauges.WINDOW} s ({most / calm if calm else 0:.1f} times)')
    before, after = lived.sizes
    lines.append('resources in use before the faults, and at the end: '
                 + ', '.join(
        f'{name} {before.get(name, 0)} -> {number}'
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
