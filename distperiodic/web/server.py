# SPDX-License-Identifier: Apache-2.0
"""The server of ``distperiodic web``, which serves the page alone."""

import contextlib
import ipaddress
import secrets
import signal
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING
from typing import Any

from distperiodic import exceptions
from distperiodic.web.identity import USER_OF_PROCESS

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication

# Number of requests that are answered at once. Each needs a connection to the
# store.
_THREADS = 4


def is_loopback(host: str) -> bool:
    """Return whether only processes of this host can connect to *host*."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == 'localhost'


def of_this_host(application: 'WSGIApplication') -> 'WSGIApplication':
    """Return *application* for clients that name this host only.

    Another site could let its own name point to 127.0.0.1, and so read the
    page in the browser of a user of this host.
    """
    def guarded(environ: dict[str, Any], start: Any) -> Any:
        name = environ.get('HTTP_HOST', 'localhost')
        host = name if name.endswith(']') else name.rpartition(':')[0] or name
        if is_loopback(host.strip('[]')):
            return application(environ, start)
        start('403 Forbidden', [('Content-Type', 'text/plain')])
        return [b'this page answers to the names of this host only, such as '
                b'127.0.0.1']
    return guarded


class KeyHolder:
    """The page for the user who runs this process, and for others.

    Every user of a host can open an address of this host. The user of this
    process alone can read its output, which contains an address with a key. A
    browser that opens this address receives the key as a cookie.
    """

    def __init__(self, application: 'WSGIApplication', user: str):
        self.key = secrets.token_urlsafe(24)
        self._application = application
        self._user = user

    def __call__(self, environ: dict[str, Any], start: Any) -> Any:
        from werkzeug.utils import redirect
        from werkzeug.wrappers import Request
        request = Request(environ)
        # Cookies do not depend on the port.
        cookie = f'distperiodic-key-{environ["SERVER_PORT"]}'
        given = request.args.get('key')
        if given is not None and request.path == '/':
            answer = redirect('/', 303)
            if secrets.compare_digest(given.encode(), self.key.encode()):
                answer.set_cookie(
                    cookie, given, httponly=True, samesite='Strict')
            return answer(environ, start)
        if secrets.compare_digest(
                request.cookies.get(cookie, '').encode(), self.key.encode()):
            environ[USER_OF_PROCESS] = self._user
        return self._application(environ, start)


def serve(application: 'WSGIApplication', host: str, port: int,
          started: Callable[[str], None]) -> None:
    """Serve the page until SIGINT or SIGTERM.

    :param started: Called with the URL of the page, when it can be opened.
    :raises ConfigError: the package of the server is not installed, or the
        address cannot be used.
    """
    try:
        from waitress import server
    except ImportError as exc:
        raise exceptions.ConfigError(
            'the page needs the Python module waitress, which is not '
            "installed; install it with: pip install 'distperiodic[web]'"
        ) from exc
    try:
        created: Any = server.create_server(
            of_this_host(application) if is_loopback(host) else application,
            host=host, port=port, threads=_THREADS,
            ident='distperiodic', clear_untrusted_proxy_headers=True)
    except (OSError, ValueError) as exc:
        reason = getattr(exc, 'strerror', None) or exc
        raise exceptions.ConfigError(
            f'--listen {host}:{port}: {reason}; give another address, such '
            'as --listen 127.0.0.1:8089') from exc
    signal.signal(signal.SIGTERM, _stop)
    at = f'[{host}]' if ':' in host else host
    started(f'http://{at}:{_port(created)}/')
    created.run()


def _stop(number: int, frame: object) -> None:
    raise SystemExit(0)


def _port(created: Any) -> int:
    """Return the port, which the system has chosen if 0 was given."""
    listening: socket.socket | None = getattr(created, 'socket', None)
    return int(created.effective_listen[0][1] if listening is None
               else listening.getsockname()[1])
