# SPDX-License-Identifier: Apache-2.0
"""``distperiodic next``: the ticks that are due soon."""

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from distperiodic.cmd import configured
from distperiodic.cmd import display
from distperiodic.core import audit
from distperiodic.core.schedule import Schedule
from distperiodic.core.wording import plural
from distperiodic.core.wording import until
from distperiodic.operator.cells import Cell
from distperiodic.operator.cells import age
from distperiodic.operator.sources import Sources

if TYPE_CHECKING:
    from distperiodic.operator.activity import ObjectCount

# Maximum number of ticks of one schedule to list. The sentence above the table
# names the jobs with more ticks.
_TICKS = 100


class _Tick:
    """A future tick of the objects that follow one schedule."""

    def __init__(self, at: int, now: int, listing: 'ObjectCount', objects: int,
                 schedule: str, spread: bool):
        self.at = at
        #: Seconds until the tick.
        self.wait = (at - now) / 1e6
        self.job = listing.job
        self.objects = objects
        self.schedule = schedule
        pause = listing.pause
        self.paused = pause.since is not None and (
            pause.until is None or at < pause.until)
        self.remark = '; '.join([
            *([f'paused{until(pause.until)}'] if self.paused else []),
            *([f'{plural(listing.paused_objects, "object")} of the job paused']
              if listing.paused_objects else []),
            *(['spread over the period'] if spread else [])])

    def __lt__(self, other: '_Tick') -> bool:
        return (self.at, self.job) < (other.at, other.job)


class Next(display.List):
    """Show the next ticks, and the number of objects due at each tick.

    The schedules and listings come from the database, so jobs that no
    scheduler has recorded yet are missing. Without --within the command shows
    one tick of each schedule.
    """

    essential = ('Job', 'Tick', 'In', 'Objects')
    columns = {
        'Job': lambda tick: tick.job,
        'Tick': lambda tick: configured.moment(tick.at),
        'In (s)': lambda tick: age(tick.wait) if tick.wait > 0
        else Cell('now', round(tick.wait, 3)),
        'Objects': lambda tick: tick.objects,
        'Schedule': lambda tick: tick.schedule,
        'Remark': lambda tick: tick.remark}

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        configured.add_job(parser)
        parser.add_argument(
            '--within', type=configured.duration, metavar='TIME',
            help='show all ticks in the next TIME, such as 90s, 5m or 1h')

    def fetch(self, sources: Sources) -> 'list[_Tick]':
        from distperiodic.operator import activity
        within = sources.parsed.within
        job = configured.job_of(sources.parsed)
        now = sources.store.now()
        listings = activity.listings(sources.store, job)
        ticks: list[_Tick] = []
        short = []
        unknown = []
        for listing in listings:
            if not listing.schedule and not listing.rule:
                unknown.append(listing.job)
                continue
            found = list(_ticks_of(listing, now, within))
            if len(found) > _TICKS:
                short.append(listing.job)
            ticks += found[:_TICKS]
        ticks.sort()
        lines = []
        if not ticks:
            lines.append(
                'No tick is due in this time.' if listings
                else 'No scheduler has recorded a job yet.')
        elif within is not None:
            runs = sum(tick.objects for tick in ticks if not tick.paused)
            lines.append(f'{configured.plural(runs, "run")} due in the next '
                         f'{configured.age(within)}, if no tick is missed.')
        if short:
            lines.append(f'Only the first {_TICKS} ticks are shown of '
                         f'{configured.listed(short)}.')
        if unknown:
            lines.append('No schedule is recorded yet for '
                         f'{configured.listed(unknown)}.')
        self.sentence = '\n'.join(lines)
        return ticks


def _ticks_of(listing: 'ObjectCount', now: int,
              within: float | None) -> Iterator[_Tick]:
    """Yield the future ticks of *listing*, at most one more than is shown."""
    rule, spread = audit.named(listing.rule or listing.schedule)
    end = None if within is None else now + round(within * 1e6)
    at = now
    if spread:
        # Begin with the current period, because some of its objects are not
        # due yet.
        at = rule.at_or_before(now) or now
        yield from _of_spread(listing, rule, at, now, end)
        return
    for _ in range(_TICKS + 1 if end is not None else 1):
        at = rule.after(at)
        if end is not None and at > end:
            return
        yield _Tick(at, now, listing, listing.objects, rule.describe(), False)


def _of_spread(listing: 'ObjectCount', rule: 'Schedule', at: int, now: int,
               end: int | None) -> Iterator[_Tick]:
    """Yield the future ticks of a job whose objects have phases.

    The phases are evenly spread over the period. The number of due objects is
    therefore proportional to the part of the period that lies within the
    requested time.
    """
    for _ in range(_TICKS + 1):
        period = rule.period_us(at)
        begin = max(at, now)
        until = at + period if end is None else min(at + period, end)
        if end is not None and begin >= end:
            return
        share = max(0, until - begin) / period
        yield _Tick(at, now, listing, round(listing.objects * share),
                    rule.describe(), True)
        if end is None:
            return
        at = rule.after(at)
