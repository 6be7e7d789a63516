# SPDX-License-Identifier: Apache-2.0
"""Protection of actions against requests that other sites cause.

A form that acts contains a signed token. The token names the operator, the
action with its target, and the browser, which has a cookie that no other site
can read or send. The token also contains the id of the action, which the store
records only once, so that a form that is sent twice acts once.
"""

import hashlib
import secrets
import uuid
from typing import NamedTuple

import itsdangerous

#: Seconds for which a form can be sent.
AGE = 3600


class BadForm(Exception):
    """A form cannot be accepted. The text is for the user."""


class Form(NamedTuple):
    """The facts about a form that its token protects."""

    operator: str
    #: Value of the cookie of the browser.
    browser: str
    #: The action and its target.
    target: str
    #: Id of the action.
    action: str
    #: Number of rows that the form has shown. None means unknown.
    number: int | None


def new_browser() -> str:
    """Return the value of the cookie of a browser that has none."""
    return secrets.token_urlsafe(16)


def new_action() -> str:
    """Return the id of an action."""
    return uuid.uuid4().hex


class FormTokens:
    """Creates and checks the tokens of forms.

    :param secret: Key of the signatures. Empty means a new key, which only
        this process knows.
    """

    def __init__(self, secret: str):
        self._signer = itsdangerous.URLSafeTimedSerializer(
            secret or secrets.token_urlsafe(32), salt='distperiodic.form',
            signer_kwargs={'digest_method': hashlib.sha256,
                           'key_derivation': 'hmac'})

    def seal(self, form: Form) -> str:
        return str(self._signer.dumps(form))

    def open(self, token: str, expected: Form) -> Form:
        """Return the form of a token.

        :param expected: The operator, the browser and the target of this
            request.
        :raises BadForm: the token is not valid, is too old, or is that of
            another operator, browser or target.
        """
        try:
            form = Form(*self._signer.loads(token, max_age=AGE))
        except itsdangerous.SignatureExpired as exc:
            raise BadForm('this form is older than an hour') from exc
        except (itsdangerous.BadData, TypeError) as exc:
            raise BadForm(
                'the token of this form is missing or invalid, or another '
                'process has made it; several processes need the same '
                '[distperiodic] web_secret') from exc
        for name in 'operator', 'browser', 'target':
            if getattr(form, name) != getattr(expected, name):
                raise BadForm(f'this form is that of another {name}')
        return form


def is_foreign(site: str, origin: str, host: str) -> bool:
    """Return whether another site has caused a request.

    Browsers report the origin of each POST. Programs do not.

    :param site: Header ``Sec-Fetch-Site`` of the request. Empty means that it
        is missing.
    :param origin: Header ``Origin`` of the request.
    :param host: Host and port by which the client names this page.
    """
    if site:
        return site not in ('same-origin', 'none')
    return bool(origin) and (
        origin.partition('://')[2].lower() != host.lower())
