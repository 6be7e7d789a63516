# SPDX-License-Identifier: Apache-2.0
"""One term of membership: a tooz coordinator under one entry.

This file adds features that tooz lacks. A term detects the loss of the
session, and knows the session timeout that the server granted. It is notified
of changes of a group, whereas tooz finds a change only when it reads the group
again. It also closes within a limited time while the service is unreachable.
The first three features need the kazoo client inside tooz's driver. With any
other driver, a term reads the group at an interval.
"""

import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Any

# Import driver first: it suppresses a warning of the other imports.
from distperiodic.adapters.coordination import driver  # isort: skip
from kazoo import exceptions as kazoo
from kazoo.protocol import states
from tooz import coordination
from tooz import utils

from distperiodic import ports
from distperiodic.core import redaction

LOG = logging.getLogger(__name__)

#: Fraction of the session timeout for which an answer is trusted, counted from
#: the sending of the request. After the same fraction, kazoo disconnects from
#: a server that does not answer. The remaining third is a safety margin: after
#: the full timeout, other members take over.
TRUST = 2.0 / 3.0

# Maximum seconds between two attempts to reach a server.
_LONGEST_PAUSE = 1.0


class TermLost(Exception):
    """The term has ended; the text gives the reason."""


class Term:
    """One tooz coordinator under one entry."""

    pushes = False
    #: True if :meth:`rename` is available.
    renames = False

    def __init__(self, url: str, entry: str, *, wake: threading.Event,
                 stopping: threading.Event, clock: ports.Clock,
                 requested_timeout: float, interval: float, jobs: str = ''):
        self._wake = wake
        self._stopping = stopping
        self._clock = clock
        self._shown = redaction.redact(url)
        self._requested_timeout = requested_timeout
        self._interval = interval
        self.next_probe = 0.0
        #: Monotonic time at which the last successful call of confirm() sent
        #: its request. Before the first such call, the time at which this term
        #: connected. The session was alive at this time.
        self.heard = clock.monotonic()
        self._closed = False
        #: Attributes of the entry that other processes may read.
        self._capabilities: dict[str, Any] = {}
        self._jobs = jobs
        #: Groups that this entry has joined.
        self.joined: set[str] = set()
        self._entry = entry.encode()
        driver.check_private(url)
        self._coordinator = driver.make(url, self._entry, requested_timeout)
        self._explainer = driver.Explainer(self._coordinator, url)

    @property
    def timeout(self) -> float:
        """Session timeout: seconds of silence after which others take over.
        """
        for name in ('_timeout', 'membership_timeout', 'timeout'):
            value = getattr(self._coordinator, name, None)
            if isinstance(value, (int, float)) and value > 0:
                return float(value)
        return self._requested_timeout

    def connect(self) -> None:
        try:
            self._coordinator.start(start_heart=False)
        except Exception as exc:
            # Catch all exceptions, because tooz's start() does not wrap the
            # exceptions of the libraries that its drivers use. Those of
            # etcd3gw, for example, have no text.
            raise self._explainer.explain(exc) from exc
        self.heard = self._clock.monotonic()

    def check(self) -> None:
        """Check that the session of this term still exists.

        :raises TermLost: the session has ended, or may have ended.
        """
        self._check_silence(self._clock.monotonic())

    def _check_silence(self, now: float) -> None:
        if now - self.heard > TRUST * self.timeout:
            raise TermLost('this process sent no heartbeat for too long; '
                           'other members may have taken over')

    def changed(self, group: str) -> bool:
        """Return whether *group* has changed since it was last read."""
        return False

    def confirm(self) -> None:
        """Obtain the server's confirmation that the session is alive.

        If the service pushes changes, the notifications of all earlier changes
        have arrived when this method returns.

        :raises TermLost: the session has ended, or may have ended.
        """
        now = self._clock.monotonic()
        # The process may have been suspended since the last check.
        self._check_silence(now)
        self._request(self._coordinator.heartbeat)
        self.heard = now
        self.next_probe = now + min(self._interval, self.timeout / 5)

    def read(self, group: str) -> set[str]:
        """Return all entries of *group*; create the group if it is missing."""
        if self._clock.monotonic() >= self.next_probe:
            self.confirm()
        try:
            members = self._request(lambda: self._coordinator.get_members(
                group.encode()).get(timeout=self.timeout))
        except coordination.GroupNotCreated:
            self._create(group)
            return set()
        return {m.decode(errors='replace') if isinstance(m, bytes) else m
                for m in members}

    def jobs_of(self, group: str, entry: str) -> Any:
        """Return the text of the jobs that the member with this entry has.

        None means that the entry is no longer in its group. The text is empty
        if the member has published none.
        """
        def read() -> Any:
            try:
                return self._coordinator.get_member_capabilities(
                    group.encode(), entry.encode()).get(timeout=self.timeout)
            except utils.SerializationError:
                return None
        try:
            return driver.published_jobs(self._request(read))
        except (coordination.GroupNotCreated, coordination.MemberNotJoined):
            return None

    def join(self, group: str) -> None:
        self.joined.add(group)
        self._capabilities = {'joined': self._clock.now()}
        if self._jobs:
            self._capabilities['jobs'] = self._jobs
        for attempt in (1, 2):
            try:
                self._request(lambda: self._coordinator.join_group(
                    group.encode(), self._capabilities).get(
                        timeout=self.timeout))
            except coordination.MemberAlreadyExist:
                return
            except coordination.GroupNotCreated:
                if attempt == 2:
                    raise
                self._create(group)

    def rename(self, entry: str) -> None:
        """Continue this term under another entry, on the same connection.

        The term then has joined no group. Its old entry stays in its groups
        until :meth:`drop_old` is called.
        """
        raise NotImplementedError

    def drop_old(self) -> None:
        """Remove the entry that this term had before :meth:`rename`."""

    def leave(self, group: str) -> None:
        with contextlib.suppress(coordination.MemberNotJoined):
            self._request(lambda: self._coordinator.leave_group(
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
            LOG.info('closing failed (not an error: the entry disappears with '
                     'its session): backend=%s reason=%s', self._shown, exc)

    def _end(self) -> None:
        try:
            for group in tuple(self.joined):
                self.leave(group)
        finally:
            if self._coordinator.is_started:
                # The threads of the driver must still be stopped. tooz's
                # stop() waits for them for a second, so call it in another
                # thread.
                threading.Thread(target=self._stop_driver, name='stop',
                                 daemon=True).start()

    def _stop_driver(self) -> None:
        try:
            self._coordinator.stop()
        except Exception as exc:
            # The server may be gone, which the caller has logged.
            LOG.debug('driver not stopped: backend=%s reason=%s', self._shown,
                      exc)

    def _create(self, group: str) -> None:
        with contextlib.suppress(coordination.GroupAlreadyExist):
            self._request(lambda: self._coordinator.create_group(
                group.encode()).get(timeout=self.timeout))

    def _request(self, request: Callable[[], Any]) -> Any:
        try:
            return request()
        except (coordination.GroupNotCreated, coordination.GroupAlreadyExist,
                coordination.MemberAlreadyExist, coordination.MemberNotJoined):
            raise
        except self._explainer.failures as exc:
            raise self._explainer.explain(exc) from exc


class KazooTerm(Term):
    """A term on ZooKeeper, notified of group changes and session loss.

    A server answers reads from its own copy of the data. It may do so even
    while it is cut off from the other servers, and their leader expires the
    sessions of its clients. So trust is based on a write, to which a quorum
    has to agree::

        set its own entry ──► answer: a quorum knows the session
        └── sent: trust     └── watches have reported all
            counts from here    changes before this

    All requests and answers use one connection and keep their order. If no
    watch has reported a change when the answer arrives, the members have not
    changed since they were last read.

    A process without an entry has nothing to write. Instead it asks its server
    to catch up with the leader. The answer proves less, because the server and
    its leader may both be cut off from the other servers.
    """

    pushes = renames = True

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        #: Nodes of the entry before rename().
        self._old: list[str] = []
        coordinator: Any = self._coordinator
        self._client = coordinator._coord
        self._path_of = coordinator._path_group
        self._path_of_member = coordinator._path_member
        self._granted: float | None = None
        self._session: int | None = None
        self._fired: set[str] = set()
        self._watches: dict[str, Callable[[Any], None]] = {}
        self._lost = False
        # By default, kazoo doubles the pause after each attempt to connect, up
        # to an hour. It could then take an hour to reconnect to a server that
        # is available again.
        self._client._connection.retry_sleeper.max_delay = _LONGEST_PAUSE
        self._client.add_listener(self._on_state)
        self._wrap_handshake()

    def _wrap_handshake(self) -> None:
        # kazoo keeps the timeout that the server granted in a local variable.
        # Its method _connect, which runs once for each connection, returns two
        # thirds of that timeout in milliseconds.
        connection = self._client._connection
        connect = connection._connect

        def connect_and_record(*args: Any, **kwargs: Any) -> Any:
            answer = connect(*args, **kwargs)
            self._granted = answer[0] * 1.5 / 1000.0
            return answer

        connection._connect = connect_and_record
        invoke = connection._invoke

        def invoke_within(timeout: float, *args: Any, **kwargs: Any) -> Any:
            # kazoo calls this for the handshake only. A server that has just
            # begun to listen may not answer the handshake. Without this limit,
            # kazoo could wait for the answer for the whole session timeout.
            return invoke(min(timeout, max(1.0, self._requested_timeout / 4)),
                          *args, **kwargs)

        connection._invoke = invoke_within

    @property
    def timeout(self) -> float:
        return self._granted or self._requested_timeout

    def _on_state(self, state: str) -> None:
        # kazoo calls this in its own thread. Only record the state, and let
        # the membership thread act on it.
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
        # A server may start a new session without reporting the loss of the
        # old one, as ClickHouse Keeper did. So compare the session's id, too.
        if self._lost or self._client_id() not in (None, self._session):
            raise TermLost('the session has expired')
        silent = self._clock.monotonic() - self.heard
        if silent > self.timeout * 1.5:
            # Either the session has expired by now, or the server restarted
            # with older data and will always reject this client.
            raise TermLost(f'no answer for {silent:.1f} s')

    def rename(self, entry: str) -> None:
        self._old = [self._path_of_member(group.encode(), self._entry)
                     for group in self.joined]
        self.joined.clear()
        self._entry = self._coordinator._member_id = entry.encode()

    def drop_old(self) -> None:
        while self._old:
            with contextlib.suppress(kazoo.NoNodeError):
                self._answer(lambda: self._client.delete_async(self._old[-1]))
            self._old.pop()

    def changed(self, group: str) -> bool:
        return group in self._fired

    def read(self, group: str) -> set[str]:
        watch = self._watches.get(group)
        if watch is None:
            def watch(event: Any) -> None:
                self._fired.add(group)
                self._wake.set()
            # Pass the same function each time, because kazoo keeps watchers in
            # a set.
            self._watches[group] = watch
        path = self._path_of(group.encode())
        # Clear the mark before the request: a later change sets it again.
        self._fired.discard(group)
        while True:
            if self._clock.monotonic() >= self.next_probe:
                self.confirm()
            try:
                return set(self._answer(
                    lambda: self._client.get_children_async(path, watch)))
            except kazoo.NoNodeError:
                self._create(group)

    def jobs_of(self, group: str, entry: str) -> Any:
        path = self._path_of_member(group.encode(), entry.encode())
        try:
            data, _ = self._answer(lambda: self._client.get_async(path))
        except kazoo.NoNodeError:
            return None
        try:
            return driver.published_jobs(utils.loads(data))
        except utils.SerializationError:
            return ''

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
            raise TermLost('the entry of this process is no longer in its '
                           'group') from None
        # Before this answer, kazoo has received the notifications of all
        # earlier changes. Their callbacks may still be queued, so append a
        # callback to the queue and wait for it.
        delivered = threading.Event()
        self._client.handler.dispatch_callback(
            states.Callback('watch', delivered.set, ()))
        while not delivered.wait(0.2):
            self.check()
        self.heard = sent_at
        self.next_probe = sent_at + self.timeout / 3

    def _answer(self, send: Callable[[], Any]) -> Any:
        """Send a request and return its answer.

        The request is repeated after a loss of the connection, as long as the
        term lasts.

        :raises TermLost: the term has ended.
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
        # ZooKeeper removes the entries at the end of the session, so it is not
        # necessary to leave each group. tooz's stop() would wait for an answer
        # forever.
        self._client.stop()
        self._client.close()
