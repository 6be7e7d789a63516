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
