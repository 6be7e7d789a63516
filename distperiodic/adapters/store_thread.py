# SPDX-License-Identifier: Apache-2.0
"""A store of a thread of its own, so that the flow never waits for it.

What is asked is made in order, each call until it is answered: a store that
is away is waited for, and what came meanwhile waits in line. So that the line
does not grow without end, the flow asks for no more ticks of a job that still
has a question in it.
"""

import collections
import logging
import threading
from collections.abc import Callable
from typing import Any
from typing import TypeVar

from distperiodic import exceptions
from distperiodic import ports

LOG = logging.getLogger(__name__)

_Answer = TypeVar('_Answer')

# Seconds between two attempts at a store that is away: the first, and the
# longest.
_PAUSES = 0.1, 2.0


class StoreThread:
    """See :class:`distperiodic.ports.StoreQueue`.

    :param connect: makes the store; called in the thread, again for as long
        as it raises StoreUnavailable.
    :param deliver: has a call made in the thread of the flow.
    """

    def __init__(self, connect: Callable[[], ports.ClaimStore],
                 deliver: Callable[[Callable[[], None]], None]):
        self._connect = connect
        self._deliver = deliver
        self._asked: collections.deque[
            tuple[Callable[[Any], Any], Callable[[Any], None]]] = (
                collections.deque())
        self._ready = threading.Event()
        self._stopping = threading.Event()
        self._idle = threading.Event()
        self._idle.set()
        self.away = False
        #: What keeps the store from being used; None: nothing does.
        self.problem: Exception | None = None
        self._thread = threading.Thread(
            target=self._run, name='distperiodic-store', daemon=True)

    def start(self) -> None:
        self._thread.start()

    def ask(self, call: Callable[[ports.ClaimStore], _Answer],
            then: Callable[[_Answer], None]) -> None:
        self._idle.clear()
        self._asked.append((call, then))
        self._ready.set()

    def flush(self, timeout: float) -> bool:
        """Wait until all that was asked is answered; False: it took longer
        than *timeout* seconds.
        """
        return self._idle.wait(timeout)

    def stop(self, timeout: float) -> None:
        """Make what was asked and end. What took longer than *timeout*
        seconds is not made.
        """
        self._idle.wait(timeout)
        self._stopping.set()
        self._ready.set()

    def _run(self) -> None:
        store = self._until_it_works(lambda store: self._connect(), None)
        while not self._stopping.is_set():
            self._ready.clear()
            while self._asked and not self._stopping.is_set():
                call, then = self._asked[0]
                try:
                    answer = self._until_it_works(call, store)
                except Exception:
                    LOG.exception(
                        'store call failed: reason=an error in the library '
                        'or its tables; the sweep repairs what it left')
                else:
                    if not self._stopping.is_set():
                        self._deliver(_telling(then, answer))
                self._asked.popleft()
            if not self._asked:
                self._idle.set()
                if self._asked:
                    self._idle.clear()
                    continue
            self._ready.wait()

    def _until_it_works(self, call: Callable[[Any], Any], store: Any) -> Any:
        pause = _PAUSES[0]
        while not self._stopping.is_set():
            try:
                answer = call(store)
            except exceptions.StoreUnavailable as exc:
                if not self.away:
                    LOG.error(
                        'store away: reason=%s; nothing is claimed until it '
                        'is back, and the misfire policies decide then', exc)
                self.away, self.problem = True, exc
                self._stopping.wait(pause)
                pause = min(2 * pause, _PAUSES[1])
            else:
                if self.away:
                    LOG.info('store back: asked=%d', len(self._asked))
                self.away, self.problem = False, None
                return answer
        return None


def _telling(then: Callable[[Any], None], answer: Any) -> Callable[[], None]:
    return lambda: then(answer)
