# SPDX-License-Identifier: Apache-2.0
"""How the benchmarks measure, and how their tables look.

The cases of one table take turns, so that whatever else the machine does
meets all of them alike; what counts is the ratio of two medians of one run,
and a median without its least and most is not shown. Nothing here is a
verdict: the figures of a busy machine say so in the first line, by its load.
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

# futurist imports eventlet where it is installed, and each process that does
# would say so between the tables.
os.environ.setdefault('PYTHONWARNINGS', 'ignore')

#: Processes that share nothing with the one that measures.
SPAWN = multiprocessing.get_context('spawn')


def rounds(usual: int = 5) -> int:
    """How often each case runs: DISTPERIODIC_TEST_ROUNDS, or *usual*."""
    return int(os.environ.get('DISTPERIODIC_TEST_ROUNDS', usual))


@dataclasses.dataclass(frozen=True)
class Figure:
    """What some rounds of one case gave."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: list[float]) -> 'Figure':
        return cls(statistics.median(values), min(values), max(values))


def seconds_of(act: Callable[[], Any]) -> float:
    """Wall seconds that *act* took, the collector kept out of it."""
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
    """Seconds of each case, in rounds in which all cases take their turn.

    :param cases: name to a function that makes ready, untimed, and returns
        what is timed.
    """
    taken: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(number or rounds()):
        for name, make_ready in cases.items():
            act = make_ready()
            taken[name].append(seconds_of(act))
            del act
    return {name: Figure.of(values) for name, values in taken.items()}


def pinned(core: int) -> None:
    """Keep this process on one core, if there is that one."""
    with contextlib.suppress(AttributeError, OSError):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[core % len(cores)]})


@contextlib.contextmanager
def table(title: str, *columns: str, file: str,
          versions: tuple[str, ...] = ()) -> Iterator[Callable[..., None]]:
    """Print a table; yields what takes its rows.

    :param file: the benchmark's, for the command that repeats the table.
    :param versions: distributions whose versions matter.
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
    """Seconds as milliseconds, with as many digits as mean something."""
    return f'{seconds * 1e3:,.{1 if seconds < 0.1 else 0}f}' if (
        seconds >= 0.001) else f'{seconds * 1e3:.4f}'


def spread(figure: Figure) -> str:
    """The least and most of a figure of seconds, in milliseconds."""
    return f'{ms(figure.least)}-{ms(figure.most)}'


def times(ratio: float) -> str:
    return f'{ratio:,.1f}x' if ratio < 100 else f'{ratio:,.0f}x'
