# SPDX-License-Identifier: Apache-2.0
"""Records of finished runs: one line for each.

    192.168.10.7 1784536202000000 1784536202013120 41721

The fields are the object, the tick and the start of the run (both in
microseconds since the epoch), and the process id. Each process appends to its
own file. The demo counts runs only by these lines, and not by the library's
own reports.
"""

import os
import pathlib
from collections.abc import Iterator
from typing import NamedTuple


class Run(NamedTuple):
    """One line."""

    object: str
    #: Microseconds since the epoch, like *started*.
    tick: int
    started: int
    pid: int

    @property
    def late(self) -> float:
        """Seconds from the tick to the start of the run."""
        return (self.started - self.tick) / 1e6


class Writer:
    """A writer that appends lines to a file.

    Each line is one write, so a killed process leaves no partial line.
    """

    def __init__(self, path: pathlib.Path):
        self._handle = os.open(
            path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def add(self, host: str, tick: int, started: int) -> None:
        os.write(self._handle,
                 f'{host} {tick} {started} {os.getpid()}\n'.encode())


class Reader:
    """A reader of new lines in the files of a directory."""

    def __init__(self, place: pathlib.Path):
        self._place = place
        self._read: dict[pathlib.Path, int] = {}

    def news(self) -> Iterator[Run]:
        for path in sorted(self._place.glob('*.runs')):
            with open(path, 'rb') as file:
                file.seek(self._read.get(path, 0))
                lines = file.read()
            whole = lines.rfind(b'\n') + 1
            self._read[path] = self._read.get(path, 0) + whole
            for line in lines[:whole].decode().splitlines():
                host, tick, started, pid = line.split()
                yield Run(host, int(tick), int(started), int(pid))
