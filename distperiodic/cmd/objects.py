# SPDX-License-Identifier: Apache-2.0
"""``distperiodic objects``: when each object was last served."""

import argparse
from collections.abc import Sequence

from cliff import lister

from distperiodic.cmd import configured
from distperiodic.cmd import display


class Objects(display.Table, lister.Lister):
    """Show when each object was last served, the longest wait first.

    An object is served when a run of it succeeds. Objects that have left the
    catalogue stay in the list until "distperiodic db prune --claims" deletes
    their claims.
    """

    essential = ('Object', 'Last served', 'State')

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        configured.add_job(parser, required=True)
        parser.add_argument(
            '--older-than', type=configured.duration, default=0.0,
            metavar='TIME',
            help='show only objects without a successful run within TIME, '
                 'such as 90s, 30m, 1h or 7d; default: all objects')
        configured.add_limit(parser, 'objects')
        return parser

    def take_action(self, parsed: argparse.Namespace
                    ) -> tuple[Sequence[str], list[Sequence[object]]]:
        from distperiodic.operator.activity import Activity
        job = configured.required_job(parsed)
        with self.store(parsed, Activity) as activity:
            found = activity.unserved(
                job, parsed.older_than, parsed.limit)
            lists = bool(found) or activity.lists(job)
        if not lists:
            self.sentence = (
                f'No object of job {job!r} was ever listed; check that a '
                'scheduler runs the job: distperiodic status')
        elif not found:
            self.sentence = 'Every object was served within this time.'
        elif len(found) == parsed.limit:
            self.sentence = f'The first {len(found)}; see --limit.'
        return ('Object', 'Last served', 'Last tick', 'State'), [
            (one.object,
             display.NEVER if one.served is None
             else configured.moment(one.served),
             configured.moment(one.tick), one.state.value) for one in found]
