# SPDX-License-Identifier: Apache-2.0
"""The facts that the checks of ``distperiodic doctor`` need.

Each fact is read when the first check needs it, and then cached. If a fact is
not available, reading it raises :class:`~distperiodic.cmd.findings.NotNow`.
One check reports the cause, and all checks that depend on the fact are
skipped. The clients of servers are imported where a fact needs them: with
--offline they are not needed, and they are slow to load.
"""

import contextlib
import dataclasses
import functools
import os
import secrets
from typing import TYPE_CHECKING

from distperiodic import exceptions
from distperiodic import opts
from distperiodic.adapters.coordination import url
from distperiodic.cmd import findings
from distperiodic.cmd.session import Session
from distperiodic.core.live import Live
from distperiodic.operator import health
from distperiodic.operator import live_group
from distperiodic.operator import live_processes
from distperiodic.operator.health import Facts
from distperiodic.operator.health import Finding
from distperiodic.operator.live_group import Group
from distperiodic.ports import BrokerHost
from distperiodic.ports import BrokerProbe

if TYPE_CHECKING:
    from distperiodic.operator.coordination_probe import CoordinationProbe
    from distperiodic.operator.group_reader import GroupStore


@dataclasses.dataclass
class Joined:
    """The result of joining a temporary group."""

    granted: float | None
    #: Clock of this host minus the server's clock, in seconds. None means
    #: unknown.
    skew: float | None


class DoctorFacts:
    """The facts that the checks need, each read on first use."""

    def __init__(self, session: Session):
        self.conf = session.conf
        #: The jobs of the service. None means that --tasks was not given.
        self.tasks = session.tasks
        self.offline: bool = session.parsed.offline
        self._session = session

    @property
    def settings(self) -> opts.Settings:
        """The options.

        :raises NotNow: an option cannot be used.
        """
        try:
            return self.check_settings()
        except exceptions.DistperiodicError:
            raise findings.NotNow('correct the options first') from None

    def check_settings(self) -> opts.Settings:
        """Return the options.

        :raises ConfigError: an option cannot be used.
        """
        return self._session.settings

    @property
    def scheme(self) -> str:
        """The driver that backend_url names.

        :raises NotNow: backend_url is empty or cannot be used.
        """
        if not self.settings.backend_url:
            raise findings.NotNow(
                'backend_url is empty: this process runs alone')
        try:
            return url.check_backend_url(self.settings.backend_url)
        except exceptions.ConfigError:
            raise findings.NotNow('correct backend_url first') from None

    @functools.cached_property
    def _survey(self) -> 'CoordinationProbe | exceptions.DistperiodicError':
        from distperiodic.operator.coordination_probe import CoordinationProbe
        try:
            return self._session.resources.enter_context(CoordinationProbe(
                self.settings.backend_url, clock=self._session.clock,
                session_timeout=self.settings.session_timeout))
        except exceptions.DistperiodicError as exc:
            return exc

    @property
    def survey(self) -> 'CoordinationProbe':
        """A connection to the coordination service.

        :raises NotNow: the coordination service does not answer.
        """
        assert self.scheme
        if isinstance(self._survey, exceptions.DistperiodicError):
            raise findings.NotNow('see coordination_join')
        return self._survey

    @functools.cached_property
    def group(self) -> Group:
        """The members and workers of the group.

        :raises NotNow: the coordination service does not answer.
        :raises CoordinationUnavailable: the service has stopped answering.
        """
        return live_group.look(self.survey, self.settings.group)

    @functools.cached_property
    def live(self) -> Live:
        """The live processes of the group, from their reports in the store.

        :raises NotNow: no store is configured, or it cannot be used.
        """
        from distperiodic.operator import members
        rows = members.members(self.store)
        group = None
        with contextlib.suppress(
                findings.NotNow, exceptions.CoordinationUnavailable):
            group = self.group
        return live_processes.of_rows(rows, self.settings, group)

    @functools.cached_property
    def _facts(self) -> Facts:
        # A server that does not answer has its own check.
        if self.settings.backend_url:
            assert self.survey
        if self.settings.connection:
            assert self.store
        return self._session.facts()

    @property
    def started(self) -> bool:
        """True if a process of the group has ever started.

        :raises NotNow: the store or the coordination service cannot be read.
        """
        facts = self._facts
        return bool(facts.members or (facts.live and facts.live.joined))

    @functools.cached_property
    def findings(self) -> list[Finding]:
        """The findings about the health of the group.

        :raises NotNow: the store or the coordination service cannot be read.
        """
        return health.findings(self._facts)

    @property
    def populated(self) -> Group:
        """The group, if it has a member on the ring.

        :raises NotNow: no member is on the ring, or the group cannot be read.
        """
        if not any(m.points for m in self.group.members):
            raise findings.NotNow('the group has no member on the ring')
        return self.group

    @functools.cached_property
    def joined(self) -> Joined:
        """The result of joining a temporary group and leaving it again.

        :raises NotNow: backend_url is empty or cannot be used.
        :raises CoordinationUnavailable: the group cannot be joined.
        """
        from distperiodic.adapters.coordination import membership
        if self.scheme and isinstance(
                self._survey, exceptions.DistperiodicError):
            raise self._survey
        name = f'{self.settings.group}.doctor-{secrets.token_hex(4)}'
        joining = membership.ToozMembership(
            self.settings.backend_url, 'doctor', clock=self._session.clock,
            session_timeout=self.settings.session_timeout,
            heartbeat_interval=self.settings.coordinator_heartbeat_interval)
        joining.join(name)
        joining.start()
        try:
            joining.wait_joined(10.0)
            entries = self.survey.entries(name) or []
        finally:
            joining.stop(3.0)
            with contextlib.suppress(exceptions.DistperiodicError):
                self.survey.delete_group(name)
        skews = [(e.joined - e.created) / 1e6 for e in entries
                 if e.joined is not None and e.created is not None]
        return Joined(joining.session_timeout,
                      skews[0] if skews else None)

    @functools.cached_property
    def _connected(self) -> 'GroupStore | exceptions.DistperiodicError':
        # Connect only once: if the store is unavailable, each attempt may take
        # long to fail.
        try:
            return self._connect()
        except exceptions.DistperiodicError as exc:
            return exc

    @property
    def connected(self) -> 'GroupStore':
        """The store, if it answers and its tables match this release.

        :raises NotNow: no store is configured, or its file does not exist yet.
        :raises ConfigError: the URL of the store cannot be used, or the file
            of the store is missing.
        :raises StoreUnavailable: the store does not answer.
        :raises SchemaError: the tables do not match this release.
        """
        if isinstance(self._connected, exceptions.DistperiodicError):
            raise self._connected
        return self._connected

    def _connect(self) -> 'GroupStore':
        if not self.settings.connection:
            raise findings.NotNow(
                'the option connection selects no store: only the ring '
                'divides the work')
        if self.settings.embedded and not os.path.exists(
                self.settings.store_file):
            raise findings.NotNow(
                f'no service has created {self.settings.store_file} yet')
        found = self._session.store
        found.now()
        return found

    @property
    def store(self) -> 'GroupStore':
        """The store.

        :raises NotNow: no store is configured, or it cannot be used.
        """
        try:
            return self.connected
        except exceptions.DistperiodicError:
            raise findings.NotNow('see store_reachable') from None

    @functools.cached_property
    def _brokers(self) -> (
            dict[str, BrokerProbe] | exceptions.DistperiodicError):
        from distperiodic.adapters.messaging import drivers
        try:
            return drivers.probes(self.conf, self.settings.partitions)
        except exceptions.DistperiodicError as exc:
            return exc

    @property
    def brokers(self) -> dict[str, BrokerProbe]:
        """The brokers by topic of their partition.

        The key of the main broker is ''. Partitions that use the main broker
        are left out.

        :raises NotNow: no broker is used, or a URL cannot be used.
        """
        if self.settings.dispatcher != 'messaging':
            raise findings.NotNow('dispatcher = local: no broker is used')
        if isinstance(self._brokers, exceptions.DistperiodicError):
            raise findings.NotNow('correct transport_url first')
        return self._brokers

    @property
    def broker_hosts(self) -> list[tuple[BrokerProbe, BrokerHost]]:
        """The servers of all brokers.

        :raises NotNow: no broker is used, or a URL cannot be used.
        """
        return [(probe, host) for probe in dict.fromkeys(
            self.brokers.values()) for host in probe.hosts]

    def check_broker(self) -> None:
        """Check transport_url.

        :raises ConfigError: transport_url is needed, but cannot be used.
        """
        if (self.settings.dispatcher == 'messaging'
                and isinstance(self._brokers, exceptions.DistperiodicError)):
            raise self._brokers
