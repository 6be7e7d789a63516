# SPDX-License-Identifier: Apache-2.0
"""The results that a check of ``distperiodic doctor`` may have."""

import dataclasses
import enum


class Result(enum.StrEnum):
    OK = 'ok'
    WARN = 'warn'
    FAIL = 'fail'
    SKIP = 'skip'


@dataclasses.dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of a check, and the remedy."""

    result: Result
    text: str
    remedy: str = ''


def ok(text: str) -> CheckResult:
    return CheckResult(Result.OK, text)


def warn(text: str, remedy: str) -> CheckResult:
    return CheckResult(Result.WARN, text, remedy)


def fail(text: str, remedy: str) -> CheckResult:
    return CheckResult(Result.FAIL, text, remedy)


def skip(text: str) -> CheckResult:
    return CheckResult(Result.SKIP, text)


class NotNow(Exception):
    """The check does not apply, or another check must pass first."""
