# SPDX-License-Identifier: Apache-2.0
"""What the checks of ``distperiodic doctor`` look at.

Each part is fetched when the first check asks for it, and then kept. What
cannot be had is :class:`~distperiodic.cmd.findings.NotNow`: the check whose
matter it is says so, and all that build on it are skipped.
"""

import contextlib
import dataclasses
import functools
import os
import secrets
from typing import TYPE_CHECKING
from typing import Any

from distperiodic import exceptions
from distperiodic.cmd import configured
from distperiodic.cmd import findings

if TYPE_CHECKING:
    from distperiodic import opts
    from distperiodic import periodic
    from distperiodic.adapters import broker as broker_
    from distperiodic.adapters import store_survey
    from distperiodic.adapters import survey as survey_
    from distperiodic.cmd import status as status_


@dataclasses.dataclass
class Joined:
    """What joining a group of its own told."""

    granted: float | None
    #: This host's clock minus the server's, in seconds; None: not known.
    skew: float | None


class Case:
    """What the checks look at, each part fetched when the first asks."""

    def __init__(self, conf: Any, offline: bool,
                 tasks: 'periodic.PeriodicTasks | None' = None):
        self.conf = conf
        #: The jobs of the service; None: nobody named them.
        self.tasks = tasks
        self.offline = offline
        self._stack = contextlib.ExitStack()

    def close(self) -> None:
        self._stack.close()

    @functools.cached_property
    def _settings(self) -> 'opts.Settings | exceptions.DistperiodicError':
        from distperiodic import opts
        try:
            return opts.settings(self.conf)
        except exceptions.DistperiodicError as exc:
            return exc

    @property
    def settings(self) -> 'opts.Settings':
        """:raises NotNow: an option cannot be used."""
        if isinstance(self._settings, exceptions.DistperiodicError):
            raise findings.NotNow('correct the options first')
        return self._settings

    def check_settings(self) -> 'opts.Settings':
        """:raises ConfigError: an option cannot be used."""
        if isinstance(self._settings, exceptions.DistperiodicError):
            raise self._settings
        return self._settings

    @property
    def scheme(self) -> str:
        """The driver of backend_url.

        :raises NotNow: there is none.
        """
        from distperiodic.adapters import backend_url
        if not self.settings.backend_url:
            raise findings.NotNow(
                'backend_url is empty: this process is alone')
        try:
            return backend_url.check(self.settings.backend_url)
        except exceptions.ConfigError:
            raise findings.NotNow('correct backend_url first') from None

    @functools.cached_property
    def _survey(self) -> 'survey_.Survey | None':
        from distperiodic.adapters import clock
        from distperiodic.adapters import survey
        try:
            return self._stack.enter_context(survey.Survey(
                self.settings.backend_url, clock=clock.SystemClock(),
                session_timeout=self.settings.session_timeout))
        except exceptions.DistperiodicError:
            return None

    @property
    def survey(self) -> 'survey_.Survey':
        """:raises NotNow: the coordination service does not answer."""
        assert self.scheme
        if self._survey is None:
            raise findings.NotNow('the coordination service does not answer')
        return self._survey

    @functools.cached_property
    def group(self) -> 'status_.Group':
        """:raises NotNow: it cannot be read, or nobody is there."""
        from distperiodic.cmd import status
        return status.look(self.survey, self.settings.group)

    @property
    def populated(self) -> 'status_.Group':
        """:raises NotNow: nobody is there."""
        if not any(m.points for m in self.group.members):
            raise findings.NotNow('nobody is there yet')
        return self.group

    @functools.cached_property
    def joined(self) -> Joined:
        """Join a group of our own, look, and leave it.

        :raises CoordinationUnavailable: it cannot be joined.
        """
        from distperiodic.adapters import clock
        from distperiodic.adapters import coordination
        assert self.survey
        name = f'{self.settings.group}.doctor-{secrets.token_hex(4)}'
        membership = coordination.Membership(
            self.settings.backend_url, 'doctor', clock=clock.SystemClock(),
            session_timeout=self.settings.session_timeout,
            heartbeat_interval=self.settings.coordinator_heartbeat_interval)
        membership.join(name)
        membership.start()
        try:
            membership.wait_joined(10.0)
            ours = self.survey.entries(name) or []
        finally:
            membership.stop(3.0)
            with contextlib.suppress(exceptions.DistperiodicError):
                self.survey.delete_group(name)
        skews = [(e.joined - e.created) / 1e6 for e in ours
                 if e.joined is not None and e.created is not None]
        return Joined(membership.session_timeout,
                      skews[0] if skews else None)

    @functools.cached_property
    def _connected(self) -> (
            'store_survey.StoreSurvey | exceptions.DistperiodicError'):
        # One that is away may take long to say so: it is asked once.
        try:
            return self._connect()
        except exceptions.DistperiodicError as exc:
            return exc

    @property
    def connected(self) -> 'store_survey.StoreSurvey':
        """The store, which answers and has our tables.

        :raises NotNow: there is none.
        :raises ConfigError: its URL is of no use, or its file is not there.
        :raises StoreUnavailable: it does not answer.
        :raises SchemaError: its tables are not those of this release.
        """
        if isinstance(self._connected, exceptions.DistperiodicError):
            raise self._connected
        return self._connected

    def _connect(self) -> 'store_survey.StoreSurvey':
        from distperiodic.adapters import store_survey
        if not self.settings.connection:
            raise findings.NotNow(
                'connection is empty: only the ring divides the work')
        if self.settings.embedded and not os.path.exists(
                self.settings.store_file):
            raise findings.NotNow(
                f'no service has made {self.settings.store_file} so far')
        configured.check_file(self.settings.connection)
        found = self._stack.enter_context(contextlib.closing(
            store_survey.StoreSurvey(
                self.settings.connection, space=self.settings.group)))
        found.now()
        return found

    @property
    def store(self) -> 'store_survey.StoreSurvey':
        """:raises NotNow: there is none, or it cannot be used."""
        try:
            return self.connected
        except exceptions.DistperiodicError:
            raise findings.NotNow('see store_reachable') from None

    @functools.cached_property
    def _broker(self) -> 'broker_.Broker | exceptions.DistperiodicError':
        from distperiodic.adapters import broker
        try:
            return broker.Broker(self.conf)
        except exceptions.DistperiodicError as exc:
            return exc

    @property
    def broker(self) -> 'broker_.Broker':
        """:raises NotNow: there is none, or its URL cannot be used."""
        if self.settings.dispatcher != 'messaging':
            raise findings.NotNow('dispatcher = local: no broker is used')
        if isinstance(self._broker, exceptions.DistperiodicError):
            raise findings.NotNow('correct transport_url first')
        return self._broker

    def check_broker(self) -> None:
        """:raises ConfigError: transport_url is needed and no good."""
        if (self.settings.dispatcher == 'messaging'
                and isinstance(self._broker, exceptions.DistperiodicError)):
            raise self._broker
