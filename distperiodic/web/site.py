# SPDX-License-Identifier: Apache-2.0
"""The addresses of the pages, and the answers to requests.

Each page has a twin for programs under ``/api``, which is the output of the
command with ``-f json``. Every answer has headers that forbid foreign content,
scripts in the page and frames; there are no cookies.
"""

import argparse
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING
from typing import Any

import flask
from werkzeug import exceptions as http
from werkzeug.routing import BaseConverter

from distperiodic import exceptions
from distperiodic.core import wording
from distperiodic.web import job_pages
from distperiodic.web import list_pages
from distperiodic.web import marks
from distperiodic.web import overview_page
from distperiodic.web import task_pages
from distperiodic.web.page import Addresses
from distperiodic.web.page import NotFound
from distperiodic.web.page import Page
from distperiodic.web.page import PageRequest
from distperiodic.web.page import PageSources
from distperiodic.web.query_filters import BadFilter

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication

LOG = logging.getLogger(__name__)

#: Headers of every answer.
HEADERS = {
    'Content-Security-Policy':
        "default-src 'none'; script-src 'self'; style-src 'self'; "
        "img-src 'self'; connect-src 'self'; form-action 'self'; "
        "base-uri 'none'; frame-ancestors 'none'",
    'X-Content-Type-Options': 'nosniff',
    'Referrer-Policy': 'no-referrer'}
#: Pages by the rule of their address. ``text`` is any text, in which the
#: address has ``/`` as ``%2F``.
PAGES: dict[str, Callable[..., Page]] = {
    '/': overview_page.overview,
    '/jobs': list_pages.jobs,
    '/jobs/<text:job>': job_pages.job,
    '/jobs/<text:job>/objects': job_pages.chosen_object,
    '/jobs/<text:job>/objects/<text:key>': job_pages.object_page,
    '/tasks': list_pages.tasks,
    '/tasks/<text:task>': task_pages.task,
    '/queues': list_pages.queues,
    '/pools': list_pages.pools,
    '/partitions': list_pages.partitions,
    '/members': list_pages.members,
    '/ring': list_pages.ring,
    '/events': list_pages.events,
}
#: The sections in the navigation, by the first part of their address.
SECTIONS = {'': 'Overview', 'jobs': 'Jobs', 'tasks': 'Tasks',
            'queues': 'Queues', 'pools': 'Pools',
            'partitions': 'Partitions', 'members': 'Members', 'ring': 'Ring',
            'events': 'Events'}
# What the address or the filter names, and what cannot be read.
_NOT_FOUND = (NotFound, exceptions.UnknownTask)
_BAD = (BadFilter, exceptions.InvalidTask)


class _Text(BaseConverter):  # type: ignore[misc,unused-ignore]
    """Any text, with slashes and ends of lines."""

    part_isolating = False
    regex = r'[\s\S]+?'
    weight = 200


def create(conf: Any) -> 'WSGIApplication':
    """Return the page; see :func:`distperiodic.web.application`.

    :raises ConfigError: an option cannot be used.
    """
    from distperiodic import opts
    opts.settings(conf)
    app = flask.Flask(__name__)
    app.url_map.converters['text'] = _Text
    app.url_map.merge_slashes = False
    app.url_map.strict_slashes = False
    # Programs read the keys in the order of the command.
    app.json.sort_keys = False  # type: ignore[attr-defined,unused-ignore]
    app.jinja_env.trim_blocks = app.jinja_env.lstrip_blocks = True
    app.jinja_env.filters.update(
        value=marks.value, visible=marks.visible, state=marks.state,
        instant=marks.instant, duration=marks.seconds_long)
    app.jinja_env.tests['number'] = marks.is_number
    app.jinja_env.globals['sections'] = SECTIONS
    for rule, page in PAGES.items():
        site = _Site(conf, page)
        app.add_url_rule(rule, f'page {rule}', site.html)
        app.add_url_rule(f'/api{rule}', f'api {rule}', site.json)
    app.register_error_handler(http.HTTPException, _refuse)
    app.after_request(_secure)
    found: WSGIApplication = app
    return found


def _secure(answer: Any) -> Any:
    answer.headers.update(HEADERS)
    answer.headers.setdefault('Cache-Control', 'no-store')
    return answer


class _Site:
    """One page, for people and for programs."""

    def __init__(self, conf: Any, page: Callable[..., Page]):
        self._conf = conf
        self._page = page

    def html(self, **names: str) -> Any:
        page, status = self._answer(names)
        return _render(page), status

    def json(self, **names: str) -> Any:
        page, status = self._answer(names)
        return flask.jsonify(page.data), status

    def _answer(self, names: dict[str, str]) -> tuple[Page, int]:
        """Return the page and the HTTP status."""
        given = [(name, value) for name, value in
                 flask.request.args.items(multi=True)]
        try:
            with PageSources(
                    argparse.Namespace(), lambda: self._conf) as sources:
                return self._page(PageRequest(
                    sources, Addresses(flask.request.root_path), given),
                    **names), 200
        except _NOT_FOUND as exc:
            return _sorry('Not found', exc), 404
        except _BAD as exc:
            return _sorry('This filter cannot be used', exc), 400
        except exceptions.ConfigError as exc:
            # A filter may need what the group does not have.
            return _sorry('This cannot be shown', exc), 400 if given else 503
        except exceptions.DistperiodicError as exc:
            return _sorry('This cannot be read now', exc), 503
        except Exception:
            LOG.exception('page failed: address=%r', flask.request.path)
            return _sorry('This page failed', (
                'the error is unexpected; the log of this server has its '
                'traceback')), 500


def _render(page: Page) -> str:
    text: str = flask.render_template(
        page.template, page=page, to=Addresses(flask.request.root_path),
        poll=flask.request.args.get('poll', ''), here=flask.request.path,
        query=flask.request.query_string.decode(errors='replace'),
        **page.values)
    return text


def _sorry(title: str, why: object) -> Page:
    line = wording.one_line(why)
    return Page(title, 'sorry.html', {'why': line}, {'error': line}, '?')


def _refuse(error: Any) -> Any:
    """Return the answer to a request that has no page."""
    page = _sorry(error.name, (
        f'there is no page {flask.request.path!r}'
        if error.code == 404 else error.description))
    answer = (flask.jsonify(page.data)
              if flask.request.path.startswith('/api')
              else flask.make_response(_render(page)))
    answer.status_code = error.code
    if error.code == 405:
        answer.headers['Allow'] = ', '.join(error.valid_methods or ())
    return answer
