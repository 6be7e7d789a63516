# SPDX-License-Identifier: Apache-2.0
"""Probe of the coordination service, for operators.

A probe only reads, except that it can delete an empty group. Each request to
tooz for groups, entries and deletion has a timeout. The probe first tries a
TCP connection, because the ZooKeeper client would retry forever if it could
reach no server.
"""

import contextlib
import dataclasses
import os
import secrets
import socket
from collections.abc import Iterator
from typing import Any

# Import driver first: this import suppresses a warning of the other imports.
from distperiodic.adapters.coordination import driver  # isort: skip
from kazoo.handlers.threading import KazooTimeoutError
from tooz import coordination as tooz

from distperiodic import exceptions
from distperiodic import ports
from distperiodic.adapters.coordination.driver import published_jobs
from distperiodic.adapters.coordination.url import NAMESPACE
from distperiodic.adapters.coordination.url import addresses
from distperiodic.adapters.coordination.url import check_backend_url
from distperiodic.adapters.coordination.url import directory
from distperiodic.adapters.coordination.url import has_tls
from distperiodic.core import redaction
from distperiodic.core.job_set import JobSet
from distperiodic.core.member import Member
from distperiodic.core.member import parse_entry

_ZOOKEEPER = ('zookeeper', 'kazoo')


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """One live entry of a group."""

    name: str
    #: None means that the entry is not in the format of this library.
    member: Member | None
    #: When the member joined, in microseconds of the member's own clock. None
    #: means unknown.
    joined: int | None
    #: When the entry was created, in microseconds of the server's clock. None
    #: means unknown; only ZooKeeper reports this time.
    created: int | None
    #: The jobs of the member. None means that it published none.
    jobs: JobSet | None


@dataclasses.dataclass(frozen=True, slots=True)
class ServerState:
    """One server of the backend URL, and its answer."""

    address: str
    answers: bool
    state: str


def servers(backend_url: str, timeout: float = 3.0) -> list[ServerState]:
    """Check each server of *backend_url* separately."""
    queries = (backend_url.startswith(tuple(f'{s}:' for s in _ZOOKEEPER))
               and not has_tls(backend_url))
    return [_server(name, port, timeout, queries)
            for name, port in addresses(backend_url)]


def _server(name: str, port: int, timeout: float,
            queries: bool) -> ServerState:
    address = f'{name}:{port}'
    try:
        with socket.create_connection((name, port), timeout) as channel:
            if not queries:
                return ServerState(address, True, 'accepts connections')
            channel.settimeout(timeout)
            channel.sendall(b'srvr')
            answer = b''
            while piece := channel.recv(65536):
                answer += piece
    except (BrokenPipeError, ConnectionResetError) as exc:
        # The server is reachable. If the caller only tests this, ignore the
        # error: the driver reports it later.
        return ServerState(address, not queries, exc.strerror or str(exc))
    except OSError as exc:
        return ServerState(address, False, exc.strerror or str(exc))
    text = answer.decode(errors='replace')
    if 'not in the whitelist' in text or not text:
        return ServerState(address, True, 'accepts connections')
    if 'not currently serving' in text:
        return ServerState(
            address, False, 'runs but serves no client: it has no quorum')
    fields = dict(line.split(': ', 1) for line in text.splitlines()
                  if ': ' in line)
    if fields.get('Mode') == 'read-only':
        return ServerState(address, False, 'runs read-only: it has no quorum')
    version = fields.get('Zookeeper version', '').partition('-')[0]
    return ServerState(address, True,
                  f'{fields.get("Mode", "serves")}, version {version or "?"}')


class CoordinationProbe:
    """Connection of a probe to the coordination service; a context manager.

    :param session_timeout: The members' session timeout in seconds; the
        ``file://`` driver needs it to determine which members are alive.
    """

    def __init__(self, backend_url: str, *, session_timeout: float,
                 clock: ports.Clock):
        self._scheme = check_backend_url(backend_url)
        self._url = backend_url
        self._shown = redaction.redact(backend_url)
        self._timeout = session_timeout
        self._clock = clock
        self._coordinator: Any = None

    def __enter__(self) -> 'CoordinationProbe':
        self._check_reachable()
        with self._errors():
            self._coordinator = driver.make(
                self._url, f'survey-{secrets.token_hex(8)}'.encode(),
                self._timeout)
            self._explainer = driver.Explainer(self._coordinator, self._url)
            if self._scheme != 'file':
                try:
                    self._coordinator.start(start_heart=False)
                except Exception:
                    # The client may be connected and retry forever.
                    self.__exit__()
                    raise
        return self

    def __exit__(self, *exc: object) -> None:
        coordinator, self._coordinator = self._coordinator, None
        with contextlib.suppress(Exception):
            if self._scheme in _ZOOKEEPER:
                # tooz's stop() waits for an answer without a timeout.
                coordinator._coord.stop()
                coordinator._coord.close()
            elif self._scheme != 'file':
                coordinator.stop()

    def _check_reachable(self) -> None:
        if self._scheme == 'file':
            return
        found = [_server(name, port, 3.0, False)
                 for name, port in addresses(self._url)]
        if not any(s.answers for s in found):
            reasons = '; '.join(f'{s.address}: {s.state}' for s in found)
            raise exceptions.CoordinationUnavailable(
                f'no server of {self._shown} can be reached ({reasons}); '
                'check backend_url and that the service runs')

    def groups(self) -> list[str]:
        """Return the names of all groups of all services."""
        if self._scheme == 'file' and not os.path.isdir(
                os.path.join(
                    directory(self._url), NAMESPACE, 'groups')):
            # Otherwise tooz would create the directory.
            return []
        with self._errors(), self._started():
            found = self._coordinator.get_groups().get(timeout=10)
        return sorted(g.decode(errors='replace') if isinstance(g, bytes)
                      else g for g in found)

    def entries(self, group: str) -> list[Entry] | None:
        """Return the live entries of *group*, sorted by name.

        None means that the group does not exist.
        """
        if group not in self.groups():
            return None
        with self._errors(), self._started():
            try:
                if self._scheme in _ZOOKEEPER:
                    found = self._zookeeper_entries(group)
                else:
                    found = self._plain_entries(group)
            except tooz.GroupNotCreated:
                return None
        return sorted(found, key=lambda e: e.name)

    def _plain_entries(self, group: str) -> list[Entry]:
        found = []
        members = self._coordinator.get_members_with_capabilities(
            group.encode()).get(timeout=10)
        for name, capabilities in members.items():
            text = name.decode(errors='replace') if isinstance(
                name, bytes) else name
            found.append(Entry(text, parse_entry(text),
                               _joined(capabilities), None,
                               _jobs(capabilities)))
        return found

    def _zookeeper_entries(self, group: str) -> list[Entry]:
        found = []
        for name in self._coordinator.get_members(
                group.encode()).get(timeout=10):
            with contextlib.suppress(tooz.MemberNotJoined):
                info = self._coordinator.get_member_info(
                    group.encode(), name).get(timeout=10)
                text = name.decode(errors='replace')
                found.append(Entry(
                    text, parse_entry(text),
                    _joined(info['capabilities']),
                    round(info['created_at'].timestamp() * 1000000),
                    _jobs(info['capabilities'])))
        return found

    def writable_by_all(self) -> bool | None:
        """Return whether every client may write to the namespace.

        None means that this is unknown.
        """
        if self._scheme == 'file':
            path = directory(self._url)
            return bool(os.path.isdir(path) and os.stat(path).st_mode & 0o002)
        if self._scheme not in _ZOOKEEPER:
            return None
        with self._errors():
            answer = self._coordinator._coord.get_acls_async(
                self._coordinator._base_path())
            try:
                lists, _ = answer.get(timeout=10)
            except KazooTimeoutError:
                raise tooz.OperationTimedOut(
                    'no answer within 10 s') from None
        return any(a.id.scheme == 'world' and a.perms & 0b01110
                   for a in lists)

    def delete_group(self, group: str) -> None:
        """Delete *group*, if it has no members."""
        with (self._errors(), self._started(),
              contextlib.suppress(tooz.GroupNotCreated, tooz.GroupNotEmpty)):
            self._coordinator.delete_group(group.encode()).get(timeout=10)

    @contextlib.contextmanager
    def _started(self) -> Iterator[None]:
        # Starting the file:// driver creates its directories, so the driver is
        # started only when a request needs it.
        if self._scheme == 'file' and not self._coordinator.is_started:
            self._coordinator.start(start_heart=False)
        yield

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (tooz.GroupNotCreated, tooz.MemberNotJoined):
            raise
        except self._explainer.failures as exc:
            raise self._explainer.explain(exc) from exc


def _joined(capabilities: Any) -> int | None:
    joined = capabilities.get('joined') if isinstance(
        capabilities, dict) else None
    return joined if isinstance(joined, int) else None


def _jobs(capabilities: Any) -> JobSet | None:
    return JobSet.parse(published_jobs(capabilities))
