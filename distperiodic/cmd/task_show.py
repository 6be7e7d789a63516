# SPDX-License-Identifier: Apache-2.0
"""``distperiodic task show``: a task with its steps, and why it waits."""

import argparse
from collections.abc import Mapping

from distperiodic.cmd import display
from distperiodic.cmd.session import Session
from distperiodic.operator import task_answers


class TaskShow(display.Details):
    """Show a task with its steps, its position, and the reason why it waits.
    """

    essential = ('', 'Step', 'Command', 'State', 'Attempts')
    for_people = ('table',)

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument('task', metavar='ID', help='id of the task')

    def facts(self, session: Session) -> Mapping[str, object]:
        look = task_answers.answer(session, session.parsed.task)
        self.below = task_answers.STEPS, list(task_answers.drawn(look))
        fields = task_answers.facts(look, session.settings, self.people)
        if self.people:
            return {name.replace('_', ' '): value
                    for name, value in fields.items() if value != ''}
        return fields | {'steps': task_answers.steps(look.task)}
