# SPDX-License-Identifier: Apache-2.0
"""The recorded actions of operators."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from distperiodic import exceptions
from distperiodic.core import wording
from distperiodic.operator import cells
from distperiodic.operator import filters
from distperiodic.operator.sources import Sources

if TYPE_CHECKING:
    from distperiodic.operator.auditing import Event


class Actions(cells.DeclaredList['Event']):
    """Show the actions of operators: who, from where, when, what and why.

    The newest action comes first. An action without an outcome was
    interrupted, or still waits for answers.
    """

    essential: Sequence[str] = ('At', 'Who', 'What', 'Target', 'Why')
    cut = 'The newest {}; see --limit.'
    columns = {
        'At': lambda event: cells.instant(event.at),
        'Who': lambda event: event.who,
        'From': lambda event: event.host,
        'What': lambda event: event.verb,
        'Target': lambda event: event.target,
        'Arguments': lambda event: cells.Cell(' '.join(
            f'{name}={_value(name, value)}'
            for name, value in event.arguments.items()),
            dict(event.arguments)),
        'Why': lambda event: event.why,
        'Outcome': lambda event: event.outcome or '',
        'Id': lambda event: event.id}

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            '--since', type=filters.since, default='30d', metavar='WHEN',
            help='a length of time before now, such as 24h, or an instant '
                 '(UTC); default: 30d')
        filters.add_limit(parser, 'actions')

    def fetch(self, sources: Sources) -> 'list[Event]':
        if not sources.settings.connection:
            raise exceptions.ConfigError(
                'without a store, the actions of operators are not recorded; '
                'each member logs its commands with their operator and reason '
                '("command over the bus"); to keep records, set '
                '[distperiodic] connection')
        from distperiodic.operator import auditing
        parsed, store = sources.parsed, sources.store
        self.empty = f'No action {parsed.since.phrase}.'
        return auditing.events(store, since=parsed.since.before(store.now()),
                               limit=parsed.limit)


def _value(name: str, value: object) -> object:
    """Return an argument as text for people."""
    return wording.moment(value) if (
        name in ('tick', 'since', 'until') and isinstance(value, int)
    ) else value
