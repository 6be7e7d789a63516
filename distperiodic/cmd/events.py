# SPDX-License-Identifier: Apache-2.0
"""``distperiodic events``: the recorded actions of operators."""

import argparse
from collections.abc import Sequence

from cliff import lister

from distperiodic import exceptions
from distperiodic.cmd import configured
from distperiodic.cmd import display


class Events(display.Table, lister.Lister):
    """Show the actions of operators: who, from where, when, what and why.

    The newest action comes first. An action without an outcome was
    interrupted, or still waits for answers.
    """

    essential = ('At', 'Who', 'What', 'Target', 'Why')

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            '--since', type=configured.since, default='30d', metavar='WHEN',
            help='a length of time before now, such as 24h, or an instant '
                 '(UTC); default: 30d')
        configured.add_limit(parser, 'actions')
        return parser

    def take_action(self, parsed: argparse.Namespace
                    ) -> tuple[Sequence[str], list[Sequence[object]]]:
        from distperiodic import opts
        from distperiodic.operator import auditing
        if not opts.settings(self.configuration(parsed)).connection:
            raise exceptions.ConfigError(
                'without a store, the actions of operators are not recorded; '
                'each member logs its commands with their operator and reason '
                '("command over the bus"); to keep records, set '
                '[distperiodic] connection')
        people = parsed.formatter not in display.FOR_PROGRAMS
        with self.store(parsed, auditing.Events) as events:
            found = events.events(
                since=parsed.since.before(events.group.now()),
                limit=parsed.limit)
        if not found:
            self.sentence = f'No action {parsed.since.phrase}.'
        elif len(found) == parsed.limit:
            self.sentence = f'The newest {len(found)}; see --limit.'
        return (('At', 'Who', 'From', 'What', 'Target', 'Arguments', 'Why',
                 'Outcome', 'Id'), [
            (configured.second(event.at) if people
             else configured.moment(event.at), event.who, event.host,
             event.verb, event.target,
             ' '.join(f'{name}={_value(name, value)}' for name, value
                      in event.arguments.items()) if people
             else dict(event.arguments),
             event.why, event.outcome or '', event.id) for event in found])


def _value(name: str, value: object) -> object:
    """Return an argument as text for people."""
    return configured.moment(value) if (
        name == 'tick' and isinstance(value, int)) else value
