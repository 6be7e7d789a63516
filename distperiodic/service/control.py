# SPDX-License-Identifier: Apache-2.0
"""Control of one service by operators: commands, answers and reports.

All methods run in the main thread of the service, unless their docstrings say
otherwise. The store is used only through its thread.
"""

import functools
import json
import logging
import threading
from collections.abc import Callable
from collections.abc import Hashable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import TYPE_CHECKING
from typing import Any
from typing import Protocol

from distperiodic import ports
from distperiodic.core.control import JOB_VERBS
from distperiodic.core.control import MAX_POOL_SIZE
from distperiodic.core.control import Desired
from distperiodic.core.control import Found
from distperiodic.core.control import Me
from distperiodic.core.control import MemberCommand
from distperiodic.core.control import MemberOutcome
from distperiodic.core.control import Verb
from distperiodic.core.control_message import MAX_STATE
from distperiodic.core.control_message import ControlReply
from distperiodic.core.control_message import ControlRequest

if TYPE_CHECKING:
    from distperiodic.opts import Settings

LOG = logging.getLogger(__name__)


class Controlled(Protocol):
    """A service that an operator can control."""

    def set_drained(self, drained: bool) -> None:
        """Acquire no new work while *drained*, but finish acquired work.

        Jobs with scope ``'member'`` continue.
        """

    def set_pool_size(self, size: int | None) -> MemberOutcome:
        """Set the number of threads for handlers.

        :param size: None means that the option ``pool_size`` applies.
        """

    def open_runs(self) -> int:
        """Return the number of objects that were acquired and have not ended.
        """

    def hurry(self) -> None:
        """Read the store at once, after an operator has changed it."""

    def confirm_job(self, request: MemberCommand,
                    then: Callable[[MemberOutcome], None]) -> None:
        """Apply a command, which is in the store, to a job.

        :param then: Called with the answer when this service has applied the
            command.
        """

    def order_jobs(self, verb: str, arguments: Mapping[str, Any],
                   why: str) -> MemberOutcome:
        """Execute a command, which came over the bus, on jobs."""

    def report(self) -> dict[str, Any]:
        """Return the current activity of this member, for the member's row in
        the store.
        """

    def alarms(self) -> Hashable:
        """Return a value that changes when the report must be written at once.
        """


class Controls:
    """The desired state of one service, and answers to commands.

    :param member: Name of the member, for the log.
    """

    def __init__(self, service: Controlled, member: str):
        self._service = service
        self._member = member
        #: The desired state that was applied most recently.
        self.desired = Desired()
        #: Result of the last change of the pool. None means that the pool
        #: was not changed.
        self._resized: MemberOutcome | None = None

    def apply(self, desired: Desired) -> None:
        """Apply *desired* where it differs from the state applied before."""
        before, self.desired = self.desired, desired
        if before.drained != desired.drained:
            self._service.set_drained(desired.drained)
            if desired.drained:
                LOG.info('member drained: member=%s objects=%d; it finishes '
                         'these and acquires nothing more until it is '
                         'undrained', self._member,
                         self._service.open_runs())
            else:
                LOG.info('member undrained: member=%s', self._member)
        if before.pool_size != desired.pool_size:
            self._resized = self._service.set_pool_size(desired.pool_size)
            LOG.info('pool size set: member=%s outcome=%s', self._member,
                     self._resized.text)

    def answer(self, verb: str) -> MemberOutcome:
        """Return the answer to a command that has been applied."""
        open_runs = self._service.open_runs()
        match verb:
            case Verb.DRAIN if self.desired.drained:
                return MemberOutcome(True, f'drained; {open_runs} in flight')
            case Verb.UNDRAIN if not self.desired.drained:
                return MemberOutcome(True, 'undrained')
            case Verb.DRAIN | Verb.UNDRAIN:
                return MemberOutcome(
                    False, 'a later command has replaced this one')
            case Verb.SET | Verb.UNSET:
                if self._resized is None:
                    # The size has not changed, so return the current size.
                    self._resized = self._service.set_pool_size(
                        self.desired.pool_size)
                return self._resized
        return MemberOutcome(False, (
            f'unknown command {verb!r:.60}; this release supports '
            + ', '.join(Verb)))


class BusControl:
    """Control through messages.

    Without a store, operators can control a member only through messages, and
    a drain or a pause ends with the process. With a store, this component
    answers requests for the state of the member, and rejects all commands.

    :param process: Name of this process.
    :param reply: Sends a reply to the queue whose name ends with the given
        word.
    :param stored: True if there is a store.
    """

    def __init__(self, service: Controlled, controls: Controls, me: Me,
                 process: str, *, reply: Callable[[ControlReply, str], None],
                 stored: bool):
        self._service = service
        self._controls = controls
        self._me = me
        self._process = process
        self._reply = reply
        self._stored = stored
        #: Sender, time and reason of the drain of this member. Empty means
        #: that this member is not drained.
        self._drained: dict[str, Any] = {}

    def obey(self, request: ControlRequest) -> None:
        """Execute a command, and reply."""
        state = ''
        if request.verb == Verb.SHOW:
            outcome = MemberOutcome(True, '')
            report = self._service.report() | self._drained | {
                'pool_size': self._controls.desired.pool_size}
            # The names of all jobs may be too long for one message.
            report.pop('topics', None)
            state = json.dumps(report)
            for longest in 'slots', 'catalogues':
                if len(state) > MAX_STATE:
                    report.pop(longest, None)
                    state = json.dumps(report)
        else:
            outcome = self._do(request)
            LOG.info('command over the bus: member=%s command=%s action=%s '
                     'who=%r reason=%r outcome=%s', self._me.name,
                     request.verb, request.id, request.sender, request.why,
                     outcome.text)
        self._reply(ControlReply(
            request.id, self._me.part, self._me.name, self._process,
            outcome.done, outcome.text, state), request.reply)

    def _do(self, request: ControlRequest) -> MemberOutcome:
        """Execute a command, and return the answer."""
        if self._stored:
            return MemberOutcome(False, (
                'this member takes commands from its store; set '
                '[distperiodic] connection for the command as well'))
        desired = self._controls.desired
        match request.verb:
            case Verb.DRAIN | Verb.UNDRAIN:
                drained = request.verb == Verb.DRAIN
                desired = desired._replace(drained=drained)
                self._drained = {
                    'drained_by': request.sender, 'drained_at': request.sent,
                    'drained_why': request.why} if drained else {}
            case Verb.SET:
                size = request.arguments.get('pool_size')
                if type(size) is not int or not 1 <= size <= MAX_POOL_SIZE:
                    return MemberOutcome(False, (
                        f'{size!r:.60} cannot be used as pool_size; give a '
                        f'whole number from 1 to {MAX_POOL_SIZE}'))
                desired = desired._replace(pool_size=size)
            case Verb.UNSET:
                desired = desired._replace(pool_size=None)
            case Verb.PAUSE | Verb.RESUME | Verb.TRIGGER:
                return self._service.order_jobs(
                    request.verb, request.arguments, request.why)
            case _:
                return MemberOutcome(False, (
                    f'{request.verb} needs a store; set [distperiodic] '
                    'connection'))
        self._controls.apply(desired)
        return self._controls.answer(request.verb)


class StoreControl:
    """Control through the row of a member in the store.

    :param store: Queue of calls to the store.
    :param process: Name of this process.
    :param settings: Options; the row is read every ``sweep_interval``.
    :param found: The row as it was read when the service started.
    """

    def __init__(self, service: Controlled, controls: Controls, me: Me,
                 process: str, *, store: ports.StoreQueue, clock: ports.Clock,
                 settings: 'Settings', found: Found):
        self._service = service
        self._controls = controls
        self._me = me
        self._process = process
        self._store = store
        self._clock = clock
        self._look_interval = settings.sweep_interval
        #: Seconds between two reports.
        self._report_interval = settings.session_timeout / 3
        self._looked = self._reported = (
            clock.monotonic() - self._report_interval)
        self._looking = self._reporting = False
        #: The alarms at the time of the last report.
        self._alarms: Hashable = None
        self._stopped = False
        #: Actions on jobs that are not answered yet.
        self._confirming: set[str] = set()
        self._lock = threading.Lock()
        self._found(found)

    def sweep(self) -> None:
        """Read the row and send a report, if they are due."""
        now = self._clock.monotonic()
        if (now - self._looked >= self._look_interval
                and not self._looking):
            self._look()
        alarms = self._service.alarms()
        if now - self._reported >= self._report_interval or (
                alarms != self._alarms and now - self._reported >= 1.0):
            self._alarms = alarms
            self._report()

    def hurry(self) -> None:
        """Read the row at the next sweep, after an operator has changed it."""
        self._looked = self._clock.monotonic() - self._look_interval

    def _look(self) -> None:
        self._looking = True
        self._looked = self._clock.monotonic()

        def found(row: Found) -> None:
            self._looking = False
            self._found(row)

        def failed() -> None:
            self._looking = False
        self._store.urgent.submit(
            lambda store: _members(store).read(self._me), found, failed)

    def _found(self, row: Found) -> None:
        self._new = row.desired is None
        self._controls.apply(
            row.desired or Desired(drained=row.host_drained))
        if row.requests:
            self._answer(row.requests)

    def _answer(self, requests: Sequence[MemberCommand]) -> None:
        answers = [(one, self._controls.answer(one.verb)) for one in requests
                   if one.verb not in JOB_VERBS]
        if answers:
            self._record(answers)
        for one in requests:
            if one.verb in JOB_VERBS and one.action not in self._confirming:
                self._confirming.add(one.action)
                self._service.confirm_job(
                    one, functools.partial(self._confirmed, one))

    def _confirmed(self, request: MemberCommand,
                   outcome: MemberOutcome) -> None:
        self._confirming.discard(request.action)
        self._record([(request, outcome)])

    def _record(self, answers: Sequence[
            tuple[MemberCommand, MemberOutcome]]) -> None:
        for one, outcome in answers:
            LOG.info('command answered: member=%s command=%s action=%s '
                     'outcome=%s', self._me.name, one.verb, one.action,
                     outcome.text)
        outcomes = {one.action: outcome for one, outcome in answers}
        self._store.urgent.submit(
            lambda store: _members(store).answer(
                self._me, self._process, outcomes), lambda _: None)
        self._report()

    def stopped(self) -> None:
        """Report that this process has stopped. Any thread may call this."""
        with self._lock:
            self._stopped = True
            self._submit('')

    def _report(self) -> None:
        with self._lock:
            # A report after stopped() would show this process as alive.
            if not (self._reporting or self._stopped):
                self._reporting = True
                self._reported = self._clock.monotonic()
                self._submit(self._process)

    def _submit(self, process: str) -> None:
        state, new = self._service.report(), self._new

        def ended(_: None = None) -> None:
            self._reporting = False
        self._store.urgent.submit(
            lambda store: _members(store).report(
                self._me, process, state, new=new), ended, ended)


def _members(store: ports.ClaimStore) -> ports.MemberStore:
    # Operators use the same store.
    assert store.members is not None
    return store.members
