# SPDX-License-Identifier: Apache-2.0
"""``distperiodic objects``: when each object was last served."""

import argparse
from typing import TYPE_CHECKING

from distperiodic.cmd import configured
from distperiodic.cmd import display
from distperiodic.cmd.session import Session

if TYPE_CHECKING:
    from distperiodic.operator.activity import Unserved


class Objects(display.List['Unserved']):
    """Show when each object was last served, the longest wait first.

    An object is served when a run of it succeeds. Objects that have left the
    catalogue stay in the list until "distperiodic db prune --claims" deletes
    their claims.
    """

    essential = ('Object', 'Last served', 'State')
    empty = 'Every object was served within this time.'
    columns = {
        'Object': lambda one: one.object,
        'Last served': lambda one: display.NEVER if one.served is None
        else configured.moment(one.served),
        'Last tick': lambda one: configured.moment(one.tick),
        'State': lambda one: one.state.value}

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        configured.add_job(parser, required=True)
        parser.add_argument(
            '--older-than', type=configured.duration, default=0.0,
            metavar='TIME',
            help='show only objects without a successful run within TIME, '
                 'such as 90s, 30m, 1h or 7d; default: all objects')
        configured.add_limit(parser, 'objects')

    def fetch(self, session: Session) -> 'list[Unserved]':
        from distperiodic.operator import activity
        job = configured.required_job(session.parsed)
        found = activity.unserved(session.store, job,
                                  session.parsed.older_than,
                                  session.parsed.limit)
        if not found and not activity.lists(session.store, job):
            self.sentence = (
                f'No object of job {job!r} was ever listed; check that a '
                'scheduler runs the job: distperiodic status')
        return found
