# SPDX-License-Identifier: Apache-2.0
"""Procedures of the flow, which wait for answers of the store.

A procedure is a generator that yields calls to the store and receives the
answers::

    def _read(self, job: Job, keys: list[str]) -> Procedure[None]:
        rows = yield from call(
            self._store, ports.ClaimStore.rows_of, job.name, keys)
        self.judge(job, rows)

    start(self._read(job, keys))

The flow's thread runs all procedures, and never waits for the store. While a
procedure waits for an answer, the thread handles other events. So the state of
the flow may have changed when the procedure continues.
"""

import operator
from collections.abc import Callable
from collections.abc import Generator
from typing import Any
from typing import Concatenate
from typing import NamedTuple
from typing import ParamSpec
from typing import TypeVar

from distperiodic import ports

_Parameters = ParamSpec('_Parameters')
_Answer = TypeVar('_Answer')
_Result = TypeVar('_Result')


class CallFailed(Exception):  # noqa: N818
    """A call to the store can never succeed."""


class StoreCall(NamedTuple):
    """A call for whose answer a procedure waits."""

    queue: ports.CallQueue
    call: Callable[[ports.ClaimStore], Any]


#: A procedure, by the type of its result.
Procedure = Generator[StoreCall, Any, _Result]


class PendingProcedures:
    """Number of the procedures of one kind that have not ended.

    A process that stops waits for the procedures that may give claims to it.
    """

    def __init__(self) -> None:
        self._number = 0

    def __bool__(self) -> bool:
        """Return whether a procedure has not ended."""
        return self._number > 0

    def counted(self, procedure: Procedure[_Result]) -> Procedure[_Result]:
        """Run *procedure*, and count it until it ends."""
        self._number += 1
        try:
            return (yield from procedure)
        finally:
            self._number -= 1


def perform(queue: ports.CallQueue, work: Callable[[ports.ClaimStore], _Answer]
            ) -> Procedure[_Answer]:
    """Call *work* with the store, in the thread of the store.

    :returns: The result of *work*.
    :raises CallFailed: The call can never succeed.
    """
    answer: _Answer = yield StoreCall(queue, work)
    return answer


def call(queue: ports.CallQueue,
         method: Callable[Concatenate[ports.ClaimStore, _Parameters], _Answer],
         /, *args: _Parameters.args, **options: _Parameters.kwargs
         ) -> Procedure[_Answer]:
    """Call a method of the store, as in :func:`perform`.

    :param method: Method of :class:`distperiodic.ports.ClaimStore`.
    """
    return perform(queue, operator.methodcaller(
        method.__name__, *args, **options))


def call_steps(queue: ports.CallQueue,
               method: Callable[
                   Concatenate[ports.StepStore, _Parameters], _Answer],
               /, *args: _Parameters.args, **options: _Parameters.kwargs
               ) -> Procedure[_Answer]:
    """Call a method of the store's steps, as in :func:`perform`.

    :param method: Method of :class:`distperiodic.ports.StepStore`.
    """
    made = operator.methodcaller(method.__name__, *args, **options)
    return perform(queue, lambda store: made(store.steps))


def call_partitions(queue: ports.CallQueue,
                    method: Callable[
                        Concatenate[ports.PartitionStore, _Parameters],
                        _Answer],
                    /, *args: _Parameters.args, **options: _Parameters.kwargs
                    ) -> Procedure[_Answer]:
    """Call a method of the store's partitions, as in :func:`perform`.

    :param method: Method of :class:`distperiodic.ports.PartitionStore`.
    """
    made = operator.methodcaller(method.__name__, *args, **options)
    return perform(queue, lambda store: made(store.partitions))


def start(procedure: Procedure[object]) -> None:
    """Run *procedure* until it waits, and again after each answer.

    If a call fails and the procedure does not handle :class:`CallFailed`, the
    procedure ends.
    """
    _Run(procedure).resume(None)


class _Run:
    """A procedure that was started."""

    __slots__ = ('_next', '_procedure', '_running')

    def __init__(self, procedure: Procedure[object]):
        self._procedure = procedure
        self._running = False
        #: A method of the procedure that continues it, and the argument of
        #: that method. None means that the procedure waits for an answer.
        self._next: tuple[Callable[[Any], StoreCall], Any] | None = None

    def resume(self, answer: Any,
               advance: Callable[[Any], StoreCall] | None = None) -> None:
        """Continue the procedure.

        :param answer: Argument of *advance*.
        :param advance: Method of the procedure that continues it. None means
            that the method ``send`` continues it with the answer of the store.
        """
        self._next = advance or self._procedure.send, answer
        if self._running:
            # The queue has answered within submit(), as a store in memory
            # does. The loop below continues the procedure, because a recursion
            # could become too deep.
            return
        self._running = True
        try:
            while self._next is not None:
                (advance, answer), self._next = self._next, None
                try:
                    queue, work = advance(answer)
                except (StopIteration, CallFailed):
                    return
                queue.submit(work, self.resume, self._fail)
        finally:
            self._running = False

    def _fail(self) -> None:
        self.resume(CallFailed, self._procedure.throw)
