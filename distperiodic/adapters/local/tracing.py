# SPDX-License-Identifier: Apache-2.0
"""The tracer of this process.

OpenTelemetry is imported only if the process uses traces.
"""

import contextlib
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from distperiodic import exceptions
from distperiodic import ports

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider


class Tracing:
    """The tracer that the services and clients of this process use."""

    def __init__(self) -> None:
        #: None means that this process creates no spans.
        self.tracer: ports.Tracer | None = None


#: The tracer of this process.
TRACING = Tracing()


def require(user: str) -> None:
    """Check that spans can be created.

    :param user: Name of the option or function that needs this, for the error.
    :raises ConfigError: The extra ``otel`` is not installed.
    """
    try:
        import opentelemetry.trace  # noqa: F401
    except ImportError:
        raise exceptions.ConfigError(
            f'{user} needs opentelemetry-api; install it with: '
            "pip install 'distperiodic[otel]'") from None


def install(user: str, provider: 'TracerProvider | None' = None) -> None:
    """Create spans in this process from now on.

    A repeated call changes nothing, unless it has another provider.

    :param user: As in :func:`require`.
    :param provider: Provider of the spans. None means the global one, which
        may also be set later.
    :raises ConfigError: The extra ``otel`` is not installed.
    """
    require(user)
    if TRACING.tracer is None or provider is not None:
        from distperiodic.adapters.otel.tracer import OtelTracer
        TRACING.tracer = OtelTracer(provider)


def continued(trace: str | None) -> AbstractContextManager[None]:
    """Return a context manager in which a span of another process is current.

    :param trace: Trace context of the span. None means that there is none.
    """
    if trace is None:
        return contextlib.nullcontext()
    from distperiodic.adapters.otel.tracer import remote
    return remote(trace)
