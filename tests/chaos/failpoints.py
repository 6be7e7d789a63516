# SPDX-License-Identifier: Apache-2.0
"""The steps of the pipeline, by name, at which a process can be made to die.

The product knows nothing of them: the program of the tests wraps its methods
before it begins. A fault is armed by a file of the point's name; the first
process to pass the point takes the file away, and then it kills or stops
itself there. Every point that a process passes is told to the ledger once.
"""

import functools
import importlib
import os
import pathlib
import signal
from typing import Any
from typing import NamedTuple


class Point(NamedTuple):
    """A step: when *method* of *owner* begins, or when it has returned."""

    module: str
    #: A class; empty: *method* is a function of the module.
    owner: str
    method: str
    after: bool = False
    #: Only calls that have this among their arguments: an attribute or key
    #: and its value.
    only: tuple[str, str] | None = None
    #: Only calls that came to something.
    fruitful: bool = False


_STORE = 'distperiodic.adapters.sql.store', 'SqlClaimStore'
_STEPS = 'distperiodic.adapters.sql.steps', 'SqlSteps'
_MAKE = 'distperiodic.adapters.sql.transaction', 'Transaction', 'make'
#: Each process gets messages of one kind only: reports, or batches.
_DECODE = 'distperiodic.core.message', '', 'decode', True
_CAST = (
    'distperiodic.adapters.messaging.connection', 'BrokerConnection', 'cast')

#: Of those who claim and send.
SCHEDULER = {
    'before claim': Point(*_STORE, 'claim'),
    'before claim commit': Point(*_MAKE, True, ('value', 'claimed')),
    'after claim commit': Point(*_STORE, 'claim', True),
    'before send': Point(
        'distperiodic.adapters.messaging.bus', 'MessagingWorkBus', 'send'),
    'before send confirmed': Point(*_CAST, only=('kind', 'run')),
    'after send': Point(*_CAST, True, ('kind', 'run')),
    'report received': Point(*_DECODE),
    'in sweep': Point(*_STORE, 'take_over_expired'),
    'before take-over commit': Point(
        'distperiodic.adapters.sql.takeover', '', 'take_over', True,
        fruitful=True),
    'after take-over': Point(
        *_STORE, 'take_over_expired', True, fruitful=True),
    'after reclaim': Point(*_STORE, 'reclaim', True),
    'after skip': Point(*_STORE, 'skip', True),
    'after take of a step': Point(*_STEPS, 'take', True, fruitful=True),
}
#: Of those who run.
WORKER = {
    'batch received': Point(*_DECODE),
    'before start': Point(*_STORE, 'start'),
    'before start commit': Point(*_MAKE, True, ('value', 'running')),
    'after start commit': Point(*_STORE, 'start', True),
    'before handler': Point('tests.chaos.jobs', 'Hands', 'begin'),
    'before handler end': Point('tests.chaos.jobs', 'Hands', 'end'),
    'before finish': Point(*_STORE, 'finish'),
    'after finish': Point(*_STORE, 'finish', True),
    'before retry commit': Point(*_MAKE, True, ('value', 'retry')),
    'after retry': Point(*_STORE, 'fail', True),
    'before end of a step': Point(*_STEPS, 'advance'),
    'after end of a step': Point(*_STEPS, 'advance', True),
    'before report': Point(*_CAST, only=('kind', 'report')),
    'after report': Point(*_CAST, True, ('kind', 'report')),
}
#: Of all.
BOTH = {
    'in renew': Point(*_STORE, 'renew'),
}
POINTS = SCHEDULER | WORKER | BOTH


class Points:
    """The points of one process.

    :param place: directory of the files by which faults are armed.
    :param ledger: is told of the points that were passed.
    """

    def __init__(self, place, ledger):
        self._place = pathlib.Path(place)
        self._ledger = ledger
        self._passed = set()

    def install(self, points):
        """Wrap the methods of *points*, by name."""
        for name, point in points.items():
            owner = owner_of(point)
            setattr(owner, point.method, self._wrapped(
                name, point, getattr(owner, point.method)))

    def _wrapped(self, name, point, method):
        @functools.wraps(method)
        def wrapper(*args, **kwargs):
            if not point.after and _meant(point, args, kwargs):
                self.passed(name)
            answer = method(*args, **kwargs)
            if (point.after and _meant(point, args, kwargs)
                    and (answer or not point.fruitful)):
                self.passed(name)
            return answer
        return wrapper

    def passed(self, name):
        """A point was reached: do here what was armed, if anything."""
        if name not in self._passed:
            self._passed.add(name)
            self._ledger.tell('point', name=name)
        armed = self._place / name
        if not armed.exists():
            return
        taken = self._place / f'{name}.{os.getpid()}'
        try:
            armed.rename(taken)
        except FileNotFoundError:
            # Somebody else was faster.
            return
        action = taken.read_text()
        self._ledger.tell('struck', name=name, action=action)
        os.kill(os.getpid(), getattr(signal, action))


def owner_of(point: Point) -> Any:
    """The class or the module that a point is in."""
    module = importlib.import_module(point.module)
    return getattr(module, point.owner) if point.owner else module


def _meant(point: Point, args: Any, kwargs: Any) -> bool:
    if point.only is None:
        return True
    name, value = point.only
    return any(
        (one.get(name) if isinstance(one, dict)
         else getattr(one, name, None)) == value
        for one in (*args, *kwargs.values()))
