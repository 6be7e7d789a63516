# SPDX-License-Identifier: Apache-2.0
"""One stretch of membership: a tooz coordinator under one entry.

What tooz does not do, and this file therefore does: it listens for the loss
of the session, knows the session timeout that the server granted, is told of
changes of a group instead of asking ten times a second, and closes within a
bound while the service is away. For the first three it reaches the kazoo
client inside tooz's driver; with any other driver it asks at an interval.
"""

import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Any

# The first of these hushes what the others import.
from distperiodic.adapters import driver as driver_  # isort: skip
from kazoo import exceptions as kazoo
from kazoo.protocol import states
from tooz import coordination
from tooz import utils

from distperiodic import ports
from distperiodic.adapters import backend_url as backend_url_

LOG = logging.getLogger(__name__)

#: The part of the session timeout for which an answer is trusted, counted
#: from the moment its request was sent. kazoo gives up a silent server at
#: the same 2/3, so a third of the session is left before others take over.
TRUST = 2.0 / 3.0

# Seconds between two attempts to reach a server that is away.
_LONGEST_PAUSE = 1.0

class TermLost(Exception):
    """The term is over; the text says why."""


class Term:
    """One tooz coordinator under one entry."""

    pushes = False

    def __init__(self, url: str, entry: str, *, wake: threading.Event,
                 stopping: threading.Event, clock: ports.Clock,
                 asked_timeout: float, interval: float):
        self._wake = wake
        self._stopping = stopping
        self._clock = clock
        self._shown = backend_url_.mask(url)
        self._asked = asked_timeout
        self._interval = interval
        self.next_probe = 0.0
        #: When the last request was sent that proved that we are alive.
        self.heard = clock.monotonic()
        self._closed = False
        #: What others may read of it.
        self._capabilities: dict[str, int] = {}
        #: Groups in which the entry stands.
        self.joined: set[str] = set()
        self._entry = entry.encode()
        self._coordinator = driver_.make(url, self._entry, asked_timeout)
        self._explainer = driver_.Explainer(self._coordinator, url)

    @property
    def timeout(self) -> float:
        """Seconds without a sign of life after which we are judged dead."""
        for name in ('_timeout', 'membership_timeout', 'timeout'):
            value = getattr(self._coordinator, name, None)
            if isinstance(value, (int, float)) and value > 0:
                return float(value)
        return self._asked

    def connect(self) -> None:
        try:
            self._coordinator.start(start_heart=False)
        except Exception as exc:
            # All of them: at this point tooz lets those of its drivers'
            # libraries through (etcd3gw's, which say nothing, for one).
            raise self._explainer.explain(exc) from exc
        self.heard = self._clock.monotonic()

    def check(self) -> None:
        """:raises TermLost: the session behind the term is over."""
        if self._clock.monotonic() - self.heard > TRUST * self.timeout:
            raise TermLost('no sign of life from us for so long that the '
                            'others may have taken over')

    def changed(self, group: str) -> bool:
        """Whether *group* was read before its last change."""
        return False

    def confirm(self) -> None:
        """Have it confirmed that we are alive; one that pushes has noted then
        what has changed.
        """
        now = self._clock.monotonic()
        self._ask(self._coordinator.heartbeat)
        self.heard = now
        self.next_probe = now + min(self._interval, self.timeout / 5)

    def read(self, group: str) -> set[str]:
        """All entries of *group*; an unknown group is made."""
        if self._clock.monotonic() >= self.next_probe:
            self.confirm()
        try:
            members = self._ask(lambda: self._coordinator.get_members(
                group.encode()).get(timeout=self.timeout))
        except coordination.GroupNotCreated:
            self._create(group)
            return set()
        return {m.decode(errors='replace') if isinstance(m, bytes) else m
                for m in members}

    def join(self, group: str) -> None:
        self.joined.add(group)
        self._capabilities = {'joined': self._clock.now()}
        for attempt in (1, 2):
            try:
                self._ask(lambda: self._coordinator.join_group(
                    group.encode(), self._capabilities).get(
                        timeout=self.timeout))
            except coordination.MemberAlreadyExist:
                return
            except coordination.GroupNotCreated:
                if attempt == 2:
                    raise
                self._create(group)

    def leave(self, group: str) -> None:
        with contextlib.suppress(coordination.MemberNotJoined):
            self._ask(lambda: self._coordinator.leave_group(
                group.encode()).get(timeout=self.timeout))
        self.joined.discard(group)

    def close(self) -> None:
        """Leave every group and end the session; never raises."""
        if self._closed:
            return
        self._closed = True
        try:
            self._end()
        except Exception as exc:
            LOG.info('closing failed (not an error, the entry falls with its '
                     'session): backend=%s reason=%s', self._shown, exc)

    def _end(self) -> None:
        try:
            for group in tuple(self.joined):
                self.leave(group)
        finally:
            if self._coordinator.is_started:
                # It only shuts down the driver's own threads by now, and
                # waits a second for them, which nobody here needs to.
                threading.Thread(target=self._coordinator.stop,
                                 daemon=True).start()

    def _create(self, group: str) -> None:
        with contextlib.suppress(coordination.GroupAlreadyExist):
            self._ask(lambda: self._coordinator.create_group(
                group.encode()).get(timeout=self.timeout))

    def _ask(self, request: Callable[[], Any]) -> Any:
        try:
            return request()
        except (coordination.GroupNotCreated, coordination.GroupAlreadyExist,
                coordination.MemberAlreadyExist, coordination.MemberNotJoined):
            raise
        except (coordination.ToozError, OSError) as exc:
            raise self._explainer.explain(exc) from exc


class KazooTerm(Term):
    """ZooKeeper: told of changes, of suspension and of a lost session.

    A server answers a read from what it has, also while it is cut off from
    the others, whose leader ends its clients' sessions meanwhile. So trust
    rests on a write, which a quorum has to agree to::

        set our own entry ──► answer: a quorum knows us
        └── sent: trust     └── what changed before that, watches have told
            counts from here

    All goes over one connection, in order: where no watch has told of a change
    when the answer comes, the members are those that were read. A process
    that has no entry asks its server to catch up with the leader instead,
    who may be cut off with it.
    """

    pushes = True

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        driver: Any = self._coordinator
        self._client = driver._coord
        self._path_of = driver._path_group
        self._path_of_member = driver._path_member
        self._granted: float | None = None
        self._session: int | None = None
        self._fired: set[str] = set()
        self._watches: dict[str, Callable[[Any], None]] = {}
        self._lost = False
        # kazoo doubles its pause between two attempts up to a minute, and
        # would come back so long after the server.
        self._client._connection.retry_sleeper.max_delay = _LONGEST_PAUSE
        self._client.add_listener(self._on_state)
        self._wrap_handshake()

    def _wrap_handshake(self) -> None:
        # kazoo keeps the timeout that the server granted in a local
        # variable. Its _connect returns two thirds of it, in milliseconds,
        # once a connection, to the loop that reads the socket.
        connection = self._client._connection
        connect = connection._connect

        def connect_and_note(*args: Any, **kwargs: Any) -> Any:
            answer = connect(*args, **kwargs)
            self._granted = answer[0] * 1.5 / 1000.0
            return answer

        connection._connect = connect_and_note
        invoke = connection._invoke

        def invoke_within(timeout: float, *args: Any, **kwargs: Any) -> Any:
            # Only for the handshake. A server that has just begun to listen
            # can lose it, and kazoo would wait for as long as the session.
            return invoke(min(timeout, max(1.0, self._asked / 3)),
                          *args, **kwargs)

        connection._invoke = invoke_within

    @property
    def timeout(self) -> float:
        return self._granted or self._asked

    def _on_state(self, state: str) -> None:
        # In kazoo's own thread: note it and let ours act.
        if state == 'LOST':
            self._lost = True
        self._wake.set()

    def connect(self) -> None:
        super().connect()
        self._session = self._client_id()

    def _client_id(self) -> int | None:
        client_id = self._client.client_id
        return client_id[0] if client_id else None

    def check(self) -> None:
        if self._stopping.is_set():
            raise TermLost('stopping')
        # A server may hand out a new session without a word of the loss
        # (ClickHouse Keeper did), so its number is compared as well.
        if self._lost or self._client_id() not in (None, self._session):
            raise TermLost('the session has expired')
        silent = self._clock.monotonic() - self.heard
        if silent > self.timeout * 1.5:
            # Either the session is over by now, or the server came back
            # with older data and refuses this client for ever.
            raise TermLost(f'no answer for {silent:.1f} s')

    def changed(self, group: str) -> bool:
        return group in self._fired

    def read(self, group: str) -> set[str]:
        watch = self._watches.get(group)
        if watch is None:
            def watch(event: Any) -> None:
                self._fired.add(group)
                self._wake.set()
            # The same function each time: kazoo keeps watchers in a set.
            self._watches[group] = watch
        path = self._path_of(group.encode())
        # Before the request: a change from here on fires again.
        self._fired.discard(group)
        while True:
            if self._clock.monotonic() >= self.next_probe:
                self.confirm()
            try:
                return set(self._answer(
                    lambda: self._client.get_children_async(path, watch)))
            except kazoo.NoNodeError:
                self._create(group)

    def confirm(self) -> None:
        sent_at = self._clock.monotonic()

        def send() -> Any:
            nonlocal sent_at
            sent_at = self._clock.monotonic()
            for group in self.joined:
                return self._client.set_async(
                    self._path_of_member(group.encode(), self._entry),
                    utils.dumps(self._capabilities))
            return self._client.sync_async('/')
        try:
            self._answer(send)
        except kazoo.NoNodeError:
            raise TermLost('our entry is not in its group any more') from None
        # What changed before that was told to kazoo's reader first, and waits
        # there to be called.
        told = threading.Event()
        self._client.handler.dispatch_callback(
            states.Callback('watch', told.set, ()))
        while not told.wait(0.2):
            self.check()
        self.heard = sent_at
        self.next_probe = sent_at + self.timeout / 3

    def _answer(self, send: Callable[[], Any]) -> Any:
        """The answer to a request, however long the connection is away,
        as long as the term lasts.
        """
        result = send()
        while True:
            try:
                return result.get(timeout=0.2)
            except self._client.handler.timeout_exception:
                self.check()
            except kazoo.NoNodeError:
                raise
            except (kazoo.SessionExpiredError, kazoo.ConnectionClosedError):
                raise TermLost('the session has expired') from None
            except kazoo.ConnectionLoss:
                self.check()
                self._wake.wait(0.05)
                result = send()
            except kazoo.ZookeeperError as exc:
                raise self._explainer.explain(exc) from exc

    def _end(self) -> None:
        # The end of a session removes its entries, so nothing need be left
        # by hand; tooz's stop() would wait for an answer for ever.
        self._client.stop()
        self._client.close()
