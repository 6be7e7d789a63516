# SPDX-License-Identifier: Apache-2.0
"""tooz's drivers, with distperiodic's namespace and helpful error messages.

While kazoo cannot connect, it retries until its timeout. Then it reports only
the timeout and not the cause. So this module records the error of each attempt
to connect, and reports the error of the last attempt.
"""

import importlib
import logging
import os
import re
import ssl
import urllib.parse
import warnings
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

from distperiodic.adapters.coordination import eventlet_import

# Import tooz here, in the main thread. tooz imports futurist, and futurist
# imports eventlet if eventlet is installed. The import of eventlet replaces
# the object through which other threads join the importing thread. After that,
# no thread can join the importing thread. So no thread of distperiodic may be
# the first to import tooz. eventlet also warns that it is deprecated. Suppress
# this warning, because the users of distperiodic cannot act on it.
with warnings.catch_warnings(), eventlet_import.unless_wanted():
    warnings.filterwarnings('ignore', message=r'\s*Eventlet is deprecated')
    from kazoo import exceptions as kazoo
    from tooz import coordination

from distperiodic import exceptions
from distperiodic.adapters.coordination.url import NAMESPACE
from distperiodic.adapters.coordination.url import PUSHING
from distperiodic.adapters.coordination.url import check_backend_url
from distperiodic.adapters.coordination.url import complete_url
from distperiodic.adapters.local import private
from distperiodic.core import redaction

LOG = logging.getLogger(__name__)

# Maximum seconds of one attempt to connect. If an attempt fails, the
# membership thread logs the error and tries again.
_CONNECT = 10

_NO_RIGHT = (kazoo.NoAuthError, kazoo.AuthFailedError, kazoo.InvalidACLError)
#: The commands that tooz's driver for Redis needs, for a Redis user.
REDIS_COMMANDS = (
    '+info +select +psetex +evalsha +script|load +watch +unwatch +multi +exec '
    '+exists +sadd +srem +smembers +sismember +hset +hdel +hget +hgetall '
    '+hkeys +hlen +mget +del')
# Answers of Redis to a command that its user may not run, or that depends on
# such a command.
_NO_COMMAND = re.compile(
    "no permissions|NOPERM|without MULTI|executing the script can't run")


def check_private(url: str) -> None:
    """Check that other users cannot write to the directory of a group.

    A user who can write there can join as a member and own objects.

    :raises ConfigError: The directory is a symbolic link, belongs to another
        user, or is writable by all users.
    """
    path = urllib.parse.urlsplit(url).path.rstrip('/')
    if url.startswith('file:') and os.path.lexists(path):
        private.check_directory(
            path, 'backend_url', 'name a directory that only this user can '
            'write to, for example file:///var/lib/my-service')


def make(url: str, entry: bytes, seconds: float) -> Any:
    """Return a tooz coordinator for *url*, in distperiodic's namespace.

    The coordinator is not connected yet.

    :param seconds: Session timeout. A timeout in the URL takes precedence.
    :raises ConfigError: the driver rejects the URL, or is not installed.
    """
    scheme = check_backend_url(url)
    shown = redaction.redact(url)
    try:
        coordinator: Any = coordination.get_coordinator(
            complete_url(url, seconds), entry)
    except (coordination.ToozError, ValueError) as exc:
        raise exceptions.ConfigError(
            f'backend_url {shown!r} cannot be used: {exc}; correct it'
        ) from exc
    except (ImportError, RuntimeError) as exc:
        # stevedore raises one of these errors, depending on its version.
        raise exceptions.ConfigError(
            f'backend_url {shown!r}: the driver {scheme!r} cannot be loaded '
            f'({exc}); install the version of its package that tooz needs'
        ) from exc
    if scheme.startswith('etcd3'):
        # This driver has no option for the namespace.
        coordinator.GROUP_PREFIX = f'{NAMESPACE}/groups/'.encode()
    elif scheme in PUSHING:
        coordinator.timeout = min(coordinator.timeout, _CONNECT)
        client = coordinator._coord
        client.logger = client._connection.logger = _LOG
    return coordinator


class _Masking(logging.Filter):
    """A filter that removes credentials and noise from kazoo's log lines.

    kazoo logs its requests with all credentials: the user and the password,
    the digests of both (in the access rights of the nodes that this process
    creates), and the password of the session.
    """

    #: Beginnings of lines about attempts to connect, which Explainer logs.
    _NOISE = ('Connection dropped: socket connection error',
              'Failed connecting to Zookeeper')
    _SECRETS = tuple(re.compile(pattern) for pattern in (
        # Match text and bytes in the form that repr() returns.
        r'''((?:\bauth|passwd)=b?)(?:'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*")''',
        r'''(scheme='digest', id=)(?:'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*")''',
        r'(session_passwd: )\S+'))

    def filter(self, record: logging.LogRecord) -> bool:
        text = masked = record.getMessage()
        if text.startswith(self._NOISE):
            return False
        for pattern in self._SECRETS:
            masked = pattern.sub(r'\1***', masked)
        if masked != text:
            record.msg, record.args = masked, ()
        return True


# A child of kazoo's logger, so that it inherits the configured level.
_LOG = logging.getLogger('kazoo.client.distperiodic')
_LOG.addFilter(_Masking())


#: Attempts to connect that failed since the last connection to the same
#: service, by its URL: each server with its error. An attempt of a new term is
#: not logged again.
_FAILED: dict[str, set[str]] = {}


class Explainer:
    """A component that turns a coordinator's errors into helpful messages.

    It also logs each server that cannot be reached, once until a connection
    succeeds. kazoo logs each attempt, but without the address.

    :param coordinator: tooz's coordinator, not started yet.
    :param url: The ``backend_url``.
    """

    def __init__(self, coordinator: Any, url: str):
        self._shown = redaction.redact(url)
        self._last: BaseException | None = None
        self._place = ''
        #: User and namespace of Redis. The user is empty for other services.
        self._redis_user = self._redis_space = ''
        #: Errors that the driver raises if a request fails.
        self.failures: tuple[type[Exception], ...] = (
            coordination.ToozError, kazoo.KazooException, OSError)
        if url.startswith('redis:'):
            # tooz does not convert most errors of Redis.
            redis: Any = importlib.import_module('tooz.drivers.redis')
            self.failures += (redis.exceptions.RedisError,)
            self._redis_user = urllib.parse.urlsplit(url).username or 'default'
            self._redis_space = coordinator.namespace.decode()
        if url.partition('://')[0] in PUSHING:
            self._place = coordinator._base_path()
            connection = coordinator._coord._connection
            connection._connect = self._recording(connection._connect)

    def _recording(self, connect: Callable[..., Any]) -> Callable[..., Any]:
        def connect_and_record(*args: Any, **kwargs: Any) -> Any:
            try:
                answer = connect(*args, **kwargs)
            except BaseException as exc:
                self._last = exc
                self._log_failed(args, exc)
                raise
            self._last = None
            _FAILED.pop(self._shown, None)
            return answer
        return connect_and_record

    def _log_failed(self, place: Sequence[Any], exc: BaseException) -> None:
        """Log that a server cannot be reached.

        :param place: Host name, address and port.
        """
        failed = _FAILED.setdefault(self._shown, set())
        # The text of an error may differ from one attempt to the next.
        server = f'{place[0]}:{place[2]} {type(exc).__name__}'
        if server not in failed:
            failed.add(server)
            LOG.warning(
                'server not reached: server=%s:%s reason=%s; this process '
                'keeps trying all servers of backend_url', place[0], place[2],
                str(exc) or type(exc).__name__)

    def explain(self, exc: BaseException
                ) -> exceptions.CoordinationUnavailable:
        """Return an error that explains *exc* and states the remedy."""
        causes = [*_causes(exc), *_causes(self._last)]
        return exceptions.CoordinationUnavailable(
            self._permission(causes) or self._command(causes)
            or self._tls(causes)
            or self._closed(causes) or self._other(causes))

    def _permission(self, causes: list[BaseException]) -> str | None:
        if not any(isinstance(cause, _NO_RIGHT) for cause in causes):
            return None
        return (f'{self._shown} does not allow this user to write to '
                f'{self._place}; correct the user and password in '
                f'backend_url, ask the owner of {self._place} to grant the '
                'rights cdrw, or choose another namespace in the URL, for '
                'example ?namespace=my-service')

    def _command(self, causes: list[BaseException]) -> str | None:
        for text in map(str, causes):
            if self._redis_user and _NO_COMMAND.search(text):
                return (f'{self._shown} refuses a command of user '
                        f'{self._redis_user!r} ({text}); allow it: ACL '
                        f'SETUSER {self._redis_user} '
                        f'~{self._redis_space}_* {REDIS_COMMANDS}')
        return None

    def _tls(self, causes: list[BaseException]) -> str | None:
        for cause in causes:
            if isinstance(cause, ssl.SSLCertVerificationError):
                return (f'the certificate of {self._shown} cannot be trusted '
                        f'({cause.verify_message}); put the certificate of '
                        'its authority into ca=FILE of backend_url')
            if isinstance(cause, ssl.SSLError):
                return (f'no TLS with {self._shown} '
                        f'({cause.reason or cause.strerror}); give the port '
                        'on which the server speaks TLS, or remove use_ssl '
                        'from backend_url; if the server requires a '
                        'certificate, give certfile and keyfile')
        return None

    def _closed(self, causes: list[BaseException]) -> str | None:
        """Explain why a server closes connections without an answer."""
        if not self._place or not any(
                isinstance(cause, kazoo.ConnectionDropped) and (
                    'broken' in str(cause) or isinstance(
                        cause.__context__, ConnectionResetError
                        | BrokenPipeError)) for cause in causes):
            return None
        return (f'{self._shown} closes each connection before it answers; '
                'its log gives the reason: this host has as many connections '
                'as maxClientCnxns allows, the server has no quorum, or it '
                'speaks TLS on this port (add use_ssl=true to backend_url)')

    def _other(self, causes: list[BaseException]) -> str:
        """Explain any other error.

        The text quotes the error of the last attempt to connect, or else the
        first cause that has a text.
        """
        texts = [text for cause in [self._last, *causes]
                 if (text := str(cause or ''))]
        reason = texts[0] if texts else type(causes[0]).__name__
        return (f'{self._shown} does not answer: {reason}; check backend_url '
                'and that the service runs')


def _causes(exc: BaseException | None) -> Iterator[BaseException]:
    while exc is not None:
        yield exc
        exc = exc.__cause__ or exc.__context__


def published_jobs(capabilities: Any) -> Any:
    """Return the text of the jobs in the attributes of an entry.

    The text is empty if the member has published none.
    """
    found = capabilities.get('jobs', '') if isinstance(
        capabilities, dict) else ''
    return found.decode(errors='replace') if isinstance(found, bytes) else (
        found)
