# SPDX-License-Identifier: Apache-2.0
"""The actions that the client of one request may carry out."""

from collections.abc import Mapping
from typing import TYPE_CHECKING
from typing import Any

from distperiodic import exceptions
from distperiodic.core import wording
from distperiodic.web.form_tokens import FormTokens
from distperiodic.web.identity import Identity
from distperiodic.web.identity import Unidentified
from distperiodic.web.identity import identify
from distperiodic.web.verbs import PageVerb

if TYPE_CHECKING:
    from distperiodic import opts
    from distperiodic.web.policy import Policy

_OFF = ('actions on this page are off; to allow them, set [distperiodic] '
        'web_actions = true, and read "Mount the page in a service"')


class Forbidden(Exception):
    """The client may not carry out an action. The text is for the user."""


class Access:
    """The rights of the client of one request.

    :param identity: The client, or the reason why it is unknown.
    :param policy: None means that actions are off.
    """

    def __init__(self, identity: Identity | str,
                 policy: 'Policy | None'):
        self._identity = identity
        self._policy = policy

    @property
    def on(self) -> bool:
        """True if actions are on."""
        return self._policy is not None

    @property
    def identity(self) -> Identity | None:
        """The client. None means unknown, or that actions are off."""
        return (self._identity if self._policy is not None
                and isinstance(self._identity, Identity) else None)

    @property
    def why_not(self) -> str:
        """Reason why no action is possible. Empty means that some may be."""
        if self._policy is None:
            return _OFF
        return self._identity if isinstance(self._identity, str) else ''

    def may(self, verb: PageVerb, target: Mapping[str, str]) -> bool:
        return (self._policy is not None and self.identity is not None
                and self._policy.allows(verb, self.identity, target))

    def check(self, verb: PageVerb, target: Mapping[str, str]) -> Identity:
        """Return the client, if it may do *verb* to *target*.

        :raises Forbidden: it may not.
        """
        identity = self.identity
        if identity is None:
            raise Forbidden(self.why_not)
        if not self.may(verb, target):
            raise Forbidden(
                f'{identity.name} may not do this: the rule {verb.policy} of '
                'the policy does not allow it')
        return identity


class Gate:
    """The checks of all requests to one page.

    :raises ConfigError: actions are on, and a package is missing or the policy
        file cannot be used.
    """

    def __init__(self, conf: Any, settings: 'opts.Settings'):
        self._source = settings.web_identity
        self._policy: Policy | None = None
        self.tokens = FormTokens(settings.web_secret)
        if settings.web_actions:
            self._policy = _policy(conf)

    @property
    def open(self) -> bool:
        """True if actions are on."""
        return self._policy is not None

    def access(self, environ: Mapping[str, Any]) -> Access:
        """Return what the client of a request may do."""
        identity: Identity | str
        try:
            identity = identify(environ, self._source)
        except Unidentified as exc:
            identity = wording.one_line(exc)
        return Access(identity, self._policy)


def _policy(conf: Any) -> 'Policy':
    try:
        from distperiodic.web.policy import Policy
    except ImportError as exc:
        raise exceptions.ConfigError(
            f'web_actions = true needs the Python module {exc.name}, which is '
            "not installed; install it with: pip install 'distperiodic[web]'"
        ) from exc
    return Policy(conf)
