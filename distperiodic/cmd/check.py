# SPDX-License-Identifier: Apache-2.0
"""The list of the checks of ``distperiodic doctor``, in report order."""

import dataclasses
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING
from typing import TypeAlias

from distperiodic import exceptions
from distperiodic.cmd import configured
from distperiodic.cmd import findings
from distperiodic.cmd.findings import CheckResult

if TYPE_CHECKING:
    from distperiodic.cmd.doctor_facts import DoctorFacts

_Function: TypeAlias = 'Callable[[DoctorFacts], CheckResult]'


@dataclasses.dataclass(frozen=True, slots=True)
class Check:
    name: str
    area: str
    offline: bool
    function: _Function

    @property
    def text(self) -> str:
        """The first paragraph of the function's docstring."""
        return ' '.join((inspect.getdoc(self.function) or '').partition(
            '\n\n')[0].split())

    def run(self, facts: 'DoctorFacts') -> CheckResult:
        """Run the check; errors of this library become findings."""
        try:
            return self.function(facts)
        except findings.NotNow as exc:
            return findings.skip(str(exc))
        except exceptions.DistperiodicError as exc:
            found, _, remedy = configured.one_line(exc).rpartition('; ')
            return findings.fail(found or remedy, remedy if found else '')


CHECKS: list[Check] = []


def check(area: str, offline: bool = False
          ) -> Callable[[_Function], _Function]:
    def add(function: _Function) -> _Function:
        CHECKS.append(Check(function.__name__, area, offline, function))
        return function
    return add
