# SPDX-License-Identifier: Apache-2.0
"""The answers to requests: pages, and the one line of an error."""

import argparse
import contextlib
import logging
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any
from typing import Self

import flask

from distperiodic import exceptions
from distperiodic.core import wording
from distperiodic.operator import auditing
from distperiodic.operator import member_rows
from distperiodic.operator import members
from distperiodic.web.access import Forbidden
from distperiodic.web.form_tokens import BadForm
from distperiodic.web.page import ActionNotice
from distperiodic.web.page import Addresses
from distperiodic.web.page import NotFound
from distperiodic.web.page import Page
from distperiodic.web.page import PageRequest
from distperiodic.web.page import PageSources
from distperiodic.web.query_filters import BadField
from distperiodic.web.query_filters import BadFilter
from distperiodic.web.query_filters import Incomplete

LOG = logging.getLogger(__name__)

# What the address or the filter names, and what cannot be read.
_NOT_FOUND = (NotFound, exceptions.UnknownTask)
_BAD = (BadFilter, exceptions.InvalidTask)


_NOT_POSSIBLE = 'This action is not possible now'


class NotDone(Exception):
    """An action was not carried out. The text is for the user.

    :param title: Title of the page.
    :param status: HTTP status.
    :param back: Address of the page that shows the target. Empty means that
        there is none.
    """

    def __init__(self, why: str, title: str, status: int, back: str = ''):
        super().__init__(why)
        self.title = title
        self.status = status
        self.back = back

    @classmethod
    def because(cls, error: exceptions.DistperiodicError, back: str) -> Self:
        """Return the error of an action that *error* has ended.

        :param back: Address of the page that shows the target.
        """
        if isinstance(error, exceptions.UnknownTask):
            return cls(str(error), 'Not found', 404)
        if isinstance(error, (
                exceptions.ConfigError, exceptions.InvalidTask)):
            return cls(str(error), _NOT_POSSIBLE, 409, back)
        # The answer to a commit may have been lost.
        return cls(f'{error}; look at the page of events before you act again:'
                   ' if it does not list this action, nothing was changed',
                   'The outcome of this action is unknown', 503, back)


def notice(request: PageRequest) -> ActionNotice | None:
    """Return the action that the address names, or None."""
    id_ = request.value('done')
    if not (id_ and request.sources.settings.connection):
        return None
    store = request.sources.store
    event = auditing.event(store, id_)
    if event is None:
        return None
    found = members.answers(store, id_)
    return ActionNotice(event, len(found), [
        f'{one.name} ({member_rows.role(one)})'
        for one in found if one.at is None])


@contextlib.contextmanager
def request(conf: Any, given: Sequence[tuple[str, str]]
            ) -> Iterator[PageRequest]:
    """Provide the current request, with sources that can only be read.

    :param given: Names and values in the query string.
    """
    with PageSources(argparse.Namespace(), lambda: conf) as sources:
        yield PageRequest(sources, Addresses(flask.request.root_path), given,
                          flask.g.access)


def guarded(call: Callable[[], Page], given: bool,
            acts: bool = False) -> tuple[Page, int]:
    """Return the page that *call* returns, or that of its error, and the HTTP
    status.

    :param given: True if the address has filters of a list.
    :param acts: True if the request is one for an action.
    """
    try:
        return call(), 200
    except _NOT_FOUND as exc:
        return sorry('Not found', exc), 404
    except _BAD as exc:
        return sorry('This filter cannot be used', exc), 400
    except Incomplete as exc:
        return sorry('This address is incomplete', exc), 400
    except BadField as exc:
        return sorry('This form cannot be used', exc), 400
    except BadForm as exc:
        return sorry('This form cannot be used', exc), 403
    except Forbidden as exc:
        return sorry('This is not allowed', exc), 403
    except NotDone as exc:
        return sorry(exc.title, exc, exc.back), exc.status
    except exceptions.ConfigError as exc:
        # A filter may need what the group does not have.
        return sorry(_NOT_POSSIBLE if acts else 'This cannot be shown',
                     exc), 400 if given else 503
    except exceptions.DistperiodicError as exc:
        return sorry('This cannot be read now', exc), 503
    except Exception:
        LOG.exception('page failed: address=%r', flask.request.path)
        return sorry('This page failed', (
            'the error is unexpected; the log of this server has its '
            'traceback')), 500


def render(page: Page) -> str:
    """Return a page as HTML."""
    text: str = flask.render_template(
        page.template, page=page, to=Addresses(flask.request.root_path),
        poll=flask.request.args.get('poll', ''), here=flask.request.path,
        query=flask.request.query_string.decode(errors='replace'),
        access=flask.g.access, **page.values)
    return text


def elsewhere(address: str) -> Page:
    """Return the answer that sends a browser to another page."""
    return Page('', '', {}, None, instead=address)


def sorry(title: str, why: object, back: str = '') -> Page:
    """Return the page of an error.

    :param back: Address of the page from which the user came. Empty means
        that it is unknown.
    """
    line = wording.one_line(why)
    return Page(title, 'sorry.html', {'why': line, 'back': back},
                {'error': line}, '?')
