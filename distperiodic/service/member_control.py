# SPDX-License-Identifier: Apache-2.0
"""The ways in which commands of operators reach one member.

:mod:`distperiodic.service.control` executes the commands. This module connects
it to the bus and to the store.
"""

import contextlib
import threading
from collections.abc import Callable

from distperiodic import opts
from distperiodic import ports
from distperiodic.core.control import Me
from distperiodic.core.control_message import ControlReply
from distperiodic.core.control_message import ControlRequest
from distperiodic.flow import events
from distperiodic.service.control import BusControl
from distperiodic.service.control import Controlled
from distperiodic.service.control import Controls
from distperiodic.service.control import StoreControl


class MemberControl:
    """Control of one member, through its bus and its store.

    The main thread of the service calls all methods, unless their docstrings
    say otherwise.

    :param process: Name of this process.
    :param reply: Sends a reply to the queue whose name ends with the given
        word. None means that there is no bus.
    :param put: Queues an event for the main thread.
    """

    def __init__(self, service: Controlled, me: Me, process: str, *,
                 settings: opts.Settings, clock: ports.Clock,
                 reply: Callable[[ControlReply, str], None] | None,
                 put: Callable[[events.Event], None]):
        self._service = service
        self._me = me
        self._process = process
        self._settings = settings
        self._clock = clock
        self._put = put
        self._controls = Controls(service, me.name)
        #: Control by messages. None means that there is no bus.
        self._bus = None if reply is None else BusControl(
            service, self._controls, me, process, reply=reply,
            stored=bool(settings.connection))
        #: Control through the store. None means that there is no store, or
        #: that the store has not answered yet.
        self._store: StoreControl | None = None
        #: Set if the bus has delivered a hint to read the store.
        self._hinted = threading.Event()

    @property
    def drained(self) -> bool:
        """True if operators want this member not to acquire new work."""
        return self._controls.desired.drained

    def put(self, request: ControlRequest) -> str | None:
        """Handle a command from the bus; a thread of the bus calls this.

        :returns: The reason to drop the command. None means that the command
            is accepted, or is for other members.
        """
        if not request.names(self._me.part, self._me.name):
            return None
        if request.reply:
            if not request.commands(
                    self._me.part, self._me.name, self._process):
                return ('a command that does not name this process; if it is '
                        'not an old copy, repeat it')
            bus = self._bus
            assert bus is not None
            self._put(events.Called(lambda: bus.obey(request)))
        elif self._settings.connection:
            self._hinted.set()
        else:
            return 'a hint to read the store, but this member has no store'
        return None

    def connect_store(self, store: ports.StoreQueue) -> None:
        """Read the desired state from the store, and apply it.

        Call this before the member acquires work. From then on, :meth:`sweep`
        reads the store.

        :raises StoreUnavailable: The store does not answer.
        """
        from distperiodic.adapters.sql.members import SqlMembers
        from distperiodic.adapters.sql.schema import connect
        settings = self._settings
        with contextlib.closing(connect(settings.connection)) as database:
            found = SqlMembers(database).read(self._me)
        self._store = StoreControl(
            self._service, self._controls, self._me, self._process,
            store=store, clock=self._clock, settings=settings, found=found)

    def sweep(self) -> None:
        """Read the store if a read is due, or after a hint.

        Call this several times a second. Only this method reads the store
        after a hint, so even a flood of forged hints causes only a few reads
        per second.
        """
        if self._hinted.is_set():
            self._hinted.clear()
            if self._store is not None:
                self._store.hurry()
            self._service.hurry()
        if self._store is not None:
            self._store.sweep()

    def stopped(self) -> None:
        """Report that this process has stopped. Any thread may call this."""
        if self._store is not None:
            self._store.stopped()
