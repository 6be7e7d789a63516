# SPDX-License-Identifier: Apache-2.0
"""OpenTelemetry spans of a process that runs a service or submits tasks, for
the program that embeds it::

    from distperiodic import traces

    traces.install()

The option ``traces`` does the same for each service and client that has it.
Install the extra ``otel``.
"""

from typing import TYPE_CHECKING

from distperiodic.adapters.local import tracing

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

__all__ = ['install']


def install(tracer_provider: 'TracerProvider | None' = None) -> None:
    """Create spans in this process from now on.

    Call this before a service starts. A repeated call changes nothing, unless
    it passes another provider. If it is made before a fork, it holds in each
    child.

    :param tracer_provider: Provider of the spans. None means the global one,
        which the program may also set later.
    :raises ConfigError: opentelemetry-api is not installed.
    """
    tracing.install('distperiodic.traces', tracer_provider)
