# SPDX-License-Identifier: Apache-2.0
"""A store in threads of its own, so that the flow never waits for it.

What is asked is made in order, each call until it is answered: a store that
is away is waited for, and what came meanwhile waits in line. So that the line
does not grow without end, the flow asks for no more ticks of a job that still
has a question in it. Long it can be all the same, where a big job catches up
on many ticks, or a call waits for rows that somebody else has locked. What
renews leases waits for none of that: it has a thread and a connection of its
own::

                 +-- urgent ---> thread --> connection --+
    flow -- ask -+                                       +--> database
                 +-- in order -> thread --> connection --+
"""

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

    :param connect: makes a store; called in each thread, again until it
        works.
    :param deliver: has a call made in the thread of the flow.
    """

    def __init__(self, connect: Callable[[], ports.ClaimStore],
                 deliver: Callable[[Callable[[], None]], None]):
        self._news = threading.Condition()
        self._stopping = threading.Event()
        self._ordered, self._urgent = self._lanes = [
            _Lane(name, connect, deliver, self._news, self._stopping)
            for name in ('distperiodic-store', 'distperiodic-renewal')]
        self._ordered.other, self._urgent.other = self._urgent, self._ordered

    @property
    def away(self) -> bool:
        """Whether what is asked in order waits until the store is back."""
        return self._ordered.problem is not None

    @property
    def problem(self) -> Exception | None:
        """What keeps the store from being used; None: nothing does."""
        return self._ordered.problem or self._urgent.problem

    def start(self) -> None:
        for lane in self._lanes:
            lane.start()

    def ask(self, call: Callable[[ports.ClaimStore], _Answer],
            then: Callable[[_Answer], None],
            failed: Callable[[], None] = lambda: None, *,
            first: bool = False) -> None:
        (self._urgent if first else self._ordered).ask(
            _Question(call, then, failed))

    def flush(self, timeout: float) -> bool:
        """Wait until all that was asked is answered; False: it took longer
        than *timeout* seconds.
        """
        with self._news:
            return self._news.wait_for(
                lambda: not any(lane.open for lane in self._lanes), timeout)

    def stop(self, timeout: float) -> None:
        """Make what was asked and end. What took longer than *timeout*
        seconds is not made.
        """
        self.flush(timeout)
        self._stopping.set()
        for lane in self._lanes:
            lane.wake()


class _Lane:
    """One thread with one store, which makes calls one after the other."""

    def __init__(self, name: str, connect: Callable[[], ports.ClaimStore],
                 deliver: Callable[[Callable[[], None]], None],
                 news: threading.Condition, stopping: threading.Event):
        self._connect = connect
        self._deliver = deliver
        self._news = news
        self._stopping = stopping
        self._asked: queue.SimpleQueue[_Question | None] = (
            queue.SimpleQueue())
        #: Number of questions without an answer.
        self.open = 0
        #: Why its last call has failed; None: it did not.
        self.problem: Exception | None = None
        #: What is asked the same database at the same time.
        self.other: _Lane | None = None
        self._thread = threading.Thread(
            target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def ask(self, question: _Question) -> None:
        with self._news:
            self.open += 1
        self._asked.put(question)

    def wake(self) -> None:
        """Have it see that it is to stop."""
        self._asked.put(None)

    def _run(self) -> None:
        store: ports.ClaimStore | None = None
        while (asked := self._asked.get()) is not None:
            if store is None:
                store = self._until_it_works(
                    lambda _: self._connect(), None, (Exception,))
            if self._stopping.is_set():
                break
            assert store is not None
            self._answer(store, asked)
            with self._news:
                self.open -= 1
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
                with self._news:
                    new = self.problem is None and not self._other_is_away()
                    self.problem = exc
                if new:
                    LOG.error(
                        'store away: reason=%s; nothing is claimed until it '
                        'is back, and the misfire policies decide then', exc)
                self._stopping.wait(pause)
                pause = min(2 * pause, _PAUSES[1])
            else:
                with self._news:
                    was_away, self.problem = self.problem is not None, None
                    back = was_away and not self._other_is_away()
                if back:
                    LOG.info('store back: asked=%d', self.open)
                return answer
        return None

    def _other_is_away(self) -> bool:
        """Whether it was logged before that the store is away."""
        return self.other is not None and self.other.problem is not None
