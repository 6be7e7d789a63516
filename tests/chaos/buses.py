# SPDX-License-Identifier: Apache-2.0
"""All buses that a cluster can use."""

from tests.chaos.rabbitmq_bus import RabbitMQ
from tests.chaos.redis_bus import Redis

#: Bus by its name.
BUSES = {one.name: one for one in (RabbitMQ, Redis)}
