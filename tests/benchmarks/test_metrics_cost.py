# SPDX-License-Identifier: Apache-2.0
"""CPU time of events and metrics, compared with the same work without them.

Nothing scrapes the metrics.

    pytest -s -o timeout=0 tests/benchmarks/test_metrics_cost.py
"""

from tests.benchmarks import option_cost
from tests.services.ports import free_port


def test_cpu_per_object_with_and_without_metrics(
        zookeeper, rabbitmq, postgresql):
    option_cost.compare(zookeeper, rabbitmq, postgresql, 'metrics', {
        'off': {}, 'on': {'metrics_listen': f'127.0.0.1:{free_port()}'}},
        __file__)
