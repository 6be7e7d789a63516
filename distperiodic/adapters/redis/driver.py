# SPDX-License-Identifier: Apache-2.0
"""The plug-in for ``redis://`` and ``rediss://``."""

from collections.abc import Callable
from typing import Any

from distperiodic.adapters.redis import url as urls
from distperiodic.adapters.redis.carrier import RedisCarrier
from distperiodic.adapters.redis.probe import RedisProbe
from distperiodic.ports import Inbox


class RedisStreams:
    """See :class:`distperiodic.ports.BusDriver`."""

    def carrier(self, conf: Any, url: str, *, inbox: Inbox | None,
                monotonic: Callable[[], float]) -> RedisCarrier:
        """Return a carrier.

        ``inbox.replicated`` has no effect, because the server decides whether
        it replicates.
        """
        return RedisCarrier(urls.parse(url), inbox, monotonic)

    def probe(self, conf: Any, url: str) -> RedisProbe:
        return RedisProbe(urls.parse(url))
