# SPDX-License-Identifier: Apache-2.0
"""The answers of members to a command: print them, and the reasons for missing
answers.
"""

import argparse
import threading
from collections.abc import Mapping
from collections.abc import Sequence
from typing import NamedTuple

from distperiodic.cmd import configured
from distperiodic.cmd.session import Session
from distperiodic.operator.member_rows import Answer
from distperiodic.operator.member_rows import MemberRow
from distperiodic.operator.member_rows import role

# Seconds between two checks for answers.
_POLL = 0.1


class AwaitedAction(NamedTuple):
    """An action that members answer."""

    #: Name of the job, if several actions are awaited together.
    job: str = ''
    #: Text that precedes the numbers of answers in the recorded outcome.
    outcome: str = ''


def add_wait(parser: argparse.ArgumentParser) -> None:
    """Add the option that limits the time to wait for answers."""
    parser.add_argument(
        '--wait', type=configured.seconds, default=10.0, metavar='SECONDS',
        help='maximum time to wait for answers; default: 10')


def print_problems(session: Session) -> None:
    """Print the reasons why members may be missing."""
    for problem in session.members.problems():
        session.print(f'warning: {problem}')


def wait(session: Session, actions: Mapping[str, AwaitedAction],
         effect: str) -> int:
    """Print the answers of each member when they arrive, and at the end the
    members that have not answered.

    :param actions: The actions, by their ids.
    :param effect: Effect of the command on a member that does not answer; "{}"
        stands for the time.
    :returns: Exit code of the command.
    """
    clock, members = session.clock, session.members
    end = clock.monotonic() + session.parsed.wait
    printed: set[tuple[str, str]] = set()
    while True:
        answers = members.answers(*actions)
        by_member: dict[tuple[str, str], list[Answer]] = {}
        for one in answers:
            by_member.setdefault((one.part, one.name), []).append(one)
        for member, some in by_member.items():
            if member not in printed and all(
                    one.at is not None for one in some):
                printed.add(member)
                _print_answers(session, some, actions)
        if len(printed) == len(by_member) or clock.monotonic() >= end:
            break
        threading.Event().wait(_POLL)
    _print_silent(session, [
        some for member, some in by_member.items()
        if member not in printed], actions, effect)
    for action, sent in actions.items():
        some = [one for one in answers if one.action == action]
        silent = sum(one.at is None for one in some)
        done = sum(one.done for one in some)
        members.conclude(action, (
            f'{sent.outcome}{done} done, {len(some) - silent - done} '
            f'refused, {silent} without an answer'))
    return configured.FINE if all(one.done for one in answers) else (
        configured.FINDING)


def _print_silent(session: Session, silent: Sequence[Sequence[Answer]],
                  actions: Mapping[str, AwaitedAction], effect: str) -> None:
    """Print the members that have not answered, and the reasons."""
    settings, waited = session.settings, session.parsed.wait
    states = {(one.part, one.name): one for one in session.members.members()
              } if silent and settings.connection else {}
    for some in silent:
        _print_answers(
            session, [one for one in some if one.at is not None], actions)
        missing = [one for one in some if one.at is None]
        first = missing[0]
        session.print(
            f'{first.name} ({role(first)}): no answer'
            f'{_jobs(missing, actions)}; ' + (
                _excuse(states.get((first.part, first.name)), effect,
                        settings.session_timeout, waited)
                if settings.connection else
                f'it was not reached within {waited:g} s, and the command is '
                'not sent again; repeat the command'))


def _print_answers(session: Session, answers: Sequence[Answer],
                   actions: Mapping[str, AwaitedAction]) -> None:
    """Print the answers of one member, one line for each outcome."""
    by_outcome: dict[str, list[Answer]] = {}
    for one in answers:
        by_outcome.setdefault(one.outcome, []).append(one)
    for outcome, some in by_outcome.items():
        session.print(
            f'{some[0].name} ({role(some[0])}): {outcome}'
            f'{_jobs(some, actions)}, at '
            f'{configured.second(max(one.at or 0 for one in some))}')


def _jobs(answers: Sequence[Answer],
          actions: Mapping[str, AwaitedAction]) -> str:
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
