# SPDX-License-Identifier: Apache-2.0
"""Metrics of a process that runs a service, for the program that embeds it::

    from distperiodic import metrics

    metrics.install()

The program serves the metrics together with its own. Install the extra
``metrics``. If several processes run the service, the option
``metrics_listen`` serves their sum instead.
"""

from typing import TYPE_CHECKING

from distperiodic import exceptions
from distperiodic.adapters.local.subscribers import SUBSCRIBERS

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

__all__ = ['install']


def install(registry: 'CollectorRegistry | None' = None) -> None:
    """Count the events of this process, and add the metrics to a registry.

    The counts begin with this call. If it is made before a fork, the counts of
    each child begin at zero.

    :param registry: Registry of prometheus_client. None means its default
        registry.
    :raises ConfigError: prometheus_client is not installed, or the registry
        has a metric with one of these names already.
    """
    try:
        from distperiodic.adapters.prometheus import exposition
    except ImportError:
        raise exceptions.ConfigError(
            'distperiodic.metrics needs prometheus-client; install it with: '
            "pip install 'distperiodic[metrics]'") from None
    exposition.register(SUBSCRIBERS.tally, registry)
    SUBSCRIBERS.count()
