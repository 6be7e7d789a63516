# SPDX-License-Identifier: Apache-2.0
"""State directory of a service, to which only trusted users can write.

By default, the directory is below the directory for temporary files. There,
any user could create it first, or put a symbolic link in its place.
"""

import os
import stat

from distperiodic import exceptions

_REMEDY = ('set [distperiodic] state_path to a directory that only this user '
           'can write to')


def make_directory(path: str) -> None:
    """Create the directory *path* if it is missing; check that it is private.

    A directory may belong to root, and may be writable by its group.

    :raises ConfigError: *path* cannot be created, is a symbolic link, belongs
        to another user, or can be written to or replaced by all users.
    """
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
    except OSError as exc:
        raise exceptions.ConfigError(
            f'state_path {path!r} cannot be used: {exc}; {_REMEDY}') from exc
    check_directory(path, 'state_path', _REMEDY)


def check_directory(path: str, option: str, remedy: str) -> None:
    """Check that the directory *path* is private.

    :param option: Name of the option that names the directory.
    :param remedy: What to do if it is not private.
    :raises ConfigError: See :func:`make_directory`.
    """
    try:
        # lstat() does not follow a symbolic link, so it detects a link, which
        # is then rejected. The owner of a link could change its target later.
        found = os.lstat(path)
        above = os.stat(os.path.dirname(os.path.abspath(path)))
    except OSError as exc:
        raise exceptions.ConfigError(
            f'{option} {path!r} cannot be used: {exc}; {remedy}') from exc
    if stat.S_ISLNK(found.st_mode):
        raise exceptions.ConfigError(
            f'{option} {path!r} is a symbolic link, and its owner can '
            f'point it elsewhere; name its target '
            f'{os.path.realpath(path)!r} instead, if that is intended')
    reason = _open_to(found)
    if not reason and above.st_mode & stat.S_IWOTH and not (
            above.st_mode & stat.S_ISVTX):
        reason = ('is in a directory without the sticky bit, in which every '
                  'user can replace it')
    if reason:
        raise exceptions.ConfigError(
            f'{option} {path!r} {reason}, so its content is not safe; '
            f'{remedy}')


def _open_to(found: os.stat_result) -> str:
    """Return the reason why other users can write to a directory.

    An empty text means that only root, this user and the directory's group may
    be able to write to it.
    """
    if found.st_uid not in (0, os.geteuid()):
        return f'belongs to another user (number {found.st_uid})'
    if found.st_mode & stat.S_IWOTH:
        return 'is writable by all users'
    return ''


def make_file(path: str) -> None:
    """Create the file *path* if it is missing, accessible to this user only.

    An existing file is not opened: closing a SQLite file would release all
    locks that this process holds on it.

    :raises ConfigError: *path* cannot be created, or is a symbolic link.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError as exc:
        if os.path.islink(path):
            raise exceptions.ConfigError(
                f'{path} is a symbolic link, so the file may belong to '
                'another user; remove it') from exc
    except OSError as exc:
        raise exceptions.ConfigError(
            f'{path} cannot be created: {exc}; {_REMEDY}') from exc


def open_file(path: str) -> int:
    """Open the file *path* and return its descriptor.

    A missing file is created, accessible to this user only.

    :raises OSError: *path* is a symbolic link, or cannot be opened.
    """
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
                   | os.O_NOFOLLOW, 0o600)
