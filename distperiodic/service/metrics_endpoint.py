# SPDX-License-Identifier: Apache-2.0
"""The option ``metrics_listen``: one address for all processes of a host.

Each process starts a thread, which writes the values of the process to a file.
The thread of one of the processes also listens at the address, and serves the
sum of all processes; see :mod:`distperiodic.adapters.local.tally_files`.
"""

import contextlib
import errno
import logging
import os
import socket
import threading
from collections.abc import Callable
from wsgiref.simple_server import WSGIServer

from distperiodic import exceptions
from distperiodic import opts
from distperiodic.adapters.local import tally_files
from distperiodic.adapters.local.clock import SystemClock
from distperiodic.adapters.local.subscribers import SUBSCRIBERS
from distperiodic.core.listen import Address
from distperiodic.core.listen import parse_address
from distperiodic.core.tally import Tally
from distperiodic.flow.log_throttle import LogThrottle

LOG = logging.getLogger(__name__)

# Seconds between two writes of the values, and the minimum pause as a multiple
# of the time that a write takes.
_EVERY = 1.0
_PAUSE_FACTOR = 50
# Seconds without a write after which the serving process counts as hanging.
_HANGS = 30.0
# Seconds until the same error is logged again.
_LOG_AGAIN = 60.0


def check(settings: opts.Settings) -> None:
    """Check that ``metrics_listen`` can be used.

    Call this before the service starts. Another process with the same option
    may already serve the address.

    :raises ConfigError: The extra ``metrics`` is not installed, or the address
        cannot be used.
    """
    if not settings.metrics_listen:
        return
    _require()
    address, key = _address(settings), _directory(settings)
    # Do not open the lock file in a process that may hold the lock: closing
    # the file would release it.
    if key in _ENDPOINTS or tally_files.served(key):
        return
    try:
        found = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM)
        with socket.socket(found[0][0], socket.SOCK_STREAM) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(found[0][4])
    except OSError as exc:
        raise exceptions.ConfigError(_refused(address, exc)) from None


def _require() -> None:
    try:
        import prometheus_client  # noqa: F401
    except ImportError:
        raise exceptions.ConfigError(
            '[distperiodic] metrics_listen needs prometheus-client; install '
            "it with: pip install 'distperiodic[metrics]'") from None


def _address(settings: opts.Settings) -> Address:
    return parse_address(
        settings.metrics_listen, f'[{opts.GROUP}] metrics_listen')


def _directory(settings: opts.Settings) -> str:
    name = str(_address(settings)).replace('/', '-').replace(':', '-')
    return os.path.join(settings.state_path, f'metrics-{name}')


def _refused(address: Address, exc: OSError) -> str:
    reason = ('another program listens at it'
              if exc.errno == errno.EADDRINUSE else exc.strerror or str(exc))
    return (f'[distperiodic] metrics_listen = {address} cannot be used: '
            f'{reason}; set another port, or end the program')


def _unusable(path: str, exc: OSError) -> str:
    return (f'the directory {path} in [distperiodic] state_path cannot hold '
            f'the metrics: {exc.strerror or exc}; make it writable for this '
            'user; if its files were deleted, restart the processes of this '
            'host')


class MetricsEndpoint:
    """The metrics of this process, for all services with one address."""

    def __init__(self, settings: opts.Settings):
        self._address = _address(settings)
        self._path = _directory(settings)
        self._files = tally_files.TallyFiles(self._path)
        self._throttle = LogThrottle(SystemClock(), _LOG_AGAIN)
        self._monotonic = SystemClock().monotonic
        self._stopping = threading.Event()
        self._server: WSGIServer | None = None
        #: Reasons why the last attempt to write or to serve the values, and
        #: the last read of the values of all processes, have failed.
        self._failed = self._unread = ''
        #: Number of services that use this endpoint.
        self.users = 0
        self._thread = threading.Thread(
            target=self._run, daemon=True, name='distperiodic-metrics')
        self._thread.start()

    def _run(self) -> None:
        pause = 0.0
        while not self._stopping.wait(pause):
            began = self._monotonic()
            self._turn()
            # The other processes must not take a slow write for a hang.
            pause = min(_HANGS / 2, max(
                _EVERY, _PAUSE_FACTOR * (self._monotonic() - began)))
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
        with contextlib.suppress(OSError):
            self._files.write(SUBSCRIBERS.tally())
        self._files.close()

    def _turn(self) -> None:
        """Write the values, and begin to serve if no other process does."""
        try:
            self._files.write(SUBSCRIBERS.tally())
            serves = self._server is None and self._files.serve()
            hangs = not (serves or self._server) and (
                self._files.server_silent() > _HANGS)
        except OSError as exc:
            self._fail(_unusable(self._path, exc))
            return
        if hangs:
            self._fail(f'the process of this host that listens at '
                       f'{self._address} hangs; end this process, and another '
                       'one serves')
            return
        try:
            if serves:
                from distperiodic.adapters.prometheus import exposition

                self._server = exposition.serve(self._sum, self._address)
                LOG.info('metrics served: address=%s', self._address)
        except OSError as exc:
            self._fail(_refused(self._address, exc))
        else:
            self._failed = ''

    def _fail(self, reason: str) -> None:
        self._failed = reason
        if self._throttle.allow(reason):
            LOG.error('metrics not served: reason=%s; the next attempt is in '
                      '%g s', reason, _EVERY)

    @property
    def problem(self) -> str:
        """Reason why the metrics cannot be served. Empty means that they can,
        or that another process serves them.
        """
        return self._failed or self._unread

    def _sum(self) -> Tally:
        """Return the values of all processes."""
        total = SUBSCRIBERS.tally()
        try:
            total.merge(self._files.others())
        except OSError as exc:
            self._unread = _unusable(self._path, exc)
            raise
        self._unread = ''
        return total

    def stop(self) -> None:
        """Write the last values, and stop serving."""
        self._stopping.set()
        self._thread.join(_EVERY)

    def forked(self) -> None:
        """Release the address and the files in a child, where the thread does
        not run. The parent keeps both.
        """
        with contextlib.suppress(OSError):
            if self._server is not None:
                self._server.socket.close()
            self._files.close()


_ENDPOINTS: dict[str, MetricsEndpoint] = {}
_LOCK = threading.Lock()


def _forked() -> None:
    global _LOCK
    _LOCK = threading.Lock()
    for endpoint in _ENDPOINTS.values():
        endpoint.forked()
    _ENDPOINTS.clear()


# A child that starts a service has an endpoint of its own. A child that does
# not must not keep the address when its parent ends.
os.register_at_fork(after_in_child=_forked)


def start(settings: opts.Settings) -> Callable[[], None]:
    """Begin to count, and to serve the metrics, if the option is set.

    :returns: Function to call when the service stops.
    :raises ConfigError: As for :func:`check`, except that an address in use is
        only logged, and tried again.
    """
    if not settings.metrics_listen:
        return lambda: None
    _require()
    SUBSCRIBERS.count()
    key = _directory(settings)
    with _LOCK:
        endpoint = _ENDPOINTS.get(key)
        if endpoint is None:
            endpoint = _ENDPOINTS[key] = MetricsEndpoint(settings)
        endpoint.users += 1

    def stop() -> None:
        with _LOCK:
            endpoint.users -= 1
            if endpoint.users or _ENDPOINTS.get(key) is not endpoint:
                return
            _ENDPOINTS.pop(key, None)
        endpoint.stop()
    return stop


def problem(settings: opts.Settings) -> str:
    """Return why this process cannot serve its metrics. Empty means that it
    can, or that it need not.
    """
    if not settings.metrics_listen:
        return ''
    endpoint = _ENDPOINTS.get(_directory(settings))
    return '' if endpoint is None else endpoint.problem
