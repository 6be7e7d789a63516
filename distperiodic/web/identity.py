# SPDX-License-Identifier: Apache-2.0
"""The identity of the client of a request, as the server knows it.

No header of a request is believed by itself, because a client can send any
header. A variable of the server or of a middleware is believed: its name does
not begin with ``HTTP_``, so a client cannot set it.
"""

from collections.abc import Callable
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

from oslo_context import context

#: Variable that contains the user who has started ``distperiodic web``, if the
#: client has the key of this process.
USER_OF_PROCESS = 'distperiodic.user'
# Variable that only keystonemiddleware sets, for a valid token.
_CONFIRMED = 'keystone.token_info'


class Unidentified(Exception):
    """The client of a request is unknown. The text is for the user."""


class _Context(context.RequestContext):  # type: ignore[misc,unused-ignore]
    """The context of one request."""

    def update_store(self) -> None:
        """Keep this context out of the log lines of the thread.

        Otherwise the lines of later requests, which may be those of other
        users, would have this user.
        """


class Identity(NamedTuple):
    """An operator."""

    #: Name, as it is recorded and shown.
    name: str
    #: Value that no other operator has.
    id: str
    #: Credentials for oslo.policy: a mapping or a context of oslo.context.
    credentials: Any
    #: True if the operator has started this process on this host.
    of_process: bool = False


def _of_process(environ: Mapping[str, Any]) -> Identity:
    user = environ.get(USER_OF_PROCESS)
    if not user:
        raise Unidentified(
            'with web_identity = local only the user who runs "distperiodic '
            'web" can act, in a browser that has opened the address that the '
            'command prints; for a page behind a log-in, set [distperiodic] '
            'web_identity')
    # This user can run the commands, too.
    return Identity(user, user, {'user_id': user, 'roles': ['admin']}, True)


def _remote_user(environ: Mapping[str, Any]) -> Identity:
    user = environ.get('REMOTE_USER')
    if not user:
        raise Unidentified(
            'the server has not set REMOTE_USER, so the operator is unknown; '
            'mount the page behind a log-in, or correct [distperiodic] '
            'web_identity')
    return Identity(user, user, {'user_id': user, 'roles': []})


def _keystone(environ: Mapping[str, Any]) -> Identity:
    if _CONFIRMED not in environ:
        raise Unidentified(
            'keystonemiddleware has confirmed no token of this request; send '
            'one, mount the page behind auth_token, or correct [distperiodic] '
            'web_identity')
    user = environ.get('HTTP_X_USER_ID')
    if environ.get('HTTP_X_IDENTITY_STATUS') != 'Confirmed' or not user:
        raise Unidentified('the token of this request has no user')
    name = environ.get('HTTP_X_USER_NAME')
    return Identity(
        f'{name} ({user})' if name else user, user,
        _Context.from_environ(dict(environ)))


_SOURCES: dict[str, Callable[[Mapping[str, Any]], Identity]] = {
    'local': _of_process, 'remote_user': _remote_user, 'keystone': _keystone}


def identify(environ: Mapping[str, Any], source: str) -> Identity:
    """Return the identity of the client.

    :param environ: The WSGI environment of the request.
    :param source: Value of the option ``web_identity``.
    :raises Unidentified: the client is unknown.
    """
    return _SOURCES[source](environ)
