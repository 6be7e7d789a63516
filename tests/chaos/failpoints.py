# SPDX-License-Identifier: Apache-2.0
"""Named steps of the pipeline at which a process can be killed or stopped.

The product does not know these points: the test program wraps the methods of
the product before it starts. A file with the name of a point arms a fault. The
first process that passes the point renames the file, and then kills or stops
itself. When a process first passes a point, it reports this to the ledger.
"""

import functools
import os
import pathlib
import pkgutil
import signal
from typing import Any
from typing import NamedTuple


class Point(NamedTuple):
    """A step: the call of *method* of *owner*, or its return if *after* is
    set.
    """

    module: str
    #: Name of a class. Empty means that *method* is a function of the module.
    owner: str
    method: str
    after: bool = False
    #: Count only calls with an argument whose attribute or key of this name
    #: has this value.
    only: tuple[str, str] | None = None
    #: Count only calls that return a true value.
    fruitful: bool = False


_STORE = 'distperiodic.adapters.sql.store', 'SqlClaimStore'
_STEPS = 'distperiodic.adapters.sql.steps', 'SqlSteps'
_MAKE = 'distperiodic.adapters.sql.transaction', 'Transaction', 'make'
_DECODE = 'distperiodic.core.message', '', 'decode', True
# The class that carries the messages depends on the bus.
_CARRIER = 'carrier'
_CAST = _CARRIER, '', 'cast'

#: Points of the processes that claim and send work.
SCHEDULER = {
    'before claim': Point(*_STORE, 'claim'),
    'before claim commit': Point(*_MAKE, True, ('value', 'claimed')),
    'after claim commit': Point(*_STORE, 'claim', True),
    'before send': Point(
        'distperiodic.adapters.messaging.bus', 'MessagingWorkBus', 'send'),
    'before send confirmed': Point(*_CAST, only=('kind', 'run')),
    'after send': Point(*_CAST, True, ('kind', 'run')),
    'report received': Point(*_DECODE, ('kind', 'report')),
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
#: Points of the processes that run work.
WORKER = {
    'batch received': Point(*_DECODE, ('kind', 'run')),
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
#: Points of all processes.
BOTH = {
    'in renew': Point(*_STORE, 'renew'),
}
POINTS = SCHEDULER | WORKER | BOTH


class Points:
    """The points of one process.

    :param place: directory of the files that arm faults.
    :param ledger: receives the names of the points that were passed.
    :param carrier: see :attr:`tests.chaos.bus.Bus.carrier`.
    """

    def __init__(self, place, ledger, carrier):
        self._place = pathlib.Path(place)
        self._ledger = ledger
        self._carrier = carrier
        self._passed = set()

    def install(self, points):
        """Wrap the methods of *points*, which is a mapping by name."""
        for name, point in points.items():
            owner = owner_of(point, self._carrier)
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
        """Record that the process passes a point, and execute the fault of the
        point if one is armed.
        """
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
            # Another process has taken the fault.
            return
        action = taken.read_text()
        self._ledger.tell('struck', name=name, action=action)
        os.kill(os.getpid(), getattr(signal, action))


def owner_of(point: Point, carrier: str) -> Any:
    """Return the class or the module that contains the method of a point.

    :param carrier: see :attr:`tests.chaos.bus.Bus.carrier`.
    """
    if point.module == _CARRIER:
        return pkgutil.resolve_name(carrier)
    return pkgutil.resolve_name(f'{point.module}:{point.owner}')


def _meant(point: Point, args: Any, kwargs: Any) -> bool:
    if point.only is None:
        return True
    name, value = point.only
    return any(
        (one.get(name) if isinstance(one, dict)
         else getattr(one, name, None)) == value
        for one in (*args, *kwargs.values()))
