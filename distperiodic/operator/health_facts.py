# SPDX-License-Identifier: Apache-2.0
"""Reads the facts about a group from which :mod:`.health` finds what is wrong.

Only :mod:`.health_queries` loads SQLAlchemy, and only if there is a store.
"""

import contextlib
import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING
from typing import Any

from distperiodic import exceptions
from distperiodic.core.wording import one_line
from distperiodic.operator import health
from distperiodic.operator.live_group import read_group

if TYPE_CHECKING:
    from distperiodic import opts
    from distperiodic import ports
    from distperiodic.operator.group_reader import GroupReader


def read(settings: 'opts.Settings', clock: 'ports.Clock', *,
         store_of: 'Callable[[], GroupReader] | None' = None,
         job: str | None = None, key: str | None = None,
         **known: Any) -> health.Facts:
    """Return the facts about the configured group.

    If the store or the coordination service cannot be read, the facts give the
    reason.

    :param store_of: Returns the store of the caller, who closes it. None opens
        a store with the limits of a command, and closes it.
    :param job: Job to whose failures to limit the facts. None means all jobs.
    :param key: Id of the only object whose failures to read. None means all
        objects.
    :param known: Further fields of :class:`.health.Facts` that the caller
        knows.
    """
    live, coordination = None, ''
    if settings.backend_url:
        try:
            live = read_group(settings, clock)
        except exceptions.CoordinationUnavailable as exc:
            coordination = one_line(exc)
    fields: dict[str, Any] = {'now': clock.now()}
    if settings.connection:
        from distperiodic.operator import health_queries
        try:
            fields |= health_queries.read(
                settings, clock, live, job, key, store_of)
        except exceptions.DistperiodicError as exc:
            fields['store'] = one_line(exc)
    facts = health.Facts(
        group=settings.group, session_timeout=settings.session_timeout,
        sweep_interval=settings.sweep_interval,
        messaging=settings.dispatcher == 'messaging', live=live,
        topics={one.name: topic
                for topic, one in settings.partitions.items()},
        coordination=coordination, **fields, **known)
    if health.some_outside(facts):
        # A process that reports may have joined after the group was read.
        with contextlib.suppress(exceptions.CoordinationUnavailable):
            facts = dataclasses.replace(facts, joined=health.entered(
                dataclasses.replace(facts, live=read_group(
                    settings, clock))) or ())
    return facts
