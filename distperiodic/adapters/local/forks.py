# SPDX-License-Identifier: Apache-2.0
"""A guard against children that a handler forks."""

import contextlib
import functools
import os
import traceback
from collections.abc import Callable
from typing import Any
from typing import NoReturn


def ends_forked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return *function*, but end each child process that returns from it.

    A handler may fork, and the child may return from the handler or raise an
    exception. The child is a copy of the service, with its sockets, its locks
    and the rest of its batch. So it must not run anything of the service. It
    ends at once, without exit handlers, and with the exit code that the
    exception requests.
    """
    @functools.wraps(function)
    def call(*args: Any) -> Any:
        process = os.getpid()
        try:
            returned = function(*args)
        except BaseException as exc:
            if os.getpid() != process:
                _end(exc)
            raise
        if os.getpid() != process:
            _end(None)
        return returned
    return call


def _end(error: BaseException | None) -> NoReturn:
    """End this process, with the exit code that *error* requests."""
    code = 0 if error is None else 1
    # An exception may fail to describe itself.
    with contextlib.suppress(BaseException):
        if isinstance(error, SystemExit):
            code = _exit_code(error.code)
        elif error is not None:
            # Do not use the log or sys.stderr. Another thread of the service
            # may have held their locks at the time of the fork.
            os.write(2, ''.join(traceback.format_exception(error)).encode(
                errors='backslashreplace'))
    os._exit(code)


def _exit_code(code: object) -> int:
    if code is None:
        return 0
    return code & 0xff if isinstance(code, int) else 1
