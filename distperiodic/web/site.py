# SPDX-License-Identifier: Apache-2.0
"""The addresses of the pages, and the answers to requests.

Each page has a twin for programs under ``/api``, which is the output of the
command with ``-f json``. Every answer has headers that forbid foreign content,
scripts in the page and frames. Only the form of an action sets a cookie.
"""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING
from typing import Any

import flask
from werkzeug import exceptions as http
from werkzeug.routing import BaseConverter

from distperiodic.core import wording
from distperiodic.web import answers
from distperiodic.web import job_actions
from distperiodic.web import job_pages
from distperiodic.web import list_pages
from distperiodic.web import marks
from distperiodic.web import member_actions
from distperiodic.web import overview_page
from distperiodic.web import queue_actions
from distperiodic.web import task_actions
from distperiodic.web import task_pages
from distperiodic.web.access import Gate
from distperiodic.web.action_desk import ActionDesk
from distperiodic.web.actions import PageAction
from distperiodic.web.page import Page

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication

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
#: Actions by their name.
ACTIONS: dict[str, PageAction] = {one.verb.name: one for one in (
    job_actions.PauseJob(), job_actions.ResumeJob(),
    job_actions.TriggerJob(), job_actions.RequeueDead(),
    task_actions.CancelTasks(), task_actions.RetryTasks(),
    queue_actions.ResumeQueue(),
    queue_actions.HaltQueue(), queue_actions.PromoteWorker(),
    member_actions.DrainMembers(), member_actions.UndrainMembers())}


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
    gate = Gate(conf, opts.settings(conf))
    app = flask.Flask(__name__)
    app.url_map.converters['text'] = _Text
    app.url_map.merge_slashes = False
    app.url_map.strict_slashes = False
    # Programs read the keys in the order of the command.
    app.json.sort_keys = False  # type: ignore[attr-defined,unused-ignore]
    app.jinja_env.trim_blocks = app.jinja_env.lstrip_blocks = True
    app.jinja_env.filters.update(
        value=marks.value, visible=marks.visible, state=marks.state,
        instant=marks.instant, moment=wording.second,
        duration=marks.seconds_long, listed=wording.listed)
    app.jinja_env.tests['number'] = marks.is_number
    app.jinja_env.globals['sections'] = SECTIONS
    for rule, page in PAGES.items():
        site = _Site(conf, page)
        app.add_url_rule(rule, f'page {rule}', site.html)
        app.add_url_rule(f'/api{rule}', f'api {rule}', site.json)
    for name, action in ACTIONS.items():
        desk = ActionDesk(conf, action, gate)
        for rule in {action.verb.rule, action.verb.plain_rule}:
            app.add_url_rule(
                rule, f'action {name} {rule}', desk.html, methods=['POST'])
            app.add_url_rule(
                f'/api{rule}', f'api action {name} {rule}', desk.json,
                methods=['POST'])

    def identify() -> None:
        flask.g.access = gate.access(flask.request.environ)
    app.before_request(identify)
    app.register_error_handler(http.HTTPException, _refuse)
    app.after_request(functools.partial(_secure, gate))
    found: WSGIApplication = app
    return found


def _secure(gate: Gate, answer: Any) -> Any:
    answer.headers.update(HEADERS)
    if gate.open:
        # With no-referrer, a browser does not report the origin of a form.
        answer.headers['Referrer-Policy'] = 'same-origin'
    answer.headers.setdefault('Cache-Control', 'no-store')
    return answer


class _Site:
    """One page, for people and for programs."""

    def __init__(self, conf: Any, page: Callable[..., Page]):
        self._conf = conf
        self._page = page

    def html(self, **names: str) -> Any:
        page, status = self._answer(names)
        return answers.render(page), status

    def json(self, **names: str) -> Any:
        page, status = self._answer(names)
        return flask.jsonify(page.data), status

    def _answer(self, names: dict[str, str]) -> tuple[Page, int]:
        """Return the page and the HTTP status."""
        given = list(flask.request.args.items(multi=True))

        def read() -> Page:
            with answers.request(self._conf, given) as request:
                page = self._page(request, **names)
                page.notice = answers.notice(request)
                return page
        return answers.guarded(read, bool(given))


def _refuse(error: Any) -> Any:
    """Return the answer to a request that has no page."""
    page = answers.sorry(error.name, (
        f'there is no page {flask.request.path!r}'
        if error.code == 404 else error.description))
    answer = (flask.jsonify(page.data)
              if flask.request.path.startswith('/api')
              else flask.make_response(answers.render(page)))
    answer.status_code = error.code
    if error.code == 405:
        answer.headers['Allow'] = ', '.join(error.valid_methods or ())
    return answer
