# SPDX-License-Identifier: Apache-2.0
"""The state directory of a service, which no other user may write to.

Its default is below the directory for temporary files. There any user can
make it first, or put a symbolic link in its place.
"""

import os
import stat

from distperiodic import exceptions

_REMEDY = ('set [distperiodic] state_path to a directory of this user that '
           'nobody else may write')


def make_directory(path: str) -> None:
    """Make *path* where it is not there, and see that it is private.

    :raises ConfigError: it cannot be made, or others can write to it.
    """
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        # Of a symbolic link we need its own owner, who can change it.
        found = os.lstat(path)
        above = os.stat(os.path.dirname(os.path.abspath(path)))
    except OSError as exc:
        raise exceptions.ConfigError(
            f'state_path {path!r} cannot be used: {exc}; {_REMEDY}') from exc
    if stat.S_ISLNK(found.st_mode):
        raise exceptions.ConfigError(
            f'state_path {path!r} is a symbolic link, and who made it can '
            'lead it elsewhere; set [distperiodic] state_path to '
            f'{os.path.realpath(path)!r}, if that is meant')
    reason = _open_to(found)
    if not reason and above.st_mode & stat.S_IWOTH and not (
            above.st_mode & stat.S_ISVTX):
        reason = ('lies in a directory in which everybody may replace it (it '
                  'is not sticky)')
    if reason:
        raise exceptions.ConfigError(
            f'state_path {path!r} {reason}, so what it holds is not safe; '
            f'{_REMEDY}')


def _open_to(found: os.stat_result) -> str:
    """Which other users can write to a directory; empty: none."""
    if found.st_uid not in (0, os.geteuid()):
        return f'belongs to another user (number {found.st_uid})'
    if found.st_mode & stat.S_IWOTH:
        return 'can be written by everybody'
    return ''


def make_file(path: str) -> None:
    """Make *path* where it is not there, for this user only to read.

    What is there is not opened: to close a file of SQLite ends all locks that
    its process has on it.

    :raises ConfigError: it cannot be made, or is a symbolic link.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError as exc:
        if os.path.islink(path):
            raise exceptions.ConfigError(
                f'{path} is a symbolic link, and so may be somebody '
                'else\'s file; remove it') from exc
    except OSError as exc:
        raise exceptions.ConfigError(
            f'{path} cannot be made: {exc}; {_REMEDY}') from exc


def open_file(path: str) -> int:
    """A descriptor of the file *path*, which is made where it is not there
    and then can be read by this user only.

    :raises OSError: it is a symbolic link, or cannot be opened.
    """
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
                   | os.O_NOFOLLOW, 0o600)
