# SPDX-License-Identifier: Apache-2.0
"""Measurements and tables of the benchmarks.

The cases of one table alternate, so that other load on the machine affects all
cases equally. The result is the ratio of two medians from one run of the
benchmark. Each median is shown with the minimum and the maximum of its rounds.
No benchmark fails because of its figures. The line below each table shows the
load of the machine, so a reader can tell whether the machine was busy.
"""

import contextlib
import dataclasses
import gc
import importlib.metadata
import multiprocessing
import os
import platform
import statistics
import time
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

# futurist imports eventlet if it is installed, and then each process prints a
# warning between the tables.
os.environ.setdefault('PYTHONWARNINGS', 'ignore')

#: Context of processes that share no state with the measuring process.
SPAWN = multiprocessing.get_context('spawn')


def rounds(usual: int = 5) -> int:
    """Return how often each case runs: DISTPERIODIC_TEST_ROUNDS, or *usual*.
    """
    return int(os.environ.get('DISTPERIODIC_TEST_ROUNDS', usual))


@dataclasses.dataclass(frozen=True)
class Figure:
    """The values of several rounds of one case."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: list[float]) -> 'Figure':
        return cls(statistics.median(values), min(values), max(values))


def seconds_of(act: Callable[[], Any]) -> float:
    """Return the wall seconds of *act*, without garbage collection."""
    gc.collect()
    gc.disable()
    try:
        began = time.perf_counter()
        act()
        return time.perf_counter() - began
    finally:
        gc.enable()


def in_turns(cases: Mapping[str, Callable[[], Callable[[], Any]]],
             number: int | None = None) -> dict[str, Figure]:
    """Return the seconds of each case, from rounds in which all cases
    alternate.

    :param cases: by name, a function that prepares a case without timing, and
        returns the function to be timed.
    """
    taken: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(number or rounds()):
        for name, make_ready in cases.items():
            act = make_ready()
            taken[name].append(seconds_of(act))
            del act
    return {name: Figure.of(values) for name, values in taken.items()}


def pinned(core: int) -> None:
    """Pin this process to one core, if the platform supports this."""
    with contextlib.suppress(AttributeError, OSError):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[core % len(cores)]})


@contextlib.contextmanager
def table(title: str, *columns: str, file: str,
          versions: tuple[str, ...] = ()) -> Iterator[Callable[..., None]]:
    """Print a table. Yield a function that adds a row.

    :param file: file of the benchmark, for the command that repeats the table.
    :param versions: distributions whose versions are shown.
    """
    rows: list[tuple[str, ...]] = []
    yield lambda *row: rows.append(tuple(map(str, row)))
    widths = [max(map(len, column))
              for column in zip(columns, *rows, strict=True)]
    name = os.path.relpath(
        file, os.path.dirname(os.path.dirname(os.path.dirname(file))))
    print(f'\n{title}')
    print('  '.join(
        text.ljust(width) if not number else text.rjust(width)
        for number, (text, width) in enumerate(
            zip(columns, widths, strict=True))))
    for row in rows:
        print('  '.join(
            text.ljust(width) if not number else text.rjust(width)
            for number, (text, width) in enumerate(
                zip(row, widths, strict=True))))
    known = ', '.join(
        f'{v} {importlib.metadata.version(v)}' for v in versions)
    load = ' '.join(f'{one:.2f}' for one in os.getloadavg())
    print(f'Python {platform.python_version()}'
          f'{", " if known else ""}{known}; {os.cpu_count()} cores, '
          f'load {load}')
    print(f'pytest -s -o timeout=0 {name}', flush=True)


def ms(seconds: float) -> str:
    """Return seconds as milliseconds. A larger number has fewer decimals."""
    return f'{seconds * 1e3:,.{1 if seconds < 0.1 else 0}f}' if (
        seconds >= 0.001) else f'{seconds * 1e3:.4f}'


def spread(figure: Figure) -> str:
    """Return the minimum and the maximum of a figure, in milliseconds."""
    return f'{ms(figure.least)}-{ms(figure.most)}'


def times(ratio: float) -> str:
    return f'{ratio:,.1f}x' if ratio < 100 else f'{ratio:,.0f}x'
