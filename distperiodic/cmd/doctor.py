# SPDX-License-Identifier: Apache-2.0
"""``distperiodic doctor``: find problems before they cause harm.

For people the command prints the result of each check as soon as the check
ends, and below the result a remedy if there is a problem. With -f json, yaml,
csv or table, the command prints its findings as a list, like other list
commands.
"""

import argparse
import os
import textwrap
from collections.abc import Iterator

from distperiodic.cmd import configured
from distperiodic.cmd import display
from distperiodic.cmd import findings
from distperiodic.cmd.check import Check
from distperiodic.cmd.session import Session
from distperiodic.operator.cells import Output

_CODES = {findings.Result.WARN: 1, findings.Result.FAIL: 2}
_COLOURS = {findings.Result.OK: '32', findings.Result.WARN: '33',
            findings.Result.FAIL: '31', findings.Result.SKIP: '90'}


class Doctor(display.Table):
    """Check options, coordination service, group, ring, clocks, broker, store,
    tasks and partitions.

    Exit code 0: all is well; 1: there are warnings; 2: something is broken.
    """

    formatter_default = 'text'

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        for action in self._formatter_group._group_actions:
            if action.dest == 'formatter':
                # This format is only for this command. A formatter plug-in of
                # cliff would apply to all programs that use cliff.
                action.choices = ['text', *(action.choices or ())]
                action.default = 'text'
                action.help = ('the output format, defaults to text '
                               f'({", ".join(action.choices)})')
        return parser

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            '--offline', action='store_true',
            help='run only the checks that need no server')
        configured.add_tasks(
            parser, 'the checks compare its jobs with the jobs of the store')

    def run(self, parsed: argparse.Namespace) -> int:
        if parsed.formatter != 'text':
            return super().run(parsed)
        numbers = [0, 0, 0]
        problems = []
        with Session(parsed, self) as session:
            for check, finding in self._findings(session):
                self._print(check, finding)
                if finding.result in _CODES:
                    problems.append(f'{finding.result:<4}  {check.name}: '
                                    f'{finding.text}')
                numbers[_CODES.get(finding.result, 0)] += (
                    finding.result is not findings.Result.SKIP)
        print(f'\n{configured.plural(numbers[2], "failure")}, '
              f'{configured.plural(numbers[1], "warning")}, {numbers[0]} ok',
              *problems, sep='\n', file=self.app.stdout)
        return self.code

    def act(self, session: Session) -> Output:
        return self.listing({
            'Area': lambda one: one[0].area,
            'Check': lambda one: one[0].name,
            'Result': lambda one: str(one[1].result),
            'Promise': lambda one: one[0].text,
            'Finding': lambda one: one[1].text,
            'Remedy': lambda one: one[1].remedy}, self._findings(session))

    def _findings(self, session: Session
                  ) -> Iterator[tuple[Check, findings.CheckResult]]:
        # The help does not need the checks.
        from distperiodic.cmd import checks
        from distperiodic.cmd import partition_checks  # noqa: F401, registers
        from distperiodic.cmd import store_checks  # noqa: F401
        from distperiodic.cmd import task_checks  # noqa: F401
        from distperiodic.cmd.doctor_facts import DoctorFacts
        for check, finding in checks.run_all(DoctorFacts(session)):
            self.code = max(self.code, _CODES.get(finding.result, 0))
            yield check, finding

    def _print(self, check: Check, finding: findings.CheckResult) -> None:
        out = self.app.stdout
        mark = f'{finding.result:<4}'
        if out.isatty() and not os.environ.get('NO_COLOR'):
            mark = f'\x1b[{_COLOURS[finding.result]}m{mark}\x1b[0m'
        width = min(110, display.width(default=96))
        lines = [textwrap.fill(check.text, width - 6)]
        lines.append(textwrap.fill(finding.text, width - 6))
        if finding.remedy:
            lines.append(textwrap.fill(f'do: {finding.remedy}', width - 6,
                                       subsequent_indent='    '))
        head, *rest = '\n'.join(lines).splitlines()
        print(f'{mark}  {head}', *(f'      {line}' for line in rest),
              sep='\n', file=out, flush=True)
