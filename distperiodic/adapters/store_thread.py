# SPDX-License-Identifier: Apache-2.0
"""A store of a thread of its own, so that the flow never waits for it.

What is asked is made in order, each call until it is answered: a store that
is away is waited for, and what came meanwhile waits in line. So that the line
does not grow without end, the flow asks for no more ticks of a job that still
has a question in it. Long it can be all the same, where a big job catches up
on many ticks; what renews leases goes before all that.
"""

import itertools
import logging
import queue
import threading
from collections.abc import Callable
from typing import Any
from typing import NamedTuple
from typing import TypeVar

from distperiodic import exceptions
from distperiodic import ports

LOG = logging.getLogger(__name__)

_Answer = TypeVar('_Answer')

# Seconds between two attempts at a store that is away: the first, and the
# longest.
_PAUSES = 0.1, 2.0


class _Question(NamedTuple):
    call: Callable[[Any], Any]
    then: Callable[[Any], None]
    failed: Callable[[], None]


class StoreThread:
    """See :class:`distperiodic.ports.StoreQueue`.

    :param connect: makes the store; called in the thread, again until it
        works.
    :param deliver: has a call made in the thread of the flow.
    """

    def __init__(self, connect: Callable[[], ports.ClaimStore],
                 deliver: Callable[[Callable[[], None]], None]):
        self._connect = connect
        self._deliver = deliver
        #: Whether it waits for the others, and its number, before each.
        self._asked: queue.PriorityQueue[
            tuple[bool, int, _Question | None]] = queue.PriorityQueue()
        self._numbers = itertools.count()
        self._open = 0
        self._news = threading.Condition()
        self._stopping = threading.Event()
        self.away = False
        #: What keeps the store from being used; None: nothing does.
        self.problem: Exception | None = None
        self._thread = threading.Thread(
            target=self._run, name='distperiodic-store', daemon=True)

    def start(self) -> None:
        self._thread.start()

    def ask(self, call: Callable[[ports.ClaimStore], _Answer],
            then: Callable[[_Answer], None],
            failed: Callable[[], None] = lambda: None, *,
            first: bool = False) -> None:
        with self._news:
            self._open += 1
        self._asked.put((not first, next(self._numbers),
                         _Question(call, then, failed)))

    def flush(self, timeout: float) -> bool:
        """Wait until all that was asked is answered; False: it took longer
        than *timeout* seconds.
        """
        with self._news:
            return self._news.wait_for(lambda: not self._open, timeout)

    def stop(self, timeout: float) -> None:
        """Make what was asked and end. What took longer than *timeout*
        seconds is not made.
        """
        self.flush(timeout)
        self._stopping.set()
        self._asked.put((True, next(self._numbers), None))

    def _run(self) -> None:
        store: ports.ClaimStore | None = None
        while (asked := self._asked.get()[2]) is not None:
            if store is None:
                store = self._until_it_works(
                    lambda _: self._connect(), None, (Exception,))
            if self._stopping.is_set():
                break
            assert store is not None
            self._answer(store, asked)
            with self._news:
                self._open -= 1
                self._news.notify_all()
        if store is not None:
            store.close()

    def _answer(self, store: ports.ClaimStore, asked: _Question) -> None:
        try:
            answer = self._until_it_works(
                asked.call, store, (exceptions.StoreUnavailable,))
        except Exception as exc:
            LOG.exception(
                'store call failed: error=%s; what it was about is looked '
                'at again when its lease has ended', type(exc).__name__)
            self._deliver(asked.failed)
        else:
            if not self._stopping.is_set():
                self._deliver(lambda: asked.then(answer))

    def _until_it_works(self, call: Callable[[Any], Any], store: Any,
                        awaited: tuple[type[Exception], ...]) -> Any:
        pause = _PAUSES[0]
        while not self._stopping.is_set():
            try:
                answer = call(store)
            except awaited as exc:
                if not self.away:
                    LOG.error(
                        'store away: reason=%s; nothing is claimed until it '
                        'is back, and the misfire policies decide then', exc)
                self.away, self.problem = True, exc
                self._stopping.wait(pause)
                pause = min(2 * pause, _PAUSES[1])
            else:
                if self.away:
                    LOG.info('store back: asked=%d', self._open)
                self.away, self.problem = False, None
                return answer
        return None
