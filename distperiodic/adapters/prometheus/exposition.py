# SPDX-License-Identifier: Apache-2.0
"""Metrics in the form of Prometheus, through prometheus_client.

The library's own multiprocess mode is not used: it is chosen by a variable of
the environment when the library is imported, and would also change the metrics
of the program that embeds the service.
"""

from collections.abc import Callable
from collections.abc import Iterator
from wsgiref.simple_server import WSGIServer

import prometheus_client
from prometheus_client import core
from prometheus_client import registry as registries

from distperiodic import exceptions
from distperiodic.core.listen import Address
from distperiodic.core.metric_table import BY_NAME
from distperiodic.core.metric_table import METRICS
from distperiodic.core.metric_table import MetricSource
from distperiodic.core.tally import BUCKETS
from distperiodic.core.tally import Key
from distperiodic.core.tally import Tally

_BOUNDS = (*(str(bound) for bound in BUCKETS), '+Inf')


class TallyCollector(registries.Collector):
    """Collector of prometheus_client for the values of a tally.

    :param read: Returns the values; called at each collection.
    :param source: Origin of the metrics.
    """

    def __init__(self, read: Callable[[], Tally],
                 source: MetricSource = MetricSource.PROCESS):
        self._read = read
        self._source = source

    def describe(self) -> Iterator[core.Metric]:
        return iter(_families(self._source).values())

    def collect(self) -> Iterator[core.Metric]:
        tally, families = self._read(), _families(self._source)
        for key, value in sorted(tally.values.items()):
            families[key.metric].add_sample(key.metric, _labels(key), value)
        for key, found in sorted(
                tally.distributions.items(), key=lambda item: item[0]):
            family, labels, number = families[key.metric], _labels(key), 0
            for bound, more in zip(_BOUNDS, found.buckets, strict=True):
                number += more
                family.add_sample(f'{key.metric}_bucket',
                                  labels | {'le': bound}, number)
            family.add_sample(f'{key.metric}_count', labels, number)
            family.add_sample(f'{key.metric}_sum', labels, found.sum)
        return iter(families.values())


def _families(source: MetricSource) -> dict[str, core.Metric]:
    """Return the metrics of one source, without values, by name."""
    return {metric.name: core.Metric(
        metric.name.removesuffix('_total'), metric.help, metric.kind.value)
        for metric in METRICS if metric.source is source}


def _labels(key: Key) -> dict[str, str]:
    return dict(zip(BY_NAME[key.metric].labels, key.labels, strict=True))


def register(read: Callable[[], Tally],
             registry: registries.CollectorRegistry | None) -> None:
    """Add the metrics to a registry of the program.

    :param registry: None means the default registry of prometheus_client.
    :raises ConfigError: The registry has a metric with one of these names.
    """
    if registry is None:
        registry = prometheus_client.REGISTRY
    try:
        registry.register(TallyCollector(read))
    except ValueError as exc:
        raise exceptions.ConfigError(
            'the registry has a metric with the name of a metric of '
            'distperiodic already; call distperiodic.metrics.install() once '
            f'for each registry, or pass another registry: {exc}') from None


def _registry_of(read: Callable[[], Tally], source: MetricSource
                 ) -> registries.CollectorRegistry:
    registry = registries.CollectorRegistry()
    registry.register(TallyCollector(read, source))
    return registry


def text(read: Callable[[], Tally], source: MetricSource) -> str:
    """Return the metrics in the text format of Prometheus."""
    return prometheus_client.generate_latest(
        _registry_of(read, source)).decode()


def write(read: Callable[[], Tally], source: MetricSource, path: str) -> None:
    """Replace a file with the metrics in the text format of Prometheus.

    A reader of the file sees all the old metrics or all the new ones.

    :raises OSError: The file cannot be written.
    """
    prometheus_client.write_to_textfile(path, _registry_of(read, source))


def serve(read: Callable[[], Tally], address: Address,
          source: MetricSource = MetricSource.PROCESS) -> WSGIServer:
    """Serve the metrics over HTTP, in a thread of its own.

    :returns: The server. Call ``shutdown()`` and then ``server_close()`` to
        end it.
    :raises OSError: The address cannot be used.
    """
    server, _ = prometheus_client.start_http_server(
        address.port, address.host, _registry_of(read, source))
    return server
