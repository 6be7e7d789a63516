# SPDX-License-Identifier: Apache-2.0
"""Base class of commands that members answer: print the answers, and the
reasons for missing answers.
"""

import argparse
import threading
from collections.abc import Mapping
from collections.abc import Sequence
from typing import TYPE_CHECKING
from typing import NamedTuple

from distperiodic.cmd import acting
from distperiodic.cmd import configured
from distperiodic.cmd import of_members

if TYPE_CHECKING:
    from distperiodic import opts
    from distperiodic.operator.member_rows import MemberRow
    from distperiodic.operator.members import Answer
    from distperiodic.operator.members import MemberAdmin
    from distperiodic.operator.ring_members import RingMembers

# Seconds between two checks for answers.
_POLL = 0.1


class Sent(NamedTuple):
    """An action that members answer."""

    #: Name of the job, if several actions are awaited together.
    job: str = ''
    #: Text that precedes the numbers of answers in the recorded outcome.
    outcome: str = ''


class Awaiting(acting.Acting):
    """Base class of commands that wait for the answers of members."""

    #: Effect of the command on a member that does not answer; "{}" stands for
    #: the time.
    effect = 'the command takes effect {}'

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            '--wait', type=configured.seconds, default=10.0,
            metavar='SECONDS',
            help='maximum time to wait for answers; default: 10')
        return parser

    def print_problems(self, admin: 'MemberAdmin | RingMembers') -> None:
        """Print the reasons why members may be missing."""
        for problem in admin.problems():
            self.print(f'warning: {problem}')

    def wait(self, admin: 'MemberAdmin | RingMembers',
             actions: Mapping[str, Sent], parsed: argparse.Namespace,
             settings: 'opts.Settings') -> int:
        """Print the answers of each member when they arrive, and at the end
        the members that have not answered.

        :param actions: The actions, by their ids.
        :returns: Exit code of the command.
        """
        from distperiodic.adapters.local.clock import SystemClock
        clock = SystemClock()
        end = clock.monotonic() + parsed.wait
        printed: set[tuple[str, str]] = set()
        while True:
            answers = admin.answers(*actions)
            by_member: dict[tuple[str, str], list[Answer]] = {}
            for one in answers:
                by_member.setdefault((one.part, one.name), []).append(one)
            for member, some in by_member.items():
                if member not in printed and all(
                        one.at is not None for one in some):
                    printed.add(member)
                    self._print_answers(some, actions)
            if len(printed) == len(by_member) or clock.monotonic() >= end:
                break
            threading.Event().wait(_POLL)
        self._print_silent(admin, [
            some for member, some in by_member.items()
            if member not in printed], actions, parsed, settings)
        for action, sent in actions.items():
            some = [one for one in answers if one.action == action]
            silent = sum(one.at is None for one in some)
            done = sum(one.done for one in some)
            admin.conclude(action, (
                f'{sent.outcome}{done} done, {len(some) - silent - done} '
                f'refused, {silent} without an answer'))
        return configured.FINE if all(one.done for one in answers) else (
            configured.FINDING)

    def _print_silent(self, admin: 'MemberAdmin | RingMembers',
                      silent: 'Sequence[Sequence[Answer]]',
                      actions: Mapping[str, Sent],
                      parsed: argparse.Namespace,
                      settings: 'opts.Settings') -> None:
        """Print the members that have not answered, and the reasons."""
        states = {(one.part, one.name): one for one in admin.members()
                  } if silent and settings.connection else {}
        for some in silent:
            self._print_answers(
                [one for one in some if one.at is not None], actions)
            missing = [one for one in some if one.at is None]
            first = missing[0]
            self.print(
                f'{first.name} ({of_members.role(first)}): no answer'
                f'{_jobs(missing, actions)}; ' + (
                    _excuse(states.get((first.part, first.name)), self.effect,
                            settings.session_timeout, parsed.wait)
                    if settings.connection else
                    f'it was not reached within {parsed.wait:g} s, and the '
                    'command is not sent again; repeat the command'))

    def _print_answers(self, answers: 'Sequence[Answer]',
                       actions: Mapping[str, Sent]) -> None:
        """Print the answers of one member, one line for each outcome."""
        by_outcome: dict[str, list[Answer]] = {}
        for one in answers:
            by_outcome.setdefault(one.outcome, []).append(one)
        for outcome, some in by_outcome.items():
            self.print(
                f'{some[0].name} ({of_members.role(some[0])}): {outcome}'
                f'{_jobs(some, actions)}, at '
                f'{configured.second(max(one.at or 0 for one in some))}')


def _jobs(answers: 'Sequence[Answer]', actions: Mapping[str, Sent]) -> str:
    """Return the jobs of these answers, if there are several actions."""
    if len(actions) == 1:
        return ''
    names = sorted(actions[one.action].job for one in answers)
    return f' ({configured.listed(names, 9)})'


def _excuse(member: 'MemberRow | None', effect: str, session_timeout: float,
            waited: float) -> str:
    """Return the reason why a member has not answered, and the consequence."""
    if member is None or member.age is None:
        return 'its row was deleted while this command waited'
    age = configured.age(member.age / 1e6)
    if member.stopped:
        return (f'its process stopped {age} ago; '
                + effect.format('when it starts again'))
    if member.silent(session_timeout):
        return (f'it has been silent for {age}: it was killed, it hangs, or '
                'it cannot reach the store; '
                + effect.format('when it reaches the store'))
    return (f'it reported {age} ago, but did not answer within {waited:g} s; '
            + effect.format('at its next sweep'))
