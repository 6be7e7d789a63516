# SPDX-License-Identifier: Apache-2.0
"""The page of a group: its health, its jobs, its tasks and its members.

The page shows the same lists and answers as the command line, and keeps no
data: each request reads the store and the coordination service. It only reads,
unless the option ``web_actions`` allows actions. Log-in, and TLS, belong to
the server that mounts the page.
"""

from typing import TYPE_CHECKING
from typing import Any

from distperiodic import exceptions

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication


def application(conf: Any) -> 'WSGIApplication':
    """Return the page as a WSGI application.

    It may be mounted under any prefix. Nothing connects before the first
    request.

    :param conf: Configuration of the service: a ``ConfigOpts`` that has been
        called.
    :raises ConfigError: an option cannot be used, or the packages of the extra
        ``web`` are not installed.
    """
    try:
        from distperiodic.web import site
    except ImportError as exc:
        if (exc.name or '').partition('.')[0] not in ('flask', 'jinja2'):
            raise
        raise exceptions.ConfigError(
            f'the page needs the Python module {exc.name}, which is not '
            "installed; install it with: pip install 'distperiodic[web]'"
        ) from exc
    return site.create(conf)
