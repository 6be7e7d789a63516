# SPDX-License-Identifier: Apache-2.0
"""Metrics of several processes of one host, which share a directory.

Each process writes its values to a file about once a second. One process, the
*server*, reads the files of all processes and adds them up::

    process ── write ──► PROCESS.json ─┐
    process ── write ──► PROCESS.json ─┼─► server ──► sum
                         ended.json   ─┘

A process holds a lock as long as it lives. The kernel releases the lock when
the process ends, for whatever reason. The server then adds the counters of the
process to ``ended.json``, so that no sum decreases, and removes its files.
Another process becomes the server if the server ends. ``ended.json`` also
names the processes whose counters it contains, because the server may end
before it has removed their files. If all processes have ended, their values
are forgotten. The values of the last second of a process that was killed are
lost.
"""

import contextlib
import fcntl
import json
import os
import secrets

from distperiodic import exceptions
from distperiodic.adapters.local import private
from distperiodic.core.tally import Tally

_SERVER = 'server.lock'
_ENDED = 'ended.json'
_LOCK, _VALUES = '.lock', '.json'


class TallyFiles:
    """The files of this process and of those that share its directory.

    Use at most one object for each directory in a process: if a process closes
    a file, it loses its locks on this file.

    :param path: Directory, which is created if it is missing.
    :raises ConfigError: The directory cannot hold the files, or is not
        private.
    """

    def __init__(self, path: str):
        private.make_directory(os.path.dirname(path))
        private.make_directory(path)
        self._path = path
        self._name = f'{os.getpid()}-{secrets.token_hex(4)}'
        self._written = ''
        self._server: int | None = None
        try:
            new = self._at(f'{self._name}.new')
            self._lock = private.open_file(new)
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The server must never see the file without its lock.
            os.rename(new, self._at(self._name + _LOCK))
        except OSError as exc:
            raise exceptions.ConfigError(
                f'state_path {path!r} cannot hold the files of '
                f'metrics_listen: {exc}; set [distperiodic] state_path to a '
                'directory that this user can write to') from exc

    def _at(self, name: str) -> str:
        return os.path.join(self._path, name)

    def write(self, tally: Tally) -> None:
        """Replace the values of this process.

        :raises OSError: The file cannot be written.
        """
        text = tally.text()
        if text != self._written:
            self._replace(self._name + _VALUES, text)
            self._written = text
        # A program that cleans the directory for temporary files must not
        # remove the files of a live process, so they are never old.
        for suffix in (_VALUES, _LOCK):
            os.utime(self._at(self._name + suffix))
        if self._server is not None:
            os.utime(self._at(_SERVER))

    def _replace(self, name: str, text: str) -> None:
        # A reader sees either the old file or the new file.
        new = self._at(f'{name}.new')
        with open(new, 'w', encoding='utf-8') as file:
            file.write(text)
        os.replace(new, self._at(name))

    def serve(self) -> bool:
        """Become the server, unless another process is the server.

        :returns: True if this process is the server.
        :raises OSError: The directory cannot be used.
        """
        if self._server is None:
            handle = private.open_file(self._at(_SERVER))
            if not _locked(handle):
                os.close(handle)
                return False
            # Otherwise the other processes would see when an earlier server
            # last wrote its values.
            os.utime(handle)
            self._server = handle
            live, gone = self._others()
            if not live:
                for name in gone:
                    self._remove(name)
                with contextlib.suppress(FileNotFoundError):
                    os.remove(self._at(_ENDED))
        return True

    def server_silent(self) -> float:
        """Return the seconds from the last write of the server to the last
        write of this process.

        :raises OSError: The directory cannot be used.
        """
        return (os.stat(self._at(self._name + _LOCK)).st_mtime
                - os.stat(self._at(_SERVER)).st_mtime)

    def others(self) -> Tally:
        """Return the sum of the values of all other processes.

        Only the server may call this.

        :raises OSError: A file cannot be read or written.
        """
        ended, merged = self._ended()
        live, gone = self._others()
        for name in set(gone) - merged:
            ended.merge(self._read(name + _VALUES).without_gauges())
        if gone:
            self._replace(_ENDED, json.dumps(
                {'tally': ended.text(), 'processes': gone}))
            for name in gone:
                self._remove(name)
        for name in live:
            ended.merge(self._read(name + _VALUES))
        return ended

    def _ended(self) -> tuple[Tally, set[str]]:
        """Return the sum of the processes that have ended, and the names of
        those whose files may still exist although the sum contains them.
        """
        try:
            with open(self._at(_ENDED), encoding='utf-8') as file:
                found = json.load(file)
            return Tally.parse(found['tally']), set(found['processes'])
        except (FileNotFoundError, KeyError, TypeError, ValueError):
            return Tally(), set()

    def _others(self) -> tuple[list[str], list[str]]:
        """Return the names of the other processes: those that live, and those
        that have ended.
        """
        live: list[str] = []
        gone: list[str] = []
        for file in sorted(os.listdir(self._path)):
            name = file.removesuffix(_LOCK)
            if name in (file, self._name) or file == _SERVER:
                continue
            with contextlib.suppress(FileNotFoundError):
                handle = os.open(self._at(file), os.O_RDWR | os.O_CLOEXEC)
                try:
                    (gone if _locked(handle) else live).append(name)
                finally:
                    os.close(handle)
        return live, gone

    def _read(self, name: str) -> Tally:
        try:
            with open(self._at(name), encoding='utf-8') as file:
                return Tally.parse(file.read())
        except (FileNotFoundError, ValueError):
            # The process has not written its values yet, or belongs to a
            # release with another format.
            return Tally()

    def _remove(self, name: str) -> None:
        for suffix in (_VALUES, _LOCK):
            with contextlib.suppress(FileNotFoundError):
                os.remove(self._at(name + suffix))

    def close(self) -> None:
        """Let another process become the server, and count as ended."""
        if self._server is not None:
            os.close(self._server)
            self._server = None
        os.close(self._lock)


def served(path: str) -> bool:
    """Return whether a process serves the sum of the directory *path*."""
    try:
        handle = os.open(os.path.join(path, _SERVER),
                         os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not _locked(handle)
    finally:
        os.close(handle)


def _locked(handle: int) -> bool:
    """Lock a file, and return whether this was possible."""
    try:
        # A child that a handler forks does not inherit a POSIX lock.
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
