# SPDX-License-Identifier: Apache-2.0
"""The checks of ``distperiodic doctor`` and the results they may have."""

import dataclasses
import enum
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING
from typing import Any

from distperiodic import exceptions
from distperiodic.cmd import configured

if TYPE_CHECKING:
    from distperiodic.cmd.case import Case


class Result(enum.StrEnum):
    OK = 'ok'
    WARN = 'warn'
    FAIL = 'fail'
    SKIP = 'skip'


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check, and the remedy."""

    result: Result
    text: str
    remedy: str = ''


def ok(text: str) -> Finding:
    return Finding(Result.OK, text)


def warn(text: str, remedy: str) -> Finding:
    return Finding(Result.WARN, text, remedy)


def fail(text: str, remedy: str) -> Finding:
    return Finding(Result.FAIL, text, remedy)


def skip(text: str) -> Finding:
    return Finding(Result.SKIP, text)


class NotNow(Exception):
    """The check does not apply, or another check must pass first."""


@dataclasses.dataclass(frozen=True, slots=True)
class Check:
    name: str
    area: str
    offline: bool
    function: 'Callable[[Case], Finding]'

    @property
    def text(self) -> str:
        """The first paragraph of the function's docstring."""
        return ' '.join((inspect.getdoc(self.function) or '').partition(
            '\n\n')[0].split())

    def run(self, case: 'Case') -> Finding:
        """Run the check; errors of this library become findings."""
        try:
            return self.function(case)
        except NotNow as exc:
            return skip(str(exc))
        except exceptions.DistperiodicError as exc:
            found, _, remedy = configured.one_line(exc).rpartition('; ')
            return fail(found or remedy, remedy if found else '')


CHECKS: list[Check] = []


def check(area: str, offline: bool = False
          ) -> 'Callable[[Callable[[Case], Finding]], Any]':
    def add(function: 'Callable[[Case], Finding]') -> Any:
        CHECKS.append(Check(function.__name__, area, offline, function))
        return function
    return add
