# SPDX-License-Identifier: Apache-2.0
"""The answers to requests for one action.

A browser sends two requests: the first one gets the confirmation, and the form
of the confirmation sends the second one, which acts. A program sends one.
"""

import hashlib
import logging
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import flask

from distperiodic import exceptions
from distperiodic.adapters.local.process_slot import host_name
from distperiodic.operator import auditing
from distperiodic.operator.auditing import Actor
from distperiodic.web import answers
from distperiodic.web import form_tokens
from distperiodic.web.access import Forbidden
from distperiodic.web.access import Gate
from distperiodic.web.actions import Order
from distperiodic.web.actions import PageAction
from distperiodic.web.actions import PageActionSources
from distperiodic.web.actions import one_line
from distperiodic.web.answers import NotDone
from distperiodic.web.form_tokens import BadForm
from distperiodic.web.form_tokens import Form
from distperiodic.web.identity import Identity
from distperiodic.web.page import Addresses
from distperiodic.web.page import Page
from distperiodic.web.query_filters import BadField
from distperiodic.web.query_filters import BadFilter
from distperiodic.web.query_filters import Incomplete

LOG = logging.getLogger(__name__)

#: Cookie that tells browsers apart.
COOKIE = 'distperiodic-form'
#: Header that a program must send. A form of another site cannot.
HEADER = 'X-Requested-With'
#: Header with which a program repeats a request without repeating its action.
KEY = 'Idempotency-Key'


class ActionDesk:
    """One action, for people and for programs."""

    def __init__(self, conf: Any, action: PageAction, gate: Gate):
        self._conf = conf
        self._action = action
        self._gate = gate

    def html(self, **path: str) -> Any:
        """Answer the request of a browser."""
        page, status = answers.guarded(
            lambda: self._confirm(path), given=False, acts=True)
        if page.instead:
            return flask.redirect(page.instead, 303)
        return answers.render(page), status

    def json(self, **path: str) -> Any:
        """Answer the request of a program."""
        page, status = answers.guarded(
            lambda: self._obey(path), given=False, acts=True)
        return flask.jsonify(page.data), status

    def _confirm(self, path: Mapping[str, str]) -> Page:
        """Return the confirmation, or carry out what was confirmed."""
        request = flask.request
        names, operator = self._check(path)
        browser = request.cookies.get(COOKIE) or form_tokens.new_browser()
        form = Form(operator.id, browser, self._target(names),
                    form_tokens.new_action(), None)
        token = request.form.get('token')
        if token is not None:
            form = self._gate.tokens.open(token, form)
            self._act(operator, form.action, Order(
                names, request.form, form.number))
            back = self._action.back(Addresses(request.root_path), names)
            return answers.elsewhere(
                back + ('&' if '?' in back else '?')
                + urlencode({'done': form.action}))
        with answers.request(self._conf, ()) as asked:
            plan = self._action.plan(asked, names)
            page = Page(plan.question, 'confirm.html', {
                'plan': plan, 'action': self._action, 'operator': operator,
                'token': self._gate.tokens.seal(
                    form._replace(number=plan.number)),
                'address': asked.addresses.action(self._action.verb, names),
                'back': self._action.back(asked.addresses, names)},
                None, '?')

        def keep(answer: Any) -> Any:
            answer.set_cookie(
                COOKIE, browser, path=request.root_path or '/',
                httponly=True, samesite='Strict', secure=request.is_secure)
            return answer
        flask.after_this_request(keep)
        return page

    def _obey(self, path: Mapping[str, str]) -> Page:
        """Carry out what a program requests."""
        request = flask.request
        names, operator = self._check(path)
        if not request.headers.get(HEADER):
            raise BadForm(
                f'the header {HEADER} is missing; a program must send it, '
                'with any value, because no other site can')
        fields = request.get_json(silent=True) if request.is_json else (
            request.form)
        if not isinstance(fields, Mapping):
            raise BadField('the body is no JSON object')
        number = _number(fields.get('number'))
        with answers.request(self._conf, ()) as asked:
            plan = self._action.plan(asked, names)
        data: dict[str, Any] = {
            'verb': self._action.verb.name, 'number': plan.number,
            'effect': ' '.join(plan.effect), 'warnings': list(plan.warnings)}
        if fields.get('dry_run'):
            rows = plan.table and plan.table.data
            return Page('', '', {}, data | {'rows': rows})
        key = request.headers.get(KEY)
        id_ = form_tokens.new_action() if not key else hashlib.sha256(
            '\0'.join([operator.id, self._target(names), key]).encode()
            ).hexdigest()[:32]
        self._act(operator, id_, Order(names, {
            name: str(value) for name, value in fields.items()
            if value is not None}, number))
        try:
            with answers.request(self._conf, ()) as asked:
                event = auditing.event(asked.sources.store, id_)
        except exceptions.DistperiodicError as exc:
            # The action was carried out, so this is no error of it.
            LOG.debug('outcome not read: id=%s reason=%s', id_, exc)
            event = None
        return Page('', '', {}, data | {
            'id': id_, 'outcome': event and event.outcome})

    def _check(self, path: Mapping[str, str]
               ) -> tuple[dict[str, str], Identity]:
        """Return the names of the target, and the operator.

        :raises Forbidden: the request comes from another site, or the client
            may not carry out the action.
        :raises BadFilter: there is no such name.
        :raises Incomplete: a name is missing.
        """
        request = flask.request
        if not self._gate.open:
            raise Forbidden(flask.g.access.why_not)
        if form_tokens.is_foreign(
                request.headers.get('Sec-Fetch-Site', ''),
                request.headers.get('Origin', ''), request.host):
            raise Forbidden(
                'another site has sent this request; use the form of this '
                'page. If a proxy changes the header Host, see "Mount the '
                'page in a service"')
        names = dict(request.args.items()) | dict(path)
        for name in names:
            if name not in self._action.names:
                raise BadFilter(
                    f'there is no filter {name!r}; the filters are: '
                    + ', '.join(self._action.names))
            if not names[name]:
                raise BadFilter(f'{name} is empty; give a value, or omit it')
        # The policy reads all names, so a name without effect could let a
        # client act on what the policy does not allow.
        for name in self._action.alone:
            if name in names and len(names) > 1:
                raise BadFilter(
                    f'{name} excludes all other filters; omit '
                    + ', '.join(sorted(names.keys() - {name})))
        for name in self._action.needed:
            if not names.get(name):
                raise Incomplete(f'no {name} is named; give ?{name}=NAME')
        return names, flask.g.access.check(self._action.verb, names)

    def _target(self, names: Mapping[str, str]) -> str:
        """Return the action and its target as one text."""
        return f'{self._action.verb.name}?{urlencode(sorted(names.items()))}'

    def _act(self, operator: Identity, action: str, order: Order) -> None:
        """Carry out the action, unless it was carried out before.

        :param action: Id of the action.
        :raises NotDone: it cannot be carried out.
        :raises BadField: a field cannot be used.
        """
        why = one_line(order.fields.get('reason', ''))
        if self._action.reason_required and not why:
            raise BadField('this action needs a reason; go back and give one')
        host = host_name() if operator.of_process else (
            flask.request.remote_addr or host_name())
        with PageActionSources(
                self._conf,
                Actor(operator.name, host, why, action)) as sources:
            try:
                self._act_once(sources, order)
            except exceptions.DistperiodicError as exc:
                raise NotDone.because(exc, self._action.back(Addresses(
                    flask.request.root_path), order.names)) from exc

    def _act_once(self, sources: PageActionSources, order: Order) -> None:
        """Carry out the action, unless it was carried out before.

        :raises ConfigError: the action is not possible now, or was not
            possible when it was requested first.
        """
        try:
            self._action.act(sources, order)
        except auditing.AlreadyRecorded:
            id_ = sources.actor.action
            LOG.debug('action repeated: id=%s', id_)
            event = auditing.event(sources.store, id_)
            if event and event.not_done:
                raise exceptions.ConfigError(
                    f'{event.outcome}. This is the outcome of the first '
                    'request; to try again, open the confirmation again, or '
                    f'give another {KEY}') from None


def _number(given: Any) -> int | None:
    """Return the number of rows that a program has confirmed.

    :raises BadField: it is no number of rows.
    """
    if given is None:
        return None
    try:
        number = int(str(given))
    except ValueError:
        number = -1
    if number < 0:
        raise BadField(f'number is {given!r:.60}; give the number of a dry '
                       'run, or omit it')
    return number
