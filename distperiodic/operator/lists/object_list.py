# SPDX-License-Identifier: Apache-2.0
"""Objects, by the time since they were last served."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from distperiodic.core import wording
from distperiodic.operator import cells
from distperiodic.operator import filters
from distperiodic.operator.sources import Sources

if TYPE_CHECKING:
    from distperiodic.operator.activity import Unserved


class ServedObjects(cells.DeclaredList['Unserved']):
    """Show when each object was last served, the longest wait first.

    An object is served when a run of it succeeds. Objects that have left the
    catalogue stay in the list until "distperiodic db prune --claims" deletes
    their claims. An object that an operator has paused shows who did it, when
    and why.
    """

    essential: Sequence[str] = ('Object', 'Last served', 'State')
    empty = 'Every object was served within this time.'
    columns = {
        'Object': lambda one: one.object,
        'Last served': lambda one: cells.NEVER if one.served is None
        else wording.moment(one.served),
        'Last tick': lambda one: wording.moment(one.tick),
        'State': lambda one: one.state.value,
        'Paused since': lambda one: cells.instant(one.pause.since),
        'Until': lambda one: cells.instant(one.pause.until),
        'By': lambda one: one.pause.by,
        'Why': lambda one: one.pause.why}

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        filters.add_job(parser, required=True)
        parser.add_argument(
            '--older-than', type=filters.duration, default=0.0,
            metavar='TIME',
            help='show only objects without a successful run within TIME, '
                 'such as 90s, 30m, 1h or 7d; default: all objects')
        parser.add_argument(
            '--paused', action='store_true',
            help='show only objects that an operator has paused')
        filters.add_limit(parser, 'objects')

    def fetch(self, sources: Sources) -> 'list[Unserved]':
        from distperiodic.operator import activity
        job = filters.required_job(sources.parsed)
        found = activity.unserved(sources.store, job,
                                  sources.parsed.older_than,
                                  sources.parsed.limit,
                                  paused=sources.parsed.paused)
        if sources.parsed.paused:
            self.empty = 'No object is paused.'
        elif not found and not activity.lists(sources.store, job):
            self.sentence = (
                f'No object of job {job!r} was ever listed; check that a '
                'scheduler runs the job: distperiodic status')
        return found
