# SPDX-License-Identifier: Apache-2.0
"""Process slots: unique numbers for the processes of one kind on a host."""

import contextlib
import fcntl
import logging
import os
import pwd
import socket

from distperiodic import exceptions
from distperiodic.adapters.local import private

LOG = logging.getLogger(__name__)


def host_name() -> str:
    """Return this host's name in characters that are legal in a member id."""
    name = ''.join(c if c.isalnum() or c in '.-' else '-'
                   for c in socket.gethostname() if c.isascii())
    return name.lstrip('.-') or 'host'


def user_name() -> str:
    """Return the name of the user of this process, for records of actions.

    The kernel determines the user. Environment variables such as LOGNAME could
    name anybody.
    """
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        # A container may run as a user id that has no name.
        return f'uid-{os.getuid()}'


class ProcessSlot:
    """This process's number among the processes of one kind on this host.

    The number is the lowest free number. So a restarted process usually gets
    the number of the process that it replaces, and hence the same points on
    the ring. A lock on a file reserves the number. The kernel releases the
    lock when the process ends, for whatever reason.

    :param path: Directory for the lock files.
    :raises ConfigError: the directory cannot hold lock files, or is not
        private.
    """

    def __init__(self, path: str, kind: str):
        self._handle: int | None = None
        private.make_directory(path)
        try:
            for number in range(10000):
                # Use POSIX locks instead of flock. A forked child does not
                # inherit them, so it cannot keep the slot of a dead parent.
                handle = private.open_file(
                    os.path.join(path, f'{kind}.{number}.lock'))
                try:
                    fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    os.close(handle)
                    continue
                if (path, kind, number) in _SLOTS:
                    # Another slot of this process has this number. The lock
                    # did not fail, because POSIX locks of one process do not
                    # conflict. Do not close the handle, because that would
                    # release the lock of the other slot.
                    continue
                self._key = (path, kind, number)
                _SLOTS.add(self._key)
                self._handle = handle
                self.number = number
                return
        except OSError as exc:
            raise exceptions.ConfigError(
                f'state_path {path!r} cannot hold lock files: {exc}; set '
                '[distperiodic] state_path to a directory that this user '
                'can write to') from exc
        raise exceptions.ConfigError(
            f'state_path {path!r} has no free slot left; if several hosts '
            'share this directory, give each host its own')

    def leave(self) -> None:
        if self._handle is not None:
            _SLOTS.discard(self._key)
            with contextlib.suppress(OSError):
                os.close(self._handle)
            self._handle = None


_SLOTS: set[tuple[str, str, int]] = set()
